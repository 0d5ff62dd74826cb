//! A kubelet's visible state: its checkpoint and its pod resources answers.

use std::{collections::BTreeMap, fmt::Write as _, fs, time::Duration};

use tonic::{Code, transport::Channel};
use windlass_kubelet_api::{
    checkpoint::{Checkpoint, CheckpointError, FILE, NO_NUMA_NODE},
    podresources::{
        self as wire, AllocatableResourcesRequest, GetPodResourcesRequest, ListPodResourcesRequest,
        pod_resources_lister_client::PodResourcesListerClient,
    },
    socket::SocketPath,
};

use super::node::Node;

/// State at one moment, in lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Look {
    /// Holders of devices, by the checkpoint.
    holders: Vec<String>,
    /// Healthy devices by resource, by the checkpoint.
    registered: Vec<String>,
    /// `List`.
    pods: Vec<String>,
    /// `GetAllocatableResources`.
    allocatable: Vec<String>,
}

type Client = PodResourcesListerClient<Channel>;

// === impl Look ===

impl Look {
    /// Looks until two looks agree. The real kubelet answers a little before it has written its checkpoint.
    pub(crate) async fn at(node: &impl Node) -> Self {
        let mut last = Self::once(node).await;
        loop {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let next = Self::once(node).await;
            if next == last {
                return next;
            }
            last = next;
        }
    }

    async fn once(node: &impl Node) -> Self {
        let pods = pods(node).await;
        let (holders, registered) = match checkpoint(node) {
            Ok(checkpoint) => (holders(&checkpoint), registered(&checkpoint)),
            Err(_) => (vec!["broken".to_owned()], vec!["broken".to_owned()]),
        };
        Self { holders, registered, pods, allocatable: allocatable(node).await }
    }

    /// Changed parts since the earlier look, each part whole.
    pub(crate) fn since(&self, before: &Self) -> String {
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

/// Entries of a resource in `GetAllocatableResources`, in order.
pub(crate) async fn healthy(node: &impl Node, resource: &str) -> String {
    let resources = allocatable(node).await.into_iter();
    let mut of_resource =
        resources.filter_map(|line| Some(line.strip_prefix(resource)?.trim_start().to_owned()));
    of_resource.next().unwrap_or_default()
}

/// Answer about one pod.
pub(crate) async fn get(node: &impl Node, pod: &str) -> String {
    let request = GetPodResourcesRequest {
        pod_name: format!("{pod}{}", node.suffix()),
        pod_namespace: "default".to_owned(),
    };
    match answered(async || client(node).await.get(request.clone()).await).await {
        Ok(answer) => shown(node, &answer.pod_resources.expect("a pod")),
        Err(status) => {
            let message = status.message().replace(&request.pod_name, pod);
            format!("{:?}: {message}", status.code())
        }
    }
}

/// True if `List` has a pod of this name.
pub(crate) async fn is_listed(node: &impl Node, pod: &str) -> bool {
    let beginning = format!("default/{pod}: ");
    pods(node).await.iter().any(|line| line.starts_with(&beginning))
}

async fn pods(node: &impl Node) -> Vec<String> {
    let answer = answered(async || client(node).await.list(ListPodResourcesRequest {}).await).await;
    let pods = answer.expect("answered").pod_resources;
    let mut pods: Vec<_> = pods.iter().map(|pod| shown(node, pod)).collect();
    pods.sort();
    pods
}

async fn allocatable(node: &impl Node) -> Vec<String> {
    let request = AllocatableResourcesRequest {};
    let answer =
        answered(async || client(node).await.get_allocatable_resources(request).await).await;
    by_resource(&answer.expect("answered").devices)
}

async fn client(node: &impl Node) -> Client {
    let socket = node.root().join(wire::DIR).join(wire::SOCKET);
    let channel =
        SocketPath::new(socket).expect("short").dial().await.expect("the kubelet listens");
    PodResourcesListerClient::new(channel)
}

/// Repeats a call that the kubelet's rate limit refuses.
async fn answered<T>(
    ask: impl AsyncFn() -> Result<tonic::Response<T>, tonic::Status>,
) -> Result<T, tonic::Status> {
    loop {
        match ask().await {
            Err(status) if status.code() == Code::ResourceExhausted => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            answer => return answer.map(tonic::Response::into_inner),
        }
    }
}

fn shown(node: &impl Node, pod: &wire::PodResources) -> String {
    let name = pod.name.strip_suffix(node.suffix()).unwrap_or(&pod.name);
    let containers = pod.containers.iter().map(|container| {
        let devices = by_resource(&container.devices);
        let devices = if devices.is_empty() { "nothing".to_owned() } else { devices.join(", ") };
        format!("{} has {devices}", container.name)
    });
    format!("{}/{name}: {}", pod.namespace, containers.collect::<Vec<_>>().join(", "))
}

/// One text for each resource: its devices in order, each entry with its NUMA nodes.
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

/// A single read suffices: the kubelet replaces the file as a whole.
fn checkpoint(node: &impl Node) -> Result<Checkpoint, CheckpointError> {
    match fs::read_to_string(node.plugin_dir().join(FILE)) {
        Ok(json) => Checkpoint::parse(&json),
        Err(_) => Ok(Checkpoint::default()),
    }
}

fn holders(checkpoint: &Checkpoint) -> Vec<String> {
    let held = checkpoint.pods.iter().flatten().map(|entry| {
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
    let mut held: Vec<_> = held.collect();
    held.sort();
    held
}

fn registered(checkpoint: &Checkpoint) -> Vec<String> {
    let resources = checkpoint.registered.iter().flatten().map(|(resource, ids)| {
        let mut ids = ids.clone().unwrap_or_default();
        ids.sort();
        format!("{resource} [{}]", ids.join(" "))
    });
    resources.collect()
}
