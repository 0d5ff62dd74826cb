//! The node with an agent and a kubelet: it runs the pods that are bound to it.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;
use tokio::time::{Instant, sleep};
use windlass_cluster_sim::{cluster::Scheduled, node};
use windlass_control::facts::PodFacts;

use super::pods::WHOLE;
use crate::demo::{
    event::Gets,
    runtime,
    script::{RETRY, STEP_LIMIT},
    stage::Stage,
};

/// Pods that the node has run.
#[derive(Debug, Default)]
pub(super) struct RealNode {
    /// Pods whose containers have the GPUs that were decided.
    pub(super) as_decided: usize,
    /// Pods with other GPUs of the node than decided.
    pub(super) elsewhere: usize,
    /// The container of the last pod.
    pub(super) last: Option<Gets>,
}

// === impl RealNode ===

impl RealNode {
    /// Admits a pod that is bound to the node, starts its container, and compares its GPUs with the decision.
    pub(super) async fn run(&mut self, stage: &Stage, pod: &Pod) -> Result<()> {
        let facts = PodFacts::of(pod);
        let bound = node::pod(&Scheduled { pod: pod.clone(), claims: Vec::new() });
        let uid = bound.uid.clone();
        let admission = stage.kubelet.admit(bound).await?;
        let begun = Instant::now();
        let grant = loop {
            match stage.kubelet.start_container(&uid, "main").await {
                Ok(grant) => break grant,
                Err(error) if begun.elapsed() > STEP_LIMIT => return Err(error.into()),
                // The agent answers "try again" until it has seen the pod.
                Err(_) => sleep(RETRY).await,
            }
        };
        let edits = runtime::resolve(&stage.cdi_dir(), &grant.cdi_devices)?;
        let given: BTreeSet<String> = match admission.allotment("main", WHOLE) {
            Some(given) => given.ids(),
            None => [device_of_share(&edits.env)?].into(),
        };
        let decided: BTreeSet<String> = facts.gpus.iter().map(ToString::to_string).collect();
        if given.len() != decided.len() {
            bail!("pod {} has {given:?}, but the cluster half decided {decided:?}", facts.title());
        }
        if given == decided {
            self.as_decided += 1;
        } else {
            self.elsewhere += 1;
        }
        self.last = Some(Gets::new(grant.cdi_devices, edits, Vec::new()));
        Ok(())
    }
}

/// The GPU in the variable that each share has.
fn device_of_share(env: &[String]) -> Result<String> {
    let text = env.iter().find_map(|it| it.strip_prefix("WINDLASS_SHARE="));
    let share: Value = serde_json::from_str(text.context("the container has no share")?)?;
    Ok(share["device"].as_str().context("the share has no device")?.to_owned())
}
