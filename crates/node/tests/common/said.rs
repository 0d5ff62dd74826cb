//! What is logged by the thread of a test, as lines.

use std::{
    fmt::{self, Write as _},
    sync::{Arc, Mutex},
};

use tracing::{
    Dispatch, Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span,
    subscriber::{DefaultGuard, set_default},
};

/// Lines of the agent's log from one level on, for as long as it is listened.
pub(crate) struct Said {
    lines: Arc<Mutex<Vec<String>>>,
    _listening: DefaultGuard,
    /// Where there is only one listener, a line that another thread comes to first counts as heard by nobody.
    _another: Dispatch,
}

struct Listener {
    level: Level,
    lines: Arc<Mutex<Vec<String>>>,
}

struct Line(String);

// === impl Said ===

impl Said {
    /// Listens from now on.
    pub(crate) fn from(level: Level) -> Self {
        let lines = Arc::<Mutex<Vec<String>>>::default();
        let another = Dispatch::new(Listener { level, lines: Arc::default() });
        let listener = Listener { level, lines: Arc::clone(&lines) };
        Self { lines, _listening: set_default(listener), _another: another }
    }

    /// All lines so far.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.lines.lock().expect("nobody panicked").clone()
    }
}

// === impl Listener ===

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.level && metadata.target().starts_with("windlass_node")
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        self.lines.lock().expect("nobody panicked").push(line.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        write!(self.0, "{}={value:?} ", field.name()).expect("a text takes all");
    }
}
