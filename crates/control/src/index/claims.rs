//! Slices, classes and claims of Dynamic Resource Allocation, by node.
//!
//! kube-scheduler allocates claims itself, first fit. This module computes the same allocation for each candidate node,
//! so that a node is ranked by the devices that kube-scheduler would allocate there.

use std::{
    cell::OnceCell,
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use k8s_openapi::{
    api::{
        core::v1::Node,
        resource::v1::{AllocationResult, DeviceClass, ResourceClaim, ResourceSlice},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use windlass_sched::{
    allocator::{AllocatedDevices, AllocationError, Claims, PoolId, Pools, held_devices},
    request::Gpus,
};

use crate::facts::{DeviceName, SliceGpu, claim_gpus};

/// Objects of Dynamic Resource Allocation.
#[derive(Debug, Default)]
pub(super) struct ClaimIndex {
    classes: BTreeMap<String, DeviceClass>,
    /// By name; only slices with a `nodeName`. Network-attached devices belong to no node and are left out.
    slices: HashMap<String, Arc<ResourceSlice>>,
    /// Names of the slices without a `nodeName`.
    network_slices: HashSet<String>,
    nodes: HashMap<String, NodeSlices>,
    /// Names of the nodes of each pool.
    pools: HashMap<PoolId, BTreeSet<String>>,
    claims: BTreeMap<(String, String), ResourceClaim>,
    /// Keys of the claims that hold devices of each pool.
    holders: HashMap<PoolId, BTreeSet<(String, String)>>,
    allocated: AllocatedDevices,
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
    /// Pods for which the claim is reserved, as `namespace/name`.
    pub(super) pods: Vec<String>,
    pub(super) device: DeviceName,
    pub(super) gpus: Gpus,
}

// === impl ClaimIndex ===

impl ClaimIndex {
    /// Sets a node's labels, by which slices may select the node.
    pub(super) fn set_labels(&mut self, node: &str, labels: &BTreeMap<String, String>) {
        let slices = self.nodes.entry(node.to_owned()).or_default();
        if slices.labels != *labels {
            slices.labels.clone_from(labels);
            slices.pools.take();
        }
    }

    /// Removes a node that has no slices. Returns false, and keeps the node, if it has some.
    pub(super) fn remove_node(&mut self, node: &str) -> bool {
        let has_slices = self.nodes.get(node).is_some_and(|slices| !slices.names.is_empty());
        if !has_slices {
            self.nodes.remove(node);
        }
        !has_slices
    }

    /// Adds or updates a slice. Returns the slice's node if the slice has changed.
    pub(super) fn set_slice(&mut self, slice: ResourceSlice) -> Option<String> {
        let name = slice.metadata.name.clone().unwrap_or_default();
        if self.slices.get(&name).is_some_and(|cached| cached.spec == slice.spec) {
            return None;
        }
        let Some(node) = slice.spec.node_name.clone() else {
            self.network_slices.insert(name);
            return None;
        };
        let slices = self.nodes.entry(node.clone()).or_default();
        slices.names.insert(name.clone());
        slices.pools.take();
        self.pools.entry(PoolId::of_slice(&slice)).or_default().insert(node.clone());
        self.slices.insert(name, Arc::new(slice));
        Some(node)
    }

    /// Removes a slice. Returns the slice's node.
    pub(super) fn remove_slice(&mut self, name: &str) -> Option<String> {
        self.network_slices.remove(name);
        let slice = self.slices.remove(name)?;
        let node = slice.spec.node_name.clone()?;
        let slices = self.nodes.get_mut(&node)?;
        slices.names.remove(name);
        slices.pools.take();
        let pool = PoolId::of_slice(&slice);
        if !self.slices_of(&node).any(|other| PoolId::of_slice(other) == pool)
            && let Some(nodes) = self.pools.get_mut(&pool)
        {
            nodes.remove(&node);
            if nodes.is_empty() {
                self.pools.remove(&pool);
            }
        }
        Some(node)
    }

    /// True if some devices belong to no node. The index does not have them.
    pub(super) fn has_network_devices(&self) -> bool {
        !self.network_slices.is_empty()
    }

    pub(super) fn slice_names(&self) -> Vec<String> {
        self.slices.keys().chain(&self.network_slices).cloned().collect()
    }

    /// Adds or updates a class. Returns true if the class is new or has changed.
    pub(super) fn set_class(&mut self, class: DeviceClass) -> bool {
        let name = class.metadata.name.clone().unwrap_or_default();
        let cached = self.classes.get(&name);
        let is_changed = cached.is_none_or(|cached| cached.spec != class.spec);
        self.classes.insert(name, class);
        is_changed
    }

    /// Keeps the classes that still exist. Returns true if one was removed.
    pub(super) fn retain_classes(&mut self, exists: impl Fn(&str) -> bool) -> bool {
        let before = self.classes.len();
        self.classes.retain(|name, _| exists(name));
        self.classes.len() < before
    }

    /// Adds or updates a claim. Returns the nodes whose devices the claim held or holds, if its allocation or its
    /// pods have changed.
    pub(super) fn set_claim(&mut self, claim: ResourceClaim) -> BTreeSet<String> {
        let key = key(&claim);
        let cached = self.claims.get(&key);
        if let Some(cached) = cached.filter(|cached| allocation(cached) == allocation(&claim)) {
            let has_same_pods = reserved_for(cached).eq(reserved_for(&claim));
            let nodes = allocation(&claim).filter(|_| !has_same_pods).map(|it| self.nodes_of(it));
            self.claims.insert(key, claim);
            return nodes.unwrap_or_default();
        }
        let mut nodes = self.remove_claim(&key);
        if let Some(allocation) = allocation(&claim) {
            self.allocated.add(allocation);
            for pool in pools_of(allocation) {
                nodes.extend(self.pools.get(&pool).into_iter().flatten().cloned());
                self.holders.entry(pool).or_default().insert(key.clone());
            }
        }
        self.claims.insert(key, claim);
        nodes
    }

    /// Removes a claim. Returns the nodes whose devices the claim held.
    pub(super) fn remove_claim(&mut self, key: &(String, String)) -> BTreeSet<String> {
        let Some(claim) = self.claims.remove(key) else { return BTreeSet::new() };
        let Some(allocation) = allocation(&claim) else { return BTreeSet::new() };
        self.allocated.remove(allocation);
        let pools = pools_of(allocation);
        for pool in &pools {
            if let Some(holders) = self.holders.get_mut(pool) {
                holders.remove(key);
                if holders.is_empty() {
                    self.holders.remove(pool);
                }
            }
        }
        self.nodes_of(allocation)
    }

    /// Nodes that have a pool of the allocated devices.
    pub(super) fn nodes_of(&self, allocation: &AllocationResult) -> BTreeSet<String> {
        let pools = pools_of(allocation);
        pools.iter().filter_map(|pool| self.pools.get(pool)).flatten().cloned().collect()
    }

    pub(super) fn claim_count(&self) -> usize {
        self.claims.len()
    }

    pub(super) fn claim_keys(&self) -> Vec<(String, String)> {
        self.claims.keys().cloned().collect()
    }

    /// The whole GPUs in a node's slices, from each pool's newest generation. A GPU that two drivers publish counts
    /// once.
    pub(super) fn gpus(&self, node: &str) -> Vec<SliceGpu> {
        let mut newest_generations: BTreeMap<(&str, &str), i64> = BTreeMap::new();
        let generation = |slice: &'_ Arc<ResourceSlice>| slice.spec.pool.generation;
        for slice in self.slices_of(node) {
            let newest_generation = newest_generations
                .entry((&slice.spec.driver, &slice.spec.pool.name))
                .or_insert(i64::MIN);
            *newest_generation = generation(slice).max(*newest_generation);
        }
        let is_newest = |slice: &&Arc<ResourceSlice>| {
            let pool = (slice.spec.driver.as_str(), slice.spec.pool.name.as_str());
            newest_generations[&pool] == generation(slice)
        };
        let mut gpus: Vec<SliceGpu> = Vec::new();
        for gpu in self.slices_of(node).filter(is_newest).flat_map(|slice| claim_gpus::gpus(slice))
        {
            let is_same =
                |other: &SliceGpu| other.facts.id.is_some() && other.facts.id == gpu.facts.id;
            if !gpus.iter().any(is_same) {
                gpus.push(gpu);
            }
        }
        gpus
    }

    /// Devices of a node that claims hold, sorted by pool and claim.
    pub(super) fn claim_holds(&self, node: &str) -> Vec<ClaimHold> {
        let pools: BTreeSet<_> =
            self.slices_of(node).map(|slice| PoolId::of_slice(slice)).collect();
        let mut holds = Vec::new();
        for pool in pools {
            for key in self.holders.get(&pool).into_iter().flatten() {
                let claim = format!("{}/{}", key.0, key.1);
                let Some(object) = self.claims.get(key) else { continue };
                let pods: Vec<_> =
                    reserved_for(object).map(|name| format!("{}/{name}", key.0)).collect();
                let results = allocation(object).into_iter().flat_map(held_devices);
                for result in results.filter(|result| PoolId::of_result(result) == pool) {
                    let (device, gpus) = claim_gpus::from_allocation_result(result);
                    let (claim, pods) = (claim.clone(), pods.clone());
                    holds.push(ClaimHold { claim, pods, device, gpus });
                }
            }
        }
        holds
    }

    /// The `spec`s of a pod's claims as one JSON text, a key for equal claims. `None` if a claim is unknown or already
    /// allocated.
    pub(super) fn specs(&self, namespace: &str, names: &[String]) -> Option<String> {
        let claims = self.unallocated(namespace, names)?;
        let specs: Vec<_> = claims.iter().map(|claim| &claim.spec).collect();
        serde_json::to_string(&specs).ok()
    }

    /// A pod's claims, prepared for allocation. `None` if one is unknown, already allocated, or invalid.
    pub(super) fn prepare(&self, namespace: &str, names: &[String]) -> Option<Claims> {
        let claims: Vec<_> = self.unallocated(namespace, names)?.into_iter().cloned().collect();
        let classes: Vec<_> = self.classes.values().cloned().collect();
        Claims::new(&claims, &classes).ok()
    }

    /// The allocations that kube-scheduler would give a pod's claims on the node, with the claims' names. Empty if the
    /// claims do not fit there, or if one is unknown or already allocated.
    pub(super) fn allocate(
        &self,
        namespace: &str,
        names: &[String],
        node: &str,
    ) -> Vec<(String, AllocationResult)> {
        let claims = self.prepare(namespace, names).zip(self.pools(node));
        let allocated =
            claims.and_then(|(claims, pools)| claims.allocate(pools, &self.allocated).ok());
        names.iter().cloned().zip(allocated.unwrap_or_default()).collect()
    }

    fn unallocated(&self, namespace: &str, names: &[String]) -> Option<Vec<&ResourceClaim>> {
        let find = |name: &String| self.claims.get(&(namespace.to_owned(), name.clone()));
        let is_unallocated = |claim: &&ResourceClaim| allocation(claim).is_none();
        names.iter().map(|name| find(name).filter(is_unallocated)).collect()
    }

    /// Fails with the reason if kube-scheduler could not allocate the claims on the node.
    pub(super) fn check(&self, claims: &Claims, node: &str) -> Result<(), AllocationError> {
        let no_slices = || AllocationError::NoFit("no slices".to_owned());
        claims.choose(self.pools(node).ok_or_else(no_slices)?, &self.allocated).map(drop)
    }

    /// Devices and capacity that allocated claims hold, in the whole cluster.
    pub(super) fn allocated(&self) -> &AllocatedDevices {
        &self.allocated
    }

    /// The pools of a node; `None` for an unknown node.
    pub(super) fn pools(&self, node: &str) -> Option<&Pools> {
        let node_slices = self.nodes.get(node)?;
        Some(node_slices.pools.get_or_init(|| {
            let slices: Vec<_> = self.slices_of(node).cloned().collect();
            let metadata = ObjectMeta {
                name: Some(node.to_owned()),
                labels: Some(node_slices.labels.clone()),
                ..ObjectMeta::default()
            };
            Pools::new(&slices, &Node { metadata, ..Node::default() })
        }))
    }

    fn slices_of(&self, node: &str) -> impl Iterator<Item = &Arc<ResourceSlice>> {
        let names = self.nodes.get(node).into_iter().flat_map(|slices| &slices.names);
        names.filter_map(|name| self.slices.get(name))
    }
}

fn pools_of(allocation: &AllocationResult) -> BTreeSet<PoolId> {
    held_devices(allocation).map(PoolId::of_result).collect()
}

/// Namespace and name.
pub(super) fn key(claim: &ResourceClaim) -> (String, String) {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    (text(&claim.metadata.namespace), text(&claim.metadata.name))
}

/// Names of the pods for which a claim is reserved.
fn reserved_for(claim: &ResourceClaim) -> impl Iterator<Item = &str> {
    let consumers = claim.status.iter().flat_map(|status| status.reserved_for.iter().flatten());
    consumers.filter(|consumer| consumer.resource == "pods").map(|consumer| consumer.name.as_str())
}

pub(super) fn allocation(claim: &ResourceClaim) -> Option<&AllocationResult> {
    claim.status.as_ref()?.allocation.as_ref()
}
