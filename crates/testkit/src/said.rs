//! Log lines of the test's thread.

use std::fmt::{self, Write as _};

use tokio::sync::watch;
use tracing::{
    Dispatch, Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span,
    subscriber::{DefaultGuard, set_default},
};

use crate::wait::value;

/// Captured log lines of the agent, from one level on, until dropped.
#[derive(Debug)]
pub struct Said {
    lines: watch::Receiver<Vec<String>>,
    _listening: DefaultGuard,
    /// Second dispatcher. With a single one, tracing disables a callsite that another thread reaches first.
    _another: Dispatch,
}

struct Listener {
    level: Level,
    lines: watch::Sender<Vec<String>>,
}

struct Line(String);

// === impl Said ===

impl Said {
    /// Starts the capture.
    pub fn from(level: Level) -> Self {
        let (lines, said) = watch::channel(Vec::new());
        let another = Dispatch::new(Listener { level, lines: watch::Sender::default() });
        let listening = set_default(Listener { level, lines });
        Self { lines: said, _listening: listening, _another: another }
    }

    /// All lines so far.
    pub fn lines(&self) -> Vec<String> {
        self.lines.borrow().clone()
    }

    /// Waits until this text was logged this number of times.
    pub async fn until(&self, times: usize, text: &str) {
        let awaited = format!("{text:?} is logged, {times} times in all");
        let is_said = |line: &&String| line.contains(text);
        value(&awaited, &self.lines, |lines| lines.iter().filter(is_said).count() >= times).await;
    }
}

/// True for targets of the agent. The simulators log in the same process.
fn is_of_the_agent(target: &str) -> bool {
    target.starts_with("windlass_") && !target.contains("_sim")
}

// === impl Listener ===

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.level && is_of_the_agent(metadata.target())
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
        write!(self.0, "{}={value:?} ", field.name()).expect("a text takes all");
    }
}
