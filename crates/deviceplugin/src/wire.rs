//! Conversion between domain types and protobuf messages of the device plugin API.

use std::fmt;

use tonic::Status;
use windlass_allocations::ledger::Conflict;
use windlass_cdi::container_edits::{self, Access, AllocationEdits};
use windlass_core::{
    device::{DeviceId, DeviceNode},
    placement::{PlacementError, shares::ShareError},
};
use windlass_host::{Host, abbreviate::first_few};
use windlass_kubelet_api::deviceplugin::{
    CdiDevice, ContainerAllocateResponse, Device, DeviceSpec, HEALTHY, ListAndWatchResponse, Mount,
    NumaNode, TopologyInfo, UNHEALTHY,
};
use windlass_resources::offers::{Allocatability, Offer};

/// Reason to refuse a request. The kubelet shows the text in the pod's events.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error("{resource}: the call has {count} containers; at most {limit} are allowed")]
    TooManyContainers { resource: String, count: usize, limit: usize },
    #[error("the request names no devices of {resource}")]
    NoIds { resource: String },
    #[error("{resource} has no device {}", list_ids(ids))]
    UnknownIds { resource: String, ids: Vec<String> },
    #[error("the request names {} of {resource} more than once", list_ids(ids))]
    DuplicateIds { resource: String, ids: Vec<String> },
    #[error("{resource}: {id} cannot be allocated: {reason}")]
    NotAllocatable { resource: String, id: String, reason: String },
    #[error(
        "{resource}: {count} replicas requested, and a container may have one: a second one \
         gives it neither more memory nor more time"
    )]
    OneReplicaOnly { resource: String, count: usize },
    #[error(
        "{resource}: the replicas are on {devices} devices, and a container can be a client of one \
         MPS daemon only; request fewer"
    )]
    SeveralDaemons { resource: String, devices: usize },
    #[error(
        "{resource}: the replicas are on {devices} GPUs, and must be on one to add up their memory: no GPU has that \
         many free; request fewer"
    )]
    SeveralGpus { resource: String, devices: usize },
    #[error(
        "{resource}: {} would both be {path} in the container: ask for one, or let each keep its own \
         path",
        list_ids(ids)
    )]
    SharedPath { resource: String, ids: Vec<String>, path: String },
    #[error("{resource}: {} cannot be allocated: {conflict}", list_ids(ids))]
    Conflict { resource: String, ids: Vec<String>, conflict: Box<Conflict> },
    #[error("{resource}: {id} is not ready for its container: {reason}")]
    NotReady { resource: String, id: String, reason: String },
    #[error("{resource}: the share has no GPU yet: {reason}")]
    ShareNotBound { resource: String, reason: String },
    #[error("{0}")]
    Cdi(String),
    #[error("{resource}: {source}{excluded}")]
    Placement { resource: String, source: PlacementError, excluded: Excluded },
    #[error("{resource}: {source}{excluded}")]
    Shares { resource: String, source: ShareError, excluded: Excluded },
}

/// Limit of ids in a message.
const MAX_LISTED_IDS: usize = 10;

/// Devices that are free for the kubelet, but that Allocate would refuse, each with its reason.
#[derive(Debug, Default)]
pub(super) struct Excluded(pub(super) Vec<(DeviceId, String)>);

/// Converts an offer to a device list.
pub(super) fn device_list(offer: &Offer) -> ListAndWatchResponse {
    let devices = offer.list().map(|entry| Device {
        id: entry.id.into_owned(),
        health: match entry.state {
            Allocatability::Ready => HEALTHY.to_owned(),
            Allocatability::AfterCleanup(_) | Allocatability::Blocked(_) => UNHEALTHY.to_owned(),
        },
        // Without a NUMA node the whole message is absent: an empty one hides the device from the pod resources
        // API (`apis/podresources/server_v1.go`, GetAllocatableResources).
        topology: entry
            .numa_node
            .map(|node| TopologyInfo { nodes: vec![NumaNode { id: node.into() }] }),
    });
    ListAndWatchResponse { devices: devices.collect() }
}

pub(super) fn container_response(edits: AllocationEdits, dev: &Host) -> ContainerAllocateResponse {
    let node = |node: &DeviceNode| DeviceSpec {
        container_path: node.container_path().display().to_string(),
        host_path: dev.path_on_node(&node.path).display().to_string(),
        permissions: node.access.as_str().to_owned(),
    };
    ContainerAllocateResponse {
        devices: edits.nodes.iter().map(node).collect(),
        mounts: edits.mounts.iter().map(mount).collect(),
        annotations: edits.annotations.into_iter().collect(),
        envs: edits.envs.into_iter().collect(),
        cdi_devices: edits.cdi_devices.into_iter().map(|name| CdiDevice { name }).collect(),
    }
}

fn mount(mount: &container_edits::Mount) -> Mount {
    Mount {
        host_path: mount.host_path.display().to_string(),
        container_path: mount.container_path.display().to_string(),
        read_only: mount.access == Access::ReadOnly,
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        let text = refusal.to_string();
        match refusal {
            Refusal::TooManyContainers { .. }
            | Refusal::NoIds { .. }
            | Refusal::UnknownIds { .. }
            | Refusal::DuplicateIds { .. }
            | Refusal::OneReplicaOnly { .. }
            | Refusal::SeveralDaemons { .. }
            | Refusal::SeveralGpus { .. }
            | Refusal::SharedPath { .. }
            | Refusal::Placement { .. }
            | Refusal::Shares { .. } => Self::invalid_argument(text),
            Refusal::NotAllocatable { .. }
            | Refusal::NotReady { .. }
            | Refusal::Conflict { .. }
            | Refusal::Cdi(_) => Self::failed_precondition(text),
            Refusal::ShareNotBound { .. } => Self::unavailable(text),
        }
    }
}

// === impl Excluded ===

impl fmt::Display for Excluded {
    /// `; GPU-3 is excluded: it cannot be allocated: XID 79`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_slice() {
            [] => Ok(()),
            [(id, reason)] => write!(f, "; {id} is excluded: it cannot be allocated: {reason}"),
            [(id, reason), others @ ..] => write!(
                f,
                "; {id} and {} more are excluded: {id} cannot be allocated: {reason}",
                others.len()
            ),
        }
    }
}

/// Lists the first ids. gRPC peers accept 16 KB of status, and it becomes one line in a pod's events.
fn list_ids(ids: &[String]) -> String {
    first_few(ids, MAX_LISTED_IDS)
}

#[cfg(test)]
mod tests {
    use windlass_allocations::ledger::{ClaimRef, ConflictingHolder};

    use super::*;

    #[test]
    fn a_refusal_does_not_name_the_claim_that_holds_the_device() {
        let [namespace, name, uid] = ["team", "train", "uid"].map(ToOwned::to_owned);
        let holder = ConflictingHolder::Claim(ClaimRef { namespace, name, uid });
        let conflict = Conflict::Held { device: "GPU-a".parse().expect("an id"), holder };
        let conflict = Box::new(conflict);
        let (resource, ids) = ("nvidia.com/gpu.shared".to_owned(), vec!["GPU-a::1".to_owned()]);
        let refusal = Status::from(Refusal::Conflict { resource, ids, conflict });
        let expected =
            "nvidia.com/gpu.shared: GPU-a::1 cannot be allocated: GPU-a is held by another claim";
        assert_eq!(refusal.message(), expected);
    }
}
