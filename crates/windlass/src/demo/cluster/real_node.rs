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
    pub(super) last: Option<ResolvedGrant>,
}

// === impl AgentNode ===

impl AgentNode {
    /// Admits a pod that is bound to the node, starts its container, and compares its GPUs with the extender's
    /// choice.
    pub(super) async fn run(&mut self, testbed: &Testbed, pod: &Pod) -> Result<()> {
        let facts = PodFacts::of(pod);
        let bound = node::pod(&ScheduledPod { pod: pod.clone(), claims: Vec::new() });
        let uid = bound.uid.clone();
        let admission = testbed.kubelet.admit(bound).await?;
        let begun = Instant::now();
        let grant = loop {
            match testbed.kubelet.start_container(&uid, "main").await {
                Ok(grant) => break grant,
                Err(error) if begun.elapsed() > STEP_LIMIT => return Err(error.into()),
                // The agent answers "try again" until it has seen the pod.
                Err(_) => sleep(RETRY_INTERVAL).await,
            }
        };
        let edits = runtime::resolve(&testbed.cdi_dir(), &grant.cdi_devices)?;
        let given: BTreeSet<String> = match admission.allocation("main", WHOLE_GPU) {
            Some(given) => given.ids(),
            None => [device_of_share(&edits.env)?].into(),
        };
        let decided: BTreeSet<String> = facts.gpus.iter().map(ToString::to_string).collect();
        if given.len() != decided.len() {
            bail!(
                "pod {} has {given:?}, but the cluster half decided {decided:?}",
                facts.namespaced_name()
            );
        }
        if given == decided {
            self.as_chosen += 1;
        } else {
            self.on_other_gpus += 1;
        }
        self.last = Some(ResolvedGrant::new(grant.cdi_devices, edits, Vec::new()));
        Ok(())
    }
}

/// GPU of a share, from the environment variable `WINDLASS_SHARE`.
fn device_of_share(env: &[String]) -> Result<String> {
    let text = env.iter().find_map(|it| it.strip_prefix("WINDLASS_SHARE="));
    let share: Value = serde_json::from_str(text.context("the container has no share")?)?;
    Ok(share["device"].as_str().context("the share has no device")?.to_owned())
}
