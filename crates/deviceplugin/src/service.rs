//! The five calls of the device plugin API, answered from the node's newest state.
//!
//! No call waits for the driver, and the same request gets the same answer: the kubelet gives Allocate no
//! deadline, asks it before it knows whether the pod fits, and never tells when a device is free again
//! (kubelet reference, traps 6 and 7). Allocate only notes in the ledger what it gives away, and is refused
//! what a claim has. The exception is `PreStartContainer`,
//! which the kubelet makes for that, and where something is to be done to a device only.

mod allocate;
mod company;
mod prefer;

use std::{collections::BTreeSet, pin::Pin, sync::Arc};

use tokio::sync::{mpsc, watch};
use tokio_stream::{Stream, StreamExt as _, wrappers::WatchStream};
use tonic::{Request, Response, Status};
use windlass_allocations::{ledger::LedgerDesk, podresources::HoldersDesk};
use windlass_core::resource::ResourceName;
use windlass_host::{Roots, shared::Shared};
use windlass_kubelet_api::deviceplugin::{
    AllocateRequest, AllocateResponse, DevicePluginOptions, Empty, ListAndWatchResponse,
    PreStartContainerRequest, PreStartContainerResponse, PreferredAllocationRequest,
    PreferredAllocationResponse, device_plugin_server::DevicePlugin,
};
use windlass_lifecycle::{
    cleanup::{HandoverDesk, NotReady},
    mps::MpsPlaces,
};
use windlass_resources::{NodeState, offers::Offer};

pub(super) use company::Company;

use super::wire::{self, Refusal};
use crate::{
    history::Teller,
    metrics::{Method, PlacementMetrics, RpcMetrics},
};

/// The server of one resource.
pub(super) struct Service {
    pub(super) resource: ResourceName,
    pub(super) state: watch::Receiver<Arc<NodeState>>,
    pub(super) roots: Roots,
    pub(super) mps: MpsPlaces,
    pub(super) metrics: RpcMetrics,
    pub(super) placements: PlacementMetrics,
    pub(super) choices: Teller,
    pub(super) handovers: HandoverDesk,
    pub(super) ledger: LedgerDesk,
    /// Says when the kubelet is to write its record, as it does for each list.
    pub(super) holders: HoldersDesk,
    pub(super) streams: mpsc::UnboundedSender<StreamEvent>,
    /// The list that was sent last, whichever stream it was on.
    pub(super) newest: watch::Sender<ListAndWatchResponse>,
    /// What was given away last, whichever resource it was of.
    pub(super) company: Arc<Shared<Company>>,
}

/// The most containers of one call. A kubelet asks for one at a time (kubelet reference, section 3); an answer may take
/// some kilobytes.
const MOST_CONTAINERS: usize = 64;

/// So many ids of a container are logged.
const LOGGED: usize = 64;

/// Something happened to a device list stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamEvent {
    Opened(StreamId),
    Ended(StreamId),
}

/// Tells one open stream from another: the address of something that lives as long as it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StreamId(pub(super) usize);

/// Tells the session when a stream ends, however it ends.
struct StreamGuard {
    streams: mpsc::UnboundedSender<StreamEvent>,
    marker: Arc<()>,
}

/// Why a list is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// The node's state is another, and the list with it perhaps.
    News,
    /// The kubelet is to write its record anew.
    Rewrite,
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
        let call = self.metrics.begin(Method::Options);
        call.end(Ok(Response::new(DevicePluginOptions {
            pre_start_required: self.state.borrow().is_handed_over(&self.resource),
            get_preferred_allocation_available: true,
        })))
    }

    /// Every open stream gets every change: a kubelet up to 1.36 takes the end of an older stream for
    /// the end of a newer one (kubelet reference, trap 1). A stream that is not read holds up nobody:
    /// it continues with the newest list.
    async fn list_and_watch(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let guard = StreamGuard::open(&self.streams);
        let (resource, state, newest) =
            (self.resource.clone(), self.state.clone(), self.newest.clone());
        let mut sent = None;
        let lists =
            causes_of_lists(&self.state, self.holders.rewrites()).filter_map(move |cause| {
                let _open = &guard;
                let state = state.borrow();
                let offer = state.offers.get(&resource)?;
                let list = wire::device_list(offer);
                let is_other = sent.as_ref() != Some(&list);
                if is_other {
                    tell(&resource, offer, is_news(&newest, &list));
                    sent = Some(list.clone());
                }
                (is_other || cause == Cause::Rewrite).then_some(Ok(list))
            });
        Ok(Response::new(Box::pin(lists)))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let call = self.metrics.begin(Method::Prefer);
        let state = self.state.borrow().clone();
        let requests = request.into_inner().container_requests;
        let answers = self.check_few(requests.len()).and_then(|()| {
            requests
                .iter()
                .map(|request| self.prefer(&state, request))
                .collect::<Result<Vec<_>, _>>()
        });
        let answers = call.end(answers);
        let chosen = answers.inspect_err(|_| self.placements.refused())?.into_iter();
        let container_responses = chosen.map(|chosen| self.answer(chosen)).collect();
        Ok(Response::new(PreferredAllocationResponse { container_responses }))
    }

    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        let call = self.metrics.begin(Method::Allocate);
        let state = self.state.borrow().clone();
        let requests = request.into_inner().container_requests;
        let container_responses = call.end(self.allocate_all(&state, &requests))?;
        Ok(Response::new(AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        request: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        let call = self.metrics.begin(Method::PreStart);
        call.end(self.prepare(&request.into_inner().devices_ids).await)?;
        Ok(Response::new(PreStartContainerResponse {}))
    }
}

impl Service {
    /// The offer of this resource; one without devices when it is gone.
    fn offer(&self, state: &NodeState) -> Arc<Offer> {
        state.offers.get(&self.resource).cloned().unwrap_or_default()
    }

    /// The one call that waits: for what is done to the devices before a container starts with them.
    async fn prepare(&self, ids: &[String]) -> Result<(), Refusal> {
        let state = self.state.borrow().clone();
        let offer = self.offer(&state);
        self.check_known(&offer, ids)?;
        let devices: BTreeSet<_> = ids.iter().filter_map(|id| offer.device_of(id)).collect();
        let prepared = self.handovers.prepare(devices.into_iter().cloned()).await;
        prepared.map_err(|NotReady { device, why }| Refusal::NotReady {
            resource: self.name(),
            id: device.to_string(),
            why,
        })
    }

    fn check_few(&self, asked: usize) -> Result<(), Refusal> {
        let (resource, most) = (self.name(), MOST_CONTAINERS);
        if asked > most { Err(Refusal::TooMany { resource, asked, most }) } else { Ok(()) }
    }

    fn check_known(&self, offer: &Offer, ids: &[String]) -> Result<(), Refusal> {
        let unknown: Vec<_> = ids.iter().filter(|id| offer.find(id).is_none()).cloned().collect();
        match unknown.as_slice() {
            [] => Ok(()),
            _ => Err(Refusal::Unknown { resource: self.name(), ids: unknown }),
        }
    }

    fn name(&self) -> String {
        self.resource.to_string()
    }
}

/// When a list is to be sent, perhaps: until the reconciler ends.
fn causes_of_lists(
    state: &watch::Receiver<Arc<NodeState>>,
    rewrites: watch::Receiver<u64>,
) -> impl Stream<Item = Cause> + use<> {
    let news = WatchStream::new(state.clone()).map(|_| Some(Cause::News));
    let rewrites = WatchStream::from_changes(rewrites).map(|_| Some(Cause::Rewrite));
    let all = news.chain(tokio_stream::once(None)).merge(rewrites);
    all.map_while(|cause| cause)
}

/// Whether no stream got the list before.
fn is_news(newest: &watch::Sender<ListAndWatchResponse>, list: &ListAndWatchResponse) -> bool {
    newest.send_if_modified(|known| {
        let is_news = known != list;
        if is_news {
            known.clone_from(list);
        }
        is_news
    })
}

/// Tells the operator of a list once, however many streams there are.
fn tell(resource: &ResourceName, offer: &Offer, is_news: bool) {
    let (resource, devices, allocatable) = (resource.as_str(), offer.listed(), offer.allocatable());
    if is_news {
        tracing::info!(resource, devices, allocatable, "list sent");
    } else {
        tracing::debug!(resource, devices, allocatable, "list sent again");
    }
}

// === impl StreamGuard ===

impl StreamGuard {
    fn open(streams: &mpsc::UnboundedSender<StreamEvent>) -> Self {
        let guard = Self { streams: streams.clone(), marker: Arc::new(()) };
        guard.tell(StreamEvent::Opened(guard.id()));
        guard
    }

    fn id(&self) -> StreamId {
        StreamId(Arc::as_ptr(&self.marker).addr())
    }

    fn tell(&self, event: StreamEvent) {
        // The session may have ended already; then nobody needs to know.
        let _ = self.streams.send(event);
    }
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        self.tell(StreamEvent::Ended(self.id()));
    }
}
