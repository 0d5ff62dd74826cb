//! Device owners for `windlass devices`: containers and pods from pod resources, claims from the agent's state file.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use windlass_allocations::{
    ledger::ClaimRef,
    podresources::{
        Holder, HoldersByDevice,
        client::{self, PodsByClaim, holders_by_device, pods_by_claim},
    },
};
use windlass_config::HostPaths;
use windlass_core::{
    device::DeviceId, partition::instance_at, replica::token_number, resource::ResourceName,
};
use windlass_dra::{ClaimFile, PreparedDevice, Records};
use windlass_host::causes;
use windlass_resources::NodeState;

/// Owners by device.
pub type Owners = BTreeMap<DeviceId, BTreeSet<Owner>>;

/// Owner of a device, by the API that allocated it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "api", rename_all = "camelCase")]
pub enum Owner {
    /// A container, through the device plugin API.
    Plugin(Holder),
    /// A claim, through Dynamic Resource Allocation.
    Dra {
        /// Namespace of the claim.
        namespace: String,
        /// Name of the claim.
        claim: String,
        /// UID of the claim.
        uid: String,
        /// Pods in the claim's namespace that use it.
        #[serde(skip_serializing_if = "BTreeSet::is_empty")]
        pods: BTreeSet<String>,
    },
}

/// Owners of all devices, with the errors that make the list incomplete.
pub async fn owners(places: &HostPaths, node: &NodeState) -> (Owners, Vec<String>) {
    let (mut owners, mut caveats) = (Owners::new(), Vec::new());
    let pods = client::pods(&places.kubelet_dir).await;
    let pods = pods.map_err(|error| caveats.push(causes(&error))).unwrap_or_default();
    let claim_users = pods_by_claim(&pods);
    add_containers(holders_by_device(pods), node, &mut owners);
    match ClaimFile::new(places).read() {
        Ok(claims) => add_claims(claims.unwrap_or_default(), &claim_users, node, &mut owners),
        Err(error) => caveats.push(causes(&error)),
    }
    (owners, caveats)
}

/// Adds containers. A pool token stands for every device of its pool.
fn add_containers(by_device: HoldersByDevice, node: &NodeState, owners: &mut Owners) {
    for (id, holders) in by_device {
        for holder in holders {
            let is_pooled = token_number(id.as_str()).is_some();
            let pool = holder.resource.parse::<ResourceName>().ok().filter(|_| is_pooled);
            let offer = pool.and_then(|name| node.offers.get(&name));
            let devices = offer.into_iter().flat_map(|offer| &offer.devices);
            let pooled = devices.filter(|(_, device)| device.pooled().is_some());
            for device in pooled.map(|(id, _)| id).chain([&id]) {
                let owner = Owner::Plugin(holder.clone());
                owners.entry(device.clone()).or_default().insert(owner);
            }
        }
    }
}

fn add_claims(claims: Records, users: &PodsByClaim, node: &NodeState, owners: &mut Owners) {
    let device_id = |device: PreparedDevice| match device.partition {
        Some(placement) => {
            instance_at(&node.inventory, &placement).map(|instance| instance.id.clone())
        }
        None => device.device,
    };
    for record in claims.into_values() {
        let claim_key = (record.claim.namespace.clone(), record.claim.name.clone());
        let pods = users.get(&claim_key).cloned().unwrap_or_default();
        for device in record.devices.into_iter().filter_map(device_id) {
            let ClaimRef { namespace, name, uid } = record.claim.clone();
            let owner = Owner::Dra { namespace, claim: name, uid, pods: pods.clone() };
            owners.entry(device).or_default().insert(owner);
        }
    }
}

// === impl Owner ===

impl std::fmt::Display for Owner {
    /// Formats: `default/train-0`, `team/train-0 (claim gpus)`, `claim team/gpus` for a claim without pods.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Plugin(Holder { namespace, pod, .. }) => write!(f, "{namespace}/{pod}"),
            Self::Dra { namespace, claim, pods, .. } => match (pods.first(), pods.len()) {
                (None, _) => write!(f, "claim {namespace}/{claim}"),
                (Some(pod), 1) => write!(f, "{namespace}/{pod} (claim {claim})"),
                (Some(pod), count) => {
                    write!(f, "{namespace}/{pod} and {} more (claim {claim})", count - 1)
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::documents::Document;

    #[tokio::test]
    async fn claims_are_read_from_the_agents_state_file_without_a_kubelet() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = |name: &str| folder.path().join(name);
        let (kubelet_dir, state_dir, cdi_dir) = (path("kubelet"), path("."), path("cdi"));
        let places = HostPaths { kubelet_dir, state_dir, cdi_dir, ..HostPaths::default() };
        let text = r#"{"version": 1, "boot": null, "claims": {"u": {
            "ref": {"namespace": "team", "name": "train", "uid": "u"}, "state": "PrepareCompleted",
            "devices": [{"pool": "n1/nvidia", "name": "gpu-a", "device": "GPU-a", "usage": "alone",
                "requests": [], "cdi": []}]}}}"#;
        let text = Document::Claims.round_trip(text.as_bytes()).expect("understood");
        std::fs::write(path("claims.json"), text).expect("written");
        let (owners, caveats) = owners(&places, &NodeState::default()).await;
        let owners_of_gpu = owners["GPU-a"].iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(owners_of_gpu, ["claim team/train"]);
        assert!(caveats[0].contains("pod-resources"), "{caveats:?}");
        std::fs::write(path("claims.json"), "{").expect("written");
        let (_, caveats) = super::owners(&places, &NodeState::default()).await;
        assert!(caveats[1].contains("claims.json is not a record of claims"), "{caveats:?}");
    }
}
