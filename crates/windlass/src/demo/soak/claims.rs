//! Claims come and go beside the pods of the device plugin, and each gets what the scheduler chose.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context as _, Result};
use tokio::time::{Instant, sleep, timeout};
use windlass_cluster_sim::node;
use windlass_kubelet_sim::{Grant, StartError};

use super::{
    cluster::{Cluster, allotted},
    hands::{Hand, by_kubelet, published_name},
    invariant::{self, Broken},
    pods::CONTAINER,
    rig::GLANCE,
    run::Run,
    stopwatch::Stopwatch,
};

/// A pod with a claim.
#[derive(Clone, Debug)]
pub(super) struct Claimant {
    /// What its object is called.
    pub(super) name: String,
    /// Its claim's UID.
    pub(super) claim: String,
    pub(super) devices: BTreeSet<String>,
    /// What its container got when it started.
    pub(super) grant: Grant,
}

/// How long the preparation of a claim may take: an agent that just started waits two seconds for the kubelet to
/// write down what the one before it gave away last.
const PREPARE_LIMIT: Duration = Duration::from_secs(3);

/// How much longer where another has its devices still: a claim waits ten seconds for another to let go.
const LETTING_GO: Duration = Duration::from_secs(10);

/// How long a claim may wait for devices that nobody else has, and anything be left of what is gone. What a container
/// had through the device plugin is known to be free after three looks, ten seconds apart, at the kubelet's account,
/// one of fifteen seconds may be on its way, and what was freed is published and scheduled after that.
pub(super) const WAIT_LIMIT: Duration = Duration::from_secs(60);

/// How long the worker of a pod waits before it tries again.
const AGAIN: Duration = Duration::from_millis(100);

// === impl Run ===

impl Run {
    /// A pod with a claim comes. It must run once nobody else has its devices.
    pub(super) async fn claim(&mut self, gpus: usize) -> Result<()> {
        let Some(uid) = self.schedule(gpus).await? else { return Ok(()) };
        let is_taken = self.waiting.get(&uid).is_some_and(|it| self.is_taken(it));
        let limit = if is_taken { PREPARE_LIMIT + LETTING_GO } else { PREPARE_LIMIT };
        let watch = Stopwatch::start(self.rig.agent.id());
        self.try_start(&uid).await?;
        let took = watch.elapsed();
        self.tally.preparation_took(took);
        invariant::in_time("the preparation of a claim", took, limit)?;
        self.start_waiting().await
    }

    /// A pod with a claim comes while something is broken that it needs: it may have to wait. Its UID, if its
    /// container started.
    pub(super) async fn try_claim(&mut self, gpus: usize) -> Result<Option<String>> {
        if self.rig.cluster.is_none() {
            return Ok(None);
        }
        let Ok(uid) = self.try_schedule(gpus).await? else { return Ok(None) };
        self.try_start(&uid).await?;
        Ok(self.claims.contains_key(&uid).then_some(uid))
    }

    /// All GPUs are claimed at once, now that every one is to be had.
    pub(super) async fn claim_all(&mut self) -> Result<()> {
        if self.rig.cluster.is_none() {
            return Ok(());
        }
        // By what is published they are free, however short ago it was that a container had them.
        self.let_go.clear();
        self.claim(self.rig.gpus()?.len()).await?;
        while let Some(uid) = self.claims.keys().next().cloned() {
            self.end_claimant(&uid).await?;
        }
        self.no_claim_is_left().await
    }

    /// Finds devices for a pod and has it admitted; its container is still to start. Nothing is wrong with what is
    /// published: `None` only if there are too few.
    pub(super) async fn schedule(&mut self, gpus: usize) -> Result<Option<String>> {
        let free = self.claimable()?;
        match self.try_schedule(gpus).await? {
            Ok(uid) => Ok(Some(uid)),
            Err(why) => {
                invariant::rightly_refused("a claim", (gpus, free), &why)?;
                Ok(None)
            }
        }
    }

    /// The same where slices may be gone; why there are none, if there are too few.
    async fn try_schedule(&mut self, gpus: usize) -> Result<Result<String, String>> {
        self.begun += 1;
        let name = format!("c{}", self.begun);
        let scheduled = match self.cluster()?.schedule(&name, gpus)? {
            Ok(scheduled) => scheduled,
            Err(why) => {
                self.tally.refused += 1;
                return Ok(Err(why));
            }
        };
        let (claim, devices) = allotted(&scheduled)?;
        let pod = node::pod(&scheduled);
        let uid = pod.uid.clone();
        Box::pin(self.rig.kubelet.admit(pod)).await?;
        self.rig.are_claimed(&devices);
        let claimant = Claimant { name, claim, devices, grant: Grant::default() };
        self.waiting.insert(uid.clone(), claimant);
        Ok(Ok(uid))
    }

    /// Starts what waits, as often as it takes; gives up what others have the devices of.
    pub(super) async fn start_waiting(&mut self) -> Result<()> {
        let begun = Instant::now();
        while let Some(uid) = self.waiting.keys().next().cloned() {
            self.try_start(&uid).await?;
            let Some(claimant) = self.waiting.get(&uid) else { continue };
            if self.is_taken(claimant) {
                self.tally.refused += 1;
                self.end_claimant(&uid).await?;
                continue;
            }
            if begun.elapsed() > WAIT_LIMIT {
                let why = self.refusal.clone();
                return Err(Broken::Waits { pod: uid, since: begun.elapsed(), why }.into());
            }
            sleep(AGAIN).await;
        }
        Ok(())
    }

    /// Its containers end, its claim is released, its object goes.
    pub(super) async fn end_claimant(&mut self, uid: &str) -> Result<()> {
        let known = self.claims.remove(uid).or_else(|| self.waiting.remove(uid));
        let claimant = known.context("no such pod")?;
        self.rig.kubelet.delete(uid).await;
        self.cluster()?.delete(&claimant.name)
    }

    /// Nothing is left of claims that are gone.
    pub(super) async fn no_claim_is_left(&self) -> Result<()> {
        self.until_gone(Self::left_of_claims).await
    }

    /// Every GPU may be claimed again.
    pub(super) async fn no_gpu_is_withheld(&self) -> Result<()> {
        self.until_gone(|_, cluster| cluster.published().withholds_none()).await
    }

    async fn until_gone(&self, left: impl Fn(&Self, &Cluster) -> Result<(), String>) -> Result<()> {
        let Some(cluster) = &self.rig.cluster else { return Ok(()) };
        let gone = async {
            while left(self, cluster).is_err() {
                self.rig.kubelet.reconcile_claims().await;
                sleep(GLANCE).await;
            }
        };
        // What is left then is told.
        let _ = timeout(WAIT_LIMIT, gone).await;
        left(self, cluster).map_err(|left| Broken::Left { since: WAIT_LIMIT, left }.into())
    }

    fn left_of_claims(&self, cluster: &Cluster) -> Result<(), String> {
        let record = self.rig.record()?;
        let known = self.rig.kubelet.node().claims.keys().next().cloned();
        match (record.0.keys().next(), self.rig.claim_document()?, known) {
            (Some(claim), ..) => Err(format!("the driver's record has claim {claim}")),
            (_, Some(document), _) => Err(format!("there is {document}")),
            (.., Some(claim)) => Err(format!("the kubelet knows claim {claim}")),
            _ if cluster.has_pods() => Err("the API server has pods".to_owned()),
            _ => Ok(()),
        }
    }

    /// Starts the container of a pod that waits, once.
    pub(super) async fn try_start(&mut self, uid: &str) -> Result<()> {
        self.rig.kubelet.reconcile_claims().await;
        let started = Box::pin(self.rig.kubelet.start_container(uid, CONTAINER)).await;
        self.answered(uid, started)
    }

    /// What became of an attempt to start it.
    pub(super) fn answered(&mut self, uid: &str, started: Result<Grant, StartError>) -> Result<()> {
        let grant = match started {
            Ok(grant) => grant,
            Err(why) => {
                self.refusal = why.to_string();
                return Ok(());
            }
        };
        let waiting = self.waiting.remove(uid).context("the pod does not wait")?;
        let claimant = Claimant { grant, ..waiting };
        self.tally.claims += 1;
        self.tally.gpus_given += claimant.devices.len();
        self.has_nodes(uid, (&claimant.devices, &claimant.grant))?;
        self.claims.insert(uid.to_owned(), claimant);
        Ok(())
    }

    /// Whether a device of it is broken, in the hands of another, or was so a moment ago: what a container got and
    /// lost before the scheduler knew is free for nobody yet.
    fn is_taken(&self, claimant: &Claimant) -> bool {
        let hands = by_kubelet(&self.rig.kubelet.node());
        let own = Hand::Claim(claimant.claim.clone());
        let is_others = |device: &String| {
            hands.get(device).is_some_and(|hands| hands.iter().any(|hand| *hand != own))
        };
        let broken: BTreeSet<_> =
            self.rig.broken().iter().map(|uuid| published_name(uuid)).collect();
        let mut devices = claimant.devices.iter();
        devices.any(|it| is_others(it) || broken.contains(it) || self.is_let_go(it))
    }

    /// Whether a container had it a moment ago.
    fn is_let_go(&self, device: &str) -> bool {
        self.let_go.get(device).is_some_and(|let_go| let_go.elapsed() < WAIT_LIMIT)
    }

    /// How many GPUs a scheduler must find free, by what is the case.
    fn claimable(&self) -> Result<usize> {
        let (hands, allotted) = (by_kubelet(&self.rig.kubelet.node()), self.allotted());
        let usable = self.rig.gpus()?.into_iter().filter(|found| !found.is_broken);
        let names = usable.map(|found| published_name(&found.gpu.uuid));
        let is_free = |name: &String| {
            !hands.contains_key(name) && !allotted.contains(name) && !self.is_let_go(name)
        };
        Ok(names.filter(is_free).count())
    }

    fn cluster(&self) -> Result<&Cluster> {
        self.rig.cluster.as_ref().context("the soak is without claims")
    }

    /// What claims have by the scheduler, so that nobody else can be meant to have it.
    pub(super) fn allotted(&self) -> BTreeSet<String> {
        let claimants = self.claims.values().chain(self.waiting.values());
        claimants.flat_map(|claimant| claimant.devices.iter().cloned()).collect()
    }
}
