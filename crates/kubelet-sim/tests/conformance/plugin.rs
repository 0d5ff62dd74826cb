//! A device plugin with scripted answers.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard},
};

use tokio::{sync::watch, task::JoinSet};
use tokio_stream::{Stream, StreamExt as _, wrappers::UnixListenerStream, wrappers::WatchStream};
use tonic::{Request, Response, Status, transport::Server};
use windlass_kubelet_api::{
    deviceplugin::{
        self as wire,
        device_plugin_server::{DevicePlugin, DevicePluginServer},
        registration_client::RegistrationClient,
    },
    socket::SocketPath,
};
use windlass_kubelet_sim::{Event, Kubelet};

/// A call that reached the plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Options,
    ListAndWatch,
    Preferred { available: Vec<String>, must_include: Vec<String>, size: i32 },
    Allocate(Vec<Vec<String>>),
    PreStart(Vec<String>),
}

/// Script of the plugin's answers.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    /// Method that the plugin never answers. Takes precedence over the other fields.
    pub(crate) hanging_method: Option<Method>,
    pub(crate) options: Result<wire::DevicePluginOptions, Status>,
    pub(crate) preferred: Result<Vec<String>, Status>,
    pub(crate) allocate: AllocateBehaviour,
    pub(crate) pre_start: PreStartBehaviour,
}

/// Method that can be left unanswered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    Options,
    Preferred,
    Allocate,
}

/// Behaviour of `Allocate`.
#[derive(Clone, Debug)]
pub(crate) enum AllocateBehaviour {
    /// Returns one response per container request, with the ids in the environment variable `VISIBLE`.
    Ids,
    /// Returns exactly these container responses.
    Answer(Vec<wire::ContainerAllocateResponse>),
    Fail(Status),
    /// Sends an empty list, waits until the kubelet has received it, then returns the same as `Ids`.
    DropDevices,
}

/// Behaviour of `PreStartContainer`.
#[derive(Clone, Debug)]
pub(crate) enum PreStartBehaviour {
    Succeed,
    Fail(Status),
    Hang,
}

/// Content of every `ListAndWatch` stream.
#[derive(Clone, Debug)]
enum StreamContent {
    NoList,
    Devices(Vec<wire::Device>),
    End(Result<(), Status>),
}

/// A plugin that serves one resource on one socket.
pub(crate) struct Plugin {
    pub(crate) resource: String,
    pub(crate) endpoint: String,
    registration_socket: std::path::PathBuf,
    shared: Arc<Shared>,
    server: JoinSet<()>,
}

struct Shared {
    script: Mutex<Script>,
    calls: watch::Sender<Vec<Call>>,
    content: watch::Sender<StreamContent>,
    open_streams: watch::Sender<usize>,
    kubelet_events: Mutex<Option<windlass_kubelet_sim::EventReader>>,
}

struct Service(Arc<Shared>);

struct OpenStream(Arc<Shared>);

impl Default for Script {
    fn default() -> Self {
        Self {
            hanging_method: None,
            options: Ok(wire::DevicePluginOptions::default()),
            preferred: Ok(Vec::new()),
            allocate: AllocateBehaviour::Ids,
            pre_start: PreStartBehaviour::Succeed,
        }
    }
}

// === impl Plugin ===

impl Plugin {
    /// Serves on a socket in the kubelet's plugin folder.
    pub(crate) fn serve(kubelet: &Kubelet, resource: &str, endpoint: &str) -> Self {
        let path = kubelet.config().plugin_dir().join(endpoint);
        std::fs::create_dir_all(path.parent().expect("in a folder")).expect("a folder");
        let shared = Arc::new(Shared {
            script: Mutex::new(Script::default()),
            calls: watch::Sender::new(Vec::new()),
            content: watch::Sender::new(StreamContent::NoList),
            open_streams: watch::Sender::new(0),
            kubelet_events: Mutex::new(Some(kubelet.events())),
        });
        let mut plugin = Self {
            resource: resource.to_owned(),
            endpoint: endpoint.to_owned(),
            registration_socket: kubelet.config().registration_socket(),
            shared,
            server: JoinSet::new(),
        };
        plugin.bind(&path);
        plugin
    }

    /// Serves, sets the devices and registers.
    pub(crate) async fn registered(
        kubelet: &Kubelet,
        resource: &str,
        devices: Vec<wire::Device>,
    ) -> Self {
        let endpoint = format!("{}.sock", resource.replace('/', "_"));
        let plugin = Self::serve(kubelet, resource, &endpoint);
        plugin.set_devices(devices);
        plugin.register().await.expect("registered");
        plugin
    }

    fn bind(&mut self, path: &std::path::Path) {
        let listener = SocketPath::new(path).expect("a short socket path").bind().expect("bound");
        let service = Service(Arc::clone(&self.shared));
        self.server.spawn(async move {
            Server::builder()
                .add_service(DevicePluginServer::new(service))
                .serve_with_incoming(UnixListenerStream::new(listener))
                .await
                .expect("served");
        });
    }

    /// Binds a new socket in place of the deleted one.
    pub(crate) fn rebind(&mut self, kubelet: &Kubelet) {
        let path = kubelet.config().plugin_dir().join(&self.endpoint);
        self.bind(&path);
    }

    /// Sends a list on every stream, current and future.
    pub(crate) fn set_devices(&self, devices: Vec<wire::Device>) {
        self.shared.content.send_replace(StreamContent::Devices(devices));
    }

    /// Ends every open stream with this result. New streams end at once.
    pub(crate) fn end_streams(&self, result: Result<(), Status>) {
        self.shared.content.send_replace(StreamContent::End(result));
    }

    pub(crate) fn script(&self) -> MutexGuard<'_, Script> {
        self.shared.script.lock().expect("no test panicked here")
    }

    pub(crate) fn calls(&self) -> Vec<Call> {
        self.shared.calls.borrow().clone()
    }

    /// Calls since the last `take_calls`, or all calls so far.
    pub(crate) fn take_calls(&self) -> Vec<Call> {
        self.shared.calls.send_replace(Vec::new())
    }

    /// Waits until a call arrived that fulfils the condition.
    pub(crate) async fn wait_for_call(&self, condition: impl Fn(&Call) -> bool) {
        let mut calls = self.shared.calls.subscribe();
        let wait = calls.wait_for(|calls| calls.iter().any(&condition));
        tokio::time::timeout(super::support::DEADLINE, wait)
            .await
            .unwrap_or_else(|_| panic!("no such call in time"))
            .expect("the sender exists");
    }

    /// Waits until this many streams are open.
    pub(crate) async fn wait_for_streams(&self, count: usize) {
        let mut open_streams = self.shared.open_streams.subscribe();
        let wait = open_streams.wait_for(|open| *open == count);
        tokio::time::timeout(super::support::DEADLINE, wait)
            .await
            .unwrap_or_else(|_| panic!("not {count} streams in time"))
            .expect("the sender exists");
    }

    pub(crate) async fn register(&self) -> Result<(), Status> {
        self.register_as(self.request()).await
    }

    pub(crate) fn request(&self) -> wire::RegisterRequest {
        wire::RegisterRequest {
            version: wire::VERSION.to_owned(),
            endpoint: self.endpoint.clone(),
            resource_name: self.resource.clone(),
            options: None,
        }
    }

    pub(crate) async fn register_as(&self, request: wire::RegisterRequest) -> Result<(), Status> {
        register(&self.registration_socket, request).await
    }
}

/// Registers with the kubelet behind this socket.
pub(crate) async fn register(
    socket: &std::path::Path,
    request: wire::RegisterRequest,
) -> Result<(), Status> {
    let channel =
        SocketPath::new(socket).expect("a short socket path").dial().await.expect("dialled");
    RegistrationClient::new(channel).register(request).await.map(drop)
}

// === impl Service ===

impl Service {
    fn current_script(&self) -> Script {
        self.0.script.lock().expect("no test panicked here").clone()
    }

    /// Records a call, and returns the current script. Never returns if the script leaves the method
    /// unanswered.
    async fn record_call(&self, method: Method, call: Call) -> Script {
        self.0.calls.send_modify(|calls| calls.push(call));
        let script = self.current_script();
        if script.hanging_method == Some(method) {
            std::future::pending::<()>().await;
        }
        script
    }

    /// Sends an empty list, and waits until the kubelet has received it.
    async fn drop_devices(&self) {
        let events = self.0.kubelet_events.lock().expect("not poisoned").take();
        let events = events.expect("the devices are dropped once");
        let is_empty_list = |event: &Event| {
            matches!(
                event,
                Event::ListReceived { devices, .. } if devices.is_empty()
            )
        };
        self.0.content.send_replace(StreamContent::Devices(Vec::new()));
        let wait =
            events.wait_for(|events| events.iter().any(is_empty_list), super::support::DEADLINE);
        wait.await.expect("the empty list arrived");
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.open_streams.send_modify(|count| *count -= 1);
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
        self.record_call(Method::Options, Call::Options).await.options.map(Response::new)
    }

    async fn list_and_watch(
        &self,
        _: Request<wire::Empty>,
    ) -> Result<Response<Self::ListAndWatchStream>, Status> {
        self.0.calls.send_modify(|calls| calls.push(Call::ListAndWatch));
        self.0.open_streams.send_modify(|count| *count += 1);
        let open_stream = OpenStream(Arc::clone(&self.0));
        let contents = WatchStream::new(self.0.content.subscribe());
        let is_end = |content: &StreamContent| matches!(content, StreamContent::End(Ok(())));
        let stream =
            contents.take_while(move |content| !is_end(content)).filter_map(move |content| {
                let _held_by_the_stream = &open_stream;
                match content {
                    StreamContent::NoList => None,
                    StreamContent::Devices(devices) => {
                        Some(Ok(wire::ListAndWatchResponse { devices }))
                    }
                    StreamContent::End(result) => {
                        Some(Err(result.expect_err("Ok ends the stream")))
                    }
                }
            });
        Ok(Response::new(Box::pin(stream)))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<wire::PreferredAllocationRequest>,
    ) -> Result<Response<wire::PreferredAllocationResponse>, Status> {
        let request = request.into_inner().container_requests.remove(0);
        let call = Call::Preferred {
            available: request.available_device_i_ds,
            must_include: request.must_include_device_i_ds,
            size: request.allocation_size,
        };
        let device_i_ds = self.record_call(Method::Preferred, call).await.preferred?;
        let response = wire::ContainerPreferredAllocationResponse { device_i_ds };
        Ok(Response::new(wire::PreferredAllocationResponse { container_responses: vec![response] }))
    }

    async fn allocate(
        &self,
        request: Request<wire::AllocateRequest>,
    ) -> Result<Response<wire::AllocateResponse>, Status> {
        let ids: Vec<Vec<String>> = request
            .into_inner()
            .container_requests
            .into_iter()
            .map(|container| container.devices_ids)
            .collect();
        let script = self.record_call(Method::Allocate, Call::Allocate(ids.clone())).await;
        let container_responses = match script.allocate {
            AllocateBehaviour::Ids => ids.iter().map(|ids| response_with_ids(ids)).collect(),
            AllocateBehaviour::Answer(responses) => responses,
            AllocateBehaviour::Fail(status) => return Err(status),
            AllocateBehaviour::DropDevices => {
                self.drop_devices().await;
                ids.iter().map(|ids| response_with_ids(ids)).collect()
            }
        };
        Ok(Response::new(wire::AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        request: Request<wire::PreStartContainerRequest>,
    ) -> Result<Response<wire::PreStartContainerResponse>, Status> {
        let call = Call::PreStart(request.into_inner().devices_ids);
        self.0.calls.send_modify(|calls| calls.push(call));
        let pre_start = self.current_script().pre_start;
        match pre_start {
            PreStartBehaviour::Succeed => Ok(Response::new(wire::PreStartContainerResponse {})),
            PreStartBehaviour::Fail(status) => Err(status),
            PreStartBehaviour::Hang => std::future::pending().await,
        }
    }
}

/// A container response with the ids in the environment variable `VISIBLE`.
fn response_with_ids(ids: &[String]) -> wire::ContainerAllocateResponse {
    let envs = [("VISIBLE".to_owned(), ids.join(","))].into();
    wire::ContainerAllocateResponse { envs, ..Default::default() }
}
