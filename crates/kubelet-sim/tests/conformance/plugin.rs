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
use windlass_kubelet_sim::Kubelet;

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
    /// Method without an answer, in precedence over the other fields.
    pub(crate) ignores: Option<Method>,
    pub(crate) options: Result<wire::DevicePluginOptions, Status>,
    pub(crate) preferred: Result<Vec<String>, Status>,
    pub(crate) allocate: Allocate,
    pub(crate) pre_start: PreStart,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    Options,
    Preferred,
    Allocate,
}

#[derive(Clone, Debug)]
pub(crate) enum Allocate {
    /// One response for each container request, with the ids in an environment variable.
    Ids,
    /// Exactly these container responses.
    Answer(Vec<wire::ContainerAllocateResponse>),
    Fail(Status),
    /// Drops the devices from the list, waits until the kubelet has seen it, then answers.
    Vanish,
}

#[derive(Clone, Debug)]
pub(crate) enum PreStart {
    Fine,
    Fail(Status),
    Hang,
}

/// Content of every stream.
#[derive(Clone, Debug)]
enum Show {
    Nothing,
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
    show: watch::Sender<Show>,
    open_streams: watch::Sender<usize>,
    lists_seen: Mutex<Option<windlass_kubelet_sim::EventReader>>,
}

struct Service(Arc<Shared>);

struct OpenStream(Arc<Shared>);

impl Default for Script {
    fn default() -> Self {
        Self {
            ignores: None,
            options: Ok(wire::DevicePluginOptions::default()),
            preferred: Ok(Vec::new()),
            allocate: Allocate::Ids,
            pre_start: PreStart::Fine,
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
            show: watch::Sender::new(Show::Nothing),
            open_streams: watch::Sender::new(0),
            lists_seen: Mutex::new(Some(kubelet.calls())),
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

    /// Serves, shows these devices and registers.
    pub(crate) async fn registered(
        kubelet: &Kubelet,
        resource: &str,
        devices: Vec<wire::Device>,
    ) -> Self {
        let endpoint = format!("{}.sock", resource.replace('/', "_"));
        let plugin = Self::serve(kubelet, resource, &endpoint);
        plugin.show(devices);
        plugin.register().await.expect("registered");
        plugin
    }

    fn bind(&mut self, path: &std::path::Path) {
        let listener = SocketPath::new(path).expect("short").bind().expect("bound");
        let service = Service(Arc::clone(&self.shared));
        self.server.spawn(async move {
            Server::builder()
                .add_service(DevicePluginServer::new(service))
                .serve_with_incoming(UnixListenerStream::new(listener))
                .await
                .expect("served");
        });
    }

    /// Binds the deleted socket again.
    pub(crate) fn rebind(&mut self, kubelet: &Kubelet) {
        let path = kubelet.config().plugin_dir().join(&self.endpoint);
        self.bind(&path);
    }

    pub(crate) fn show(&self, devices: Vec<wire::Device>) {
        self.shared.show.send_replace(Show::Devices(devices));
    }

    /// Ends every open stream with this result, and every new one at once.
    pub(crate) fn end_streams(&self, how: Result<(), Status>) {
        self.shared.show.send_replace(Show::End(how));
    }

    pub(crate) fn script(&self) -> MutexGuard<'_, Script> {
        self.shared.script.lock().expect("no test panicked here")
    }

    pub(crate) fn calls(&self) -> Vec<Call> {
        self.shared.calls.borrow().clone()
    }

    /// Calls since the last `take_calls`.
    pub(crate) fn take_calls(&self) -> Vec<Call> {
        self.shared.calls.send_replace(Vec::new())
    }

    /// Waits until a matching call arrived.
    pub(crate) async fn called(&self, is_it: impl Fn(&Call) -> bool) {
        let mut calls = self.shared.calls.subscribe();
        let waiting = calls.wait_for(|calls| calls.iter().any(&is_it));
        tokio::time::timeout(super::support::DEADLINE, waiting)
            .await
            .unwrap_or_else(|_| panic!("called in time"))
            .expect("the sender lives");
    }

    /// Waits until this many streams are open.
    pub(crate) async fn streams(&self, count: usize) {
        let mut open = self.shared.open_streams.subscribe();
        let waiting = open.wait_for(|open| *open == count);
        tokio::time::timeout(super::support::DEADLINE, waiting)
            .await
            .unwrap_or_else(|_| panic!("{count} streams in time"))
            .expect("the sender lives");
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
    let channel = SocketPath::new(socket).expect("short").dial().await.expect("dialled");
    RegistrationClient::new(channel).register(request).await.map(drop)
}

// === impl Service ===

impl Service {
    fn script_now(&self) -> Script {
        self.0.script.lock().expect("no test panicked here").clone()
    }

    async fn note(&self, method: Method, call: Call) -> Script {
        self.0.calls.send_modify(|calls| calls.push(call));
        let script = self.script_now();
        if script.ignores == Some(method) {
            std::future::pending::<()>().await;
        }
        script
    }

    async fn vanish(&self) {
        let kubelet = self.0.lists_seen.lock().expect("not poisoned").take().expect("once");
        let is_empty_list = |event: &windlass_kubelet_sim::Event| matches!(event, windlass_kubelet_sim::Event::ListReceived { devices, .. } if devices.is_empty());
        self.0.show.send_replace(Show::Devices(Vec::new()));
        let seen =
            kubelet.wait_for(|events| events.iter().any(is_empty_list), super::support::DEADLINE);
        seen.await.expect("the empty list arrived");
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.open_streams.send_modify(|open| *open -= 1);
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
        self.note(Method::Options, Call::Options).await.options.map(Response::new)
    }

    async fn list_and_watch(
        &self,
        _: Request<wire::Empty>,
    ) -> Result<Response<Self::ListAndWatchStream>, Status> {
        self.0.calls.send_modify(|calls| calls.push(Call::ListAndWatch));
        self.0.open_streams.send_modify(|open| *open += 1);
        let open = OpenStream(Arc::clone(&self.0));
        let shows = WatchStream::new(self.0.show.subscribe());
        let ended = |show: &Show| matches!(show, Show::End(Ok(())));
        let stream = shows.take_while(move |show| !ended(show)).filter_map(move |show| {
            let _keep = &open;
            match show {
                Show::Nothing => None,
                Show::Devices(devices) => Some(Ok(wire::ListAndWatchResponse { devices })),
                Show::End(how) => Some(Err(how.expect_err("Ok ends before"))),
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
        let device_i_ds = self.note(Method::Preferred, call).await.preferred?;
        let answer = wire::ContainerPreferredAllocationResponse { device_i_ds };
        Ok(Response::new(wire::PreferredAllocationResponse { container_responses: vec![answer] }))
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
        let script = self.note(Method::Allocate, Call::Allocate(ids.clone())).await;
        let container_responses = match script.allocate {
            Allocate::Ids => ids.iter().map(|ids| visible(ids)).collect(),
            Allocate::Answer(responses) => responses,
            Allocate::Fail(status) => return Err(status),
            Allocate::Vanish => {
                self.vanish().await;
                ids.iter().map(|ids| visible(ids)).collect()
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
        let pre_start = self.script_now().pre_start;
        match pre_start {
            PreStart::Fine => Ok(Response::new(wire::PreStartContainerResponse {})),
            PreStart::Fail(status) => Err(status),
            PreStart::Hang => std::future::pending().await,
        }
    }
}

/// The ids in an environment variable, as most plugins grant them.
fn visible(ids: &[String]) -> wire::ContainerAllocateResponse {
    let envs = [("VISIBLE".to_owned(), ids.join(","))].into();
    wire::ContainerAllocateResponse { envs, ..Default::default() }
}
