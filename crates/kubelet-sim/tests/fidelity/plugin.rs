//! A device plugin that follows the script, and records each call.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    pin::Pin,
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
};

use tokio::{runtime, sync::watch};
use tokio_stream::{
    Stream, StreamExt as _,
    wrappers::{UnixListenerStream, WatchStream},
};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, transport::Server};
use windlass_kubelet_api::{
    deviceplugin::{
        self as wire,
        device_plugin_server::{DevicePlugin, DevicePluginServer},
        registration_client::RegistrationClient,
    },
    socket::SocketPath,
};

use super::{
    devices,
    script::{Manner, Wants},
};

/// A plugin with a socket of its own.
pub(crate) struct Plugin {
    resource: &'static str,
    dir: PathBuf,
    endpoint: String,
    shared: Arc<Shared>,
    process: Process,
}

/// A server with all of its connections.
struct Process {
    thread: Option<JoinHandle<()>>,
    end: CancellationToken,
}

struct Shared {
    name: &'static str,
    wants: Wants,
    manner: Mutex<Manner>,
    calls: watch::Sender<Vec<String>>,
    show: watch::Sender<Show>,
    streams: watch::Sender<usize>,
}

/// Content of each stream.
#[derive(Clone, Debug)]
enum Show {
    Nothing,
    Devices(Vec<wire::Device>),
    End,
}

struct Service(Arc<Shared>);

struct OpenStream(Arc<Shared>);

// === impl Plugin ===

impl Plugin {
    /// Serves on a socket in the kubelet's folder.
    pub(crate) fn serve(
        dir: &Path,
        name: &'static str,
        resource: &'static str,
        wants: Wants,
    ) -> Self {
        let shared = Arc::new(Shared {
            name,
            wants,
            manner: Mutex::new(Manner::Right),
            calls: watch::Sender::new(Vec::new()),
            show: watch::Sender::new(Show::Nothing),
            streams: watch::Sender::new(0),
        });
        let endpoint = format!("{name}.sock");
        let process = Process::serve(&dir.join(&endpoint), Service(Arc::clone(&shared)));
        Self { resource, dir: dir.to_owned(), endpoint, shared, process }
    }

    /// Registers, and waits for the `ListAndWatch` that follows.
    pub(crate) async fn register(&self) -> Result<(), String> {
        let mut calls = self.shared.calls.subscribe();
        let before = watches(&calls.borrow());
        self.register_as(self.resource, wire::VERSION).await?;
        calls.wait_for(|calls| watches(calls) > before).await.expect("its sender lives");
        Ok(())
    }

    pub(crate) async fn register_as(&self, resource: &str, version: &str) -> Result<(), String> {
        let socket = SocketPath::new(self.dir.join(wire::KUBELET_SOCKET)).expect("short");
        let channel = socket.dial().await.expect("the kubelet listens");
        let request = wire::RegisterRequest {
            version: version.to_owned(),
            endpoint: self.endpoint.clone(),
            resource_name: resource.to_owned(),
            options: None,
        };
        let answer = RegistrationClient::new(channel).register(request).await;
        answer.map(drop).map_err(|status| format!("{:?}: {}", status.code(), status.message()))
    }

    pub(crate) fn list(&self, devices: &str) {
        self.shared.show.send_replace(Show::Devices(devices::parse(devices)));
    }

    pub(crate) fn end_streams(&self) {
        self.shared.show.send_replace(Show::End);
    }

    pub(crate) fn behave(&self, manner: Manner) {
        *self.shared.manner.lock().expect("nobody panicked with it") = manner;
    }

    /// Waits until this many streams are open.
    pub(crate) async fn streams(&self, count: usize) {
        let mut streams = self.shared.streams.subscribe();
        streams.wait_for(|open| *open == count).await.expect("its sender lives");
    }

    /// Calls so far.
    pub(crate) fn calls(&self) -> Vec<String> {
        self.shared.calls.borrow().clone()
    }

    /// Ends the process, and removes its socket.
    pub(crate) fn die(&mut self) {
        self.process.kill();
        // A restarted kubelet has deleted the socket.
        let _ = fs::remove_file(self.dir.join(&self.endpoint));
    }
}

fn watches(calls: &[String]) -> usize {
    calls.iter().filter(|call| *call == "ListAndWatch").count()
}

// === impl Process ===

impl Process {
    /// Serves in a runtime of its own, which ends all of its tasks.
    fn serve(socket: &Path, service: Service) -> Self {
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let context = runtime.enter();
        let listener = SocketPath::new(socket).expect("short").bind().expect("bound");
        drop(context);
        let end = CancellationToken::new();
        let ended = end.clone();
        let thread = thread::spawn(move || {
            let incoming = UnixListenerStream::new(listener);
            let service = DevicePluginServer::new(service);
            let serving = Server::builder().add_service(service).serve_with_incoming(incoming);
            if let Some(served) = runtime.block_on(ended.run_until_cancelled_owned(serving)) {
                served.expect("served until its end");
            }
        });
        Self { thread: Some(thread), end }
    }

    /// Returns when the last connection is closed.
    fn kill(&mut self) {
        self.end.cancel();
        if let Some(thread) = self.thread.take() {
            thread.join().expect("it did not panic");
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end.cancel();
    }
}

// === impl Service ===

impl Service {
    fn note(&self, call: String) -> Manner {
        self.0.calls.send_modify(|calls| calls.push(call));
        *self.0.manner.lock().expect("nobody panicked with it")
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.streams.send_modify(|open| *open -= 1);
    }
}

#[tonic::async_trait]
impl DevicePlugin for Service {
    type ListAndWatchStream =
        Pin<Box<dyn Stream<Item = Result<wire::ListAndWatchResponse, Status>> + Send>>;

    async fn get_device_plugin_options(
        &self,
        _: Request<wire::Empty>,
    ) -> Result<Response<wire::DevicePluginOptions>, Status> {
        if self.note("GetDevicePluginOptions".to_owned()) == Manner::OptionsFail {
            return Err(Status::internal("no options today"));
        }
        Ok(Response::new(wire::DevicePluginOptions {
            pre_start_required: self.0.wants == Wants::PreStart,
            get_preferred_allocation_available: self.0.wants == Wants::Preference,
        }))
    }

    async fn list_and_watch(
        &self,
        _: Request<wire::Empty>,
    ) -> Result<Response<Self::ListAndWatchStream>, Status> {
        self.0.streams.send_modify(|open| *open += 1);
        self.note("ListAndWatch".to_owned());
        let open = OpenStream(Arc::clone(&self.0));
        let shows = WatchStream::new(self.0.show.subscribe());
        let stream = shows.take_while(|show| !matches!(show, Show::End)).filter_map(move |show| {
            let _keep = &open;
            match show {
                Show::Devices(devices) => Some(Ok(wire::ListAndWatchResponse { devices })),
                Show::Nothing | Show::End => None,
            }
        });
        Ok(Response::new(Box::pin(stream)))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<wire::PreferredAllocationRequest>,
    ) -> Result<Response<wire::PreferredAllocationResponse>, Status> {
        let mut asked = request.into_inner().container_requests;
        let wire::ContainerPreferredAllocationRequest {
            available_device_i_ds: available,
            must_include_device_i_ds: required,
            allocation_size: size,
        } = asked.pop().expect("one container at a time");
        let call = format!(
            "GetPreferredAllocation of {size} of [{}] with [{}]",
            sorted(&available),
            sorted(&required)
        );
        let device_i_ds = match self.note(call) {
            Manner::PreferenceFails => return Err(Status::unavailable("no preference today")),
            Manner::PrefersUnknown => vec!["unknown".to_owned()],
            _ => first(usize::try_from(size).expect("not negative"), required, available),
        };
        let answer = wire::ContainerPreferredAllocationResponse { device_i_ds };
        Ok(Response::new(wire::PreferredAllocationResponse { container_responses: vec![answer] }))
    }

    async fn allocate(
        &self,
        request: Request<wire::AllocateRequest>,
    ) -> Result<Response<wire::AllocateResponse>, Status> {
        let asked = request.into_inner().container_requests;
        let ids: Vec<String> = asked.iter().map(|one| sorted(&one.devices_ids)).collect();
        let container_responses = match self.note(format!("Allocate [{}]", ids.join("] ["))) {
            Manner::AllocateFails => return Err(Status::internal("no devices today")),
            Manner::AllocatesNothing => Vec::new(),
            _ => ids.into_iter().map(|ids| granted(self.0.name, ids)).collect(),
        };
        Ok(Response::new(wire::AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        request: Request<wire::PreStartContainerRequest>,
    ) -> Result<Response<wire::PreStartContainerResponse>, Status> {
        let ids = sorted(&request.into_inner().devices_ids);
        if self.note(format!("PreStartContainer [{ids}]")) == Manner::PreStartFailsOnce {
            *self.0.manner.lock().expect("nobody panicked with it") = Manner::Right;
            return Err(Status::aborted("not yet"));
        }
        Ok(Response::new(wire::PreStartContainerResponse {}))
    }
}

/// Environment of a granted container.
fn granted(plugin: &str, ids: String) -> wire::ContainerAllocateResponse {
    let variable = format!("DEVICES_{}", plugin.to_uppercase());
    wire::ContainerAllocateResponse { envs: [(variable, ids)].into(), ..Default::default() }
}

/// Required ids, then the first of the rest.
fn first(size: usize, required: Vec<String>, available: Vec<String>) -> Vec<String> {
    let rest: BTreeSet<_> = available.into_iter().filter(|id| !required.contains(id)).collect();
    required.into_iter().chain(rest).take(size).collect()
}

/// Sorted ids: the kubelet's lists have the random order of Go's maps.
fn sorted(ids: &[String]) -> String {
    let mut ids = ids.to_vec();
    ids.sort();
    ids.join(" ")
}
