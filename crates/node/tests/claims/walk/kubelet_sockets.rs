//! The kubelet's own sockets: registration of plugins, whose device lists it reads, and pod resources.

use std::sync::Arc;

use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Duration, sleep},
};
use tokio_stream::{StreamExt as _, wrappers::UnixListenerStream};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};
use windlass_kubelet_api::{
    deviceplugin::{
        Empty, HEALTHY, KUBELET_SOCKET, PLUGIN_DIR, RegisterRequest,
        device_plugin_client::DevicePluginClient,
        registration_server::{Registration, RegistrationServer},
    },
    podresources::{
        self, AllocatableResourcesRequest, AllocatableResourcesResponse, ClaimResource,
        ContainerDevices, ContainerResources, DynamicResource, GetPodResourcesRequest,
        GetPodResourcesResponse, ListPodResourcesRequest, ListPodResourcesResponse, PodResources,
        pod_resources_lister_server::{PodResourcesLister, PodResourcesListerServer},
    },
    server::{Connection, server},
    socket::SocketPath,
};
use windlass_testkit::GPU;

use super::node::{Facts, Node, PodResourcesAnswer, dial};
use crate::claims::{
    objects::NAMESPACE,
    world::{DRIVER, NODE},
};

/// One run of the kubelet. Dropping it ends it, with every connection.
pub(super) struct KubeletSockets {
    _tasks: JoinSet<()>,
    ended: CancellationToken,
}

/// Longer than the agent waits for an answer.
const LATE_ANSWER_DELAY: Duration = Duration::from_secs(2);

// === impl KubeletSockets ===

impl KubeletSockets {
    pub(super) fn start(node: &Arc<Node>) -> Self {
        let (ended, mut tasks) = (CancellationToken::new(), JoinSet::new());
        let (sender, registrations) = mpsc::unbounded_channel();
        let connections = |folder: &str, name: &str| {
            let socket = SocketPath::new(node.kubelet.join(folder).join(name)).expect("short");
            let (listener, ended) = (socket.bind().expect("bound"), ended.clone());
            UnixListenerStream::new(listener).map(move |accepted| {
                accepted.map(|stream| Connection::new(stream, ended.clone().cancelled_owned()))
            })
        };
        let plugins = connections(PLUGIN_DIR, KUBELET_SOCKET);
        let registrar = server().add_service(RegistrationServer::new(Registrar(sender)));
        let serving = registrar.serve_with_incoming(plugins);
        tasks.spawn(async move { serving.await.expect("it serves") });
        let clients = connections(podresources::SOCKET_DIR, podresources::SOCKET_NAME);
        let lister = server()
            .add_service(PodResourcesListerServer::new(PodResourcesServer(Arc::clone(node))));
        let serving = lister.serve_with_incoming(clients);
        tasks.spawn(async move { serving.await.expect("it serves") });
        tasks.spawn(read_all(Arc::clone(node), registrations));
        Self { _tasks: tasks, ended }
    }
}

impl Drop for KubeletSockets {
    fn drop(&mut self) {
        self.ended.cancel();
    }
}

/// Reads the list of each plugin, until it registers again.
async fn read_all(node: Arc<Node>, mut registrations: mpsc::UnboundedReceiver<RegisterRequest>) {
    let mut readers = JoinSet::new();
    while let Some(plugin) = registrations.recv().await {
        while readers.try_join_next().is_some() {}
        readers.spawn(read(Arc::clone(&node), plugin));
    }
}

async fn read(node: Arc<Node>, plugin: RegisterRequest) {
    let Some(channel) = dial(node.kubelet.join(PLUGIN_DIR).join(plugin.endpoint)).await else {
        return;
    };
    let lists = DevicePluginClient::new(channel).list_and_watch(Empty {}).await;
    let Ok(mut lists) = lists.map(Response::into_inner) else { return };
    while let Ok(Some(list)) = lists.message().await {
        let devices = list.devices.into_iter().map(|it| (it.id, it.health == HEALTHY)).collect();
        node.facts().lists.insert(plugin.resource_name.clone(), devices);
        node.write_devices();
    }
}

struct Registrar(mpsc::UnboundedSender<RegisterRequest>);

#[tonic::async_trait]
impl Registration for Registrar {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let ended = |_| Status::unavailable("the kubelet has ended");
        self.0.send(request.into_inner()).map_err(ended)?;
        Ok(Response::new(Empty {}))
    }
}

struct PodResourcesServer(Arc<Node>);

#[tonic::async_trait]
impl PodResourcesLister for PodResourcesServer {
    async fn list(
        &self,
        _: Request<ListPodResourcesRequest>,
    ) -> Result<Response<ListPodResourcesResponse>, Status> {
        let pod_resources = self.0.facts().pod_resources;
        match pod_resources {
            PodResourcesAnswer::Error => {
                return Err(Status::resource_exhausted("rejected by rate limit"));
            }
            PodResourcesAnswer::Late => sleep(LATE_ANSWER_DELAY).await,
            PodResourcesAnswer::Correct | PodResourcesAnswer::Empty => {}
        }
        let pod_resources = match pod_resources {
            PodResourcesAnswer::Empty => Vec::new(),
            _ => pods(&self.0.facts()),
        };
        Ok(Response::new(ListPodResourcesResponse { pod_resources }))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<AllocatableResourcesRequest>,
    ) -> Result<Response<AllocatableResourcesResponse>, Status> {
        Ok(Response::new(AllocatableResourcesResponse::default()))
    }

    async fn get(
        &self,
        _: Request<GetPodResourcesRequest>,
    ) -> Result<Response<GetPodResourcesResponse>, Status> {
        Err(Status::unknown("not found"))
    }
}

fn pods(facts: &Facts) -> Vec<PodResources> {
    let pod_resources = |uid: &str, container: ContainerResources| PodResources {
        name: uid.to_owned(),
        namespace: NAMESPACE.to_owned(),
        containers: vec![ContainerResources { name: "main".to_owned(), ..container }],
    };
    let plugins = facts.pods.iter().map(|(uid, pod)| {
        let ids = if pod.is_init { Vec::new() } else { pod.devices.clone() };
        let devices =
            ContainerDevices { resource_name: GPU.to_owned(), device_ids: ids, topology: None };
        pod_resources(
            uid,
            ContainerResources { devices: vec![devices], ..ContainerResources::default() },
        )
    });
    // Pod resources also list claims that are not prepared yet.
    let claims = facts.claims.values().map(|claim| {
        let prepared = claim.drivers[DRIVER].devices.iter().flatten();
        let claim_resources = prepared.map(|it| ClaimResource {
            driver_name: DRIVER.to_owned(),
            pool_name: format!("{NODE}/nvidia"),
            device_name: it.device_name.clone(),
            ..ClaimResource::default()
        });
        let dynamic_resource = DynamicResource {
            claim_name: claim.claim_name.clone(),
            claim_namespace: NAMESPACE.to_owned(),
            claim_resources: claim_resources.collect(),
        };
        let uid = format!("pod-of-{}", claim.claim_uid);
        pod_resources(
            &uid,
            ContainerResources {
                dynamic_resources: vec![dynamic_resource],
                ..ContainerResources::default()
            },
        )
    });
    plugins.chain(claims).collect()
}
