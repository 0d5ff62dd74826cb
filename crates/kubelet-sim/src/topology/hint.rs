//! Topology hints: the sets of NUMA nodes that can serve a request for one resource.

use std::collections::{BTreeMap, BTreeSet};

use super::NumaMask;
use crate::{
    device::{Device, DeviceIds},
    manager::UnlistedDevice,
};

/// One set of NUMA nodes that can serve a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hint {
    /// The nodes; `None` allows any nodes.
    pub(crate) affinity: Option<NumaMask>,
    /// True if no smaller set of nodes has enough devices, free or not.
    pub(crate) preferred: bool,
}

/// Hints of one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Hints {
    /// No device of the resource has a NUMA node, so any nodes serve.
    NoPreference,
    /// Too few devices are free, or the request differs from the held devices in number.
    Unsatisfiable,
    /// Sets of nodes that can serve the request. An empty list means [`Hints::Unsatisfiable`].
    Masks(Vec<Hint>),
}

/// A request for devices of one resource, and the devices to serve it from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HintRequest<'a> {
    /// NUMA nodes of the machine.
    pub(crate) numa_nodes: &'a [i64],
    /// All listed devices by id, including allocated and unhealthy ones.
    pub(crate) devices: &'a BTreeMap<String, Device>,
    /// Free devices, or the devices that the container or pod holds already.
    pub(crate) available: &'a DeviceIds,
    /// Reusable devices of the pod's init containers. A hint must include a node of each, as far as
    /// they have topology.
    pub(crate) reusable: &'a DeviceIds,
    /// Number of requested devices.
    pub(crate) size: usize,
}

// === impl HintRequest ===

impl HintRequest<'_> {
    /// Every mask that can serve the request. A mask is preferred if no smaller mask has enough devices,
    /// free or not.
    pub(crate) fn hints(&self) -> Result<Vec<Hint>, UnlistedDevice> {
        let nodes = self.nodes_with_devices();
        let masks = NumaMask::subsets(&nodes);
        let min_size = self.min_affinity_size(&masks, nodes.len());
        let mut hints = Vec::new();
        for mask in masks {
            if self.serves(mask)? {
                let preferred = mask.count() as usize == min_size;
                hints.push(Hint { affinity: Some(mask), preferred });
            }
        }
        Ok(hints)
    }

    /// Nodes of the machine that have devices of this resource; all nodes if none has. Before 1.36, the
    /// kubelet always took all nodes, which takes longer and results in the same hints.
    fn nodes_with_devices(&self) -> Vec<i64> {
        let listed: BTreeSet<i64> =
            self.devices.values().flat_map(Device::nodes).copied().collect();
        let nodes: Vec<i64> =
            listed.into_iter().filter(|node| self.numa_nodes.contains(node)).collect();
        if nodes.is_empty() { self.numa_nodes.to_vec() } else { nodes }
    }

    /// Number of nodes in the smallest mask with enough devices, free or not; at most `max_size`.
    fn min_affinity_size(&self, masks: &[NumaMask], max_size: usize) -> usize {
        masks
            .iter()
            .filter(|mask| {
                self.devices.values().filter(|device| mask.intersects(device.nodes())).count()
                    >= self.size
            })
            .map(|mask| mask.count() as usize)
            .min()
            .map_or(max_size, |count| count.min(max_size))
    }

    /// True if the mask includes a node of each reusable device with topology, and has enough devices.
    fn serves(&self, mask: NumaMask) -> Result<bool, UnlistedDevice> {
        let mut matching = 0;
        for id in self.reusable {
            let device = self.device(id)?;
            if device.numa_nodes.is_none() {
                continue;
            }
            if !mask.intersects(device.nodes()) {
                return Ok(false);
            }
            matching += 1;
        }
        for id in self.available {
            if mask.intersects(self.device(id)?.nodes()) {
                matching += 1;
            }
        }
        Ok(matching >= self.size)
    }

    fn device(&self, id: &str) -> Result<&Device, UnlistedDevice> {
        self.devices.get(id).ok_or_else(|| UnlistedDevice { id: id.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Devices `a`, `b`, ...; `nodes` has the NUMA nodes of each.
    fn devices(nodes: &[&[i64]]) -> BTreeMap<String, Device> {
        ('a'..)
            .zip(nodes)
            .map(|(name, nodes)| {
                let numa_nodes = (!nodes.is_empty()).then(|| nodes.to_vec());
                let id = name.to_string();
                (id.clone(), Device { id, health: "Healthy".to_owned(), numa_nodes })
            })
            .collect()
    }

    fn ids(names: &str) -> DeviceIds {
        names.chars().map(String::from).collect()
    }

    /// Compares hints as text: the node numbers, then a star if the hint is preferred.
    fn check(devices: &BTreeMap<String, Device>, sets: (&str, &str, usize), expected: &[&str]) {
        let (available, reusable, size) = sets;
        let request = HintRequest {
            numa_nodes: &[0, 1, 2],
            devices,
            available: &ids(available),
            reusable: &ids(reusable),
            size,
        };
        let hints: Vec<String> = request
            .hints()
            .expect("all devices are listed")
            .iter()
            .map(|hint| {
                let mask = hint.affinity.expect("hints of a request have a mask");
                let nodes: String =
                    (0..3).filter(|node| mask.contains(*node)).map(|n| n.to_string()).collect();
                format!("{nodes}{}", if hint.preferred { "*" } else { "" })
            })
            .collect();
        assert_eq!(hints, expected, "available {available}, reusable {reusable}, size {size}");
    }

    #[test]
    fn masks_with_enough_free_devices_are_hints_and_the_smallest_possible_ones_preferred() {
        let spread = devices(&[&[0], &[0], &[1], &[1]]);
        check(&spread, ("abcd", "", 1), &["0*", "1*", "01"]);
        check(&spread, ("abcd", "", 2), &["0*", "1*", "01"]);
        check(&spread, ("abcd", "", 3), &["01*"]);
        check(&spread, ("acd", "", 2), &["1*", "01"]);
        // Each node has two devices, but one of them is allocated. So no hint is preferred.
        check(&spread, ("ac", "", 2), &["01"]);
        check(&spread, ("a", "", 2), &[]);
    }

    #[test]
    fn a_mask_must_include_all_reusable_devices() {
        let spread = devices(&[&[0], &[0], &[1], &[1]]);
        check(&spread, ("bcd", "a", 2), &["0*", "01"]);
        check(&spread, ("bd", "ac", 2), &["01"]);
    }

    #[test]
    fn nodes_that_the_machine_lacks_are_ignored() {
        check(&devices(&[&[0], &[7], &[7]]), ("abc", "", 1), &["0*"]);
        check(&devices(&[&[0], &[7], &[7]]), ("abc", "", 2), &[]);
    }

    #[test]
    fn a_device_without_topology_counts_for_no_mask() {
        check(&devices(&[&[0], &[]]), ("ab", "", 1), &["0*"]);
        check(&devices(&[&[0], &[]]), ("ab", "", 2), &[]);
    }

    #[test]
    fn a_device_of_two_nodes_counts_for_both() {
        check(&devices(&[&[0, 1], &[1]]), ("ab", "", 2), &["1*", "01"]);
    }

    #[test]
    fn a_held_device_that_is_no_longer_listed_is_a_panic() {
        let listed = devices(&[&[0]]);
        let held = ids("z");
        let none = DeviceIds::new();
        let request = HintRequest {
            numa_nodes: &[0],
            devices: &listed,
            available: &held,
            reusable: &none,
            size: 1,
        };
        assert_eq!(request.hints(), Err(UnlistedDevice { id: "z".to_owned() }));
    }
}
