//! Late binding of shares: a pod's GPU is chosen when its first container starts, and not before.
//!
//! ```text
//!  PreStartContainer ──> checkpoint: the pod ──> API server: the decided GPU ──> ledger ──> CDI document ──> answer
//!                                  └────────── the pod has a share already ───────────────────^
//! ```
//!
//! # Guarantees
//!
//! The ledger has a share before its CDI document exists, and the document is on disk before the kubelet is answered.
//! Amounts are those of the kubelet's tokens: a pod's annotation chooses a GPU, and never more of it. The next agent
//! restores the shares from their documents. A repeated request gets the same document.
//!
//! # Assumptions
//!
//! The kubelet allocates for all containers of a pod before it starts the first one, and its checkpoint names the pod
//! by then. A pod that the checkpoint lacks has ended.

mod choice;
mod documents;
mod error;
mod hold;
mod holds;
mod place;
mod wanted;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use windlass_allocations::{
    follow::{Allocations, AllocationsReader},
    ledger::SharedLedger,
};
use windlass_cluster::{BoundPod, Client, Pods};
use windlass_config::{Places, Policy};
use windlass_core::{annotation::PodPlacement, device::DeviceId, resource::ResourceName};
use windlass_deviceplugin::shares::BindRequest;
use windlass_host::{blocking, causes, deadline, shared::Shared, watch::changed};
use windlass_lifecycle::cleanup::CleanupHandle;
use windlass_resources::NodeState;

use self::{
    choice::{Choice, decided},
    documents::{Edits, ShareDocument, ShareDocuments},
    error::BindError,
    hold::Hold,
    holds::{Ended, Holds, Present, Taken},
    place::ShareRequest,
    wanted::Wanted,
};
use crate::metrics::ShareMetrics;

/// Dependencies of late binding.
pub(crate) struct Deps {
    pub(crate) policy: watch::Receiver<Arc<Policy>>,
    pub(crate) state: watch::Receiver<Arc<NodeState>>,
    pub(crate) allocations: AllocationsReader,
    pub(crate) ledger: SharedLedger,
    pub(crate) cleanup: CleanupHandle,
    pub(crate) cluster: Option<Client>,
    pub(crate) requests: mpsc::Receiver<BindRequest>,
    pub(crate) metrics: ShareMetrics,
}

/// Shares of earlier agents.
#[derive(Debug, Default)]
pub(crate) struct RecoveredShares {
    documents: BTreeMap<String, ShareDocument>,
    unreadable: BTreeSet<String>,
}

/// The part that binds shares.
pub(crate) struct Shares {
    binder: Arc<Binder>,
    requests: mpsc::Receiver<BindRequest>,
}

struct Binder {
    policy: watch::Receiver<Arc<Policy>>,
    state: watch::Receiver<Arc<NodeState>>,
    allocations: AllocationsReader,
    ledger: SharedLedger,
    cleanup: CleanupHandle,
    pods: Option<Pods>,
    metrics: ShareMetrics,
    documents: ShareDocuments,
    holds: Shared<Holds>,
    /// Keeps writes of documents in one order.
    disk: Shared<()>,
}

/// Deadline of a request. The kubelet waits for 30 seconds (kubelet reference, `PreStartContainer`).
const DEADLINE: Duration = Duration::from_secs(25);

/// Restores the shares of earlier agents in the ledger. Blocks for small files.
pub(crate) fn restore(places: &Places, ledger: &SharedLedger) -> RecoveredShares {
    let files = ShareDocuments::new(&places.cdi_dir);
    let (documents, unreadable) = files.read();
    for ShareDocument { hold, .. } in documents.values() {
        ledger.restore_claim(&hold.claim(), [(&hold.device, hold.usage())]);
    }
    for name in &unreadable {
        let path = files.path(name);
        let path = path.display();
        tracing::warn!(%path, "CDI document of a share unreadable: no share is bound until it is removed");
    }
    RecoveredShares { documents, unreadable }
}

// === impl Shares ===

impl Shares {
    pub(crate) fn new(places: &Places, recovered: RecoveredShares, deps: Deps) -> Self {
        let RecoveredShares { documents, unreadable } = recovered;
        let binder = Binder {
            policy: deps.policy,
            state: deps.state,
            allocations: deps.allocations,
            ledger: deps.ledger,
            cleanup: deps.cleanup,
            pods: deps.cluster.map(Pods::new),
            metrics: deps.metrics,
            documents: ShareDocuments::new(&places.cdi_dir),
            holds: Shared::new(Holds::of(documents, unreadable)),
            disk: Shared::new(()),
        };
        Self { binder: Arc::new(binder), requests: deps.requests }
    }

    /// Binds shares, and releases those of ended pods, until stopped.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let (mut allocations, mut tasks) = (self.binder.allocations.watch(), JoinSet::new());
        let binder = self.binder.clone();
        tasks.spawn(async move { binder.learn().await });
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                Some(request) = self.requests.recv() => {
                    let binder = self.binder.clone();
                    tasks.spawn(async move { binder.serve(request).await });
                }
                () = changed(&mut allocations) => {
                    let (binder, newest) = (self.binder.clone(), allocations.borrow().clone());
                    tasks.spawn(async move { binder.release(&newest).await });
                }
                Some(_) = tasks.join_next() => {}
            }
        }
    }
}

// === impl Binder ===

impl Binder {
    /// Learns which pods may run with a share that no document names.
    async fn learn(&self) {
        let allocations = self.allocations.read().await;
        if let Some(containers) = allocations.containers() {
            // The node's state has no policy yet.
            let policy = self.policy.borrow().clone();
            self.holds.step(|holds| holds.learn(containers, &policy.shares));
        }
    }

    async fn serve(self: Arc<Self>, request: BindRequest) {
        let BindRequest { resource, ids, reply } = request;
        // On the heap: requests make it large.
        let binding = Box::pin(self.bind(&resource, &ids));
        let bound = deadline::timeout(DEADLINE, binding).await;
        let bound = bound.unwrap_or(Err(BindError::Late(DEADLINE)));
        let answer = bound.as_ref().map(drop).map_err(|error| causes(error));
        // The kubelet may have given up.
        let _ = reply.send(answer);
        let news = bound.ok().and_then(|hold| {
            let news = self.holds.step(|holds| holds.pods.get_mut(&hold.pod.uid)?.news.take());
            Some((hold, news?))
        });
        if let Some((hold, (pod, choice))) = news {
            self.tell(&hold, &pod, &choice).await;
        }
    }

    async fn bind(
        self: &Arc<Self>,
        resource: &ResourceName,
        ids: &BTreeSet<String>,
    ) -> Result<Hold, BindError> {
        let allocations = self.allocations.read().await;
        self.release(&allocations).await;
        let state = self.state.borrow().clone();
        let containers = allocations.containers().ok_or(BindError::Checkpoint)?;
        let wanted = Wanted::of(resource, ids, containers, &state)?;
        let (known, dropped) = self.holds.step(|holds| {
            holds.learn(containers, &state.policy.shares);
            holds.is_starting(&wanted.uid);
            let dropped = holds.drop_unusable(&wanted.uid, &state.shareable);
            (holds.pods.get(&wanted.uid).map(|taken| taken.hold.clone()), dropped)
        });
        if let Some(dropped) = dropped {
            self.free(&dropped).await;
        }
        let hold = match known {
            Some(hold) if wanted.amounts.is_within(hold.amounts) => hold,
            _ => self.place(&wanted, &state).await?,
        };
        let (claim, device) = (hold.claim(), hold.device.clone());
        self.cleanup.join(&claim.uid, [device]).await.map_err(BindError::NotReady)?;
        self.write(&wanted, &hold).await?;
        Ok(hold)
    }

    /// Takes a GPU for a pod.
    async fn place(&self, wanted: &Wanted, state: &NodeState) -> Result<Hold, BindError> {
        let pods = self.pods.as_ref().ok_or(BindError::NoCluster)?;
        let pod = pods.find(&wanted.uid).await?;
        let pod = pod.ok_or_else(|| BindError::UnknownPod(wanted.uid.clone()))?;
        let decided = decided(&pod);
        self.holds.step(|holds| self.take(holds, wanted, state, (&pod, decided.as_ref())))
    }

    /// Takes the best GPU in the ledger. A concurrent request of the same pod may have taken one meanwhile.
    fn take(
        &self,
        holds: &mut Holds,
        wanted: &Wanted,
        state: &NodeState,
        (pod, decided): (&BoundPod, Option<&DeviceId>),
    ) -> Result<Hold, BindError> {
        // The operator removes it, or its container starts again.
        holds.unreadable.retain(|name| self.documents.path(name).exists());
        if let Some(name) = holds.unreadable.iter().find(|name| **name != wanted.name) {
            return Err(BindError::Unreadable(self.documents.path(name)));
        }
        let known = holds.pods.get(&wanted.uid).map(|taken| taken.hold.device.clone());
        let ledger = self.ledger.watch().borrow().clone();
        let request = ShareRequest {
            gpus: &state.shareable,
            ledger: &ledger,
            wanted: wanted.amounts,
            unknown: holds.unknown_amounts(),
            decided,
        };
        let candidates = known.map_or_else(|| request.candidates(), |device| vec![device]);
        let mut why = decided.and_then(|decided| request.against(decided));
        for device in candidates {
            let hold = wanted.hold(device, pod, state);
            let overlap = state.overlaps.overlap(&hold.device);
            match self.ledger.take_for_claim(&hold.claim(), &[(overlap, hold.usage())]) {
                Ok(()) => {
                    let news = Some((pod.clone(), Choice::of(&hold.device, decided, why)));
                    let taken = Taken { hold: hold.clone(), at: Some(Instant::now()), news };
                    holds.pods.insert(wanted.uid.clone(), taken);
                    return Ok(hold);
                }
                Err(conflict) => drop(why.get_or_insert_with(|| conflict.to_string())),
            }
        }
        let all = || format!("{} are wanted, and no GPU has them left", wanted.amounts);
        Err(BindError::NoRoom(why.unwrap_or_else(all)))
    }

    /// Writes the container's document.
    async fn write(self: &Arc<Self>, wanted: &Wanted, hold: &Hold) -> Result<(), BindError> {
        let path = wanted.gpus.clone();
        let gpus = blocking(move || documents::read(&path)).await.ok_or(BindError::NoGpus)?;
        let edits = if wanted.is_second { Edits::Variables } else { Edits::Gpu(&gpus) };
        let document = ShareDocument::new(&wanted.name, &wanted.resource, hold.clone(), edits);
        let document = document.ok_or(BindError::NoGpus)?;
        let has_ended = self.holds.step(|holds| {
            let has_ended = !holds.pods.contains_key(&wanted.uid);
            if !has_ended {
                holds.unreadable.remove(&wanted.name);
                holds.documents.insert(wanted.name.clone(), document);
            }
            has_ended
        });
        if has_ended {
            return Err(BindError::NoPod);
        }
        self.settle(vec![wanted.name.clone()]).await.map_err(BindError::Disk)
    }

    /// Writes and removes documents, as the map of shares has them now.
    async fn settle(self: &Arc<Self>, names: Vec<String>) -> Result<(), String> {
        let binder = self.clone();
        let settle = move |(): &mut ()| {
            names.iter().try_for_each(|name| {
                let document = binder.holds.step(|holds| holds.documents.get(name).cloned());
                binder.documents.settle(name, document.as_ref())
            })
        };
        let binder = self.clone();
        blocking(move || binder.disk.step(settle)).await
    }

    /// Releases the shares of ended pods.
    async fn release(self: &Arc<Self>, allocations: &Allocations) {
        let Some(present) = Present::of(allocations) else { return };
        let Ended { holds, names } = self.holds.step(|holds| holds.release(&present));
        if holds.is_empty() {
            return;
        }
        if let Err(error) = self.settle(names).await {
            tracing::warn!(error, "CDI document of an ended share not removed");
        }
        for hold in holds {
            self.free(&hold).await;
            tracing::info!(pod = %hold.claim(), device = %hold.device, "share released");
        }
    }

    /// Has the GPU cleaned, and frees it.
    async fn free(&self, hold: &Hold) {
        let claim = hold.claim();
        if let Err(error) = self.cleanup.leave(&claim.uid).await {
            tracing::debug!(error, pod = %claim, "cleanup has ended");
        }
        self.ledger.release_claim(&claim.uid);
    }

    /// Logs and counts a choice, and corrects the pod's placement.
    async fn tell(&self, hold: &Hold, pod: &BoundPod, choice: &Choice) {
        let (name, device) = (format!("{}/{}", pod.namespace, pod.name), &hold.device);
        let (memory_mib, compute_percent) = (hold.amounts.memory_mib, hold.amounts.compute_percent);
        self.metrics.bound(choice.word());
        match choice {
            Choice::Decided => {
                tracing::info!(pod = name, %device, memory_mib, compute_percent, "share bound as decided");
                return;
            }
            Choice::Own => {
                tracing::info!(pod = name, %device, memory_mib, compute_percent, "share bound");
            }
            Choice::Corrected { decided, why } => {
                tracing::warn!(pod = name, %device, %decided, why, "share bound to another GPU than decided");
            }
        }
        let Some(pods) = &self.pods else { return };
        let placement = hold.placement().to_annotation();
        if let Err(error) = pods.annotate(pod, PodPlacement::CORRECTION, &placement).await {
            let error = causes(&error);
            tracing::warn!(
                pod = name,
                error,
                "pod not annotated: the cluster half does not know its GPU"
            );
        }
    }
}
