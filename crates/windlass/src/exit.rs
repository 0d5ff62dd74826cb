//! Exit codes and final error messages.

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

use windlass_host::causes;

/// Wrong command line or configuration, detected before any side effect (`EX_USAGE` of sysexits.h).
const EX_USAGE: u8 = 64;

/// Wrong command line or configuration.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(crate) struct UsageError(#[from] pub(crate) anyhow::Error);

/// Interruption by the named signal.
#[derive(Debug, thiserror::Error)]
#[error("interrupted by {0}")]
pub(crate) struct Interrupted(pub(crate) &'static str);

/// Marks an error that is already in the log.
#[derive(Debug, thiserror::Error)]
#[error("see the log")]
pub(crate) struct AlreadyLogged;

/// Exit code of a command: 0 success, 64 misuse, 130 or 143 interrupted, 1 other failures. A closed pipe, as with
/// `head`, is a success.
#[expect(clippy::print_stderr, reason = "a command prints its final error to the terminal")]
pub(crate) fn exit_code(outcome: anyhow::Result<()>) -> ExitCode {
    let Err(error) = outcome else { return ExitCode::SUCCESS };
    let pipe = error.downcast_ref::<io::Error>();
    if pipe.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
        return ExitCode::SUCCESS;
    }
    if !error.is::<AlreadyLogged>() {
        eprintln!("windlass: {}", causes(&*error));
    }
    match error.downcast_ref::<Interrupted>() {
        Some(interrupted) => ExitCode::from(interrupted.code()),
        None if error.is::<UsageError>() => ExitCode::from(EX_USAGE),
        None => ExitCode::FAILURE,
    }
}

/// Prints clap's message: help is a success, a wrong flag is misuse.
pub(crate) fn print_usage(error: &clap::Error) -> ExitCode {
    let result = error.print().and_then(|()| io::stdout().flush());
    if error.use_stderr() {
        // A failed write to stderr cannot be reported.
        return ExitCode::from(EX_USAGE);
    }
    exit_code(result.map_err(|error| output_error(&error).into()))
}

/// Error for an answer that could not be written.
pub(crate) fn output_error(error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot write the answer to the standard output: {error}"))
}

// === impl Interrupted ===

impl Interrupted {
    /// 128 plus the signal's number, the convention of shells.
    fn code(&self) -> u8 {
        if self.0 == "SIGINT" { 130 } else { 143 }
    }
}
