//! A DRA driver with scripted answers.

use std::{
    collections::BTreeMap,
    io,
    net::Shutdown,
    path::PathBuf,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard},
};

use tokio::{net::UnixStream, sync::watch, task::JoinSet};
use tokio_stream::{Stream, StreamExt as _, wrappers::UnixListenerStream, wrappers::WatchStream};
use tonic::{
    Request, Response, Status,
    transport::{Server, server::Router},
};
use windlass_kubelet_api::{
    dra::{
        SERVICES,
        health::{
            self, NodeWatchResourcesRequest, NodeWatchResourcesResponse,
            dra_resource_health_server::{DraResourceHealth, DraResourceHealthServer},
        },
        v1::{
            self,
            dra_plugin_server::{DraPlugin, DraPluginServer},
        },
        v1beta1::{
            self,
            dra_plugin_server::{DraPlugin as V1Beta1Plugin, DraPluginServer as V1Beta1Server},
        },
    },
    pluginregistration::{
        DRA_PLUGIN, InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
        registration_server::{Registration, RegistrationServer},
        socket_name,
    },
    socket::SocketPath,
};
use windlass_kubelet_sim::{DraService, Event, Kubelet};

use super::super::support::{DEADLINE, Node};

/// A call that reached the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// `GetInfo`.
    Info,
    /// `NotifyRegistrationStatus`, with the kubelet's error.
    Notified(Result<(), String>),
    /// `NodePrepareResources`, with the UIDs of the claims.
    Prepare(DraService, Vec<String>),
    /// `NodeUnprepareResources`, with the UIDs of the claims.
    Unprepare(Vec<String>),
}

/// Kind of answer to a call about claims.
#[derive(Clone, Debug, Default)]
pub(crate) enum AnswerKind {
    /// A correct answer.
    #[default]
    Correct,
    /// An error for the whole call.
    Status(Status),
    /// An error for each claim.
    Error(&'static str),
    /// An answer without claims.
    NoClaims,
    /// An answer with one more claim, `stranger`.
    ExtraClaim,
    /// No answer.
    Hang,
}

/// Script of the driver's answers.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) info: PluginInfo,
    pub(crate) prepare: AnswerKind,
    pub(crate) unprepare: AnswerKind,
    /// Number of devices per claim.
    pub(crate) devices: usize,
}

/// A driver that serves. Dropping it has the effects of a killed process: its connections close, its
/// socket files stay.
pub(crate) struct Driver {
    pub(crate) endpoint: PathBuf,
    pub(crate) registration: PathBuf,
    health: watch::Sender<Option<Vec<health::DeviceHealth>>>,
    state: Arc<State>,
    connections: Connections,
    _servers: JoinSet<()>,
}

/// A second handle of each connection, to close the connection.
type Connections = Arc<Mutex<Vec<std::os::unix::net::UnixStream>>>;

struct State {
    name: String,
    script: Mutex<Script>,
    calls: watch::Sender<Vec<Call>>,
    health: watch::Receiver<Option<Vec<health::DeviceHealth>>>,
}

#[derive(Clone)]
struct DriverService(Arc<State>);

// === impl Driver ===

impl Driver {
    /// Serves both sockets with their usual names.
    pub(crate) fn serve(kubelet: &Kubelet, name: &str) -> Self {
        Self::serve_instance(kubelet, name, None)
    }

    /// Serves an instance of the driver.
    pub(crate) fn serve_instance(kubelet: &Kubelet, name: &str, instance: Option<&str>) -> Self {
        Self::serve_at(kubelet, (name, instance), &socket_name(name, instance))
    }

    /// Serves both sockets of a driver without the health service.
    pub(crate) fn serve_without_health(kubelet: &Kubelet, name: &str) -> Self {
        let services = |service: &DriverService| {
            Server::builder().add_service(DraPluginServer::new(service.clone()))
        };
        Self::serve_services(kubelet, ((name, None), &socket_name(name, None)), services)
    }

    /// Serves the DRA socket, and the registration socket with this file name.
    pub(crate) fn serve_at(
        kubelet: &Kubelet,
        (name, instance): (&str, Option<&str>),
        file: &str,
    ) -> Self {
        let services = |service: &DriverService| {
            Server::builder()
                .add_service(DraPluginServer::new(service.clone()))
                .add_service(V1Beta1Server::new(service.clone()))
                .add_service(DraResourceHealthServer::new(service.clone()))
        };
        Self::serve_services(kubelet, ((name, instance), file), services)
    }

    fn serve_services(
        kubelet: &Kubelet,
        ((name, instance), file): ((&str, Option<&str>), &str),
        services: impl FnOnce(&DriverService) -> Router,
    ) -> Self {
        let folder = kubelet.config().drivers_dir().join(name);
        std::fs::create_dir_all(&folder).expect("the driver's folder");
        let endpoint = folder.join(windlass_kubelet_api::dra::socket_name(instance));
        let registration = kubelet.config().registry_dir().join(file);
        let (health, health_receiver) = watch::channel(None);
        let info = PluginInfo {
            r#type: DRA_PLUGIN.to_owned(),
            name: name.to_owned(),
            endpoint: endpoint.to_str().expect("UTF-8 text").to_owned(),
            supported_versions: SERVICES.map(str::to_owned).to_vec(),
        };
        let script = Script {
            info,
            prepare: AnswerKind::Correct,
            unprepare: AnswerKind::Correct,
            devices: 1,
        };
        let state = Arc::new(State {
            name: name.to_owned(),
            script: Mutex::new(script),
            calls: watch::Sender::new(Vec::new()),
            health: health_receiver,
        });
        let mut servers = JoinSet::new();
        let service = DriverService(Arc::clone(&state));
        let connections = Connections::default();
        let incoming = |path: &PathBuf| {
            let listener =
                SocketPath::new(path.clone()).expect("a short socket path").bind().expect("bound");
            let connections = Arc::clone(&connections);
            UnixListenerStream::new(listener)
                .map(move |accepted| track_connection(accepted?, &connections))
        };
        let driver = services(&service).serve_with_incoming(incoming(&endpoint));
        servers.spawn(async { driver.await.expect("served") });
        let registrar = Server::builder()
            .add_service(RegistrationServer::new(service))
            .serve_with_incoming(incoming(&registration));
        servers.spawn(async { registrar.await.expect("served") });
        Self { endpoint, registration, health, state, connections, _servers: servers }
    }

    /// Serves, and waits until the driver is registered.
    pub(crate) async fn registered(node: &Node, name: &str) -> Self {
        let driver = Self::serve(&node.kubelet, name);
        driver.wait_until_registered(node).await;
        driver
    }

    /// Waits until the kubelet has registered this endpoint and is connected to it.
    pub(crate) async fn wait_until_registered(&self, node: &Node) {
        let accepted = Call::Notified(Ok(()));
        let mut calls = self.state.calls.subscribe();
        let notified = calls.wait_for(|calls| calls.contains(&accepted));
        tokio::time::timeout(DEADLINE, notified).await.expect("in time").expect("the driver runs");
        node.wait_for_event(|event| {
            matches!(event, Event::DriverRegistered { endpoint, .. } if *endpoint == self.endpoint)
        })
        .await;
        node.wait(|status| {
            let mut drivers = status.drivers.values().flatten();
            drivers.any(|driver| driver.endpoint == self.endpoint && driver.is_connected)
        })
        .await;
    }

    /// Sends this list on every health stream, current and future.
    pub(crate) fn send_health(&self, devices: Vec<health::DeviceHealth>) {
        self.health.send_replace(Some(devices));
    }

    pub(crate) fn script(&self) -> MutexGuard<'_, Script> {
        self.state.script.lock().expect("no test panicked here")
    }

    pub(crate) fn calls(&self) -> Vec<Call> {
        self.state.calls.borrow().clone()
    }

    /// Prepare and unprepare calls since the last `take_calls`, or all of them so far.
    pub(crate) fn take_calls(&self) -> Vec<Call> {
        let is_claim_call = |call: &Call| matches!(call, Call::Prepare(..) | Call::Unprepare(_));
        self.state.calls.send_replace(Vec::new()).into_iter().filter(is_claim_call).collect()
    }

    /// Deletes the registration socket, as a driver does at an orderly shutdown.
    pub(crate) fn unlink(&self) {
        std::fs::remove_file(&self.registration).expect("the socket exists");
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.close_connections();
    }
}

impl Driver {
    /// Closes all connections. The driver accepts new ones.
    pub(crate) fn close_connections(&self) {
        for connection in self.connections.lock().expect("no test panicked here").iter() {
            // Fails if the peer closed the connection.
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

/// Stores a second handle of an accepted connection.
fn track_connection(accepted: UnixStream, connections: &Connections) -> io::Result<UnixStream> {
    let stream = accepted.into_std()?;
    connections.lock().expect("no test panicked here").push(stream.try_clone()?);
    UnixStream::from_std(stream)
}

// === impl State ===

impl State {
    /// Records a call. Returns the current script.
    fn record_call(&self, call: Call) -> Script {
        self.calls.send_modify(|calls| calls.push(call));
        self.script.lock().expect("no test panicked here").clone()
    }

    fn device(&self, claim: &str, number: usize) -> v1::Device {
        let name = &self.name;
        v1::Device {
            request_names: vec![format!("request-{number}")],
            pool_name: "pool".to_owned(),
            device_name: format!("device-{number}"),
            cdi_device_ids: vec![format!("{name}/claim={claim}-{number}")],
            share_id: None,
        }
    }
}

/// Builds an answer of this kind. `build` builds the part of one claim, from its UID and error text.
async fn answer<T>(
    kind: AnswerKind,
    claims: Vec<String>,
    build: impl Fn(&str, String) -> T,
) -> Result<BTreeMap<String, T>, Status> {
    let for_each_claim = |error: &str| -> BTreeMap<String, T> {
        let claims = claims.iter().cloned();
        claims.map(|uid| (uid.clone(), build(&uid, error.to_owned()))).collect()
    };
    match kind {
        AnswerKind::Correct => Ok(for_each_claim("")),
        AnswerKind::Status(status) => Err(status),
        AnswerKind::Error(message) => Ok(for_each_claim(message)),
        AnswerKind::NoClaims => Ok(BTreeMap::new()),
        AnswerKind::ExtraClaim => {
            let mut claims = for_each_claim("");
            claims.insert("stranger".to_owned(), build("stranger", String::new()));
            Ok(claims)
        }
        AnswerKind::Hang => std::future::pending().await,
    }
}

#[tonic::async_trait]
impl Registration for DriverService {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(self.0.record_call(Call::Info).info))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        let result = if status.plugin_registered { Ok(()) } else { Err(status.error) };
        self.0.record_call(Call::Notified(result));
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

#[tonic::async_trait]
impl DraPlugin for DriverService {
    async fn node_prepare_resources(
        &self,
        request: Request<v1::NodePrepareResourcesRequest>,
    ) -> Result<Response<v1::NodePrepareResourcesResponse>, Status> {
        let uids: Vec<String> =
            request.into_inner().claims.into_iter().map(|claim| claim.uid).collect();
        let script = self.0.record_call(Call::Prepare(DraService::V1, uids.clone()));
        let build = |uid: &str, error| v1::NodePrepareResourceResponse {
            devices: (0..script.devices).map(|number| self.0.device(uid, number)).collect(),
            error,
        };
        let claims = answer(script.prepare, uids, build).await?;
        Ok(Response::new(v1::NodePrepareResourcesResponse { claims }))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<v1::NodeUnprepareResourcesRequest>,
    ) -> Result<Response<v1::NodeUnprepareResourcesResponse>, Status> {
        let uids: Vec<String> =
            request.into_inner().claims.into_iter().map(|claim| claim.uid).collect();
        let script = self.0.record_call(Call::Unprepare(uids.clone()));
        let build = |_: &str, error| v1::NodeUnprepareResourceResponse { error };
        let claims = answer(script.unprepare, uids, build).await?;
        Ok(Response::new(v1::NodeUnprepareResourcesResponse { claims }))
    }
}

#[tonic::async_trait]
impl V1Beta1Plugin for DriverService {
    async fn node_prepare_resources(
        &self,
        request: Request<v1beta1::NodePrepareResourcesRequest>,
    ) -> Result<Response<v1beta1::NodePrepareResourcesResponse>, Status> {
        let uids: Vec<String> =
            request.into_inner().claims.into_iter().map(|claim| claim.uid).collect();
        let script = self.0.record_call(Call::Prepare(DraService::V1Beta1, uids.clone()));
        let to_v1beta1 = |device: v1::Device| v1beta1::Device {
            request_names: device.request_names,
            pool_name: device.pool_name,
            device_name: device.device_name,
            cdi_device_ids: device.cdi_device_ids,
        };
        let build = |uid: &str, error| v1beta1::NodePrepareResourceResponse {
            devices: (0..script.devices)
                .map(|number| to_v1beta1(self.0.device(uid, number)))
                .collect(),
            error,
        };
        let claims = answer(script.prepare, uids, build).await?;
        Ok(Response::new(v1beta1::NodePrepareResourcesResponse { claims }))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<v1beta1::NodeUnprepareResourcesRequest>,
    ) -> Result<Response<v1beta1::NodeUnprepareResourcesResponse>, Status> {
        let uids: Vec<String> =
            request.into_inner().claims.into_iter().map(|claim| claim.uid).collect();
        let script = self.0.record_call(Call::Unprepare(uids.clone()));
        let build = |_: &str, error| v1beta1::NodeUnprepareResourceResponse { error };
        let claims = answer(script.unprepare, uids, build).await?;
        Ok(Response::new(v1beta1::NodeUnprepareResourcesResponse { claims }))
    }
}

#[tonic::async_trait]
impl DraResourceHealth for DriverService {
    type NodeWatchResourcesStream =
        Pin<Box<dyn Stream<Item = Result<NodeWatchResourcesResponse, Status>> + Send>>;

    async fn node_watch_resources(
        &self,
        _: Request<NodeWatchResourcesRequest>,
    ) -> Result<Response<Self::NodeWatchResourcesStream>, Status> {
        let lists = WatchStream::new(self.0.health.clone()).filter_map(|devices| {
            devices.map(|devices| Ok(NodeWatchResourcesResponse { devices }))
        });
        Ok(Response::new(Box::pin(lists)))
    }
}
