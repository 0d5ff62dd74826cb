//! Pods with claims in a soak, beside pods of the device plugin. Each claim has to get the devices that the scheduler
//! allocated.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Pod;
use tokio::time::{Instant, sleep, timeout};
use windlass_cluster_sim::node;
use windlass_kubelet_sim::{RunContainerOptions, StartError};

use super::{
    super::{runtime, testbed::cdi_dir},
    cluster::{SoakCluster, allocated},
    invariant::{self, Violation},
    owners::{Owner, kubelet_owners, published_name},
    pods::CONTAINER,
    rig::POLL_INTERVAL,
    run::SoakRun,
    stopwatch::Stopwatch,
};

#[derive(Clone, Debug)]
pub(super) struct ClaimPod {
    pub(super) name: String,
    pub(super) claim: String,
    pub(super) devices: BTreeSet<String>,
    /// Edits of the started container.
    pub(super) grant: RunContainerOptions,
}

/// Deadline of a preparation. A new agent waits two seconds for the kubelet to write its predecessor's allocations.
const PREPARE_LIMIT: Duration = Duration::from_secs(3);

/// Additional time if another holder still has the devices: claims wait ten seconds for a release.
const RELEASE_TIME: Duration = Duration::from_secs(10);

/// Deadline of a claim for devices without other holders, and of cleanup after a deleted claim. The agent knows a
/// device plugin's release after three checks of the kubelet's checkpoint, ten seconds apart. An earlier check may
/// take fifteen seconds. Publication and scheduling follow.
pub(super) const WAIT_LIMIT: Duration = Duration::from_secs(60);

const RETRY_INTERVAL: Duration = Duration::from_millis(100);

// === impl SoakRun ===

impl SoakRun {
    /// Starts a pod with a claim. The pod has to run once no other pod holds its devices.
    pub(super) async fn start_claim_pod(&mut self, gpus: usize) -> Result<()> {
        let Some(uid) = self.schedule(gpus).await? else { return Ok(()) };
        let is_unavailable =
            self.waiting_pods.get(&uid).is_some_and(|claim_pod| self.is_unavailable(claim_pod));
        let limit = if is_unavailable { PREPARE_LIMIT + RELEASE_TIME } else { PREPARE_LIMIT };
        let stopwatch = Stopwatch::start(self.rig.agent.process.id());
        self.try_start(&uid).await?;
        let elapsed = stopwatch.elapsed();
        self.tally.record_preparation(elapsed);
        invariant::check_deadline("the preparation of a claim", elapsed, limit)?;
        self.start_waiting().await
    }

    /// Starts a pod with a claim during a fault, so it may have to wait. Returns its UID if the container started.
    pub(super) async fn try_start_claim_pod(&mut self, gpus: usize) -> Result<Option<String>> {
        if self.rig.cluster.is_none() {
            return Ok(None);
        }
        let Ok(uid) = self.try_schedule(gpus).await? else { return Ok(None) };
        self.try_start(&uid).await?;
        Ok(self.claims.contains_key(&uid).then_some(uid))
    }

    /// Claims all GPUs at once, after all were released.
    pub(super) async fn claim_all_gpus(&mut self) -> Result<()> {
        if self.rig.cluster.is_none() {
            return Ok(());
        }
        // All devices are published without a taint, so recent releases do not matter.
        self.released_at.clear();
        self.start_claim_pod(self.rig.gpus()?.len()).await?;
        while let Some(uid) = self.claims.keys().next().cloned() {
            self.delete_claim_pod(&uid).await?;
        }
        self.wait_for_no_claims().await
    }

    /// Schedules and admits a pod without starting its container. `None` if too few GPUs are free; other refusals are
    /// violations.
    pub(super) async fn schedule(&mut self, gpus: usize) -> Result<Option<String>> {
        let free = self.claimable_gpus()?;
        match self.try_schedule(gpus).await? {
            Ok(uid) => Ok(Some(uid)),
            Err(reason) => {
                invariant::check_refusal("a claim", gpus, free, &reason)?;
                Ok(None)
            }
        }
    }

    /// Schedules a pod while slices may be missing; returns the reason if too few GPUs are free.
    async fn try_schedule(&mut self, gpus: usize) -> Result<Result<String, String>> {
        self.created += 1;
        let name = format!("c{}", self.created);
        let scheduled_pod = match self.cluster()?.schedule(&name, gpus)? {
            Ok(scheduled_pod) => scheduled_pod,
            Err(reason) => {
                self.tally.refused += 1;
                return Ok(Err(reason));
            }
        };
        let (claim, devices) = allocated(&scheduled_pod)?;
        let pod = node::pod(&scheduled_pod);
        let uid = pod.uid.clone();
        Box::pin(self.rig.kubelet.admit(pod)).await?;
        self.rig.mark_claimed(&devices);
        let claim_pod = ClaimPod { name, claim, devices, grant: RunContainerOptions::default() };
        self.waiting_pods.insert(uid.clone(), claim_pod);
        Ok(Ok(uid))
    }

    /// Starts waiting pods until all run. Deletes pods whose devices another holder has.
    pub(super) async fn start_waiting(&mut self) -> Result<()> {
        let start = Instant::now();
        while let Some(uid) = self.waiting_pods.keys().next().cloned() {
            self.try_start(&uid).await?;
            let Some(claim_pod) = self.waiting_pods.get(&uid) else { continue };
            if self.is_unavailable(claim_pod) {
                self.tally.refused += 1;
                self.delete_claim_pod(&uid).await?;
                continue;
            }
            if start.elapsed() > WAIT_LIMIT {
                let why = self.last_refusal.clone();
                return Err(Violation::ClaimStuck { pod: uid, since: start.elapsed(), why }.into());
            }
            sleep(RETRY_INTERVAL).await;
        }
        Ok(())
    }

    /// Ends the containers, releases the claim and deletes the pod.
    pub(super) async fn delete_claim_pod(&mut self, uid: &str) -> Result<()> {
        let claim_pod = self.claims.remove(uid).or_else(|| self.waiting_pods.remove(uid));
        let claim_pod = claim_pod.context("no such pod")?;
        self.rig.kubelet.delete_pod(uid).await;
        self.cluster()?.delete(&claim_pod.name)
    }

    /// Checks that deleted claims leave nothing behind.
    pub(super) async fn wait_for_no_claims(&self) -> Result<()> {
        self.wait_until_gone(Self::claim_leftovers).await
    }

    /// Checks that every GPU is claimable again.
    pub(super) async fn wait_for_claimable_gpus(&self) -> Result<()> {
        self.wait_until_gone(|_, cluster| cluster.published().check_no_taints()).await
    }

    async fn wait_until_gone(
        &self,
        check: impl Fn(&Self, &SoakCluster) -> Result<(), String>,
    ) -> Result<()> {
        let Some(cluster) = &self.rig.cluster else { return Ok(()) };
        let poll = async {
            while check(self, cluster).is_err() {
                self.rig.kubelet.reconcile_claims().await;
                sleep(POLL_INTERVAL).await;
            }
        };
        // The final check reports what remains.
        let _ = timeout(WAIT_LIMIT, poll).await;
        check(self, cluster)
            .map_err(|problem| Violation::Leftover { since: WAIT_LIMIT, problem }.into())
    }

    fn claim_leftovers(&self, cluster: &SoakCluster) -> Result<(), String> {
        let record = self.rig.record()?;
        let claim = self.rig.kubelet.status().claims.keys().next().cloned();
        let documents = runtime::claim_documents(&cdi_dir(self.rig.dir()));
        let document = documents.map_err(|error| format!("{error:#}"))?.pop();
        let has_pods = !cluster.fixture.objects().list::<Pod>().is_empty();
        match (record.0.keys().next(), document, claim) {
            (Some(claim), ..) => Err(format!("the driver's record still has claim {claim}")),
            (_, Some(document), _) => Err(format!("the CDI document {document} still exists")),
            (.., Some(claim)) => Err(format!("the kubelet still has claim {claim}")),
            _ if has_pods => Err("the API server still has pods".to_owned()),
            _ => Ok(()),
        }
    }

    /// Tries once to start the container of a waiting pod.
    pub(super) async fn try_start(&mut self, uid: &str) -> Result<()> {
        self.rig.kubelet.reconcile_claims().await;
        let result = Box::pin(self.rig.kubelet.start_container(uid, CONTAINER)).await;
        self.record_start(uid, result)
    }

    /// Records the result of a start attempt.
    pub(super) fn record_start(
        &mut self,
        uid: &str,
        result: Result<RunContainerOptions, StartError>,
    ) -> Result<()> {
        let grant = match result {
            Ok(grant) => grant,
            Err(error) => {
                self.last_refusal = error.to_string();
                return Ok(());
            }
        };
        let waiting_pod = self.waiting_pods.remove(uid).context("the pod does not wait")?;
        let claim_pod = ClaimPod { grant, ..waiting_pod };
        self.tally.claims += 1;
        self.tally.gpus_given += claim_pod.devices.len();
        self.check_container_nodes(uid, &claim_pod.devices, &claim_pod.grant)?;
        self.claims.insert(uid.to_owned(), claim_pod);
        Ok(())
    }

    /// True if one of the devices is broken, has another owner, or was released recently: the agent may not know a
    /// recent release.
    fn is_unavailable(&self, claim_pod: &ClaimPod) -> bool {
        let owners = kubelet_owners(&self.rig.kubelet.status());
        let own_claim = Owner::Claim(claim_pod.claim.clone());
        let has_other_owner = |device: &String| {
            owners.get(device).is_some_and(|owners| owners.iter().any(|owner| *owner != own_claim))
        };
        let broken: BTreeSet<_> =
            self.rig.broken().iter().map(|uuid| published_name(uuid)).collect();
        let mut devices = claim_pod.devices.iter();
        devices.any(|device| {
            has_other_owner(device) || broken.contains(device) || self.is_recently_released(device)
        })
    }

    /// True if a device plugin pod released the device less than `WAIT_LIMIT` ago.
    fn is_recently_released(&self, device: &str) -> bool {
        self.released_at.get(device).is_some_and(|released_at| released_at.elapsed() < WAIT_LIMIT)
    }

    /// Number of GPUs that the scheduler must be able to allocate.
    fn claimable_gpus(&self) -> Result<usize> {
        let (owners, allocated) = (kubelet_owners(&self.rig.kubelet.status()), self.allocated());
        let usable = self.rig.gpus()?.into_iter().filter(|indexed_gpu| !indexed_gpu.is_broken);
        let names = usable.map(|indexed_gpu| published_name(&indexed_gpu.gpu.uuid));
        let is_free = |name: &String| {
            !owners.contains_key(name)
                && !allocated.contains(name)
                && !self.is_recently_released(name)
        };
        Ok(names.filter(is_free).count())
    }

    fn cluster(&self) -> Result<&SoakCluster> {
        self.rig.cluster.as_ref().context("the soak is without claims")
    }

    pub(super) fn allocated(&self) -> BTreeSet<String> {
        let claim_pods = self.claims.values().chain(self.waiting_pods.values());
        claim_pods.flat_map(|claim_pod| claim_pod.devices.iter().cloned()).collect()
    }
}
