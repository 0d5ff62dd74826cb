//! Slices, classes and claims of Dynamic Resource Allocation, by node.
//!
//! The scheduler allocates claims itself, first fit. Its own allocation is repeated here for each candidate, so that a
//! node is ranked by the devices that it would really lose.

use std::{
    cell::OnceCell,
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use k8s_openapi::{
    api::{
        core::v1::Node,
        resource::v1::{
            AllocationResult, DeviceClass, DeviceRequestAllocationResult, ResourceClaim,
            ResourceSlice,
        },
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use windlass_sched::{
    allocator::{Claims, Pools, Taken, Unallocated},
    request::Gpus,
};

use crate::facts::{DeviceName, SliceGpu, claim_gpus};

/// Objects of Dynamic Resource Allocation.
#[derive(Debug, Default)]
pub(super) struct ClaimIndex {
    classes: BTreeMap<String, DeviceClass>,
    /// By name. Devices of the network, which no node owns, are left out: they decide about no node's GPUs.
    slices: HashMap<String, Arc<ResourceSlice>>,
    nodes: HashMap<String, NodeSlices>,
    /// The node of each pool.
    pools: HashMap<String, String>,
    claims: BTreeMap<(String, String), ResourceClaim>,
    /// Claims with devices of each pool.
    holders: HashMap<String, BTreeSet<(String, String)>>,
    taken: Taken,
}

#[derive(Debug, Default)]
struct NodeSlices {
    names: BTreeSet<String>,
    labels: BTreeMap<String, String>,
    pools: OnceCell<Pools>,
}

/// A claim's hold on a GPU of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ClaimHold {
    /// `namespace/name` of the claim.
    pub(super) claim: String,
    pub(super) device: DeviceName,
    pub(super) gpus: Gpus,
}

// === impl ClaimIndex ===

impl ClaimIndex {
    /// Notes a node's labels, by which slices may select it.
    pub(super) fn set_labels(&mut self, node: &str, labels: &BTreeMap<String, String>) {
        let slices = self.nodes.entry(node.to_owned()).or_default();
        if slices.labels != *labels {
            slices.labels.clone_from(labels);
            slices.pools.take();
        }
    }

    /// Notes a slice that is new or has changed, and gives the node that it is of.
    pub(super) fn set_slice(&mut self, slice: ResourceSlice) -> Option<String> {
        let node = slice.spec.node_name.clone()?;
        let name = slice.metadata.name.clone().unwrap_or_default();
        let slices = self.nodes.entry(node.clone()).or_default();
        slices.names.insert(name.clone());
        slices.pools.take();
        self.pools.insert(slice.spec.pool.name.clone(), node.clone());
        self.slices.insert(name, Arc::new(slice));
        Some(node)
    }

    /// Notes that a slice is gone, and gives the node that it was of.
    pub(super) fn remove_slice(&mut self, name: &str) -> Option<String> {
        let slice = self.slices.remove(name)?;
        let node = slice.spec.node_name.clone()?;
        let slices = self.nodes.get_mut(&node)?;
        slices.names.remove(name);
        slices.pools.take();
        Some(node)
    }

    pub(super) fn slice_names(&self) -> Vec<String> {
        self.slices.keys().cloned().collect()
    }

    pub(super) fn set_class(&mut self, class: DeviceClass) {
        self.classes.insert(class.metadata.name.clone().unwrap_or_default(), class);
    }

    pub(super) fn retain_classes(&mut self, is_there: impl Fn(&str) -> bool) {
        self.classes.retain(|name, _| is_there(name));
    }

    /// Notes a claim that is new or has changed, and gives the nodes whose devices it held or holds.
    pub(super) fn set_claim(&mut self, claim: ResourceClaim) -> BTreeSet<String> {
        let key = key(&claim);
        let mut nodes = self.remove_claim(&key);
        if let Some(allocation) = allocation(&claim) {
            self.taken.add(allocation);
            for pool in pools_of(allocation) {
                nodes.extend(self.pools.get(&pool).cloned());
                self.holders.entry(pool).or_default().insert(key.clone());
            }
        }
        self.claims.insert(key, claim);
        nodes
    }

    /// Notes that a claim is gone, and gives the nodes whose devices it held.
    pub(super) fn remove_claim(&mut self, key: &(String, String)) -> BTreeSet<String> {
        let Some(claim) = self.claims.remove(key) else { return BTreeSet::new() };
        let Some(allocation) = allocation(&claim) else { return BTreeSet::new() };
        self.taken.remove(allocation);
        let pools = pools_of(allocation);
        for pool in &pools {
            if let Some(holders) = self.holders.get_mut(pool) {
                holders.remove(key);
            }
        }
        pools.iter().filter_map(|pool| self.pools.get(pool).cloned()).collect()
    }

    pub(super) fn claim_count(&self) -> usize {
        self.claims.len()
    }

    pub(super) fn claim_keys(&self) -> Vec<(String, String)> {
        self.claims.keys().cloned().collect()
    }

    /// The whole GPUs in a node's slices, of the newest generation of each pool. A GPU of two drivers counts once.
    pub(super) fn gpus(&self, node: &str) -> Vec<SliceGpu> {
        let mut newest: BTreeMap<(&str, &str), i64> = BTreeMap::new();
        let pool = |slice: &'_ Arc<ResourceSlice>| slice.spec.pool.generation;
        for slice in self.slices_of(node) {
            let known =
                newest.entry((&slice.spec.driver, &slice.spec.pool.name)).or_insert(i64::MIN);
            *known = pool(slice).max(*known);
        }
        let is_newest = |slice: &&Arc<ResourceSlice>| {
            newest[&(slice.spec.driver.as_str(), slice.spec.pool.name.as_str())] == pool(slice)
        };
        let mut gpus: Vec<SliceGpu> = Vec::new();
        for gpu in self.slices_of(node).filter(is_newest).flat_map(|slice| claim_gpus::gpus(slice))
        {
            let is_known =
                |known: &SliceGpu| known.facts.id.is_some() && known.facts.id == gpu.facts.id;
            if !gpus.iter().any(is_known) {
                gpus.push(gpu);
            }
        }
        gpus
    }

    /// Holds of claims on a node's devices, in the order of pools and claims.
    pub(super) fn holds(&self, node: &str) -> Vec<ClaimHold> {
        let pools: BTreeSet<_> = self.slices_of(node).map(|slice| &slice.spec.pool.name).collect();
        let mut holds = Vec::new();
        for pool in pools {
            for key in self.holders.get(pool).into_iter().flatten() {
                let claim = format!("{}/{}", key.0, key.1);
                let results =
                    self.claims.get(key).and_then(allocation).into_iter().flat_map(results);
                for result in results.filter(|result| result.pool == *pool) {
                    let (device, gpus) = claim_gpus::taken(result);
                    holds.push(ClaimHold { claim: claim.clone(), device, gpus });
                }
            }
        }
        holds
    }

    /// The claims of a pod that have no devices yet, prepared; `None` where one is unknown or has devices already.
    pub(super) fn wanted(&self, namespace: &str, names: &[String]) -> Option<Claims> {
        let find = |name: &String| self.claims.get(&(namespace.to_owned(), name.clone()));
        let claims: Option<Vec<_>> = names.iter().map(|name| find(name).cloned()).collect();
        let claims = claims?;
        if claims.iter().any(|claim| allocation(claim).is_some()) {
            return None;
        }
        let classes: Vec<_> = self.classes.values().cloned().collect();
        Claims::new(&claims, &classes).ok()
    }

    /// The devices that the scheduler would allocate on a node.
    pub(super) fn allocate(
        &self,
        claims: &Claims,
        node: &str,
    ) -> Result<Vec<AllocationResult>, Unallocated> {
        let without = || Unallocated::NoFit("no slices".to_owned());
        let slices = self.nodes.get(node).ok_or_else(without)?;
        let pools = slices.pools.get_or_init(|| {
            let all: Vec<_> = self.slices_of(node).cloned().collect();
            let metadata = ObjectMeta {
                name: Some(node.to_owned()),
                labels: Some(slices.labels.clone()),
                ..ObjectMeta::default()
            };
            Pools::new(&all, &Node { metadata, ..Node::default() })
        });
        claims.allocate(pools, &self.taken)
    }

    fn slices_of(&self, node: &str) -> impl Iterator<Item = &Arc<ResourceSlice>> {
        let names = self.nodes.get(node).into_iter().flat_map(|slices| &slices.names);
        names.filter_map(|name| self.slices.get(name))
    }
}

fn pools_of(allocation: &AllocationResult) -> BTreeSet<String> {
    results(allocation).map(|result| result.pool.clone()).collect()
}

/// Results of an allocation that take their device. Admin access takes none.
pub(super) fn results(
    allocation: &AllocationResult,
) -> impl Iterator<Item = &DeviceRequestAllocationResult> {
    let results = allocation.devices.iter().flat_map(|devices| devices.results.iter().flatten());
    results.filter(|result| result.admin_access != Some(true))
}

/// Namespace and name.
pub(super) fn key(claim: &ResourceClaim) -> (String, String) {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    (text(&claim.metadata.namespace), text(&claim.metadata.name))
}

fn allocation(claim: &ResourceClaim) -> Option<&AllocationResult> {
    claim.status.as_ref()?.allocation.as_ref()
}
