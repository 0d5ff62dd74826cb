//! `windlass cluster`: the devices of all nodes.

mod doctor;
mod explain;
mod extend;
mod node;
mod page;
mod record;
mod simulate;
mod top;
mod view;

use anyhow::Result;

#[cfg(feature = "pipeline")]
pub(crate) use view::objects;

use crate::{cli::ClusterCommand, runtime::block_on};

pub(crate) fn run(command: ClusterCommand) -> Result<()> {
    match command {
        ClusterCommand::Simulate(args) => simulate::run(&args),
        ClusterCommand::Extend(args) => block_on(extend::run(args)),
        ClusterCommand::Explain(args) => block_on(explain::run(args)),
        ClusterCommand::Top(args) => block_on(top::run(args)),
        ClusterCommand::Node(args) => block_on(node::run(args)),
        ClusterCommand::Doctor(args) => block_on(doctor::run(args)),
        ClusterCommand::Page(args) => block_on(page::run(args)),
        ClusterCommand::Record(args) => block_on(record::run(args)),
    }
}
