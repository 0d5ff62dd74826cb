//! Logging to stderr, as text for people or JSON for collectors.

mod fields;

use std::io::{self, IsTerminal as _};

use clap::ValueEnum;
use tracing_subscriber::{
    Layer as _,
    filter::{LevelFilter, Targets},
    fmt,
    layer::SubscriberExt as _,
    util::SubscriberInitExt as _,
};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// One line of text per event.
    #[default]
    Text,
    /// One JSON object per event.
    Json,
}

/// Target under which kube logs each failed request. The callers in this project log the failure too, once and with its
/// purpose.
const FAILED_REQUEST_TARGET: &str = "kube_client::client::builder";

pub(crate) fn to_stderr(format: LogFormat, filter: Targets) {
    let filter = without_repeated_errors(filter);
    let layer = fmt::layer().with_writer(io::stderr).with_ansi(io::stderr().is_terminal());
    let registry = tracing_subscriber::registry();
    match format {
        LogFormat::Text => {
            let layer = layer.with_target(false).fmt_fields(fields::as_text());
            registry.with(layer.with_filter(filter)).init();
        }
        LogFormat::Json => {
            registry.with(layer.json().flatten_event(true).with_filter(filter)).init();
        }
    }
}

/// Logs to a file, because the command owns the terminal.
#[cfg(feature = "laboratory")]
pub(crate) fn to_file(path: &std::path::Path, filter: Targets) -> io::Result<()> {
    let file = std::sync::Mutex::new(std::fs::File::create(path)?);
    let filter = without_repeated_errors(filter);
    let layer = fmt::layer().with_writer(file).with_ansi(false).with_target(false);
    let layer = layer.fmt_fields(fields::as_text());
    tracing_subscriber::registry().with(layer.with_filter(filter)).init();
    Ok(())
}

/// Mutes kube's message about each failed request, unless the filter names kube or enables debug messages there.
fn without_repeated_errors(filter: Targets) -> Targets {
    let names_kube = filter.iter().any(|(target, _)| target.starts_with("kube"))
        || filter.would_enable(FAILED_REQUEST_TARGET, &tracing::Level::DEBUG);
    if names_kube { filter } else { filter.with_target(FAILED_REQUEST_TARGET, LevelFilter::OFF) }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::filter::LevelFilter;

    use super::*;

    #[test]
    fn failed_requests_of_kube_are_logged_only_if_the_filter_names_them() {
        let enables = |levels: &str| {
            let filter = without_repeated_errors(levels.parse().expect("levels"));
            filter.would_enable(FAILED_REQUEST_TARGET, &tracing::Level::ERROR)
        };
        assert!(!enables("info") && !enables("windlass_dra=debug,info"));
        assert!(enables("kube_client=debug,info") && enables("kube=info") && enables("debug"));
        let filter = without_repeated_errors(Targets::new().with_default(LevelFilter::INFO));
        assert!(filter.would_enable("kube_client::config", &tracing::Level::WARN));
    }
}
