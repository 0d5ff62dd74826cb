//! After the choice: record the allocated devices, or free the chosen ones. Garbage collection.

use std::collections::BTreeMap;

use super::{Holding, Manager, Request, UnlistedDevice, holding::RetainOutcome};
use crate::{device::DeviceIds, grant::RunContainerOptions};

/// A plugin's answer to `Allocate`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ContainerResponse {
    /// Encoded answer, for the checkpoint.
    pub(crate) encoded: Vec<u8>,
    /// Decoded answer.
    pub(crate) run_options: RunContainerOptions,
}

impl Manager {
    /// Records the devices as allocated to the container. Fails if a device left the plugin's list
    /// during `Allocate`; the real kubelet panics then.
    pub(crate) fn record_allocation(
        &mut self,
        request: &Request,
        devices: &DeviceIds,
        response: ContainerResponse,
    ) -> Result<(), UnlistedDevice> {
        let mut by_numa = BTreeMap::<i64, Vec<String>>::new();
        let listed = self.devices.get(&request.resource);
        for id in devices {
            let device = listed.and_then(|listed| listed.get(id));
            let device = device.ok_or_else(|| UnlistedDevice { id: id.clone() })?;
            for node in device.grouping_nodes() {
                by_numa.entry(*node).or_default().push(id.clone());
            }
        }
        self.holdings
            .insert(request, Holding::new(by_numa, response.encoded, response.run_options));
        Ok(())
    }

    /// Recomputes the ids in use from the holdings. This frees chosen devices without an allocation.
    pub(crate) fn recompute_allocated(&mut self) {
        self.allocated = self.holdings.in_use();
    }

    /// Removes the devices and affinities of inactive pods, once all pods are known. If a pod with
    /// devices was removed, this also frees chosen devices without an allocation.
    pub(crate) fn collect_garbage(&mut self) {
        if !self.sources_ready {
            return;
        }
        let pods = &self.pods;
        let is_active = |uid: &str| pods.get(uid).is_some_and(super::PodRecord::is_active);
        self.affinities.retain(|(pod, _), _| is_active(pod));
        if self.holdings.retain(is_active) == RetainOutcome::SomeDropped {
            self.recompute_allocated();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::tests::{GPU, device, hold, ids, manager, request},
        *,
    };

    fn response() -> ContainerResponse {
        ContainerResponse { encoded: Vec::new(), run_options: RunContainerOptions::default() }
    }

    #[test]
    fn a_device_of_two_nodes_is_recorded_under_both() {
        let mut manager = manager(vec![device("a", &[0, 1]), device("b", &[])]);
        manager
            .record_allocation(&request("pod", "c", 2), &ids("a b"), response())
            .expect("listed");
        let holding = manager.holdings.get("pod", "c", GPU).expect("a holding");
        let expected = [(-1, vec!["b"]), (0, vec!["a"]), (1, vec!["a"])];
        let expected =
            expected.map(|(node, ids)| (node, ids.into_iter().map(String::from).collect()));
        assert_eq!(holding.by_numa, BTreeMap::from(expected));
        assert_eq!(holding.ids(), ids("a b"));
    }

    #[test]
    fn a_device_that_left_the_list_during_allocate_is_a_panic() {
        let mut manager = manager(vec![device("a", &[])]);
        let outcome = manager.record_allocation(&request("pod", "c", 1), &ids("z"), response());
        assert_eq!(outcome, Err(UnlistedDevice { id: "z".to_owned() }));
    }

    #[test]
    fn garbage_is_collected_once_sources_are_ready_and_frees_ungranted_choices_too() {
        let mut manager = manager(vec![device("a", &[]), device("b", &[])]);
        hold(&mut manager, "pod", "c", "a");
        manager.allocated.entry(GPU.to_owned()).or_default().insert("b".to_owned());
        let key = ("pod".to_owned(), "c".to_owned());
        manager.affinities.insert(key, crate::topology::NumaMask::of([0]));
        manager.collect_garbage();
        assert_eq!((manager.allocated[GPU].clone(), manager.affinities.len()), (ids("a b"), 1));
        manager.pods.clear();

        manager.sources_ready = false;
        manager.collect_garbage();
        assert_eq!((manager.allocated[GPU].clone(), manager.affinities.len()), (ids("a b"), 1));

        manager.sources_ready = true;
        manager.collect_garbage();
        assert!(manager.allocated.is_empty() && manager.affinities.is_empty());
    }
}
