//! `windlass demo --dra`: the demo with a cluster, allocating by claims.

mod candidates;
mod cluster;
mod event;
mod pod_spec;
mod script;
mod text;

use anyhow::{Context as _, Result};
use tokio::time::Instant;

pub(super) use cluster::ClusterFixture;
pub(super) use pod_spec::{NAMESPACE, PodSpec, results};

use super::{
    event::Event,
    report::Reporter,
    script::{discovered, ms},
    stage::Stage,
};
use script::ClaimScript;

pub(super) async fn play(
    stage: &Stage,
    cluster: &ClusterFixture,
    reporter: Reporter,
    begun: Instant,
) -> Result<()> {
    let inventory = discovered(stage).await.context("step discovery")?;
    reporter.tell(&Event::Discovered {
        inventory: inventory.clone(),
        took_ms: ms(stage.agent_started),
    })?;
    ClaimScript::new(stage, cluster, reporter, begun).play(inventory).await
}
