//! `windlass cluster node`: one node, as its agent sees it.

use anyhow::Result;
use windlass_control::agents::AgentClient;

use crate::{cli::ClusterNodeArgs, commands::top};

pub(super) async fn run(args: ClusterNodeArgs) -> Result<()> {
    let agents = AgentClient::connect(args.kubeconfig, &args.agents).await?;
    let state = async || top::read(&agents.state(&args.node).await?);
    top::show(state, args.once).await
}
