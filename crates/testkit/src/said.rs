//! What is logged by the thread of a test, as lines.

use std::fmt::{self, Write as _};

use tokio::sync::watch;
use tracing::{
    Dispatch, Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span,
    subscriber::{DefaultGuard, set_default},
};

use crate::wait::value;

/// Lines of the agent's log from one level on, for as long as it is listened.
#[derive(Debug)]
pub struct Said {
    lines: watch::Receiver<Vec<String>>,
    _listening: DefaultGuard,
    /// Where there is only one listener, a line that another thread comes to first counts as heard by nobody.
    _another: Dispatch,
}

struct Listener {
    level: Level,
    lines: watch::Sender<Vec<String>>,
}

struct Line(String);

// === impl Said ===

impl Said {
    /// Listens from now on.
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

    /// Waits until this was said so many times.
    pub async fn until(&self, times: usize, text: &str) {
        let awaited = format!("{text:?} is logged, {times} times in all");
        let is_said = |line: &&String| line.contains(text);
        value(&awaited, &self.lines, |lines| lines.iter().filter(is_said).count() >= times).await;
    }
}

/// The simulators run in the same process.
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
