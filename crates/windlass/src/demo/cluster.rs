//! `windlass demo --cluster`: many nodes, the extender that places pods on them, and the agent on one of them.
//!
//! The nodes but one are objects of an embedded API server. The extender is the real one, over HTTP. The same pods are
//! also placed as kube-scheduler does alone, for comparison.

mod account;
mod event;
mod fleet;
mod pods;
mod real_node;
mod replica;
mod script;
mod text;

use anyhow::Result;
use tokio::time::Instant;

pub(super) use fleet::Fleet;

use super::{report::Reporter, stage::Stage};
use script::ClusterScript;

pub(super) async fn play(
    stage: &Stage,
    fleet: &Fleet,
    reporter: Reporter,
    begun: Instant,
) -> Result<()> {
    let mut script = ClusterScript::new(stage, fleet, reporter, begun);
    Box::pin(script.play()).await
}
