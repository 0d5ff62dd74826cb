//! Log lines of the test's thread.

use std::fmt::{self, Write as _};

use tokio::sync::watch;
use tracing::{
    Dispatch, Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span,
    subscriber::{DefaultGuard, set_default},
};

use crate::wait::until_value;

/// Capture of the agent's log lines of a level or above, until dropped.
#[derive(Debug)]
pub struct LogCapture {
    lines: watch::Receiver<Vec<String>>,
    _default: DefaultGuard,
    /// Second dispatcher. With a single one, tracing disables a callsite that another thread reaches first.
    _second: Dispatch,
}

struct Capture {
    level: Level,
    lines: watch::Sender<Vec<String>>,
}

struct Line(String);

// === impl LogCapture ===

impl LogCapture {
    /// Starts the capture.
    pub fn start(level: Level) -> Self {
        let (sender, lines) = watch::channel(Vec::new());
        let second = Dispatch::new(Capture { level, lines: watch::Sender::default() });
        let default = set_default(Capture { level, lines: sender });
        Self { lines, _default: default, _second: second }
    }

    /// All captured lines.
    pub fn lines(&self) -> Vec<String> {
        self.lines.borrow().clone()
    }

    /// Waits until at least `times` captured lines contain this text.
    pub async fn until(&self, times: usize, text: &str) {
        let awaited = format!("{times} log lines with {text:?}");
        let has_text = |line: &&String| line.contains(text);
        until_value(&awaited, &self.lines, |lines| lines.iter().filter(has_text).count() >= times)
            .await;
    }
}

/// True for log targets of the agent. The simulators log in the same process.
fn is_agent(target: &str) -> bool {
    target.starts_with("windlass_") && !target.contains("_sim")
}

// === impl Capture ===

impl Subscriber for Capture {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.level && is_agent(metadata.target())
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        self.lines.send_modify(|lines| lines.push(line.0));
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        write!(self.0, "{}={value:?} ", field.name()).expect("writing to a string never fails");
    }
}
