//! Starts and ends of pods: with claims, with devices of the device plugin, deleted in order and by force.

use windlass_cluster_sim::{cluster::ScheduledPod, node as bound};
use windlass_kubelet_sim::{Container, Pod};
use windlass_testkit::{GPU, until};

use super::Run;
use crate::claims::{
    objects::{NAMESPACE, claim_template, gpus, pod},
    world::{World, uid},
};

/// Maximum number of simultaneous pods, more than there are GPUs.
pub(super) const MAX_PODS: usize = 12;

/// Maximum number of GPUs per pod.
const MAX_GPUS: usize = 3;

/// A started pod.
pub(super) enum StartedPod {
    /// With a claim; its containers may wait for it.
    Claim(Box<ScheduledPod>),
    /// With devices of the device plugin, by its UID.
    Plugin(String),
}

impl Run {
    pub(super) fn schedule(&mut self) -> Option<ScheduledPod> {
        self.created += 1;
        let name = format!("c{}", self.created);
        let template = template_of(1 + self.rng.below(MAX_GPUS));
        let pod = pod((NAMESPACE, &name), &["main"], ("resourceClaimTemplateName", &template));
        let scheduled = self.world.cluster.schedule(&pod).ok();
        if scheduled.is_none() {
            self.world.cluster.delete_pod(NAMESPACE, &name).expect("it waits");
        }
        scheduled
    }

    fn plugin_pod(&mut self) -> Pod {
        self.created += 1;
        let count = 1 + self.rng.below(MAX_GPUS);
        let main = Container::new("main").limit(GPU, count as u64);
        Pod::new(format!("d{}", self.created)).container(main)
    }

    pub(super) async fn start_claim_pod(&mut self) {
        let Some(scheduled) = self.schedule() else { return };
        let started = start_claim(&self.world, &scheduled).await;
        self.record_claim_pod(scheduled, &started);
    }

    pub(super) async fn start_plugin_pod(&mut self) {
        let pod = self.plugin_pod();
        let uid = pod.uid.clone();
        let admitted = self.world.admit(pod).await.is_ok();
        self.record_plugin_pod(uid, admitted).await;
    }

    /// Starts a pod with a claim and one of the device plugin, each repeated until it runs.
    pub(super) async fn start_both(&mut self) {
        let scheduled = self.schedule().expect("every device is free");
        self.world.start(&scheduled).await;
        self.started.push(StartedPod::Claim(Box::new(scheduled)));
        self.check();
        let pod = self.plugin_pod();
        let world = &self.world;
        until("a pod of the device plugin is admitted", async || {
            let refused = world.admit(pod.clone()).await.err();
            if refused.is_some() {
                world.kubelet.delete_pod(&pod.uid).await;
            }
            refused.map_or(Ok(()), Err)
        })
        .await;
        world.try_start(&pod.uid, "main").await.expect("an admitted pod starts");
        self.started.push(StartedPod::Plugin(pod.uid));
        self.check();
    }

    /// Starts one of each kind at the same time.
    pub(super) async fn start_both_at_once(&mut self) {
        let pod = self.plugin_pod();
        let uid = pod.uid.clone();
        let Some(scheduled) = self.schedule() else { return };
        let (started, admitted) =
            tokio::join!(start_claim(&self.world, &scheduled), self.world.admit(pod));
        self.record_claim_pod(scheduled, &started);
        self.record_plugin_pod(uid, admitted.is_ok()).await;
    }

    pub(super) fn record_claim_pod(
        &mut self,
        scheduled: ScheduledPod,
        started: &Result<(), String>,
    ) {
        self.tally.claims += usize::from(started.is_ok());
        self.tally.refused_claims += usize::from(started.is_err());
        let uids = scheduled.claims.iter().filter_map(|claim| claim.metadata.uid.as_deref());
        let uids: Vec<_> = uids.collect();
        self.log(format!("claim {uids:?} started: {started:?}"));
        self.started.push(StartedPod::Claim(Box::new(scheduled)));
    }

    async fn record_plugin_pod(&mut self, uid: String, admitted: bool) {
        self.tally.plugin_pods += usize::from(admitted);
        self.tally.refused_pods += usize::from(!admitted);
        self.log(format!("{uid} admitted: {admitted}"));
        if admitted {
            let started = self.world.try_start(&uid, "main").await;
            started.expect("an admitted pod starts");
            self.started.push(StartedPod::Plugin(uid));
        } else {
            self.world.kubelet.delete_pod(&uid).await;
        }
    }

    pub(super) async fn end_random_pod(&mut self) {
        if self.started.is_empty() {
            return;
        }
        let index = self.rng.below(self.started.len());
        match self.started.swap_remove(index) {
            StartedPod::Plugin(uid) => {
                self.log(format!("{uid} ends"));
                self.world.kubelet.delete_pod(&uid).await;
            }
            StartedPod::Claim(scheduled) if self.rng.below(3) == 0 => {
                self.force_delete(&scheduled).await;
            }
            StartedPod::Claim(scheduled) => {
                self.log(format!("{:?} ends", scheduled.pod.metadata.name));
                self.world.end(&scheduled).await;
            }
        }
    }

    /// Deletes the object first, so that another pod is scheduled to devices that the containers still use.
    async fn force_delete(&mut self, scheduled: &ScheduledPod) {
        let name = scheduled.pod.metadata.name.as_deref().unwrap_or_default();
        self.log(format!("{name} is deleted by force"));
        self.world.cluster.delete_pod(NAMESPACE, name).expect("it was there");
        self.start_claim_pod().await;
        self.check();
        self.world.kubelet.delete_pod(&uid(scheduled)).await;
    }
}

/// Templates of the claims.
pub(super) fn put_templates(world: &World) {
    for count in 1..=MAX_GPUS {
        world.objects().put(&claim_template(NAMESPACE, &template_of(count), &gpus(count)));
    }
}

fn template_of(count: usize) -> String {
    format!("gpus-{count}")
}

pub(super) async fn start_claim(world: &World, scheduled: &ScheduledPod) -> Result<(), String> {
    world.admit(bound::pod(scheduled)).await.expect("no limits");
    world.try_start(&uid(scheduled), "main").await.map(drop)
}
