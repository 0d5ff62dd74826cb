//! Cluster: the API server with a scheduler for pods with claims.
//!
//! ```text
//!  pod ──> claims from templates ──> special claim for extended resources ──┐
//!                                                                           ▼
//!  bound <── status: allocation, reservedFor <── first node that fits <── allocate
//! ```
//!
//! The cluster also acts as the claim controller: it deallocates a claim without users. If a pod is deleted,
//! the claims that were generated for it are deleted too. Nodes are tried in the order of their names. Not modelled:
//! taints of nodes, resources other than devices, and preemption.

mod claims;
mod extended;

use k8s_openapi::{
    api::{
        core::v1::{Node, Pod},
        resource::v1::{AllocationResult, DeviceClass, ResourceClaim, ResourceSlice},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use windlass_sched::allocator::{self, AllocationError, AllocationInput};

use crate::api::{ApiServer, Objects, Refusal, Settings};

/// A cluster. Dropping it stops its API server.
#[derive(Debug)]
pub struct Cluster {
    server: ApiServer,
}

/// Pod that is bound to a node.
#[derive(Clone, Debug)]
pub struct ScheduledPod {
    /// Pod with its node, and with the names of its claims in its status.
    pub pod: Pod,
    /// Claims of the pod, with their devices. The one for extended resources is the last.
    pub claims: Vec<ResourceClaim>,
}

/// Reason why a pod was not scheduled.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SchedulingError {
    /// An object that the pod names does not exist.
    #[error("pod {pod}: {reason}")]
    MissingObject {
        /// `namespace/name`.
        pod: String,
        /// Kind and name of the missing object.
        reason: String,
    },
    /// The claims have an error that does not depend on the node.
    #[error("pod {pod}")]
    InvalidClaims {
        /// `namespace/name`.
        pod: String,
        /// Reason.
        source: AllocationError,
    },
    /// No node satisfies the pod.
    #[error("pod {pod}: 0/{} nodes are available: {}", .reasons.len(), .reasons.join("; "))]
    NoNode {
        /// `namespace/name`.
        pod: String,
        /// Reasons of the nodes, each as `name: reason`.
        reasons: Vec<String>,
    },
    /// The API server refused a write.
    #[error("pod {pod}")]
    Refused {
        /// `namespace/name`.
        pod: String,
        /// Refusal of the server.
        source: Refusal,
    },
}

/// Allocation of a pod on a node.
#[derive(Debug)]
struct NodeAllocation {
    node: String,
    /// Claims that had no devices yet, each with its new allocation.
    allocations: Vec<(ResourceClaim, AllocationResult)>,
    /// Claim for extended resources, which was not created in the API yet.
    extended_resource_claim: Option<(ResourceClaim, AllocationResult)>,
}

// === impl Cluster ===

impl Cluster {
    /// Starts a cluster of Kubernetes 1.36 without nodes.
    pub fn start() -> Self {
        Self::start_with(Settings::default())
    }

    /// Starts a cluster without nodes.
    pub fn start_with(settings: Settings) -> Self {
        Self { server: ApiServer::start_with(settings) }
    }

    /// API server.
    pub fn server(&self) -> &ApiServer {
        &self.server
    }

    /// API server, for stopping and restarting it.
    pub fn server_mut(&mut self) -> &mut ApiServer {
        &mut self.server
    }

    /// Handle to the objects.
    pub fn objects(&self) -> Objects {
        self.server.objects()
    }

    /// Adds a node with the label `kubernetes.io/hostname`.
    pub fn add_node(&self, name: &str) -> Node {
        let labels = [("kubernetes.io/hostname".to_owned(), name.to_owned())].into();
        let metadata = ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(labels),
            ..ObjectMeta::default()
        };
        self.objects().put(&Node { metadata, ..Node::default() })
    }

    /// Finds a node for a pod, and allocates its devices. Creates the pod if it does not exist.
    pub fn schedule(&self, pod: &Pod) -> Result<ScheduledPod, SchedulingError> {
        let objects = self.objects();
        let id = (namespace(&pod.metadata), pod.metadata.name.clone().unwrap_or_default());
        let refusal_error = |source| SchedulingError::Refused { pod: namespaced_name(pod), source };
        let pod = if let Some(existing) = objects.get::<Pod>(&id.0, &id.1) {
            existing
        } else {
            let mut pod = pod.clone();
            pod.metadata.namespace = Some(id.0);
            objects.create(&pod).map_err(refusal_error)?
        };
        let (pod, claims) = claims::of_pod(&objects, pod)?;
        let node_allocation = find_node(&objects, &pod, &claims)?;
        claims::bind(&objects, pod, (claims, node_allocation))
    }

    /// Deletes a pod. Claims without other users are deallocated.
    pub fn delete_pod(&self, namespace: &str, name: &str) -> Result<(), Refusal> {
        let objects = self.objects();
        let pod: Option<Pod> = objects.get(namespace, name);
        objects.delete::<Pod>(namespace, name)?;
        let uid = pod.and_then(|pod| pod.metadata.uid).unwrap_or_default();
        claims::release(&objects, &uid)
    }
}

/// The first node on which all claims of the pod can be allocated.
fn find_node(
    objects: &Objects,
    pod: &Pod,
    claims: &[ResourceClaim],
) -> Result<NodeAllocation, SchedulingError> {
    let slices: Vec<ResourceSlice> = objects.list();
    let classes: Vec<DeviceClass> = objects.list();
    let all_claims: Vec<ResourceClaim> = objects.list();
    let input = AllocationInput { classes: &classes, slices: &slices, claims: &all_claims };
    let mut reasons = Vec::new();
    for node in objects.list::<Node>().iter().filter(|node| matches_node_selection(pod, node)) {
        let name = node.metadata.name.clone().unwrap_or_default();
        match allocate_on_node(node, (pod, claims), input) {
            Ok(node_allocation) => return Ok(node_allocation),
            Err(AllocationError::NoFit(reason)) => reasons.push(format!("{name}: {reason}")),
            Err(source) => {
                return Err(SchedulingError::InvalidClaims { pod: namespaced_name(pod), source });
            }
        }
    }
    Err(SchedulingError::NoNode { pod: namespaced_name(pod), reasons })
}

/// True if the pod's `nodeName` and `nodeSelector` allow the node.
fn matches_node_selection(pod: &Pod, node: &Node) -> bool {
    let spec = pod.spec.as_ref();
    let node_name = spec.and_then(|spec| spec.node_name.as_ref());
    let labels = node.metadata.labels.clone().unwrap_or_default();
    let selector = spec.and_then(|spec| spec.node_selector.clone()).unwrap_or_default();
    node_name.is_none_or(|name| node.metadata.name.as_ref() == Some(name))
        && selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

/// Allocates the claims of a pod on one node.
fn allocate_on_node(
    node: &Node,
    (pod, claims): (&Pod, &[ResourceClaim]),
    input: AllocationInput<'_>,
) -> Result<NodeAllocation, AllocationError> {
    let (with_devices, mut pending): (Vec<_>, Vec<_>) =
        claims.iter().cloned().partition(|claim| allocation(claim).is_some());
    let on_other_node = with_devices.iter().find(|claim| {
        let selector = allocation(claim).and_then(|allocation| allocation.node_selector.as_ref());
        !allocator::allows_node(selector, node)
    });
    if let Some(claim) = on_other_node {
        let name = claim.metadata.name.as_deref().unwrap_or_default();
        return Err(AllocationError::NoFit(format!("claim {name} has devices on another node")));
    }
    let extended_resource_claim = extended::claim(pod, node, input.classes);
    let has_extended_resources = extended_resource_claim.is_some();
    pending.extend(extended_resource_claim);
    let results = allocator::allocate(&pending, input, node)?;
    let mut allocated: Vec<_> = pending.into_iter().zip(results).collect();
    let extended_resource_claim = if has_extended_resources { allocated.pop() } else { None };
    Ok(NodeAllocation {
        node: node.metadata.name.clone().unwrap_or_default(),
        allocations: allocated,
        extended_resource_claim,
    })
}

fn allocation(claim: &ResourceClaim) -> Option<&AllocationResult> {
    claim.status.as_ref()?.allocation.as_ref()
}

/// Namespace of an object; `default` if it names none.
fn namespace(metadata: &ObjectMeta) -> String {
    metadata.namespace.clone().unwrap_or_else(|| "default".to_owned())
}

/// `namespace/name`.
fn namespaced_name(pod: &Pod) -> String {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    format!("{}/{name}", namespace(&pod.metadata))
}
