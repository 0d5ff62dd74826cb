//! Pods of the device plugin in a soak. Each container has to get the devices of its pod.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context as _, Result};
use tokio::time::{Instant, sleep};
use windlass_kubelet_sim::{Admission, Container, Pod, Rejection, RunContainerOptions};

use super::{
    invariant::{self, Holders, Violation},
    owners::published_name,
    rig::{GPU_RESOURCE, POLL_INTERVAL},
    run::SoakRun,
    stopwatch::Stopwatch,
};

/// Deadline of an admission while the agent runs. It consists mostly of the calls `GetPreferredAllocation` and
/// `Allocate`.
pub(super) const ADMISSION_LIMIT: Duration = Duration::from_secs(1);

/// Deadline of the agent's holder metrics: its pod resources cache lasts five seconds.
const HOLDERS_LIMIT: Duration = Duration::from_secs(8);

/// Name of the action whose deadline is [`ADMISSION_LIMIT`].
pub(super) const ADMISSION: &str = "the admission of a pod";

pub(super) const CONTAINER: &str = "main";

#[derive(Clone, Debug, Default)]
pub(super) struct Allocation {
    /// Devices according to the kubelet.
    pub(super) held: BTreeSet<String>,
    pub(super) grant: RunContainerOptions,
}

// === impl SoakRun ===

impl SoakRun {
    pub(super) fn new_pod(&mut self, gpus: usize) -> Pod {
        self.created += 1;
        let container = Container::new(CONTAINER).limit(GPU_RESOURCE, gpus as u64);
        Pod::new(format!("p{}", self.created)).container(container)
    }

    /// Admits a pod, which has to succeed if there are enough free GPUs.
    pub(super) async fn admit(&mut self, gpus: usize) -> Result<()> {
        let free = self.free();
        let (uid, outcome) = self.try_admit(gpus).await?;
        if let Err(rejection) = &outcome {
            invariant::check_refusal("a pod", gpus, free, &rejection.message)?;
        }
        self.record_admission(&uid, outcome).await
    }

    /// Admits a pod while the agent cannot write. A refusal is allowed, within the deadline.
    pub(super) async fn try_admit_and_record(&mut self, gpus: usize) -> Result<()> {
        let (uid, outcome) = self.try_admit(gpus).await?;
        self.record_admission(&uid, outcome).await
    }

    async fn try_admit(&mut self, gpus: usize) -> Result<(String, Result<Admission, Rejection>)> {
        let pod = self.new_pod(gpus);
        let uid = pod.uid.clone();
        // The stopwatch leaves out the time in which the agent or the soak waits for a CPU.
        let stopwatch = Stopwatch::start(self.rig.agent.process.id());
        let outcome = self.rig.kubelet.admit(pod).await;
        let elapsed = stopwatch.elapsed();
        self.tally.record_admission(elapsed);
        invariant::check_deadline(ADMISSION, elapsed, ADMISSION_LIMIT)?;
        Ok((uid, outcome))
    }

    /// Records the kubelet's decision, and starts an admitted pod.
    pub(super) async fn record_admission(
        &mut self,
        uid: &str,
        outcome: Result<Admission, Rejection>,
    ) -> Result<()> {
        let Ok(admission) = outcome else {
            self.tally.refused += 1;
            self.rig.kubelet.delete_pod(uid).await;
            return Ok(());
        };
        let node = self.rig.kubelet.status();
        let held = node.pods.get(uid).map(invariant::held).unwrap_or_default();
        self.tally.admitted += 1;
        self.tally.gpus_given += held.len();
        let container_allocation =
            admission.allocation(CONTAINER, GPU_RESOURCE).context("nothing is allocated")?;
        let allocation = Allocation { held, grant: container_allocation.run_options.clone() };
        self.allocations.insert(uid.to_owned(), allocation.clone());
        self.start_and_check(uid, &allocation).await
    }

    /// Deletes one of the pods, with a claim or without. `which` is a random number, reduced to their count.
    pub(super) async fn delete(&mut self, which: usize) -> Result<()> {
        let count = self.allocations.len() + self.claims.len();
        let uid =
            self.allocations.keys().chain(self.claims.keys()).nth(which % count.max(1)).cloned();
        let Some(uid) = uid else { return Ok(()) };
        let Some(Allocation { held, .. }) = self.allocations.remove(&uid) else {
            return self.delete_claim_pod(&uid).await;
        };
        self.rig.kubelet.delete_pod(&uid).await;
        let now = Instant::now();
        self.released_at.extend(held.iter().map(|id| (published_name(id), now)));
        Ok(())
    }

    /// Compares the holders in the agent's metrics with the kubelet's.
    pub(super) async fn compare_holders(&mut self) -> Result<()> {
        let start = Instant::now();
        let kubelet = invariant::holders(&self.rig.kubelet.status());
        loop {
            let metrics =
                self.rig.agent.get("/metrics").await.context("the agent serves no metrics")?;
            let agent = reported_holders(&metrics);
            if agent == kubelet {
                break;
            }
            if start.elapsed() > HOLDERS_LIMIT {
                return Err(Violation::HoldersDiffer { kubelet, agent }.into());
            }
            sleep(POLL_INTERVAL).await;
        }
        self.tally.counts += 1;
        Ok(())
    }

    /// Starts the container and checks its device nodes.
    async fn start_and_check(&mut self, uid: &str, allocation: &Allocation) -> Result<()> {
        self.rig.kubelet.start_container(uid, CONTAINER).await?;
        let held = allocation.held.iter().map(|id| published_name(id)).collect();
        self.check_container_nodes(uid, &held, &allocation.grant)
    }

    /// Number of healthy GPUs without pod or claim.
    pub(super) fn free(&self) -> usize {
        let node = self.rig.kubelet.status();
        let (held, allocated) = (invariant::holders(&node), self.allocated());
        let is_free =
            |id: &String| !held.contains_key(id) && !allocated.contains(&published_name(id));
        let devices = node.resources.get(GPU_RESOURCE).map(|resource| resource.devices.values());
        let devices = devices.into_iter().flatten();
        devices.filter(|device| device.is_healthy() && is_free(&device.id)).count()
    }
}

/// Pods by device, from the agent's metrics.
fn reported_holders(metrics: &str) -> Holders {
    let lines = metrics.lines().filter_map(|line| line.strip_prefix("windlass_device_holder{"));
    let label = |line: &str, name: &str| {
        let (_, suffix) = line.split_once(&format!("{name}=\""))?;
        Some(suffix.split_once('"')?.0.to_owned())
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
        assert_eq!(reported_holders(metrics), [("GPU-1".to_owned(), "p".to_owned())].into());
    }
}
