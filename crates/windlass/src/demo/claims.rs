//! `windlass demo --dra`: the demo with a cluster, allocating by claims.

mod candidates;
mod cluster;
mod event;
mod pod_spec;
mod script;
mod text;

use anyhow::{Context as _, Result};
use tokio::{task::JoinSet, time::Instant};
use windlass_cluster_sim::node;

pub(super) use cluster::{ClusterFixture, NODE};
pub(super) use pod_spec::{NAMESPACE, PodSpec, results};

use super::{
    event::Event,
    report::Reporter,
    scene::Scene,
    script::{discovered, ms},
    stage::Stage,
};
use script::ClaimScript;

#[derive(Debug)]
pub(super) struct DemoCluster {
    cluster: ClusterFixture,
    /// Task that deletes ResourceSlices as the kubelet does.
    tasks: JoinSet<()>,
}

// === impl DemoCluster ===

impl DemoCluster {
    pub(super) fn of(scene: &Scene) -> Result<Self> {
        let cluster = ClusterFixture::start(scene.policy.dra.driver.clone())?;
        Ok(Self { cluster, tasks: JoinSet::new() })
    }

    /// Kubeconfig and node name for the agent.
    pub(super) fn access(&self) -> (String, &'static str) {
        (self.cluster.kubeconfig(), NODE)
    }

    /// Lets the kubelet delete slices at its start, as a real one does.
    pub(super) fn mimic_wipes(&mut self, stage: &Stage) {
        let (calls, objects) = (stage.kubelet.calls(), self.cluster.objects());
        self.tasks.spawn(async move { node::follow_wipes(NODE, &calls, &objects).await });
    }

    pub(super) async fn play(
        &self,
        stage: &Stage,
        reporter: Reporter,
        begun: Instant,
    ) -> Result<()> {
        let inventory = discovered(stage).await.context("step discovery")?;
        reporter.tell(&Event::Discovered {
            inventory: inventory.clone(),
            took_ms: ms(stage.agent_started),
        })?;
        ClaimScript::new(stage, &self.cluster, reporter, begun).play(inventory).await
    }
}
