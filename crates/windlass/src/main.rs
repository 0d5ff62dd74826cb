//! `windlass`: the agent of a node, and the commands that show what it sees.

mod cli;
mod commands;
#[cfg(feature = "laboratory")]
mod demo;
mod exit;
mod logging;
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
