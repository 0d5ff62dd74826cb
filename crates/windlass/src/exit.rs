//! Exit codes, and the last words before them.

use std::{io, process::ExitCode};

use windlass_node::causes;

/// The command line or the configuration is wrong; nothing was touched (`EX_USAGE` of sysexits.h).
const USAGE: u8 = 64;

/// An error that is the caller's to mend before anything can be tried.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(crate) struct Misuse(#[from] pub(crate) anyhow::Error);

/// Marks an error that stands in the log already, where the last words of a command would repeat it.
#[derive(Debug, thiserror::Error)]
#[error("see the log")]
pub(crate) struct Logged;

/// Ends a command: 0 when it did what it should, 64 for misuse, 1 for anything else. A reader that
/// closes our output early, such as `head`, is no failure.
#[expect(
    clippy::print_stderr,
    reason = "the last words of a command go to the person who typed it"
)]
pub(crate) fn report(outcome: anyhow::Result<()>) -> ExitCode {
    let Err(error) = outcome else { return ExitCode::SUCCESS };
    let pipe = error.downcast_ref::<io::Error>();
    if pipe.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
        return ExitCode::SUCCESS;
    }
    if !error.is::<Logged>() {
        eprintln!("windlass: {}", causes(&*error));
    }
    if error.is::<Misuse>() { ExitCode::from(USAGE) } else { ExitCode::FAILURE }
}

/// Ends with clap's own words: help is a success, a wrong flag is misuse.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    // Nothing is left to be told to, if the terminal is gone.
    let _ = error.print();
    if error.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS }
}
