//! Late binding of shares: the agent chooses a pod's GPUs when the pod's first container starts.
//!
//! ```text
//!  PreStartContainer ──> checkpoint: the pod ──> API server: the decided GPUs ──> ledger ──> CDI document ──> answer
//!                                  └────────── the pod has a share already ───────────────────^
//! ```
//!
//! # Guarantees
//!
//! The ledger has a share before its CDI document exists, and the document is on disk before the kubelet is answered.
//! Amounts come from the kubelet's tokens, and for virtual GPUs from the pod's specification: a pod's annotation
//! chooses the GPU, never the amount. The next agent restores the shares from their documents. A repeated request gets
//! the same document.
//!
//! # Assumptions
//!
//! The kubelet allocates for all containers of a pod before it starts the first one, and its checkpoint names the pod
//! by then. A pod that is missing in the checkpoint has ended.

mod choice;
mod documents;
mod error;
mod hold;
mod holds;
mod place;
mod report;
mod request;

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
use windlass_cdi::memory_limits::{HookLimit, LimitRecords};
use windlass_cluster::{BoundPod, Client, Pods};
use windlass_config::{HostPaths, Policy};
use windlass_core::{
    annotation::{AcceptedGpus, PodPlacement},
    cdi::Spec,
    device::DeviceId,
    enforcement::Enforcement,
    resource::ResourceName,
    virtual_gpus::PodRequest,
};
use windlass_deviceplugin::shares::BindRequest;
use windlass_host::{
    abbreviate::first_few, blocking, causes, deadline, shared::Shared, watch::changed,
};
use windlass_lifecycle::cleanup::CleanupHandle;
use windlass_resources::{NodeState, offers::ShareableGpus};

pub use self::report::{PodHoldings, PodShare, ShareKind, shares_of};
use self::{
    choice::{Choice, decided},
    documents::{Edits, ShareDocument, ShareDocuments},
    error::BindError,
    hold::{Amounts, HeldGpu, Hold, Pod},
    holds::{BoundShare, CheckpointPods, EndedShares, Holds},
    place::{ShareRequest, ShareSize},
    request::{ContainerRequest, Tokens},
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

/// Shares of earlier agents, read from their CDI documents.
#[derive(Debug, Default)]
pub(crate) struct RecoveredShares {
    documents: BTreeMap<String, ShareDocument>,
    unreadable: BTreeSet<String>,
}

/// Task that binds shares and releases them.
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
    limits: LimitRecords,
    holds: Shared<Holds>,
    /// Lock that serializes writes of documents.
    write_lock: Shared<()>,
}

/// Refusal of a container that requests more GPUs than its pod holds.
const MORE_THAN_HELD: &str =
    "the container asks for more GPUs than its pod holds already: delete the pod";

const MAX_LOGGED_IDS: usize = 8;

/// Deadline of a request. The kubelet waits for 30 seconds (`cm/devicemanager/endpoint.go`,
/// preStartContainer).
const DEADLINE: Duration = Duration::from_secs(25);

/// Restores the shares of earlier agents in the ledger. Blocks on reads of small files.
pub(crate) fn restore(places: &HostPaths, ledger: &SharedLedger) -> RecoveredShares {
    let files = ShareDocuments::new(&places.cdi_dir);
    files.remove_temporary_files();
    let (documents, unreadable) = files.read();
    for ShareDocument { hold, .. } in documents.values() {
        ledger.restore_claim(&hold.claim(), hold.uses());
    }
    let is_known = |name: &str| documents.contains_key(name) || unreadable.contains(name);
    LimitRecords::of_shares(&places.state_dir).retain(is_known);
    for name in &unreadable {
        let path = files.path(name);
        let path = path.display();
        tracing::warn!(%path, "CDI document of a share unreadable: no share is bound until it is removed");
    }
    RecoveredShares { documents, unreadable }
}

// === impl Shares ===

impl Shares {
    pub(crate) fn new(places: &HostPaths, recovered: RecoveredShares, deps: Deps) -> Self {
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
            limits: LimitRecords::of_shares(&places.state_dir),
            holds: Shared::new(Holds::of(documents, unreadable)),
            write_lock: Shared::new(()),
        };
        Self { binder: Arc::new(binder), requests: deps.requests }
    }

    /// Binds shares, and releases those of ended pods, until stopped.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let (mut allocations, mut tasks) = (self.binder.allocations.watch(), JoinSet::new());
        let binder = self.binder.clone();
        tasks.spawn(async move {
            binder.find_unknown().await;
            binder.report_recovered().await;
        });
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
    /// Finds pods that may run with a share that has no document.
    async fn find_unknown(&self) {
        let allocations = self.allocations.read().await;
        if let Some(containers) = allocations.containers() {
            // The node's state has no policy yet.
            let policy = self.policy.borrow().clone();
            self.holds.with_lock(|holds| holds.find_unknown(containers, &policy.shares));
        }
    }

    /// Annotates pods whose GPUs an earlier agent chose but did not report.
    async fn report_recovered(&self) {
        let Some(pods) = &self.pods else { return };
        let recovered = self.holds.with_lock(|holds| {
            let unreported = holds.pods.values().filter(|share| share.bound_at.is_none());
            unreported.map(|share| share.hold.clone()).collect::<Vec<_>>()
        });
        for hold in recovered {
            let lookup = pods.find(&hold.pod.uid).await;
            let lookup = lookup.inspect_err(|error| {
                let error = causes(error);
                tracing::debug!(pod = %hold.claim(), error, "placement of a share not compared");
            });
            let Ok(Some(pod)) = lookup else { continue };
            let devices: Vec<_> = hold.devices().cloned().collect();
            let annotated = decided(&pod, devices.len());
            if Choice::of(&devices, &annotated, None) != Choice::Decided {
                annotate(pods, &pod, &hold.placement()).await;
            }
        }
    }

    async fn serve(self: Arc<Self>, request: BindRequest) {
        let BindRequest { resource, ids, reply } = request;
        // On the heap: requests make it large.
        let binding = Box::pin(self.bind(&resource, &ids));
        let bound = deadline::timeout(DEADLINE, binding).await;
        let bound = bound.unwrap_or(Err(BindError::DeadlineExceeded(DEADLINE)));
        let answer = bound.as_ref().map(drop).map_err(|error| causes(error));
        // The caller may have been cancelled.
        let _ = reply.send(answer);
        let unreported = bound.ok().and_then(|hold| {
            let unreported =
                self.holds.with_lock(|holds| holds.pods.get_mut(&hold.pod.uid)?.unreported.take());
            Some((hold, unreported?))
        });
        if let Some((hold, (pod, choice))) = unreported {
            self.report_choice(&hold, &pod, &choice).await;
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
        let containers = allocations.containers().ok_or(BindError::UnreadableCheckpoint)?;
        let request = ContainerRequest::of(resource, ids, containers, &state)?;
        let (existing, dropped) = self.holds.with_lock(|holds| {
            holds.find_unknown(containers, &state.policy.shares);
            holds.record_container_start(&request.uid);
            let dropped = holds.drop_unusable(&request.uid, &state.shareable);
            (holds.pods.get(&request.uid).map(|share| share.hold.clone()), dropped)
        });
        if let Some(dropped) = dropped {
            self.release_gpus(&dropped).await;
        }
        let hold = match existing {
            Some(hold) if request.is_served_by(&hold) => hold,
            _ => self.place(&request, &state).await?,
        };
        let devices: Vec<_> = hold.devices().cloned().collect();
        self.cleanup
            .prepare_claim(&hold.claim().uid, devices)
            .await
            .map_err(BindError::NotReady)?;
        self.write(&request, &hold).await?;
        Ok(hold)
    }

    /// Chooses the GPUs of a pod, and takes them in the ledger.
    async fn place(
        &self,
        request: &ContainerRequest,
        state: &NodeState,
    ) -> Result<Hold, BindError> {
        let pods = self.pods.as_ref().ok_or(BindError::NoApiServer)?;
        let unknown = || BindError::UnknownPod(request.uid.clone());
        let pod = pods.find(&request.uid).await?.ok_or_else(unknown)?;
        let size = match &request.tokens {
            Tokens::Amounts(amounts) => ShareSize::of_one(*amounts),
            Tokens::VirtualGpus { pod: tokens, .. } => {
                let containers = pods.virtual_gpu_requests(&pod).await?.ok_or_else(unknown)?;
                ShareSize::of_virtual_gpus(PodRequest::from_containers(&containers)?, tokens.len())
            }
        };
        self.holds.with_lock(|holds| self.take(holds, request, state, (&pod, size)))
    }

    /// Takes the best GPUs in the ledger, or returns the hold of a concurrent request of the same pod.
    fn take(
        &self,
        holds: &mut Holds,
        request: &ContainerRequest,
        state: &NodeState,
        (pod, size): (&BoundPod, ShareSize),
    ) -> Result<Hold, BindError> {
        // Documents that an operator removed no longer count. A container that starts again replaces its own document.
        holds.unreadable.retain(|name| self.documents.path(name).exists());
        if let Some(name) = holds.unreadable.iter().find(|name| **name != request.name) {
            return Err(BindError::Unreadable(self.documents.path(name)));
        }
        let min_enforcement = Enforcement::required_by(&pod.annotations)?;
        let existing = holds.pods.get(&request.uid).map(|share| &share.hold);
        if let Some(hold) = existing.filter(|hold| request.is_served_by(hold)) {
            return Ok(hold.clone());
        }
        let existing = existing.map(|hold| hold.devices().cloned().collect());
        let (ledger, decided) = (self.ledger.watch().borrow().clone(), decided(pod, size.count));
        let query = ShareRequest {
            gpus: &accepted_gpus(state, pod),
            topology: &state.topology,
            ledger: &ledger,
            size,
            unknown: holds.unknown_amounts(),
            decided: &decided,
        };
        let mut candidates: Vec<DeviceId> = existing.unwrap_or_else(|| query.candidates());
        let mut rejection = query.rejection();
        while let Some(devices) = candidates.get(..size.count).filter(|ids| !ids.is_empty()) {
            let hold = hold(devices, size, request, pod, min_enforcement, state);
            let uses: Vec<_> = hold
                .uses()
                .map(|(device, usage)| (state.overlaps.overlap(device), usage))
                .collect();
            match self.ledger.take_for_claim(&hold.claim(), &uses) {
                Ok(()) => {
                    let unreported = Some((pod.clone(), Choice::of(devices, &decided, rejection)));
                    let share = BoundShare {
                        hold: hold.clone(),
                        bound_at: Some(Instant::now()),
                        unreported,
                    };
                    holds.pods.insert(request.uid.clone(), share);
                    return Ok(hold);
                }
                Err(conflict) => {
                    candidates.retain(|device| device != conflict.device());
                    rejection.get_or_insert_with(|| conflict.to_string());
                }
            }
        }
        let too_few = || {
            format!(
                "the pod wants {size}, and too few of the GPUs that it accepts have that much left"
            )
        };
        Err(BindError::NoCapacity(rejection.unwrap_or_else(too_few)))
    }

    /// Writes the container's document.
    async fn write(
        self: &Arc<Self>,
        request: &ContainerRequest,
        hold: &Hold,
    ) -> Result<(), BindError> {
        let own_gpus = request
            .own_gpus(hold)
            .ok_or_else(|| BindError::NoCapacity(MORE_THAN_HELD.to_owned()))?;
        let own_gpus: Vec<_> = own_gpus.into_iter().cloned().collect();
        let (gpus, limit) = self.edits(request, own_gpus.clone(), hold.pod.at_least).await?;
        let edits = if request.variables_only {
            Edits::Variables
        } else {
            Edits::Gpu(&gpus, limit.as_ref())
        };
        let own_devices: Vec<_> = own_gpus.into_iter().map(|gpu| gpu.device).collect();
        let document =
            ShareDocument::new(&request.name, &request.resource, hold.clone(), &own_devices, edits);
        let document = document.ok_or(BindError::NoGpus)?;
        let has_ended = self.holds.with_lock(|holds| {
            let has_ended = !holds.pods.contains_key(&request.uid);
            if !has_ended {
                holds.unreadable.remove(&request.name);
                holds.documents.insert(request.name.clone(), document);
            }
            has_ended
        });
        if has_ended {
            return Err(BindError::NoPod);
        }
        self.write_or_remove(vec![request.name.clone()]).await.map_err(BindError::WriteDocument)
    }

    /// The CDI document of the GPUs, and the memory limit of a container with some of them.
    async fn edits(
        &self,
        request: &ContainerRequest,
        own_gpus: Vec<HeldGpu>,
        min_enforcement: Enforcement,
    ) -> Result<(Spec, Option<HookLimit>), BindError> {
        let (state, record) = (self.state.borrow().clone(), self.limits.path(&request.name));
        let devices = own_gpus.iter().map(|gpu| state.inventory.get(gpu.device.as_str()));
        let devices = devices.collect::<Option<Vec<_>>>().ok_or(BindError::NoGpus)?;
        // All GPUs of a share are of one vendor.
        let kind = devices.first().map(|device| windlass_cdi::kind_of(device));
        let path =
            kind.and_then(|kind| state.documents.get(&kind)).ok_or(BindError::NoGpus)?.clone();
        let memory =
            own_gpus.iter().zip(devices).map(|(gpu, device)| gpu.memory(device.drm_pci_address()));
        let limit =
            state.limit_rules().limit(&memory.collect::<Vec<_>>(), min_enforcement, &record)?;
        let gpus = blocking(move || windlass_cdi::read_document(&path)).await;
        Ok((gpus.ok_or(BindError::NoGpus)?, limit))
    }

    /// Writes or removes documents, to match the current holds.
    async fn write_or_remove(self: &Arc<Self>, names: Vec<String>) -> Result<(), String> {
        let binder = self.clone();
        let write = move |(): &mut ()| {
            names.iter().try_for_each(|name| {
                let document = binder.holds.with_lock(|holds| holds.documents.get(name).cloned());
                let limit = document.as_ref().and_then(|document| document.limit.as_ref());
                // The record comes first: the document names it, and the hook reads it.
                binder.limits.write_or_remove(name, limit.map(|limit| &limit.record))?;
                binder.documents.write_or_remove(name, document.as_ref())
            })
        };
        let binder = self.clone();
        blocking(move || binder.write_lock.with_lock(write)).await
    }

    /// Releases the shares of ended pods.
    async fn release(self: &Arc<Self>, allocations: &Allocations) {
        let Some(present) = CheckpointPods::of(allocations) else { return };
        let EndedShares { holds, names } = self.holds.with_lock(|holds| holds.release(&present));
        if holds.is_empty() {
            return;
        }
        if let Err(error) = self.write_or_remove(names).await {
            tracing::warn!(error, "CDI document of an ended share not removed");
        }
        for hold in holds {
            self.release_gpus(&hold).await;
            tracing::info!(pod = %hold.claim(), devices = device_names(&hold), "share released");
        }
    }

    /// Starts the cleanup of the GPUs, and releases them in the ledger.
    async fn release_gpus(&self, hold: &Hold) {
        let claim = hold.claim();
        if let Err(error) = self.cleanup.release_claim(&claim.uid).await {
            tracing::debug!(error, pod = %claim, "cleanup has ended");
        }
        self.ledger.release_claim(&claim.uid);
    }

    /// Logs and counts a choice, and corrects the pod's placement.
    async fn report_choice(&self, hold: &Hold, pod: &BoundPod, choice: &Choice) {
        let (name, device) = (pod.namespaced_name(), device_names(hold));
        let Amounts { memory_mib, compute_percent } = hold.first.amounts;
        self.metrics.count_bound(choice.as_str());
        match choice {
            Choice::Decided => {
                tracing::info!(
                    pod = name,
                    device,
                    memory_mib,
                    compute_percent,
                    "share bound as decided"
                );
                return;
            }
            Choice::Undecided => {
                tracing::info!(pod = name, device, memory_mib, compute_percent, "share bound");
            }
            Choice::Corrected { decided, reason: why } => {
                tracing::warn!(
                    pod = name,
                    device,
                    decided,
                    why,
                    "share bound to another GPU than decided"
                );
            }
        }
        if let Some(pods) = &self.pods {
            annotate(pods, pod, &hold.placement()).await;
        }
    }
}

/// Writes the GPUs of a pod into its annotation. False if that failed.
pub(crate) async fn annotate(pods: &Pods, pod: &BoundPod, placement: &PodPlacement) -> bool {
    let written =
        pods.annotate(pod, PodPlacement::PLACED_ANNOTATION, &placement.to_annotation()).await;
    if let Err(error) = &written {
        let (pod, error) = (pod.namespaced_name(), causes(error));
        tracing::warn!(pod, error, "pod not annotated: the cluster half does not know its GPU");
    }
    written.is_ok()
}

/// Shareable GPUs of the node that the pod's annotations accept.
fn accepted_gpus(state: &NodeState, pod: &BoundPod) -> ShareableGpus {
    let accepted = AcceptedGpus::from_annotations(&pod.annotations);
    let product = |id: &DeviceId| state.inventory.get(id.as_str()).and_then(|gpu| gpu.product());
    let mut gpus = state.shareable.clone();
    gpus.retain(|id, _| {
        accepted.accepts_id(Some(id)) && accepted.accepts_product(product(id).unwrap_or_default())
    });
    gpus
}

/// The share of a pod on these GPUs.
fn hold(
    devices: &[DeviceId],
    size: ShareSize,
    request: &ContainerRequest,
    pod: &BoundPod,
    min_enforcement: Enforcement,
    state: &NodeState,
) -> Hold {
    let gpu = |device: &DeviceId| {
        let total_mib = state.shareable.get(device).map(|gpu| gpu.memory_mib);
        let total_mib = total_mib.unwrap_or_else(|| size.amounts_on(0).memory_mib);
        HeldGpu { device: device.clone(), amounts: size.amounts_on(total_mib), of_mib: total_mib }
    };
    let mut gpus = devices.iter().map(gpu);
    Hold {
        first: gpus.next().expect("a share has a GPU"),
        more: gpus.collect(),
        pod: Pod {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            // The kubelet's UID: the API server's mirror of a static pod has another one.
            uid: request.uid.clone(),
            at_least: min_enforcement,
        },
    }
}

fn device_names(hold: &Hold) -> String {
    first_few(&hold.devices().collect::<Vec<_>>(), MAX_LOGGED_IDS)
}
