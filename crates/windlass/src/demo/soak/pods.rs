//! Pods come and go, and each container gets what its pod was promised.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context as _, Result};
use tokio::time::{Instant, sleep};
use windlass_kubelet_sim::{Admission, Container, Grant, Pod, Rejection};

use super::{
    super::runtime,
    agent::cdi_dir,
    invariant::{self, Broken, Holders},
    rig::{GLANCE, RESOURCE},
    run::Run,
};

/// How long the admission of a pod may take while the agent runs: mostly its answers to
/// `GetPreferredAllocation` and Allocate.
pub(super) const ANSWER_LIMIT: Duration = Duration::from_secs(1);

/// How long the agent may tell of earlier holders: it asks the kubelet at most once in five seconds.
const HOLDERS_LIMIT: Duration = Duration::from_secs(8);

const CONTAINER: &str = "main";

// === impl Run ===

impl Run {
    pub(super) fn new_pod(&mut self, gpus: usize) -> Pod {
        self.begun += 1;
        let main = Container::new(CONTAINER).limit(RESOURCE, gpus as u64);
        Pod::new(format!("p{}", self.begun)).container(main)
    }

    /// A pod comes. If there is room, it must be admitted.
    pub(super) async fn admit(&mut self, gpus: usize) -> Result<()> {
        let free = self.free()?;
        let (uid, outcome) = self.ask(gpus).await?;
        if let Err(rejection) = &outcome
            && gpus <= free
        {
            let why = rejection.message.clone();
            return Err(Broken::Refused { gpus, free, why }.into());
        }
        self.came(&uid, outcome).await
    }

    /// A pod comes while the agent cannot write: it may be refused, in time.
    pub(super) async fn try_one(&mut self, gpus: usize) -> Result<()> {
        let (uid, outcome) = self.ask(gpus).await?;
        self.came(&uid, outcome).await
    }

    async fn ask(&mut self, gpus: usize) -> Result<(String, Result<Admission, Rejection>)> {
        let pod = self.new_pod(gpus);
        let uid = pod.uid.clone();
        let begun = Instant::now();
        let outcome = self.rig.kubelet.admit(pod).await;
        let took = begun.elapsed();
        self.tally.admission_took(took);
        invariant::in_time(took, ANSWER_LIMIT)?;
        Ok((uid, outcome))
    }

    /// The kubelet has decided about a pod; what it admitted starts.
    pub(super) async fn came(
        &mut self,
        uid: &str,
        outcome: Result<Admission, Rejection>,
    ) -> Result<()> {
        let Ok(admission) = outcome else {
            self.tally.refused += 1;
            self.rig.kubelet.delete(uid).await;
            return Ok(());
        };
        let node = self.rig.kubelet.node();
        let held = node.pods.get(uid).map(invariant::held).unwrap_or_default();
        self.tally.admitted += 1;
        self.tally.gpus_given += held.len();
        self.given.insert(uid.to_owned(), held);
        self.starts(uid, &admission).await
    }

    pub(super) async fn delete(&mut self, which: usize) {
        let uid = self.given.keys().nth(which % self.given.len().max(1)).cloned();
        let Some(uid) = uid else { return };
        self.given.remove(&uid);
        self.rig.kubelet.delete(&uid).await;
    }

    /// The agent must tell of the same holders as the kubelet.
    pub(super) async fn count(&mut self) -> Result<()> {
        let begun = Instant::now();
        let kubelet = invariant::holders(&self.rig.kubelet.node())?;
        loop {
            let metrics = self.rig.agent.metrics().await.context("the agent tells no metrics")?;
            let agent = told_holders(&metrics);
            if agent == kubelet {
                break;
            }
            if begun.elapsed() > HOLDERS_LIMIT {
                return Err(Broken::Miscounted { kubelet, agent }.into());
            }
            sleep(GLANCE).await;
        }
        self.tally.counts += 1;
        Ok(())
    }

    /// The container has the device nodes of its pod's GPUs, and of no other.
    async fn starts(&self, uid: &str, admission: &Admission) -> Result<()> {
        self.rig.kubelet.start_container(uid, CONTAINER).await?;
        let allotment = admission.allotment(CONTAINER, RESOURCE).context("nothing is allotted")?;
        let held = allotment.ids();
        let gpus = self.rig.gpus()?.into_iter().filter(|found| held.contains(&found.gpu.uuid));
        let right = gpus.map(|found| format!("/dev/nvidia{}", found.gpu.minor)).collect();
        let given = self.nodes(&allotment.grant)?;
        if given == right {
            return Ok(());
        }
        Err(Broken::WrongNodes { pod: uid.to_owned(), right, given }.into())
    }

    fn nodes(&self, grant: &Grant) -> Result<BTreeSet<String>> {
        let edits = runtime::resolve(&cdi_dir(self.rig.dir()), &grant.cdi_devices)?;
        let is_gpu = |path: &String| {
            let number = path.strip_prefix("/dev/nvidia");
            number.is_some_and(|number| number.parse::<u32>().is_ok())
        };
        Ok(edits.device_nodes.into_iter().filter(is_gpu).collect())
    }

    /// GPUs that no pod holds, by what the kubelet was told.
    fn free(&self) -> Result<usize> {
        let node = self.rig.kubelet.node();
        let held = invariant::holders(&node)?;
        let devices = node.resources.get(RESOURCE).map(|resource| resource.devices.values());
        let devices = devices.into_iter().flatten();
        Ok(devices.filter(|device| device.is_healthy() && !held.contains_key(&device.id)).count())
    }
}

/// Devices and the pods that hold them, from the agent's metrics.
fn told_holders(metrics: &str) -> Holders {
    let lines = metrics.lines().filter_map(|line| line.strip_prefix("windlass_device_holder{"));
    let label = |line: &str, name: &str| {
        let (_, rest) = line.split_once(&format!("{name}=\""))?;
        Some(rest.split_once('"')?.0.to_owned())
    };
    lines.filter_map(|line| Some((label(line, "device")?, label(line, "pod")?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders_are_read_from_metrics() {
        let metrics = "# TYPE windlass_device_holder gauge\n\
            windlass_device_holder{device=\"GPU-1\",resource=\"r\",replica=\"\",namespace=\"n\",pod=\"p\",container=\"c\"} 1\n\
            windlass_device_healthy{device=\"GPU-2\"} 1\n";
        assert_eq!(told_holders(metrics), [("GPU-1".to_owned(), "p".to_owned())].into());
    }
}
