//! Holdings: the devices allocated to each container. The real manager's `podDevices`.

use std::collections::BTreeMap;

use super::Request;
use crate::{device::DeviceIds, grant::RunContainerOptions};

/// Holdings of one container, by resource.
pub(crate) type ContainerHoldings = BTreeMap<String, Holding>;

/// Holdings by pod UID, container name and resource name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holdings {
    by_pod: BTreeMap<String, BTreeMap<String, ContainerHoldings>>,
}

/// Devices of one resource, allocated to one container, and the plugin's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holding {
    /// Ids by NUMA node, as listed at the time of allocation. A device of two nodes is under both; a
    /// device without nodes is under `NO_NODE`.
    pub(crate) by_numa: BTreeMap<i64, Vec<String>>,
    /// The encoded `ContainerAllocateResponse`, for the checkpoint.
    pub(crate) response: Vec<u8>,
    /// The decoded response.
    pub(crate) run_options: RunContainerOptions,
}

// === impl Holding ===

impl Holding {
    pub(crate) fn new(
        by_numa: BTreeMap<i64, Vec<String>>,
        response: Vec<u8>,
        run_options: RunContainerOptions,
    ) -> Self {
        Self { by_numa, response, run_options }
    }

    /// Ids, each once.
    pub(crate) fn ids(&self) -> DeviceIds {
        self.by_numa.values().flatten().cloned().collect()
    }
}

// === impl Holdings ===

impl Holdings {
    pub(crate) fn insert(&mut self, request: &Request, holding: Holding) {
        self.by_pod
            .entry(request.pod.clone())
            .or_default()
            .entry(request.container.clone())
            .or_default()
            .insert(request.resource.clone(), holding);
    }

    pub(crate) fn get(&self, pod: &str, container: &str, resource: &str) -> Option<&Holding> {
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
        containers.filter_map(|holdings| holdings.get(resource)).flat_map(Holding::ids).collect()
    }

    /// The first pod that holds a device with this id, of any resource. As in the real manager, ids
    /// are expected to be unique over all resources.
    pub(crate) fn holder(&self, id: &str) -> Option<&str> {
        self.iter().find(|(_, _, _, holding)| holding.ids().contains(id)).map(|(pod, ..)| pod)
    }

    /// Drops the holdings of inactive pods.
    pub(crate) fn retain(&mut self, is_active: impl Fn(&str) -> bool) -> RetainOutcome {
        let before = self.by_pod.len();
        self.by_pod.retain(|pod, _| is_active(pod));
        if self.by_pod.len() == before { RetainOutcome::All } else { RetainOutcome::SomeDropped }
    }

    /// Ids in use, by resource.
    pub(crate) fn in_use(&self) -> BTreeMap<String, DeviceIds> {
        let mut all = BTreeMap::<String, DeviceIds>::new();
        for (_, _, resource, holding) in self.iter() {
            all.entry(resource.to_owned()).or_default().extend(holding.ids());
        }
        all
    }

    /// All holdings, as pod UID, container name, resource name and holding.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str, &str, &Holding)> {
        self.by_pod.iter().flat_map(|(pod, containers)| {
            containers.iter().flat_map(move |(container, resources)| {
                resources.iter().map(move |(resource, holding)| {
                    (pod.as_str(), container.as_str(), resource.as_str(), holding)
                })
            })
        })
    }
}

/// Outcome of [`Holdings::retain`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetainOutcome {
    /// All holdings remain.
    All,
    /// The holdings of at least one pod were dropped.
    SomeDropped,
}
