//! Command line of `windlass man`: the manual pages of all commands.

use std::{fs, io, path::PathBuf};

use clap::{Args, CommandFactory as _};

use super::Cli;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  windlass man /usr/local/share/man/man1; man windlass-cluster-top")]
pub(crate) struct ManArgs {
    /// Folder for the pages, one per command; created if missing.
    folder: PathBuf,
}

// === impl ManArgs ===

impl ManArgs {
    /// Writes the pages.
    pub(crate) fn write(&self) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        clap_mangen::generate_to(Cli::command().disable_help_subcommand(true), &self.folder)
    }
}
