//! Command line of `windlass mps`.

use clap::{Args, Subcommand};

use super::HostArgs;

#[derive(Args, Debug)]
pub(crate) struct MpsArgs {
    #[command(subcommand)]
    pub(crate) command: MpsCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum MpsCommand {
    /// Stop all MPS daemons and make their GPUs available to every program. Programs that use a daemon end with it.
    /// Stop the agent first: it restarts missing daemons.
    Stop(HostArgs),
}
