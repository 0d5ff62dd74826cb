//! The five calls of the device plugin API, answered from the node's newest state.
//!
//! No call waits for the driver or changes anything, so the same request gets the same answer: the
//! kubelet gives Allocate no deadline, asks it before it knows whether the pod fits, and never tells
//! when a device is free again (kubelet reference, traps 6 and 7).

use std::{
    collections::{BTreeMap, BTreeSet},
    pin::Pin,
    sync::Arc,
};

use tokio::sync::{mpsc, watch};
use tokio_stream::{Stream, StreamExt as _, wrappers::WatchStream};
use tonic::{Request, Response, Status};
use windlass_core::{
    device::Device,
    placement::{self, PlacementError},
    resource::ResourceName,
};
use windlass_kubelet_api::deviceplugin::{
    AllocateRequest, AllocateResponse, ContainerAllocateRequest, ContainerAllocateResponse,
    ContainerPreferredAllocationRequest, ContainerPreferredAllocationResponse, DevicePluginOptions,
    Empty, ListAndWatchResponse, PreStartContainerRequest, PreStartContainerResponse,
    PreferredAllocationRequest, PreferredAllocationResponse, device_plugin_server::DevicePlugin,
};

use super::wire::{self, Refusal};
use crate::{
    cdi,
    config::Delivery,
    grant::grant,
    host::Host,
    metrics::{Method, RpcMetrics},
    offer::Allocatable,
    state::NodeState,
};

/// The server of one resource.
pub(super) struct Service {
    pub(super) resource: ResourceName,
    pub(super) state: watch::Receiver<Arc<NodeState>>,
    pub(super) delivery: Arc<Delivery>,
    pub(super) host: Host,
    pub(super) metrics: RpcMetrics,
    pub(super) streams: mpsc::UnboundedSender<StreamEvent>,
}

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
            pre_start_required: false,
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
        let resource = self.resource.clone();
        let mut sent = None;
        let lists = WatchStream::new(self.state.clone()).filter_map(move |state| {
            let _open = &guard;
            let offer = state.offers.get(&resource)?;
            let list = wire::device_list(offer);
            if sent.as_ref() == Some(&list) {
                return None;
            }
            let (devices, allocatable) = (offer.devices.len(), offer.allocatable());
            tracing::info!(resource = resource.as_str(), devices, allocatable, "list sent");
            sent = Some(list.clone());
            Some(Ok(list))
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
        let answers = requests.iter().map(|request| self.prefer(&state, request));
        let container_responses = call.end(answers.collect::<Result<_, _>>())?;
        Ok(Response::new(PreferredAllocationResponse { container_responses }))
    }

    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        let call = self.metrics.begin(Method::Allocate);
        let state = self.state.borrow().clone();
        let requests = request.into_inner().container_requests;
        let answers = requests.iter().map(|request| self.allocate_one(&state, request));
        let container_responses = call.end(answers.collect::<Result<_, _>>())?;
        Ok(Response::new(AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        request: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        let call = self.metrics.begin(Method::PreStart);
        let state = self.state.borrow().clone();
        call.end(self.check_known(&state, &request.into_inner().devices_ids))?;
        Ok(Response::new(PreStartContainerResponse {}))
    }
}

impl Service {
    fn allocate_one(
        &self,
        state: &NodeState,
        request: &ContainerAllocateRequest,
    ) -> Result<ContainerAllocateResponse, Refusal> {
        let ids = &request.devices_ids;
        if ids.is_empty() {
            return Err(Refusal::Empty { resource: self.name() });
        }
        self.check_unique(ids)?;
        self.check_known(state, ids)?;
        let devices =
            ids.iter().map(|id| self.allocatable(state, id)).collect::<Result<Vec<_>, _>>()?;
        check_documents(state, &devices)?;
        let simulated = state.inventory.simulated.as_deref();
        let grant = grant(&self.resource, &devices, &self.delivery, simulated);
        tracing::info!(resource = self.resource.as_str(), devices = ids.join(" "), "allocated");
        Ok(wire::container_response(grant, &self.host))
    }

    /// The device, if it may be given away and its nodes are where the container will look for them.
    fn allocatable<'a>(&self, state: &'a NodeState, id: &str) -> Result<&'a Device, Refusal> {
        let refuse = |why: &str| Refusal::NotAllocatable {
            resource: self.name(),
            id: id.to_owned(),
            why: why.to_owned(),
        };
        let offered = state.offers.get(&self.resource).and_then(|offer| offer.devices.get(id));
        if let Some(Allocatable::No(why)) = offered.map(|offered| &offered.state) {
            return Err(refuse(why));
        }
        let device = state.inventory.get(id).ok_or_else(|| refuse("no longer on this node"))?;
        match device.nodes.iter().find(|node| !self.host.has(node)) {
            None => Ok(device),
            Some(node) => Err(Refusal::NodeMissing {
                resource: self.name(),
                id: id.to_owned(),
                node: node.display().to_string(),
            }),
        }
    }

    fn prefer(
        &self,
        state: &NodeState,
        request: &ContainerPreferredAllocationRequest,
    ) -> Result<ContainerPreferredAllocationResponse, Refusal> {
        // A preference is a hint: ids that are not known are no reason to refuse the pod.
        let ids = request.available_device_i_ds.iter();
        let available: Vec<_> = ids.filter_map(|id| state.inventory.get(id)).collect();
        let required: Vec<_> =
            request.must_include_device_i_ds.iter().map(String::as_str).collect();
        let size = usize::try_from(request.allocation_size).unwrap_or(0);
        let question = placement::Request { available: &available, required: &required, size };
        let choice = placement::choose(question).map_err(|source| self.unanswerable(source))?;
        let device_i_ds: Vec<_> = choice.devices.iter().map(ToString::to_string).collect();
        tracing::info!(
            resource = self.resource.as_str(),
            devices = device_i_ds.join(" "),
            why = choice.connections.to_string(),
            compared = choice.compared,
            exact = choice.exact,
            "preferred"
        );
        Ok(ContainerPreferredAllocationResponse { device_i_ds })
    }

    fn unanswerable(&self, source: PlacementError) -> Refusal {
        Refusal::Placement { resource: self.name(), source }
    }

    fn check_unique(&self, ids: &[String]) -> Result<(), Refusal> {
        let mut seen = BTreeSet::new();
        let repeated: Vec<_> = ids.iter().filter(|id| !seen.insert(*id)).cloned().collect();
        match repeated.as_slice() {
            [] => Ok(()),
            _ => Err(Refusal::Duplicate { resource: self.name(), ids: repeated }),
        }
    }

    fn check_known(&self, state: &NodeState, ids: &[String]) -> Result<(), Refusal> {
        let none = BTreeMap::new();
        let offer = state.offers.get(&self.resource).map_or(&none, |offer| &offer.devices);
        let unknown: Vec<_> =
            ids.iter().filter(|id| !offer.contains_key(id.as_str())).cloned().collect();
        match unknown.as_slice() {
            [] => Ok(()),
            _ => Err(Refusal::Unknown { resource: self.name(), ids: unknown }),
        }
    }

    fn name(&self) -> String {
        self.resource.to_string()
    }
}

/// A name is granted only if the runtime will find it.
fn check_documents(state: &NodeState, devices: &[&Device]) -> Result<(), Refusal> {
    if let Some(error) = &state.cdi {
        return Err(Refusal::Cdi(error.to_string()));
    }
    let kinds: BTreeSet<_> = devices.iter().map(|device| cdi::kind_of(device.kind)).collect();
    let paths = kinds.iter().filter_map(|kind| state.documents.get(kind));
    match paths.into_iter().find(|path| !path.exists()) {
        None => Ok(()),
        Some(path) => Err(Refusal::Cdi(format!(
            "CDI document {} was removed; it is written again within ten seconds",
            path.display()
        ))),
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
