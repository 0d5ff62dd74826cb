//! Entry point of `windlass`: the node agent and its commands.

#[cfg(not(all(feature = "cluster", feature = "laboratory", feature = "pipeline")))]
mod absent;
mod cli;
mod commands;
#[cfg(feature = "laboratory")]
mod demo;
mod dispatch;
#[cfg(feature = "laboratory")]
mod edge;
mod exit;
mod logging;
#[cfg(feature = "pipeline")]
mod measurement;
mod packed;
#[cfg(feature = "pipeline")]
mod precise;
mod runtime;
mod screen;
#[cfg(feature = "laboratory")]
mod simulated;
mod stop;

use std::process::ExitCode;

fn main() -> ExitCode {
    match cli::Cli::read() {
        Ok(cli) => exit::exit_code(dispatch::run(cli.command)),
        Err(error) => exit::print_usage(&error),
    }
}
