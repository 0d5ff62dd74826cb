//! Entry point of `windlass`, the agent of a node with its commands.

mod cli;
mod commands;
#[cfg(feature = "laboratory")]
mod demo;
mod exit;
mod logging;
mod packed;
mod screen;
#[cfg(feature = "laboratory")]
mod simulated;
mod stop;

use std::process::ExitCode;

fn main() -> ExitCode {
    match cli::Cli::read() {
        Ok(cli) => exit::report(commands::run(cli.command)),
        Err(error) => exit::usage(&error),
    }
}
