//! A pod's parts of GPUs, for `windlass explain`: shares by amounts, replicas of a given memory, and shares of its
//! claims.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use windlass_allocations::{
    follow::{ContainerIds, read_container_ids},
    ledger::Portion,
};
use windlass_cdi::memory_limits::{self, LimitedHolders};
use windlass_config::{HostPaths, ShareMethod};
use windlass_core::{
    device::{Device, DeviceId},
    enforcement::Enforcement,
    pci::PciAddress,
    replica::ReplicaId,
};
use windlass_dra::{ClaimFile, PreparedClaim};
use windlass_resources::{NodeState, offers::OfferedDevice};

use super::{
    documents::ShareDocuments,
    hold::{HeldGpu, Hold},
};

/// Devices and claims of a pod, as the kubelet reports them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodHoldings {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// Ids of devices, replicas and tokens by container and resource.
    pub devices: BTreeMap<(String, String), BTreeSet<String>>,
    /// Names of its claims, which are in its namespace.
    pub claims: BTreeSet<String>,
}

/// A pod's share of a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodShare {
    /// The GPU.
    pub device: DeviceId,
    /// Kind of the share.
    pub by: ShareKind,
    /// UIDs of the pods that the share serves, from the kubelet's checkpoint: several for a shared claim, none if the
    /// checkpoint cannot be read.
    pub pod_uids: BTreeSet<String>,
    /// Memory of the share in MiB.
    pub memory_mib: u64,
    /// Memory of the whole GPU in MiB.
    pub of_mib: u64,
    /// Compute of the share in percent of the GPU; 0 is no request.
    pub compute_percent: u64,
    /// Enforcement of the memory: by the driver or the kernel if the hook has limited one of the pod's containers, else
    /// the strongest that the node has without the hook.
    pub enforcement: Enforcement,
}

/// Kind of a pod's share of a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ShareKind {
    /// Amounts of extended resources.
    Amounts,
    /// This number of replicas, over all containers.
    Replicas(u64),
    /// A claim of this name.
    Claim(String),
}

/// Replicas that a pod has of one GPU.
#[derive(Default)]
struct Replicas {
    count: u64,
    memory_mib: u64,
    pod_uids: BTreeSet<String>,
}

/// Sources of the shares of a pod on this node.
struct ShareSources<'a> {
    places: &'a HostPaths,
    node: &'a NodeState,
    limited: LimitedHolders,
}

/// Shares that a pod has on this node, from the agent's CDI documents, its state file of claims, and the kubelet's
/// checkpoints. Blocks on reads of small files.
pub fn shares_of(places: &HostPaths, node: &NodeState, pod: &PodHoldings) -> Vec<PodShare> {
    let limited = memory_limits::limited_holders(&places.state_dir, &places.host());
    let sources = ShareSources { places, node, limited };
    let mut shares = sources.by_amounts(pod);
    shares.extend(sources.by_replicas(pod));
    shares.extend(sources.by_claims(pod));
    shares
}

// === impl ShareSources ===

impl ShareSources<'_> {
    fn by_amounts(&self, pod: &PodHoldings) -> Vec<PodShare> {
        let (documents, _) = ShareDocuments::new(&self.places.cdi_dir).read();
        let is_of_pod =
            |hold: &&Hold| (&*hold.pod.namespace, &*hold.pod.name) == (&pod.namespace, &pod.name);
        let holds = documents.values().map(|document| &document.hold).filter(is_of_pod);
        let mut shares = Vec::new();
        for hold in holds {
            for HeldGpu { device, amounts, of_mib } in hold.gpus() {
                let share = PodShare {
                    device: device.clone(),
                    by: ShareKind::Amounts,
                    pod_uids: [hold.pod.uid.clone()].into(),
                    memory_mib: amounts.memory_mib,
                    of_mib: *of_mib,
                    compute_percent: amounts.compute_percent,
                    enforcement: self.by_hook_or_watchdog(device, &hold.pod.uid),
                };
                if !shares.contains(&share) {
                    shares.push(share);
                }
            }
        }
        shares
    }

    /// Replicas with a given memory. A pod's containers count together.
    fn by_replicas(&self, pod: &PodHoldings) -> Vec<PodShare> {
        let mut replicas_by_gpu: BTreeMap<DeviceId, Replicas> = BTreeMap::new();
        let containers = read_container_ids(&self.places.kubelet_dir);
        for ((container, resource), ids) in &pod.devices {
            let mut offers = self.node.offers.iter();
            let offer = offers.find(|(name, _)| name.as_str() == resource).map(|(_, offer)| offer);
            for replica in ids.iter().filter_map(|id| id.parse::<ReplicaId>().ok()) {
                let device = offer.and_then(|offer| offer.devices.get(&replica.device));
                let shared = device.and_then(OfferedDevice::shared);
                let Some(replica_mib) = shared.and_then(|shared| shared.memory_mib) else {
                    continue;
                };
                let replicas = replicas_by_gpu.entry(replica.device.clone()).or_default();
                replicas.count += 1;
                replicas.memory_mib += replica_mib;
                let id = replica.to_string();
                let has_replica = |held: &&ContainerIds| {
                    held.container == *container
                        && held.resource.as_str() == resource
                        && held.ids.contains(&id)
                };
                let holder = containers.iter().find(has_replica);
                replicas.pod_uids.extend(holder.map(|held| held.pod.clone()));
            }
        }
        let share = |(device, replicas): (DeviceId, Replicas)| {
            let Replicas { count, memory_mib, pod_uids } = replicas;
            let gpu = self.node.inventory.get(device.as_str())?;
            let hooks = self.limited.get(&device);
            let by_hook = pod_uids.iter().find_map(|uid| hooks?.get(uid).copied());
            Some(PodShare {
                by: ShareKind::Replicas(count),
                pod_uids,
                memory_mib,
                of_mib: gpu.memory_mib()?,
                compute_percent: 0,
                enforcement: by_hook.unwrap_or_else(|| self.without_hook(gpu)),
                device,
            })
        };
        replicas_by_gpu.into_iter().filter_map(share).collect()
    }

    /// Shares of the pod's claims.
    fn by_claims(&self, pod: &PodHoldings) -> Vec<PodShare> {
        let claims = ClaimFile::new(self.places).read().ok().flatten().unwrap_or_default();
        let pods_by_claim = windlass_dra::pods_by_claim(&self.places.kubelet_dir);
        let is_of_pod = |claim: &&PreparedClaim| {
            claim.claim.namespace == pod.namespace && pod.claims.contains(&claim.claim.name)
        };
        let mut shares = Vec::new();
        for claim in claims.values().filter(is_of_pod) {
            let pod_uids = pods_by_claim.get(&claim.claim.uid).cloned().unwrap_or_default();
            for device in &claim.devices {
                let Some((id, portion)) = device.device.as_ref().zip(device.portion()) else {
                    continue;
                };
                shares.push(PodShare {
                    device: id.clone(),
                    by: ShareKind::Claim(claim.claim.name.clone()),
                    pod_uids: pod_uids.clone(),
                    memory_mib: portion.memory,
                    of_mib: portion.of,
                    compute_percent: portion.compute,
                    enforcement: self.claim_enforcement(id, &claim.claim.uid, &portion),
                });
            }
        }
        shares
    }

    fn claim_enforcement(&self, device: &DeviceId, uid: &str, portion: &Portion) -> Enforcement {
        match portion.method {
            ShareMethod::Mps => Enforcement::Mps,
            ShareMethod::TimeSlicing | ShareMethod::Driver | ShareMethod::Dmem => {
                self.by_hook_or_watchdog(device, uid)
            }
        }
    }

    fn by_hook_or_watchdog(&self, device: &DeviceId, holder: &str) -> Enforcement {
        let by_hook = self.limited.get(device).and_then(|holders| holders.get(holder)).copied();
        let gpu = self.node.inventory.get(device.as_str());
        by_hook.unwrap_or_else(|| self.by_watchdog(gpu.and_then(Device::drm_pci_address)))
    }

    fn by_watchdog(&self, drm: Option<PciAddress>) -> Enforcement {
        self.node.limit_support.enforcement_without_hook(&self.node.policy, drm)
    }

    /// Enforcement of replicas that no hook has limited.
    fn without_hook(&self, gpu: &Device) -> Enforcement {
        match self.node.enforcement(gpu) {
            Some(Enforcement::Mps) => Enforcement::Mps,
            _ => self.by_watchdog(gpu.drm_pci_address()),
        }
    }
}
