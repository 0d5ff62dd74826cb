//! The action of each command.

use anyhow::Result;

use crate::{
    cli::{Command, LONG_VERSION},
    commands,
    runtime::block_on,
    screen::print_line,
};
#[cfg(feature = "laboratory")]
use {crate::demo, anyhow::Context as _};

/// Carries out a command.
pub(crate) fn run(command: Command) -> Result<()> {
    match command {
        Command::Node(args) => block_on(commands::node::run(*args)),
        Command::Probe(args) => block_on(commands::probe::run(args)),
        Command::Devices(args) => block_on(commands::devices::run(args)),
        Command::Top(args) => block_on(commands::top::run(args)),
        Command::Topo(args) => block_on(commands::topo::run(args)),
        Command::Doctor(args) => block_on(commands::doctor::run(*args)),
        Command::Explain(args) => block_on(commands::explain::run(*args)),
        Command::Labels(args) => block_on(commands::labels::run(args)),
        Command::Cdi(args) => block_on(commands::cdi::run(args.command)),
        Command::Config(args) => commands::config::run(args.command),
        #[cfg(feature = "cluster")]
        Command::Cluster(args) => commands::cluster::run(args.command),
        #[cfg(feature = "pipeline")]
        Command::Pipeline(args) => commands::pipeline::run(args.command),
        #[cfg(feature = "pipeline")]
        Command::Stage(args) => block_on(commands::stage::run(*args)),
        #[cfg(feature = "laboratory")]
        Command::Demo(args) => block_on(demo::run(args)),
        Command::Host(args) => block_on(commands::host::run(args.command)),
        Command::Xids(args) => commands::xids::run(&args),
        Command::Mps(args) => block_on(commands::mps::run(args)),
        Command::Scrub(args) => commands::scrub::run(args),
        #[cfg(feature = "laboratory")]
        Command::Kubelet(args) => block_on(commands::kubelet::run(args)),
        #[cfg(feature = "laboratory")]
        Command::Conformance(args) => block_on(commands::conformance::run(args)),
        #[cfg(feature = "laboratory")]
        Command::Machine(args) => commands::machine::run(args.command),
        #[cfg(feature = "laboratory")]
        Command::Completions(args) => Ok(print_line(args.script())?),
        #[cfg(feature = "laboratory")]
        Command::Man(args) => args.write().context("cannot write the manual pages"),
        Command::Version => Ok(print_line(format_args!("windlass {LONG_VERSION}"))?),
        #[cfg(not(feature = "cluster"))]
        Command::ClusterHalf { .. } => Err(crate::absent::no_cluster_half()),
        #[cfg(not(feature = "pipeline"))]
        Command::Pipelines { .. } => Err(crate::absent::no_pipelines()),
        #[cfg(not(feature = "laboratory"))]
        Command::Laboratory { .. } => Err(crate::absent::no_laboratory()),
    }
}
