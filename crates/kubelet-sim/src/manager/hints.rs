//! Topology hints for a container or a pod, from the free devices and the devices that it holds.

use super::{Manager, UnlistedDevice};
use crate::{
    device::DeviceIds,
    pod::{Container, Pod},
    topology::{HintRequest, Hints, NumaMask, merge},
};

/// Decision of the topology manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alignment {
    /// The policy admits the container or pod; its affinity is stored.
    Admitted,
    /// The policy rejects the container or pod: `TopologyAffinityError`.
    Misaligned,
}

impl Manager {
    /// Decides the NUMA nodes of a container's devices (scope `container`).
    pub(crate) fn align_container(
        &mut self,
        pod: &Pod,
        container: &Container,
    ) -> Result<Alignment, UnlistedDevice> {
        self.collect_garbage();
        let mut hints = Vec::new();
        for (resource, size) in self.device_limits(&container.limits) {
            let holding = self.holdings.get(&pod.uid, &container.name, &resource);
            let held = holding.map(super::Holding::ids).unwrap_or_default();
            let reusable = self.reusable.reusable_for(&pod.uid, &resource);
            hints.push(self.hints_of(&resource, size, (&held, &reusable))?);
        }
        let containers = [container.name.as_str()];
        Ok(self.store_merged_affinity(&pod.uid, &containers, &hints))
    }

    /// Decides the NUMA nodes of all of a pod's devices (scope `pod`).
    pub(crate) fn align_pod(&mut self, pod: &Pod) -> Result<Alignment, UnlistedDevice> {
        self.collect_garbage();
        let mut hints = Vec::new();
        for (resource, size) in self.device_limits(&pod.effective_limits()) {
            let held = self.holdings.of_pod(&pod.uid, &resource);
            hints.push(self.hints_of(&resource, size, (&held, &DeviceIds::new()))?);
        }
        let containers: Vec<&str> =
            pod.in_admission_order().map(|container| container.name.as_str()).collect();
        Ok(self.store_merged_affinity(&pod.uid, &containers, &hints))
    }

    /// Merges the hints of all resources, and stores the affinity for each of the containers.
    fn store_merged_affinity(
        &mut self,
        pod: &str,
        containers: &[&str],
        hints: &[Hints],
    ) -> Alignment {
        let all_nodes = NumaMask::of(self.numa_nodes.iter().copied());
        let decision = merge(self.policy, all_nodes, hints);
        if !decision.admitted {
            return Alignment::Misaligned;
        }
        for container in containers {
            let key = (pod.to_owned(), (*container).to_owned());
            match decision.affinity {
                Some(mask) => self.affinities.insert(key, mask),
                None => self.affinities.remove(&key),
            };
        }
        Alignment::Admitted
    }

    /// Hints for one resource. Devices that the container or pod holds already are its only choice.
    fn hints_of(
        &self,
        resource: &str,
        size: usize,
        (held, reusable): (&DeviceIds, &DeviceIds),
    ) -> Result<Hints, UnlistedDevice> {
        let Some(devices) = self.devices.get(resource).filter(|_| self.has_topology(resource))
        else {
            return Ok(Hints::NoPreference);
        };
        let numa_nodes = &self.numa_nodes;
        let available = self.available(resource);
        let no_devices = DeviceIds::new();
        let request = if held.is_empty() {
            if available.union(reusable).count() < size {
                return Ok(Hints::Unsatisfiable);
            }
            HintRequest { numa_nodes, devices, available: &available, reusable, size }
        } else {
            if held.len() != size {
                return Ok(Hints::Unsatisfiable);
            }
            HintRequest { numa_nodes, devices, available: held, reusable: &no_devices, size }
        };
        request.hints().map(Hints::Masks)
    }

    /// Limits of the resources that the device manager knows, as numbers of devices.
    fn device_limits(&self, limits: &crate::pod::Limits) -> Vec<(String, usize)> {
        limits
            .iter()
            .filter(|(resource, _)| self.is_known(resource))
            .map(|(resource, quantity)| (resource.clone(), device_count(*quantity)))
            .collect()
    }
}

/// Converts a quantity to a number of devices, at most `usize::MAX`.
pub(crate) fn device_count(quantity: u64) -> usize {
    usize::try_from(quantity).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::{
        super::tests::{GPU, device, hold, ids, manager},
        *,
    };
    use crate::topology::TopologyPolicy;

    fn check(held: &str, size: u64, expected: &Result<Alignment, UnlistedDevice>) {
        let mut manager = manager(vec![device("a", &[0]), device("b", &[1])]);
        manager.policy = TopologyPolicy::SingleNumaNode;
        if !held.is_empty() {
            hold(&mut manager, "pod", "c", held);
        }
        let container = Container::new("c").limit(GPU, size);
        let pod = Pod { uid: "pod".to_owned(), ..Pod::new("pod").container(container.clone()) };
        manager.add_pod(pod.clone());
        assert_eq!(&manager.align_container(&pod, &container), expected, "{held} {size}");
    }

    #[test]
    fn a_container_keeps_the_node_of_the_devices_that_it_holds() {
        check("", 1, &Ok(Alignment::Admitted));
        check("", 2, &Ok(Alignment::Misaligned));
        check("b", 1, &Ok(Alignment::Admitted));
        check("b", 2, &Ok(Alignment::Misaligned));
        check("a b", 1, &Ok(Alignment::Misaligned));
    }

    #[test]
    fn a_held_device_that_is_no_longer_listed_is_a_panic() {
        check("gone", 1, &Err(UnlistedDevice { id: "gone".to_owned() }));
    }

    #[test]
    fn policy_none_leaves_no_affinity() {
        let mut manager = manager(vec![device("a", &[0])]);
        let container = Container::new("c").limit(GPU, 1);
        let pod = Pod::new("pod").container(container.clone());
        assert_eq!(manager.align_container(&pod, &container), Ok(Alignment::Admitted));
        assert!(manager.affinities.is_empty());
        assert_eq!(manager.available(GPU), ids("a"));
    }
}
