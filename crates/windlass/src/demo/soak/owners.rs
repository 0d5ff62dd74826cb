//! Device owners according to the kubelet and to the driver's record. No device has two owners, across both APIs.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, fs, io,
    path::Path,
};

use serde_json::Value;
use windlass_kubelet_sim::{ClaimStatus, NodeStatus};

use super::{
    agent::CLAIMS_FILE,
    invariant::{Violation, held},
};

/// Owners by the published name of the device.
pub(super) type Owners = BTreeMap<String, BTreeSet<Owner>>;

/// Owner of a device, by UID.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Owner {
    /// Pod, through the device plugin.
    Pod(String),
    Claim(String),
}

/// Devices by claim, from the driver's record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DriverRecord(pub(super) BTreeMap<String, BTreeSet<String>>);

// === impl DriverRecord ===

impl DriverRecord {
    /// Reads the record from the agent's state folder; empty if missing.
    pub(super) fn read(state_dir: &Path) -> io::Result<Self> {
        match fs::read(state_dir.join(CLAIMS_FILE)) {
            Ok(text) => Ok(Self::of(&serde_json::from_slice(&text)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error),
        }
    }

    fn of(document: &Value) -> Self {
        let devices = |claim: &Value| {
            let devices = claim["devices"].as_array().into_iter().flatten();
            devices.filter_map(|device| Some(device["name"].as_str()?.to_owned())).collect()
        };
        let claims = document["claims"].as_object().into_iter().flatten();
        Self(claims.map(|(uid, claim)| (uid.clone(), devices(claim))).collect())
    }

    pub(super) fn devices(&self) -> BTreeSet<String> {
        self.0.values().flatten().cloned().collect()
    }

    fn owners(&self) -> Owners {
        let claims = self.0.iter().map(|(uid, devices)| (Owner::Claim(uid.clone()), devices));
        owners_by_device(claims.map(|(owner, devices)| (owner, devices.clone())))
    }
}

// === impl Owner ===

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod(uid) => write!(f, "pod {uid}"),
            Self::Claim(uid) => write!(f, "claim {uid}"),
        }
    }
}

/// Name of a GPU in ResourceSlices.
pub(super) fn published_name(uuid: &str) -> String {
    uuid.to_ascii_lowercase()
}

/// Owners according to the kubelet: admitted pods, and claims of existing pods.
pub(super) fn kubelet_owners(node: &NodeStatus) -> Owners {
    let admitted = node.pods.iter().filter(|(_, pod)| pod.is_admitted());
    let pod_devices = admitted.map(|(uid, pod)| {
        (Owner::Pod(uid.clone()), held(pod).iter().map(|id| published_name(id)).collect())
    });
    let claim_devices =
        claims(node).map(|claim| (Owner::Claim(claim.uid.clone()), prepared(claim)));
    owners_by_device(pod_devices.chain(claim_devices))
}

/// Checks that no device has two owners.
pub(super) fn check_exclusive(kubelet: Owners, driver: &DriverRecord) -> Result<(), Violation> {
    let mut all_owners = kubelet;
    for (device, owners) in driver.owners() {
        all_owners.entry(device).or_default().extend(owners);
    }
    match all_owners.into_iter().find(|(_, owners)| owners.len() > 1) {
        Some((device, owners)) => Err(Violation::TwoOwners {
            device,
            owners: owners.iter().map(ToString::to_string).collect(),
        }),
        None => Ok(()),
    }
}

/// Checks that kubelet and driver list the same claims and devices.
pub(super) fn check_agreement(node: &NodeStatus, record: &DriverRecord) -> Result<(), String> {
    let kubelet = claims(node).map(|claim| (claim.uid.clone(), prepared(claim))).collect();
    if record.0 == kubelet {
        return Ok(());
    }
    Err(format!("devices of claims differ: kubelet {kubelet:?}, driver {:?}", record.0))
}

/// Checks that each claim has its allocated devices, according to the kubelet and to the driver.
pub(super) fn check_allocations_unchanged(
    allocated: &BTreeMap<String, BTreeSet<String>>,
    node: &NodeStatus,
    record: &DriverRecord,
) -> Result<(), Violation> {
    let kubelet: BTreeMap<_, _> =
        claims(node).map(|claim| (claim.uid.clone(), prepared(claim))).collect();
    for (claim, held) in allocated {
        for (reporter, devices) in
            [("kubelet", kubelet.get(claim)), ("driver", record.0.get(claim))]
        {
            let now = devices.cloned().unwrap_or_default();
            if now != *held {
                let owner = Owner::Claim(claim.clone());
                return Err(Violation::AllocationLost { owner, held: held.clone(), reporter, now });
            }
        }
    }
    Ok(())
}

/// Claims of existing pods.
fn claims(node: &NodeStatus) -> impl Iterator<Item = &ClaimStatus> {
    node.claims.values().filter(|claim| claim.pods.iter().any(|uid| node.pods.contains_key(uid)))
}

/// CDI names for containers with claims.
pub(super) fn cdi_names(node: &NodeStatus) -> impl Iterator<Item = &String> {
    let devices = claims(node).flat_map(|claim| claim.devices.values().flatten());
    devices.flat_map(|device| &device.cdi_devices)
}

fn prepared(claim: &ClaimStatus) -> BTreeSet<String> {
    claim.devices.values().flatten().map(|device| device.name.clone()).collect()
}

fn owners_by_device(devices_by_owner: impl Iterator<Item = (Owner, BTreeSet<String>)>) -> Owners {
    let mut owners = Owners::new();
    for (owner, devices) in devices_by_owner {
        for device in devices {
            owners.entry(device).or_default().insert(owner.clone());
        }
    }
    owners
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use windlass_kubelet_sim::{ContainerStatus, PodPhase, PodStatus, PreparedDevice};

    use super::*;

    /// Node whose pods have these devices through the device plugin.
    fn pods(pods: &[(&str, &[&str])]) -> NodeStatus {
        let pod = |(uid, ids): &(&str, &[&str])| {
            let ids = ids.iter().map(|id| (*id).to_owned()).collect();
            let devices = [("nvidia.com/gpu".to_owned(), [(0, ids)].into())].into();
            let container = ContainerStatus { devices, ..ContainerStatus::default() };
            let pod = PodStatus {
                name: (*uid).to_owned(),
                namespace: "default".to_owned(),
                phase: PodPhase::Admitted,
                containers: [("main".to_owned(), container)].into(),
            };
            ((*uid).to_owned(), pod)
        };
        NodeStatus { pods: pods.iter().map(pod).collect(), ..NodeStatus::default() }
    }

    /// Node on which a pod has the devices of a claim.
    fn with_claim(
        mut node: NodeStatus,
        (pod, claim): (&str, &str),
        devices: &[&str],
    ) -> NodeStatus {
        let device = |name: &&str| PreparedDevice {
            pool: "n/nvidia".to_owned(),
            name: (*name).to_owned(),
            share_id: None,
            requests: Vec::new(),
            cdi_devices: Vec::new(),
        };
        let prepared = devices.iter().map(device).collect();
        let status = ClaimStatus {
            uid: claim.to_owned(),
            pods: [pod.to_owned()].into(),
            is_prepared: true,
            devices: [("windlass.dev".to_owned(), prepared)].into(),
        };
        node.claims.insert(format!("default/{claim}"), status);
        node
    }

    fn record(claims: &[(&str, &str)]) -> DriverRecord {
        let claim = |(uid, device): &(&str, &str)| {
            ((*uid).to_owned(), json!({"devices": [{"name": device, "usage": "alone"}]}))
        };
        let claims: serde_json::Map<_, _> = claims.iter().map(claim).collect();
        DriverRecord::of(&json!({"claims": claims}))
    }

    #[test]
    fn a_device_of_a_pod_and_a_claim_has_two_owners() {
        let node = with_claim(pods(&[("a", &["GPU-0"]), ("b", &[])]), ("b", "c"), &["gpu-1"]);
        assert_eq!(check_exclusive(kubelet_owners(&node), &record(&[("c", "gpu-1")])), Ok(()));
        let two_owners = |device: &str, owners: [&str; 2]| {
            let owners = owners.map(str::to_owned).into();
            Err(Violation::TwoOwners { device: device.to_owned(), owners })
        };
        let both = with_claim(node.clone(), ("b", "c"), &["gpu-0"]);
        let by_kubelet_alone = check_exclusive(kubelet_owners(&both), &DriverRecord::default());
        assert_eq!(by_kubelet_alone, two_owners("gpu-0", ["claim c", "pod a"]));
        let by_driver = check_exclusive(kubelet_owners(&node), &record(&[("d", "gpu-0")]));
        assert_eq!(by_driver, two_owners("gpu-0", ["claim d", "pod a"]));
        let two_claims = check_exclusive(Owners::new(), &record(&[("c", "gpu-1"), ("d", "gpu-1")]));
        assert_eq!(two_claims, two_owners("gpu-1", ["claim c", "claim d"]));
    }

    #[test]
    fn a_claim_without_a_pod_owns_nothing_and_must_not_be_prepared() {
        let node = with_claim(pods(&[("a", &["GPU-0"])]), ("b", "c"), &["gpu-0"]);
        assert_eq!(check_exclusive(kubelet_owners(&node), &DriverRecord::default()), Ok(()));
        assert_eq!(check_agreement(&node, &DriverRecord::default()), Ok(()));
        assert!(check_agreement(&node, &record(&[("c", "gpu-1")])).is_err());
    }

    #[test]
    fn a_claim_with_missing_or_other_devices_is_found() {
        let set = |id: &str| BTreeSet::from([id.to_owned()]);
        let allocated = [("c".to_owned(), set("gpu-1"))].into();
        let node = with_claim(pods(&[("b", &[])]), ("b", "c"), &["gpu-1"]);
        let check =
            |node, claims: &[_]| check_allocations_unchanged(&allocated, node, &record(claims));
        assert_eq!(check(&node, &[("c", "gpu-1")]), Ok(()));
        let lost = |reporter, now| {
            let owner = Owner::Claim("c".to_owned());
            Err(Violation::AllocationLost { owner, held: set("gpu-1"), reporter, now })
        };
        assert_eq!(check(&node, &[]), lost("driver", BTreeSet::new()));
        assert_eq!(check(&node, &[("c", "gpu-2")]), lost("driver", set("gpu-2")));
        let other = with_claim(pods(&[("b", &[])]), ("b", "c"), &["gpu-2"]);
        assert_eq!(check(&other, &[("c", "gpu-1")]), lost("kubelet", set("gpu-2")));
    }

    #[test]
    fn kubelet_and_driver_must_list_the_same_claims_and_devices() {
        let node = with_claim(pods(&[("b", &[])]), ("b", "c"), &["gpu-1"]);
        assert_eq!(check_agreement(&node, &record(&[("c", "gpu-1")])), Ok(()));
        for claims in [&[][..], &[("c", "gpu-2")], &[("c", "gpu-1"), ("d", "gpu-2")]] {
            assert!(check_agreement(&node, &record(claims)).is_err(), "{claims:?}");
        }
    }
}
