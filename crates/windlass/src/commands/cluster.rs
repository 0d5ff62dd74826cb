//! `windlass cluster`: the devices of all nodes.

mod simulate;

use anyhow::Result;

use crate::cli::ClusterCommand;

pub(super) fn run(command: ClusterCommand) -> Result<()> {
    match command {
        ClusterCommand::Simulate(args) => simulate::run(&args),
    }
}
