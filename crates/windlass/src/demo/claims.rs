//! `windlass demo --dra`: devices allocated by resource claims, in an embedded cluster.

mod candidates;
mod cluster;
mod event;
mod pod_spec;
mod script;
mod text;

use anyhow::{Context as _, Result};
use tokio::time::Instant;

pub(super) use cluster::ClusterFixture;
pub(super) use pod_spec::{NAMESPACE, PodSpec, allocation_results};

use super::{
    event::Event,
    report::Reporter,
    script::{elapsed_ms, wait_for_inventory},
    testbed::Testbed,
};
use script::ClaimScript;

pub(super) async fn run(
    testbed: &Testbed,
    cluster: &ClusterFixture,
    reporter: Reporter,
    start: Instant,
) -> Result<()> {
    let inventory = wait_for_inventory(testbed).await.context("step discovery")?;
    reporter.report(&Event::Discovered {
        inventory: inventory.clone(),
        took_ms: elapsed_ms(testbed.agent_started),
    })?;
    ClaimScript::new(testbed, cluster, reporter, start).run_steps(inventory).await
}
