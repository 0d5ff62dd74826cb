//! `windlass demo --dra`: the same stage with a cluster around it, and the story of claims.

mod cluster;
mod event;
mod ground;
mod script;
mod tell;
mod wish;

use anyhow::{Context as _, Result};
use tokio::{task::JoinSet, time::Instant};
use windlass_cluster_sim::node;

pub(super) use cluster::{Cluster, NODE};
pub(super) use wish::{NAMESPACE, Wish, results};

use super::{
    event::Event as Common,
    scene::Scene,
    script::{discovered, ms},
    stage::Stage,
    tell::Teller,
};
use script::Story;

/// The cluster of a demo that is about claims.
#[derive(Debug)]
pub(super) struct Surroundings {
    cluster: Cluster,
    /// The kubelet's deeds at the API server.
    deeds: JoinSet<()>,
}

// === impl Surroundings ===

impl Surroundings {
    pub(super) fn of(scene: &Scene) -> Result<Self> {
        let cluster = Cluster::start(scene.driver.clone())?;
        Ok(Self { cluster, deeds: JoinSet::new() })
    }

    /// What the agent needs to find the cluster.
    pub(super) fn access(&self) -> (String, &'static str) {
        (self.cluster.kubeconfig(), NODE)
    }

    /// Has the kubelet of a stage delete slices as a real one does.
    pub(super) fn attend(&mut self, stage: &Stage) {
        let (calls, objects) = (stage.kubelet.calls(), self.cluster.objects());
        self.deeds.spawn(async move { node::follow_wipes(NODE, &calls, &objects).await });
    }

    /// Plays the story.
    pub(super) async fn play(&self, stage: &Stage, teller: Teller, begun: Instant) -> Result<()> {
        let inventory = discovered(stage).await.context("step discovery")?;
        let (told, took_ms) = (inventory.clone(), ms(stage.agent_started));
        teller.tell(&Common::Discovered { inventory: told, took_ms })?;
        Story::new((stage, &self.cluster), teller, begun).play(inventory).await
    }
}
