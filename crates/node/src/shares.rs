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

mod documents;
mod hold;
mod place;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
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
    follow::{Allocations, AllocationsReader, ContainerIds},
    ledger::{CHECKPOINT_GRACE, SharedLedger},
};
use windlass_cluster::{BoundPod, Client, ClusterError, Pods};
use windlass_config::{Places, ShareResources};
use windlass_core::{
    annotation::PodPlacement, cdi::Kind, device::DeviceId, resource::ResourceName,
};
use windlass_deviceplugin::shares::{BindRequest, share_name};
use windlass_host::{blocking, causes, deadline, shared::Shared, watch::changed};
use windlass_lifecycle::cleanup::{CleanupHandle, NotReady};
use windlass_resources::{NodeState, offers::Shareable};

use self::{
    documents::{Edits, ShareDocument, ShareDocuments},
    hold::{Amounts, Hold, Pod},
    place::ShareRequest,
};
use crate::metrics::ShareMetrics;

/// Dependencies of late binding.
pub(crate) struct Deps {
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
    unreadable: Vec<PathBuf>,
}

/// The part that binds shares.
pub(crate) struct Shares {
    binder: Arc<Binder>,
    requests: mpsc::Receiver<BindRequest>,
}

struct Binder {
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

/// Shares of this node.
#[derive(Debug, Default)]
struct Holds {
    /// Share of each pod, by UID.
    pods: BTreeMap<String, Taken>,
    /// Documents by name. The files follow this map.
    documents: BTreeMap<String, ShareDocument>,
    /// Documents whose shares cannot be read.
    unreadable: Vec<PathBuf>,
    /// Amounts of pods that may run with a share that no document names, by UID; `None` before the first reading of
    /// the checkpoint.
    unknown: Option<BTreeMap<String, Amounts>>,
}

/// A share in the ledger.
#[derive(Clone, Debug)]
struct Taken {
    hold: Hold,
    /// Time of the decision; `None` if an earlier agent made it.
    at: Option<Instant>,
}

/// A container's request, and its pod.
struct Wanted {
    resource: ResourceName,
    name: String,
    uid: String,
    amounts: Amounts,
    /// True if the container has its GPU by another resource.
    is_second: bool,
    /// Document of GPUs.
    gpus: PathBuf,
}

/// A pod's share, and how its GPU was found.
struct Bound {
    hold: Hold,
    /// The pod, and the reason that its GPU is another one than decided; `None` without a new decision.
    news: Option<(BoundPod, Choice)>,
}

/// Choice of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Choice {
    /// The decided one.
    Decided,
    /// Another one than decided, for this reason.
    Corrected { decided: DeviceId, why: String },
    /// The agent's, since nothing was decided.
    Own,
}

/// Reason that a share is not bound. The kubelet tries again.
#[derive(Debug, thiserror::Error)]
enum BindError {
    #[error("the kubelet's checkpoint cannot be read")]
    Checkpoint,
    #[error("the kubelet's checkpoint does not name the pod of these ids yet")]
    NoPod,
    #[error("the configuration names another resource for shares by now")]
    NotShared,
    #[error("the document of GPUs is not written yet")]
    NoGpus,
    #[error("no API server is configured, and it has the pod's placement")]
    NoCluster,
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error("the API server has no pod with UID {0} on this node yet")]
    UnknownPod(String),
    #[error("CDI document {} cannot be read, and any GPU may have its share: remove it once its pod has ended", .0.display())]
    Unreadable(PathBuf),
    #[error("no GPU of this node has it: {0}")]
    NoRoom(String),
    #[error("{} is not ready: {}", .0.device, .0.why)]
    NotReady(NotReady),
    #[error("{0}")]
    Disk(String),
    #[error("it took longer than {0:?}")]
    Late(Duration),
}

/// Deadline of a request. The kubelet waits for 30 seconds (kubelet reference, `PreStartContainer`).
const DEADLINE: Duration = Duration::from_secs(25);

const GPU: Kind = Kind::new("gpu");

/// Restores the shares of earlier agents in the ledger. Blocks for small files.
pub(crate) fn restore(places: &Places, ledger: &SharedLedger) -> RecoveredShares {
    let (documents, unreadable) = ShareDocuments::new(&places.cdi_dir).read();
    for ShareDocument { hold, .. } in documents.values() {
        ledger.restore_claim(&hold.claim(), [(&hold.device, hold.usage())]);
    }
    for path in &unreadable {
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
            let resources = self.resources();
            self.holds.step(|holds| holds.learn(containers, &resources));
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
        if let Ok(Bound { hold, news: Some((pod, choice)) }) = bound {
            self.tell(&hold, &pod, &choice).await;
        }
    }

    async fn bind(
        self: &Arc<Self>,
        resource: &ResourceName,
        ids: &BTreeSet<String>,
    ) -> Result<Bound, BindError> {
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
        let bound = match known {
            Some(hold) if wanted.amounts.is_within(hold.amounts) => Bound { hold, news: None },
            _ => self.place(&wanted, &state).await?,
        };
        let (claim, device) = (bound.hold.claim(), bound.hold.device.clone());
        self.cleanup.join(&claim.uid, [device]).await.map_err(BindError::NotReady)?;
        self.write(&wanted, &bound.hold).await?;
        Ok(bound)
    }

    /// Takes a GPU for a pod.
    async fn place(&self, wanted: &Wanted, state: &NodeState) -> Result<Bound, BindError> {
        let pods = self.pods.as_ref().ok_or(BindError::NoCluster)?;
        let pod = pods.find(&wanted.uid).await?;
        let pod = pod.ok_or_else(|| BindError::UnknownPod(wanted.uid.clone()))?;
        let decided = decided(&pod);
        let (hold, choice) =
            self.holds.step(|holds| self.take(holds, wanted, state, (&pod, decided.as_ref())))?;
        Ok(Bound { hold, news: Some((pod, choice)) })
    }

    /// Takes the best GPU in the ledger. A concurrent request of the same pod may have taken one meanwhile.
    fn take(
        &self,
        holds: &mut Holds,
        wanted: &Wanted,
        state: &NodeState,
        (pod, decided): (&BoundPod, Option<&DeviceId>),
    ) -> Result<(Hold, Choice), BindError> {
        // The operator removes it.
        if let Some(path) = holds.unreadable.iter().find(|path| path.exists()) {
            return Err(BindError::Unreadable(path.clone()));
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
                    let taken = Taken { hold: hold.clone(), at: Some(Instant::now()) };
                    holds.pods.insert(wanted.uid.clone(), taken);
                    let choice = Choice::of(&hold.device, decided, why);
                    return Ok((hold, choice));
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
        let Some(present) = present(allocations) else { return };
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

    fn resources(&self) -> ShareResources {
        self.state.borrow().policy.shares.clone()
    }
}

// === impl Wanted ===

impl Wanted {
    fn of(
        resource: &ResourceName,
        ids: &BTreeSet<String>,
        containers: &[ContainerIds],
        state: &NodeState,
    ) -> Result<Self, BindError> {
        let resources = &state.policy.shares;
        if !resources.names().any(|name| name == resource) {
            return Err(BindError::NotShared);
        }
        let is_it = |it: &&ContainerIds| it.resource == *resource && it.ids == *ids;
        let holders: Vec<_> = containers.iter().filter(is_it).collect();
        let uids: BTreeSet<_> = holders.iter().map(|it| &it.pod).collect();
        let [uid] = uids.iter().copied().collect::<Vec<_>>()[..] else {
            return Err(BindError::NoPod);
        };
        let has_memory = |holder: &&ContainerIds| {
            containers.iter().any(|it| {
                resources.memory.as_ref().is_some_and(|name| it.resource == *name)
                    && (&it.pod, &it.container) == (&holder.pod, &holder.container)
            })
        };
        Ok(Self {
            resource: resource.clone(),
            name: share_name(resource.as_str(), ids),
            uid: uid.clone(),
            amounts: Amounts::of(containers, uid, resources),
            is_second: resources.memory.as_ref() != Some(resource)
                && holders.iter().all(has_memory),
            gpus: state.documents.get(&GPU).ok_or(BindError::NoGpus)?.clone(),
        })
    }

    fn hold(&self, device: DeviceId, pod: &BoundPod, state: &NodeState) -> Hold {
        let gpu = state.shareable.get(&device);
        Hold {
            of_mib: gpu.map_or(self.amounts.memory_mib, |gpu| gpu.memory_mib),
            device,
            amounts: self.amounts,
            pod: Pod {
                namespace: pod.namespace.clone(),
                name: pod.name.clone(),
                uid: pod.uid.clone(),
            },
        }
    }
}

// === impl Choice ===

impl Choice {
    fn of(device: &DeviceId, decided: Option<&DeviceId>, why: Option<String>) -> Self {
        match decided {
            Some(decided) if decided == device => Self::Decided,
            Some(decided) => Self::Corrected {
                decided: decided.clone(),
                why: why.unwrap_or_else(|| "its pod has another GPU already".to_owned()),
            },
            None => Self::Own,
        }
    }

    fn word(&self) -> &'static str {
        match self {
            Self::Decided => "decided",
            Self::Corrected { .. } => "corrected",
            Self::Own => "own",
        }
    }
}

/// Ended shares, and the names of their documents.
struct Ended {
    holds: Vec<Hold>,
    names: Vec<String>,
}

/// Pods by one reading of the checkpoint.
struct Present {
    read: Instant,
    /// UIDs of all pods with ids.
    recorded: BTreeSet<String>,
    /// UIDs of pods with an id that is still held.
    held: BTreeSet<String>,
}

// === impl Holds ===

impl Holds {
    fn of(documents: BTreeMap<String, ShareDocument>, unreadable: Vec<PathBuf>) -> Self {
        let mut pods: BTreeMap<String, Taken> = BTreeMap::new();
        for ShareDocument { hold, .. } in documents.values() {
            let known = pods.get(&hold.pod.uid).map(|taken| taken.hold.amounts);
            if known.is_none_or(|known| known.is_within(hold.amounts)) {
                pods.insert(hold.pod.uid.clone(), Taken { hold: hold.clone(), at: None });
            }
        }
        Self { pods, documents, unreadable, unknown: None }
    }

    /// Takes in the first reading of the checkpoint: its pods without a share may run with a lost document.
    fn learn(&mut self, containers: &[ContainerIds], resources: &ShareResources) {
        if self.unknown.is_some() {
            return;
        }
        let uids = containers.iter().map(|it| &it.pod).filter(|uid| !self.pods.contains_key(*uid));
        let amounts = |uid: &String| (uid.clone(), Amounts::of(containers, uid, resources));
        let some = |(_, amounts): &(String, Amounts)| *amounts != Amounts::default();
        self.unknown = Some(uids.map(amounts).filter(some).collect());
    }

    /// Notes the start of a container: its pod has no lost document.
    fn is_starting(&mut self, uid: &str) {
        if let Some(unknown) = &mut self.unknown {
            unknown.remove(uid);
        }
    }

    /// Amounts of pods whose GPUs are unknown.
    fn unknown_amounts(&self) -> Amounts {
        let all = self.unknown.iter().flat_map(BTreeMap::values);
        all.fold(Amounts::default(), |sum, amounts| sum.and(*amounts))
    }

    /// Drops a pod's GPU that became unusable before any container started with it.
    fn drop_unusable(&mut self, uid: &str, gpus: &Shareable) -> Option<Hold> {
        let device = &self.pods.get(uid)?.hold.device;
        let is_usable = gpus.get(device).is_some_and(|gpu| gpu.obstacle.is_none());
        let is_documented = self.documents.values().any(|it| it.hold.pod.uid == uid);
        if is_usable || is_documented {
            return None;
        }
        self.pods.remove(uid).map(|taken| taken.hold)
    }

    /// Drops the shares of pods that the checkpoint no longer has.
    fn release(&mut self, present: &Present) -> Ended {
        if let Some(unknown) = &mut self.unknown {
            unknown.retain(|uid, _| present.recorded.contains(uid));
        }
        let ended = |(uid, taken): (&String, &Taken)| {
            // An older reading lacks the pod, and an older account of pod resources names an earlier pod.
            let is_newer = |by: Duration| taken.at.is_none_or(|at| present.read > at + by);
            let is_gone = !present.recorded.contains(uid) && is_newer(Duration::ZERO);
            let is_let_go = !present.held.contains(uid) && is_newer(CHECKPOINT_GRACE);
            (is_gone || is_let_go).then(|| uid.clone())
        };
        let uids: BTreeSet<_> = self.pods.iter().filter_map(ended).collect();
        let is_of = |document: &ShareDocument| uids.contains(&document.hold.pod.uid);
        let names = self.documents.iter().filter(|(_, it)| is_of(it)).map(|(name, _)| name.clone());
        let names: Vec<_> = names.collect();
        self.documents.retain(|_, document| !is_of(document));
        let holds = uids.iter().filter_map(|uid| self.pods.remove(uid)).map(|taken| taken.hold);
        Ended { holds: holds.collect(), names }
    }
}

fn present(allocations: &Allocations) -> Option<Present> {
    let (containers, held) = (allocations.containers()?, allocations.held()?);
    let is_held =
        |it: &&ContainerIds| held.get(&it.resource).is_some_and(|ids| !ids.is_disjoint(&it.ids));
    Some(Present {
        read: allocations.read()?,
        recorded: containers.iter().map(|it| it.pod.clone()).collect(),
        held: containers.iter().filter(is_held).map(|it| it.pod.clone()).collect(),
    })
}

/// GPU of a pod by its annotations: the agent's correction, else the decision. Anybody may have written them, so a
/// damaged one decides nothing.
fn decided(pod: &BoundPod) -> Option<DeviceId> {
    let keys = [PodPlacement::CORRECTION, PodPlacement::ANNOTATION];
    let text = keys.iter().find_map(|key| pod.annotations.get(*key))?;
    let name = || format!("{}/{}", pod.namespace, pod.name);
    match PodPlacement::from_annotation(text) {
        Ok(PodPlacement { devices }) if devices.len() == 1 => {
            devices.into_iter().next().map(|it| it.id)
        }
        Ok(PodPlacement { devices }) => {
            let gpus = devices.len();
            tracing::warn!(pod = name(), gpus, "placement not of one GPU: the agent chooses a GPU");
            None
        }
        Err(error) => {
            let error = causes(&error);
            tracing::warn!(pod = name(), error, "placement unreadable: the agent chooses a GPU");
            None
        }
    }
}
