//! `windlass demo --cluster`: many nodes, the extender that places pods on them, and the agent on one of them.
//!
//! Every node is an object of an embedded API server; one also has an agent and an embedded kubelet. The extender is
//! the real one, called over HTTP. For comparison, the demo places the same pods as kube-scheduler does by default.

mod agent_node;
mod event;
mod fleet;
mod pods;
mod policy_state;
mod replica;
mod script;
mod text;

use anyhow::Result;
use tokio::time::Instant;

pub(super) use fleet::Fleet;

use super::{report::Reporter, testbed::Testbed};
use script::ClusterScript;

pub(super) async fn run(
    testbed: &Testbed,
    fleet: &Fleet,
    reporter: Reporter,
    start: Instant,
) -> Result<()> {
    let mut script = ClusterScript::new(testbed, fleet, reporter, start);
    Box::pin(script.run_steps()).await
}
