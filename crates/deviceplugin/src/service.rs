//! The five RPCs of the device plugin API, answered from the newest node state.
//!
//! Calls are deterministic and do no driver I/O. The kubelet sets no deadline for Allocate, calls
//! it before it knows that the pod fits, and reports no release (`pkg/kubelet/cm/devicemanager`).
//! Allocate takes the devices in the ledger, which refuses devices of claims. Only
//! `PreStartContainer` waits: for cleanup, or for the choice of a share's GPU. The agent requires it for
//! resources with a cleanup step and for shares by amounts.

mod allocate;
mod prefer;
mod same_container;

use std::{collections::BTreeSet, pin::Pin, sync::Arc};

use tokio::sync::{mpsc, watch};
use tokio_stream::{Stream, StreamExt as _, wrappers::WatchStream};
use tonic::{Request, Response, Status};
use windlass_allocations::{ledger::SharedLedger, podresources::PodResourcesCache};
use windlass_cdi::memory_limits::ReplicaLimits;
use windlass_core::resource::ResourceName;
use windlass_host::{Roots, shared::Shared};
use windlass_kubelet_api::deviceplugin::{
    AllocateRequest, AllocateResponse, DevicePluginOptions, Empty, ListAndWatchResponse,
    PreStartContainerRequest, PreStartContainerResponse, PreferredAllocationRequest,
    PreferredAllocationResponse, device_plugin_server::DevicePlugin,
};
use windlass_lifecycle::{
    cleanup::{CleanupHandle, NotReadyError},
    mps::MpsFolders,
};
use windlass_resources::{NodeState, offers::Offer};

pub(super) use same_container::AllocationGroup;

use super::wire::{self, Refusal};
use crate::{
    ClusterDecisions,
    history::HistorySender,
    metrics::{Method, PlacementMetrics, RpcMetrics},
    shares::ShareHandle,
};

/// Server of one resource.
pub(super) struct Service {
    pub(super) resource: ResourceName,
    pub(super) state: watch::Receiver<Arc<NodeState>>,
    pub(super) roots: Roots,
    pub(super) mps: MpsFolders,
    pub(super) limits: ReplicaLimits,
    pub(super) metrics: RpcMetrics,
    pub(super) placements: PlacementMetrics,
    pub(super) choices: HistorySender,
    pub(super) cleanup: CleanupHandle,
    pub(super) ledger: SharedLedger,
    /// Source of requests for a new checkpoint: the kubelet writes one for each device list.
    pub(super) holders: PodResourcesCache,
    pub(super) shares: ShareHandle,
    pub(super) decisions: watch::Receiver<Arc<ClusterDecisions>>,
    pub(super) streams: mpsc::UnboundedSender<StreamEvent>,
    /// Newest list on any stream.
    pub(super) newest_list: watch::Sender<ListAndWatchResponse>,
    /// Latest allocations of all resources.
    pub(super) recent: Arc<Shared<AllocationGroup>>,
}

/// Limit of containers per call. A kubelet sends one (`cm/devicemanager/endpoint.go`, allocate);
/// each answer may take kilobytes.
const MAX_CONTAINERS: usize = 64;

/// Limit of logged ids per container.
const MAX_LOGGED_IDS: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamEvent {
    Opened(StreamId),
    Ended(StreamId),
}

/// Identity of an open stream: the address of its [`StreamGuard`]'s marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StreamId(pub(super) usize);

/// Reports the end of a stream on drop.
struct StreamGuard {
    streams: mpsc::UnboundedSender<StreamEvent>,
    marker: Arc<()>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SendReason {
    /// The node state changed.
    StateChange,
    /// The kubelet has to write its checkpoint.
    CheckpointRequest,
}

type DeviceListStream = Pin<Box<dyn Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

// === impl Service ===

#[tonic::async_trait]
impl DevicePlugin for Service {
    type ListAndWatchStream = DeviceListStream;

    async fn get_device_plugin_options(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        let call = self.metrics.start_timer(Method::Options);
        call.observe(Ok(Response::new(DevicePluginOptions {
            pre_start_required: self.state.borrow().needs_pre_start(&self.resource),
            get_preferred_allocation_available: true,
        })))
    }

    /// Sends every change to every open stream: a kubelet up to 1.36 drops its newest connection when an older stream
    /// ends (Kubernetes PR 135437). A slow stream skips to the newest list.
    async fn list_and_watch(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let guard = StreamGuard::open(&self.streams);
        let resource = self.resource.clone();
        let state = self.state.clone();
        let newest_list = self.newest_list.clone();
        let mut last_list = None;
        let lists =
            send_reasons(&self.state, self.holders.rewrite_requests()).filter_map(move |reason| {
                let _open = &guard;
                let state = state.borrow();
                // A resource without ids left is still listed: each list makes the kubelet write its checkpoint.
                let offer = state.offers.get(&resource).cloned().unwrap_or_default();
                let list = wire::device_list(&offer);
                let is_changed = last_list.as_ref() != Some(&list);
                if is_changed {
                    log_list(&resource, &offer, is_first(&newest_list, &list));
                    last_list = Some(list.clone());
                }
                (is_changed || reason == SendReason::CheckpointRequest).then_some(Ok(list))
            });
        Ok(Response::new(Box::pin(lists)))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let call = self.metrics.start_timer(Method::Prefer);
        let state = self.state.borrow().clone();
        let requests = request.into_inner().container_requests;
        let preferences = self
            .check_container_count(requests.len())
            .and_then(|()| requests.iter().map(|request| self.prefer(&state, request)).collect());
        let preferences: Vec<_> =
            call.observe(preferences).inspect_err(|_| self.placements.count_refusal())?;
        let container_responses =
            preferences.into_iter().map(|preference| self.record_response(preference)).collect();
        Ok(Response::new(PreferredAllocationResponse { container_responses }))
    }

    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        let call = self.metrics.start_timer(Method::Allocate);
        let state = self.state.borrow().clone();
        let requests = request.into_inner().container_requests;
        let container_responses = call.observe(self.allocate_all(&state, &requests))?;
        Ok(Response::new(AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        request: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        let call = self.metrics.start_timer(Method::PreStart);
        call.observe(self.prepare(&request.into_inner().devices_ids).await)?;
        Ok(Response::new(PreStartContainerResponse {}))
    }
}

impl Service {
    /// Offer of this resource; an empty one if it was withdrawn.
    fn offer(&self, state: &NodeState) -> Arc<Offer> {
        state.offers.get(&self.resource).cloned().unwrap_or_default()
    }

    /// Waits until cleanup has prepared the devices for the container, or until a GPU is chosen for its share.
    async fn prepare(&self, ids: &[String]) -> Result<(), Refusal> {
        let state = self.state.borrow().clone();
        let offer = self.offer(&state);
        self.check_known(&offer, ids)?;
        if offer.are_share_tokens(ids) {
            let outcome = self.shares.bind(&self.resource, ids).await;
            return outcome
                .map_err(|reason| Refusal::ShareNotBound { resource: self.name(), reason });
        }
        let devices: BTreeSet<_> = ids.iter().filter_map(|id| offer.device_of(id)).collect();
        let outcome = self.cleanup.prepare(devices.into_iter().cloned()).await;
        outcome.map_err(|NotReadyError { device, reason }| Refusal::NotReady {
            resource: self.name(),
            id: device.to_string(),
            reason,
        })
    }

    fn check_container_count(&self, count: usize) -> Result<(), Refusal> {
        let (resource, limit) = (self.name(), MAX_CONTAINERS);
        if count > limit {
            Err(Refusal::TooManyContainers { resource, count, limit })
        } else {
            Ok(())
        }
    }

    fn check_known(&self, offer: &Offer, ids: &[String]) -> Result<(), Refusal> {
        let unknown_ids: Vec<_> =
            ids.iter().filter(|id| offer.resolve(id).is_none()).cloned().collect();
        match unknown_ids.as_slice() {
            [] => Ok(()),
            _ => Err(Refusal::UnknownIds { resource: self.name(), ids: unknown_ids }),
        }
    }

    fn name(&self) -> String {
        self.resource.to_string()
    }
}

/// Reasons to send a list, until the reconciler ends.
fn send_reasons(
    state: &watch::Receiver<Arc<NodeState>>,
    rewrites: watch::Receiver<u64>,
) -> impl Stream<Item = SendReason> + use<> {
    let changes = WatchStream::new(state.clone()).map(|_| Some(SendReason::StateChange));
    let rewrites = WatchStream::from_changes(rewrites).map(|_| Some(SendReason::CheckpointRequest));
    let reasons = changes.chain(tokio_stream::once(None)).merge(rewrites);
    reasons.map_while(|reason| reason)
}

/// True if no stream has sent this list.
fn is_first(
    newest_list: &watch::Sender<ListAndWatchResponse>,
    list: &ListAndWatchResponse,
) -> bool {
    newest_list.send_if_modified(|last_list| {
        let is_first = last_list != list;
        if is_first {
            last_list.clone_from(list);
        }
        is_first
    })
}

/// Logs a list: at info for the first stream that sends it, at debug for the others.
fn log_list(resource: &ResourceName, offer: &Offer, is_first: bool) {
    let (resource, devices, allocatable) =
        (resource.as_str(), offer.listed_count(), offer.allocatable_count());
    if is_first {
        tracing::info!(resource, devices, allocatable, "device list sent");
    } else {
        tracing::debug!(resource, devices, allocatable, "device list sent again");
    }
}

// === impl StreamGuard ===

impl StreamGuard {
    fn open(streams: &mpsc::UnboundedSender<StreamEvent>) -> Self {
        let guard = Self { streams: streams.clone(), marker: Arc::new(()) };
        guard.send(StreamEvent::Opened(guard.id()));
        guard
    }

    fn id(&self) -> StreamId {
        StreamId(Arc::as_ptr(&self.marker).addr())
    }

    fn send(&self, event: StreamEvent) {
        // The receiver is gone once the session has ended.
        let _ = self.streams.send(event);
    }
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        self.send(StreamEvent::Ended(self.id()));
    }
}
