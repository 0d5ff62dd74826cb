//! Exit codes, and the last words before them.

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

use windlass_host::causes;

/// The command line or the configuration is wrong; nothing was touched (`EX_USAGE` of sysexits.h).
const USAGE: u8 = 64;

/// An error that is the caller's to mend before anything can be tried.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(crate) struct Misuse(#[from] pub(crate) anyhow::Error);

/// A command that was asked to end before it was done, by the signal of that name.
#[derive(Debug, thiserror::Error)]
#[error("interrupted by {0}")]
pub(crate) struct Interrupted(pub(crate) &'static str);

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
    match error.downcast_ref::<Interrupted>() {
        Some(interrupted) => ExitCode::from(interrupted.code()),
        None if error.is::<Misuse>() => ExitCode::from(USAGE),
        None => ExitCode::FAILURE,
    }
}

/// Ends with clap's own words: help is a success, a wrong flag is misuse.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    let written = error.print().and_then(|()| io::stdout().flush());
    if error.use_stderr() {
        // Nothing is left to be told to, if the terminal is gone.
        return ExitCode::from(USAGE);
    }
    report(written.map_err(|error| unwritten(&error).into()))
}

/// What became of an answer that nobody got.
pub(crate) fn unwritten(error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot write the answer to the standard output: {error}"))
}

// === impl Interrupted ===

impl Interrupted {
    /// As shells tell of a program that a signal ended: 128 and its number.
    fn code(&self) -> u8 {
        if self.0 == "SIGINT" { 130 } else { 143 }
    }
}
