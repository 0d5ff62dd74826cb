//! Topology hints: the sets of NUMA nodes that could serve a request for one resource.

use std::collections::{BTreeMap, BTreeSet};

use super::NumaMask;
use crate::{
    device::{Device, DeviceIds},
    manager::Vanished,
};

/// One possible set of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hint {
    /// The nodes; `None` leaves the choice open.
    pub(crate) affinity: Option<NumaMask>,
    /// True if no narrower set could ever serve the request.
    pub(crate) preferred: bool,
}

/// Hints of one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Hints {
    /// No device of the resource has topology.
    NoPreference,
    /// The request cannot be served.
    Unsatisfiable,
    /// One of these sets. An empty list means the same as [`Hints::Unsatisfiable`].
    Masks(Vec<Hint>),
}

/// A request for devices of one resource, and the existing devices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Demand<'a> {
    /// NUMA nodes of the machine.
    pub(crate) machine: &'a [i64],
    /// All devices, busy and unhealthy ones too.
    pub(crate) devices: &'a BTreeMap<String, Device>,
    /// Free devices.
    pub(crate) available: &'a DeviceIds,
    /// Devices of the pod's finished init containers, which must be taken.
    pub(crate) reusable: &'a DeviceIds,
    /// Number of requested devices.
    pub(crate) size: usize,
}

// === impl Demand ===

impl Demand<'_> {
    /// Every mask that can serve the request. The preferred masks are as narrow as any mask with
    /// enough devices, free or not.
    pub(crate) fn hints(&self) -> Result<Vec<Hint>, Vanished> {
        let nodes = self.nodes_with_devices();
        let masks = NumaMask::subsets(&nodes);
        let narrowest = self.narrowest(&masks, nodes.len());
        let mut hints = Vec::new();
        for mask in masks {
            if self.serves(mask)? {
                let preferred = mask.count() as usize == narrowest;
                hints.push(Hint { affinity: Some(mask), preferred });
            }
        }
        Ok(hints)
    }

    /// Nodes that have devices of this resource, or all nodes if none has. Before 1.36, the kubelet
    /// always took all nodes, with the same hints at a higher price.
    fn nodes_with_devices(&self) -> Vec<i64> {
        let hosting: BTreeSet<i64> =
            self.devices.values().flat_map(Device::nodes).copied().collect();
        let known: Vec<i64> =
            hosting.into_iter().filter(|node| self.machine.contains(node)).collect();
        if known.is_empty() { self.machine.to_vec() } else { known }
    }

    fn narrowest(&self, masks: &[NumaMask], upper: usize) -> usize {
        masks
            .iter()
            .filter(|mask| {
                self.devices.values().filter(|device| mask.intersects(device.nodes())).count()
                    >= self.size
            })
            .map(|mask| mask.count() as usize)
            .min()
            .map_or(upper, |count| count.min(upper))
    }

    fn serves(&self, mask: NumaMask) -> Result<bool, Vanished> {
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

    fn device(&self, id: &str) -> Result<&Device, Vanished> {
        self.devices.get(id).ok_or_else(|| Vanished { id: id.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Devices `a`, `b`, ... on these nodes, in order.
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

    /// Compares hints as text: nodes, with a star if preferred.
    fn check(devices: &BTreeMap<String, Device>, sets: (&str, &str, usize), expected: &[&str]) {
        let (available, reusable, size) = sets;
        let demand = Demand {
            machine: &[0, 1, 2],
            devices,
            available: &ids(available),
            reusable: &ids(reusable),
            size,
        };
        let found: Vec<String> = demand
            .hints()
            .expect("nothing vanished")
            .iter()
            .map(|hint| {
                let mask = hint.affinity.expect("hints of a demand have a mask");
                let nodes: String =
                    (0..3).filter(|node| mask.contains(*node)).map(|n| n.to_string()).collect();
                format!("{nodes}{}", if hint.preferred { "*" } else { "" })
            })
            .collect();
        assert_eq!(found, expected, "available {available}, reusable {reusable}, size {size}");
    }

    #[test]
    fn masks_with_enough_free_devices_are_offered_and_the_narrowest_possible_preferred() {
        let spread = devices(&[&[0], &[0], &[1], &[1]]);
        check(&spread, ("abcd", "", 1), &["0*", "1*", "01"]);
        check(&spread, ("abcd", "", 2), &["0*", "1*", "01"]);
        check(&spread, ("abcd", "", 3), &["01*"]);
        check(&spread, ("acd", "", 2), &["1*", "01"]);
        // One node could hold two, but its devices are busy: no hint is preferred.
        check(&spread, ("ac", "", 2), &["01"]);
        check(&spread, ("a", "", 2), &[]);
    }

    #[test]
    fn reusable_devices_must_all_lie_in_the_mask() {
        let spread = devices(&[&[0], &[0], &[1], &[1]]);
        check(&spread, ("bcd", "a", 2), &["0*", "01"]);
        check(&spread, ("bd", "ac", 2), &["01"]);
    }

    #[test]
    fn nodes_that_the_machine_lacks_are_dropped() {
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
        let demand =
            Demand { machine: &[0], devices: &listed, available: &held, reusable: &none, size: 1 };
        assert_eq!(demand.hints(), Err(Vanished { id: "z".to_owned() }));
    }
}
