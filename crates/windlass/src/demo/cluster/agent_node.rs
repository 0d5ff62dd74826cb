//! Node with the agent and an embedded kubelet, which runs the pods that are bound to it.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;
use tokio::time::{Instant, sleep};
use windlass_cluster_sim::{cluster::ScheduledPod, node};
use windlass_control::facts::PodFacts;

use super::pods::WHOLE_GPU;
use crate::demo::{
    event::ResolvedGrant,
    runtime,
    script::{RETRY_INTERVAL, STEP_LIMIT},
    testbed::Testbed,
};

/// Results of the pods that the node has run.
#[derive(Debug, Default)]
pub(super) struct AgentNode {
    /// Pods whose containers have the GPUs that the extender chose.
    pub(super) as_chosen: usize,
    /// Pods whose containers have other GPUs of the node.
    pub(super) on_other_gpus: usize,
    /// Grant of the last pod's container.
    pub(super) last_grant: Option<ResolvedGrant>,
}

// === impl AgentNode ===

impl AgentNode {
    /// Admits a pod that is bound to the node, starts its container, and compares its GPUs with the extender's
    /// choice.
    pub(super) async fn run(&mut self, testbed: &Testbed, pod: &Pod) -> Result<()> {
        let facts = PodFacts::of(pod);
        let bound_pod = node::pod(&ScheduledPod { pod: pod.clone(), claims: Vec::new() });
        let uid = bound_pod.uid.clone();
        let admission = testbed.kubelet.admit(bound_pod).await?;
        let start = Instant::now();
        let grant = loop {
            match testbed.kubelet.start_container(&uid, "main").await {
                Ok(grant) => break grant,
                Err(error) if start.elapsed() > STEP_LIMIT => return Err(error.into()),
                // The agent answers "try again" until it has seen the pod.
                Err(_) => sleep(RETRY_INTERVAL).await,
            }
        };
        let edits = runtime::resolve(&testbed.cdi_dir(), &grant.cdi_devices)?;
        let container_gpus: BTreeSet<String> = match admission.allocation("main", WHOLE_GPU) {
            Some(container_gpus) => container_gpus.ids(),
            None => [device_of_share(&edits.env)?].into(),
        };
        let chosen_gpus: BTreeSet<String> = facts.gpus.iter().map(ToString::to_string).collect();
        if container_gpus.len() != chosen_gpus.len() {
            bail!(
                "pod {} has {container_gpus:?}, but the cluster half decided {chosen_gpus:?}",
                facts.namespaced_name()
            );
        }
        if container_gpus == chosen_gpus {
            self.as_chosen += 1;
        } else {
            self.on_other_gpus += 1;
        }
        self.last_grant = Some(ResolvedGrant::new(grant.cdi_devices, edits, Vec::new()));
        Ok(())
    }
}

/// GPU of a share, from the environment variable `WINDLASS_SHARE`.
fn device_of_share(env: &[String]) -> Result<String> {
    let text = env.iter().find_map(|variable| variable.strip_prefix("WINDLASS_SHARE="));
    let share: Value = serde_json::from_str(text.context("the container has no share")?)?;
    Ok(share["device"].as_str().context("the share has no device")?.to_owned())
}
