//! A device plugin that behaves as the script says, and records each call.

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
    script::{Behaviour, OptionalCall},
};

/// A plugin with its own socket.
pub(crate) struct Plugin {
    resource: &'static str,
    dir: PathBuf,
    endpoint: String,
    shared: Arc<Shared>,
    process: Process,
}

/// A gRPC server in its own thread. Its end closes all connections, as the end of a process does.
struct Process {
    thread: Option<JoinHandle<()>>,
    end: CancellationToken,
}

struct Shared {
    name: &'static str,
    requested_call: OptionalCall,
    behaviour: Mutex<Behaviour>,
    calls: watch::Sender<Vec<String>>,
    content: watch::Sender<StreamContent>,
    streams: watch::Sender<usize>,
}

/// Content of each `ListAndWatch` stream.
#[derive(Clone, Debug)]
enum StreamContent {
    NoList,
    Devices(Vec<wire::Device>),
    End,
}

struct Service(Arc<Shared>);

struct OpenStream(Arc<Shared>);

// === impl Plugin ===

impl Plugin {
    /// Serves on a socket in the plugin folder.
    pub(crate) fn serve(
        dir: &Path,
        name: &'static str,
        resource: &'static str,
        requested_call: OptionalCall,
    ) -> Self {
        let shared = Arc::new(Shared {
            name,
            requested_call,
            behaviour: Mutex::new(Behaviour::Right),
            calls: watch::Sender::new(Vec::new()),
            content: watch::Sender::new(StreamContent::NoList),
            streams: watch::Sender::new(0),
        });
        let endpoint = format!("{name}.sock");
        let process = Process::serve(&dir.join(&endpoint), Service(Arc::clone(&shared)));
        Self { resource, dir: dir.to_owned(), endpoint, shared, process }
    }

    /// Registers, and waits for the `ListAndWatch` that follows.
    pub(crate) async fn register(&self) -> Result<(), String> {
        let mut calls = self.shared.calls.subscribe();
        let before = count_streams(&calls.borrow());
        self.register_as(self.resource, wire::VERSION).await?;
        let is_new = |calls: &Vec<String>| count_streams(calls) > before;
        calls.wait_for(is_new).await.expect("the sender exists");
        Ok(())
    }

    pub(crate) async fn register_as(&self, resource: &str, version: &str) -> Result<(), String> {
        let socket =
            SocketPath::new(self.dir.join(wire::KUBELET_SOCKET)).expect("a short socket path");
        let channel = socket.dial().await.expect("the kubelet listens");
        let request = wire::RegisterRequest {
            version: version.to_owned(),
            endpoint: self.endpoint.clone(),
            resource_name: resource.to_owned(),
            options: None,
        };
        let outcome = RegistrationClient::new(channel).register(request).await;
        outcome.map(drop).map_err(|status| format!("{:?}: {}", status.code(), status.message()))
    }

    pub(crate) fn list(&self, devices: &str) {
        self.shared.content.send_replace(StreamContent::Devices(devices::parse(devices)));
    }

    pub(crate) fn end_streams(&self) {
        self.shared.content.send_replace(StreamContent::End);
    }

    pub(crate) fn set_behaviour(&self, behaviour: Behaviour) {
        *self.shared.behaviour.lock().expect("no test panicked here") = behaviour;
    }

    /// Waits until this many streams are open.
    pub(crate) async fn wait_for_streams(&self, count: usize) {
        let mut streams = self.shared.streams.subscribe();
        streams.wait_for(|open| *open == count).await.expect("the sender exists");
    }

    /// Calls so far.
    pub(crate) fn calls(&self) -> Vec<String> {
        self.shared.calls.borrow().clone()
    }

    /// Ends the process, and removes its socket.
    pub(crate) fn kill(&mut self) {
        self.process.kill();
        // The file is missing if a restarted kubelet deleted it.
        let _ = fs::remove_file(self.dir.join(&self.endpoint));
    }
}

/// Number of `ListAndWatch` calls.
fn count_streams(calls: &[String]) -> usize {
    calls.iter().filter(|call| *call == "ListAndWatch").count()
}

// === impl Process ===

impl Process {
    /// Serves in its own tokio runtime. The end of the runtime ends all its tasks.
    fn serve(socket: &Path, service: Service) -> Self {
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let context = runtime.enter();
        let listener = SocketPath::new(socket).expect("a short socket path").bind().expect("bound");
        drop(context);
        let end = CancellationToken::new();
        let ended = end.clone();
        let thread = thread::spawn(move || {
            let incoming = UnixListenerStream::new(listener);
            let service = DevicePluginServer::new(service);
            let server = Server::builder().add_service(service).serve_with_incoming(incoming);
            if let Some(result) = runtime.block_on(ended.run_until_cancelled_owned(server)) {
                result.expect("served until the end");
            }
        });
        Self { thread: Some(thread), end }
    }

    /// Ends the server. Returns when the last connection is closed.
    fn kill(&mut self) {
        self.end.cancel();
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the server did not panic");
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
    /// Records a call. Returns the plugin's current behaviour.
    fn record_call(&self, call: String) -> Behaviour {
        self.0.calls.send_modify(|calls| calls.push(call));
        *self.0.behaviour.lock().expect("no test panicked here")
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.streams.send_modify(|count| *count -= 1);
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
        if self.record_call("GetDevicePluginOptions".to_owned()) == Behaviour::OptionsFail {
            return Err(Status::internal("no options today"));
        }
        Ok(Response::new(wire::DevicePluginOptions {
            pre_start_required: self.0.requested_call == OptionalCall::PreStart,
            get_preferred_allocation_available: self.0.requested_call == OptionalCall::Preference,
        }))
    }

    async fn list_and_watch(
        &self,
        _: Request<wire::Empty>,
    ) -> Result<Response<Self::ListAndWatchStream>, Status> {
        self.0.streams.send_modify(|count| *count += 1);
        self.record_call("ListAndWatch".to_owned());
        let open_stream = OpenStream(Arc::clone(&self.0));
        let contents = WatchStream::new(self.0.content.subscribe());
        let stream = contents
            .take_while(|content| !matches!(content, StreamContent::End))
            .filter_map(move |content| {
                let _held_by_the_stream = &open_stream;
                match content {
                    StreamContent::Devices(devices) => {
                        Some(Ok(wire::ListAndWatchResponse { devices }))
                    }
                    StreamContent::NoList | StreamContent::End => None,
                }
            });
        Ok(Response::new(Box::pin(stream)))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<wire::PreferredAllocationRequest>,
    ) -> Result<Response<wire::PreferredAllocationResponse>, Status> {
        let mut requests = request.into_inner().container_requests;
        let wire::ContainerPreferredAllocationRequest {
            available_device_i_ds: available,
            must_include_device_i_ds: required,
            allocation_size: size,
        } = requests.pop().expect("one container request");
        let call = format!(
            "GetPreferredAllocation of {size} of [{}] with [{}]",
            sorted(&available),
            sorted(&required)
        );
        let device_i_ds = match self.record_call(call) {
            Behaviour::PreferenceFails => return Err(Status::unavailable("no preference today")),
            Behaviour::PrefersUnknown => vec!["unknown".to_owned()],
            _ => {
                choose_preferred(usize::try_from(size).expect("not negative"), required, available)
            }
        };
        let response = wire::ContainerPreferredAllocationResponse { device_i_ds };
        Ok(Response::new(wire::PreferredAllocationResponse { container_responses: vec![response] }))
    }

    async fn allocate(
        &self,
        request: Request<wire::AllocateRequest>,
    ) -> Result<Response<wire::AllocateResponse>, Status> {
        let requests = request.into_inner().container_requests;
        let ids: Vec<String> =
            requests.iter().map(|request| sorted(&request.devices_ids)).collect();
        let container_responses = match self.record_call(format!("Allocate [{}]", ids.join("] [")))
        {
            Behaviour::AllocateFails => return Err(Status::internal("no devices today")),
            Behaviour::AllocatesNothing => Vec::new(),
            _ => ids.into_iter().map(|ids| response_with_ids(self.0.name, ids)).collect(),
        };
        Ok(Response::new(wire::AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        request: Request<wire::PreStartContainerRequest>,
    ) -> Result<Response<wire::PreStartContainerResponse>, Status> {
        let ids = sorted(&request.into_inner().devices_ids);
        if self.record_call(format!("PreStartContainer [{ids}]")) == Behaviour::PreStartFailsOnce {
            *self.0.behaviour.lock().expect("no test panicked here") = Behaviour::Right;
            return Err(Status::aborted("not yet"));
        }
        Ok(Response::new(wire::PreStartContainerResponse {}))
    }
}

/// A container response with the ids in the environment variable `DEVICES_<PLUGIN>`.
fn response_with_ids(plugin: &str, ids: String) -> wire::ContainerAllocateResponse {
    let variable = format!("DEVICES_{}", plugin.to_uppercase());
    wire::ContainerAllocateResponse { envs: [(variable, ids)].into(), ..Default::default() }
}

/// Preferred devices: the required ones, then the first others by name.
fn choose_preferred(size: usize, required: Vec<String>, available: Vec<String>) -> Vec<String> {
    let others: BTreeSet<_> = available.into_iter().filter(|id| !required.contains(id)).collect();
    required.into_iter().chain(others).take(size).collect()
}

/// Ids, sorted and joined. The kubelet's lists have the random order of Go's maps.
fn sorted(ids: &[String]) -> String {
    let mut ids = ids.to_vec();
    ids.sort();
    ids.join(" ")
}
