//! The command line of `windlass config`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Args, Debug)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    pub(crate) command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Show every mistake in configuration files, as file:line. Files of NVIDIA's plugin are taken
    /// too.
    Check {
        /// The files.
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Fail for warnings too.
        #[arg(long)]
        strict: bool,
    },
    /// Print the configuration file of NVIDIA's plugin in Windlass's format.
    Convert {
        /// The file.
        file: PathBuf,
    },
    /// Print the JSON schema of the configuration file.
    Schema,
}
