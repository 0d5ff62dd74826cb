//! Observation of a kubelet's visible state: its checkpoint, and its pod resources answers.

use std::{collections::BTreeMap, fmt::Write as _, fs, time::Duration};

use tonic::{Code, transport::Channel};
use windlass_kubelet_api::{
    checkpoint::{Checkpoint, CheckpointError, FILE_NAME, NO_NUMA_NODE},
    podresources::{
        self as wire, AllocatableResourcesRequest, GetPodResourcesRequest, ListPodResourcesRequest,
        pod_resources_lister_client::PodResourcesListerClient,
    },
    socket::SocketPath,
};

use super::node::Node;

/// The visible state at one moment, as text lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Observation {
    /// Allocated devices by container, from the checkpoint.
    holders: Vec<String>,
    /// Healthy devices by resource, from the checkpoint.
    registered: Vec<String>,
    /// Answer to `List`.
    pods: Vec<String>,
    /// Answer to `GetAllocatableResources`.
    allocatable: Vec<String>,
}

type Client = PodResourcesListerClient<Channel>;

// === impl Observation ===

impl Observation {
    /// Observes until two observations are equal. A real kubelet answers a little before it writes its
    /// checkpoint.
    pub(crate) async fn wait_until_stable(node: &impl Node) -> Self {
        let mut previous = Self::observe(node).await;
        loop {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let current = Self::observe(node).await;
            if current == previous {
                return current;
            }
            previous = current;
        }
    }

    async fn observe(node: &impl Node) -> Self {
        let pods = pods(node).await;
        let (holders, registered) = match checkpoint(node) {
            Ok(checkpoint) => (holders(&checkpoint), registered(&checkpoint)),
            Err(_) => (vec!["broken".to_owned()], vec!["broken".to_owned()]),
        };
        Self { holders, registered, pods, allocatable: allocatable(node).await }
    }

    /// The parts of this observation that differ from an earlier one.
    pub(crate) fn changes_since(&self, before: &Self) -> String {
        let parts = [
            ("checkpoint, held", &self.holders, &before.holders),
            ("checkpoint, healthy", &self.registered, &before.registered),
            ("List", &self.pods, &before.pods),
            ("GetAllocatableResources", &self.allocatable, &before.allocatable),
        ];
        let mut text = String::new();
        for (title, now, _) in parts.into_iter().filter(|(_, now, before)| now != before) {
            let lines = if now.is_empty() { "nothing".to_owned() } else { now.join("; ") };
            writeln!(text, "  {title}: {lines}").expect("into a string");
        }
        text
    }
}

/// Entries of a resource in the answer to `GetAllocatableResources`, sorted.
pub(crate) async fn healthy(node: &impl Node, resource: &str) -> String {
    let resources = allocatable(node).await.into_iter();
    let mut entries =
        resources.filter_map(|line| Some(line.strip_prefix(resource)?.trim_start().to_owned()));
    entries.next().unwrap_or_default()
}

/// Answer to `Get` for one pod, or its error.
pub(crate) async fn get(node: &impl Node, pod: &str) -> String {
    let request = GetPodResourcesRequest {
        pod_name: format!("{pod}{}", node.pod_name_suffix()),
        pod_namespace: "default".to_owned(),
    };
    match call(async || client(node).await.get(request.clone()).await).await {
        Ok(response) => describe(node, &response.pod_resources.expect("a pod")),
        Err(status) => {
            let message = status.message().replace(&request.pod_name, pod);
            format!("{:?}: {message}", status.code())
        }
    }
}

/// True if `List` has a pod of this name.
pub(crate) async fn is_listed(node: &impl Node, pod: &str) -> bool {
    let prefix = format!("default/{pod}: ");
    pods(node).await.iter().any(|line| line.starts_with(&prefix))
}

async fn pods(node: &impl Node) -> Vec<String> {
    let response = call(async || client(node).await.list(ListPodResourcesRequest {}).await).await;
    let pods = response.expect("answered").pod_resources;
    let mut pods: Vec<_> = pods.iter().map(|pod| describe(node, pod)).collect();
    pods.sort();
    pods
}

async fn allocatable(node: &impl Node) -> Vec<String> {
    let request = AllocatableResourcesRequest {};
    let response = call(async || client(node).await.get_allocatable_resources(request).await).await;
    by_resource(&response.expect("answered").devices)
}

async fn client(node: &impl Node) -> Client {
    let socket = node.root().join(wire::SOCKET_DIR).join(wire::SOCKET_NAME);
    let channel = SocketPath::new(socket)
        .expect("a short socket path")
        .dial()
        .await
        .expect("the kubelet listens");
    PodResourcesListerClient::new(channel)
}

/// Makes a call, and repeats it while the kubelet's rate limit refuses it.
async fn call<T>(
    attempt: impl AsyncFn() -> Result<tonic::Response<T>, tonic::Status>,
) -> Result<T, tonic::Status> {
    loop {
        match attempt().await {
            Err(status) if status.code() == Code::ResourceExhausted => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            outcome => return outcome.map(tonic::Response::into_inner),
        }
    }
}

/// Describes a pod's containers with their devices.
fn describe(node: &impl Node, pod: &wire::PodResources) -> String {
    let name = pod.name.strip_suffix(node.pod_name_suffix()).unwrap_or(&pod.name);
    let containers = pod.containers.iter().map(|container| {
        let devices = by_resource(&container.devices);
        let devices = if devices.is_empty() { "nothing".to_owned() } else { devices.join(", ") };
        format!("{} has {devices}", container.name)
    });
    format!("{}/{name}: {}", pod.namespace, containers.collect::<Vec<_>>().join(", "))
}

/// One line per resource: its sorted devices, each with its NUMA nodes.
fn by_resource(devices: &[wire::ContainerDevices]) -> Vec<String> {
    let mut resources = BTreeMap::<&str, Vec<String>>::new();
    for device in devices {
        let nodes = device.topology.as_ref().map_or_else(String::new, |topology| {
            let nodes: Vec<_> = topology.nodes.iter().map(|node| node.id.to_string()).collect();
            format!("@{}", nodes.join(","))
        });
        let entry = format!("{}{nodes}", device.device_ids.join("+"));
        resources.entry(&device.resource_name).or_default().push(entry);
    }
    let line = |(resource, mut entries): (&str, Vec<String>)| {
        entries.sort();
        format!("{resource} {}", entries.join(" "))
    };
    resources.into_iter().map(line).collect()
}

/// Reads the checkpoint. One read is consistent, because the kubelet replaces the file atomically.
fn checkpoint(node: &impl Node) -> Result<Checkpoint, CheckpointError> {
    match fs::read_to_string(node.plugin_dir().join(FILE_NAME)) {
        Ok(json) => Checkpoint::parse(&json),
        Err(_) => Ok(Checkpoint::default()),
    }
}

fn holders(checkpoint: &Checkpoint) -> Vec<String> {
    let holders = checkpoint.pods.iter().flatten().map(|entry| {
        let devices = entry.device_ids.iter().map(|(node, ids)| {
            let mut ids = ids.clone();
            ids.sort();
            let node = if *node == NO_NUMA_NODE { String::new() } else { format!("@{node}") };
            format!("[{}]{node}", ids.join(" "))
        });
        let devices: Vec<_> = devices.collect();
        let (pod, container) = (&entry.pod_uid, &entry.container_name);
        format!("{pod}/{container} {} {}", entry.resource_name, devices.join(" "))
    });
    let mut holders: Vec<_> = holders.collect();
    holders.sort();
    holders
}

fn registered(checkpoint: &Checkpoint) -> Vec<String> {
    let resources = checkpoint.registered.iter().flatten().map(|(resource, ids)| {
        let mut ids = ids.clone().unwrap_or_default();
        ids.sort();
        format!("{resource} [{}]", ids.join(" "))
    });
    resources.collect()
}
