//! Holdings of each container: the real manager's `podDevices`.

use std::collections::BTreeMap;

use super::Request;
use crate::{device::DeviceIds, grant::Grant};

/// Holdings of one container, by resource.
pub(crate) type ContainerHoldings = BTreeMap<String, Held>;

/// Holdings by pod UID, container name and resource name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holdings {
    by_pod: BTreeMap<String, BTreeMap<String, ContainerHoldings>>,
}

/// Devices of one resource in one container, and the plugin's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    /// Ids by NUMA node at the time of allocation, `NO_NODE` for none. A device of two nodes is under both.
    pub(crate) by_numa: BTreeMap<i64, Vec<String>>,
    /// The encoded `ContainerAllocateResponse`, kept for the checkpoint.
    pub(crate) response: Vec<u8>,
    /// The decoded response.
    pub(crate) grant: Grant,
}

// === impl Held ===

impl Held {
    pub(crate) fn new(
        by_numa: BTreeMap<i64, Vec<String>>,
        response: Vec<u8>,
        grant: Grant,
    ) -> Self {
        Self { by_numa, response, grant }
    }

    /// Ids, each once.
    pub(crate) fn ids(&self) -> DeviceIds {
        self.by_numa.values().flatten().cloned().collect()
    }
}

// === impl Holdings ===

impl Holdings {
    pub(crate) fn insert(&mut self, request: &Request, held: Held) {
        self.by_pod
            .entry(request.pod.clone())
            .or_default()
            .entry(request.container.clone())
            .or_default()
            .insert(request.resource.clone(), held);
    }

    pub(crate) fn get(&self, pod: &str, container: &str, resource: &str) -> Option<&Held> {
        self.container(pod, container)?.get(resource)
    }

    pub(crate) fn container(&self, pod: &str, container: &str) -> Option<&ContainerHoldings> {
        self.by_pod.get(pod)?.get(container)
    }

    pub(crate) fn has_pod(&self, pod: &str) -> bool {
        self.by_pod.contains_key(pod)
    }

    /// Ids of a resource that the pod's containers hold.
    pub(crate) fn of_pod(&self, pod: &str, resource: &str) -> DeviceIds {
        let containers = self.by_pod.get(pod).into_iter().flat_map(BTreeMap::values);
        containers.filter_map(|held| held.get(resource)).flat_map(Held::ids).collect()
    }

    /// The pod that holds this id, of any resource: ids should be unique over resources.
    pub(crate) fn holder(&self, id: &str) -> Option<&str> {
        self.iter().find(|(_, _, _, held)| held.ids().contains(id)).map(|(pod, ..)| pod)
    }

    /// Keeps only active pods. Reports a dropped pod.
    pub(crate) fn retain(&mut self, is_active: impl Fn(&str) -> bool) -> Dropped {
        let before = self.by_pod.len();
        self.by_pod.retain(|pod, _| is_active(pod));
        if self.by_pod.len() == before { Dropped::None } else { Dropped::Some }
    }

    /// Ids in use, by resource.
    pub(crate) fn in_use(&self) -> BTreeMap<String, DeviceIds> {
        let mut all = BTreeMap::<String, DeviceIds>::new();
        for (_, _, resource, held) in self.iter() {
            all.entry(resource.to_owned()).or_default().extend(held.ids());
        }
        all
    }

    /// All holdings, by pod, container and resource.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str, &str, &Held)> {
        self.by_pod.iter().flat_map(|(pod, containers)| {
            containers.iter().flat_map(move |(container, resources)| {
                resources.iter().map(move |(resource, held)| {
                    (pod.as_str(), container.as_str(), resource.as_str(), held)
                })
            })
        })
    }
}

/// Outcome of a garbage collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dropped {
    /// All holdings stayed.
    None,
    /// At least one pod's holdings are gone.
    Some,
}
