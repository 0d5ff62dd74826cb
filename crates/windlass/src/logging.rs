//! Where events go: the standard error stream, as text for people or JSON for collectors.

use std::{
    fs::File,
    io::{self, IsTerminal as _},
    path::Path,
    sync::Mutex,
};

use clap::ValueEnum;
use tracing_subscriber::{
    Layer as _, filter::Targets, fmt, layer::SubscriberExt as _, util::SubscriberInitExt as _,
};

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// One line of text per event.
    #[default]
    Text,
    /// One JSON object per event.
    Json,
}

/// Logs to the standard error stream.
pub(crate) fn to_stderr(format: LogFormat, filter: Targets) {
    let layer = fmt::layer().with_writer(io::stderr).with_ansi(io::stderr().is_terminal());
    let registry = tracing_subscriber::registry();
    match format {
        LogFormat::Text => registry.with(layer.with_target(false).with_filter(filter)).init(),
        LogFormat::Json => {
            registry.with(layer.json().flatten_event(true).with_filter(filter)).init();
        }
    }
}

/// Logs to a file: the terminal belongs to what the command shows.
pub(crate) fn to_file(path: &Path, filter: Targets) -> io::Result<()> {
    let file = Mutex::new(File::create(path)?);
    let layer = fmt::layer().with_writer(file).with_ansi(false).with_target(false);
    tracing_subscriber::registry().with(layer.with_filter(filter)).init();
    Ok(())
}
