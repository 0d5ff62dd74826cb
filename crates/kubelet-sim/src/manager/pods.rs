//! Pods of the node as the kubelet knows them, and the admission check that sums their requests.

use std::collections::BTreeSet;

use super::Manager;
use crate::{
    pod::{Limits, Pod},
    status::PodPhase,
};

/// A pod and its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodRecord {
    /// The pod as bound to the node.
    pub(crate) pod: Pod,
    /// Phase of the pod.
    pub(crate) phase: PodPhase,
    /// Names of the running containers.
    pub(crate) running: BTreeSet<String>,
    /// Names of the containers that ran when the kubelet started.
    pub(crate) running_at_start: BTreeSet<String>,
    /// True if the pod's sandbox exists. The pod's claims are prepared before its creation.
    pub(crate) has_sandbox: bool,
    /// True if all containers ended with success, before the release of the pod's claims.
    pub(crate) is_ending: bool,
}

/// A resource of which the node has too little.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, capacity: {capacity}"
)]
pub(crate) struct InsufficientResource {
    pub(crate) resource: String,
    requested: u64,
    used: u64,
    capacity: u64,
}

// === impl PodRecord ===

impl PodRecord {
    fn new(pod: Pod) -> Self {
        Self {
            pod,
            phase: PodPhase::Pending,
            running: BTreeSet::new(),
            running_at_start: BTreeSet::new(),
            has_sandbox: false,
            is_ending: false,
        }
    }

    /// Records that all containers ended with success. The phase of an active pod with claims changes
    /// after their release.
    pub(crate) fn finish_containers(&mut self) {
        self.running.clear();
        if self.pod.claims.is_empty() || !self.is_active() {
            self.phase = PodPhase::Succeeded;
        } else {
            self.is_ending = true;
        }
    }

    /// True if the pod has not ended. Active pods hold their devices.
    pub(crate) fn is_active(&self) -> bool {
        matches!(self.phase, PodPhase::Pending | PodPhase::Admitted)
    }
}

impl Manager {
    /// Adds a pod bound to this node, or resets the phase of a known one. The pod is active until it
    /// is rejected or ends.
    pub(crate) fn add_pod(&mut self, pod: Pod) {
        let uid = pod.uid.clone();
        let previous = self.pods.remove(&uid).unwrap_or_else(|| PodRecord::new(pod.clone()));
        let record = PodRecord { pod, phase: PodPhase::Pending, ..previous };
        self.pods.insert(uid, record);
    }

    /// UIDs of the active pods.
    pub(crate) fn active_pods(&self) -> BTreeSet<String> {
        let active = self.pods.iter().filter(|(_, record)| record.is_active());
        active.map(|(uid, _)| uid.clone()).collect()
    }

    /// Records the creation of the pod's sandbox.
    pub(crate) fn set_sandbox(&mut self, uid: &str) {
        if let Some(record) = self.pods.get_mut(uid) {
            record.has_sandbox = true;
        }
    }

    /// Sets the phase of a pod, if the pod exists. A pod that ended has no running containers.
    pub(crate) fn set_phase(&mut self, uid: &str, phase: PodPhase) {
        if let Some(record) = self.pods.get_mut(uid) {
            if matches!(phase, PodPhase::Failed { .. } | PodPhase::Succeeded) {
                record.running.clear();
            }
            record.phase = phase;
        }
    }

    /// True if the container ran when the kubelet started.
    pub(super) fn was_running_at_start(&self, pod: &str, container: &str) -> bool {
        self.pods.get(pod).is_some_and(|record| record.running_at_start.contains(container))
    }

    /// Checks that the pod's extended resources fit the node: its requests plus those of all other
    /// admitted pods are at most allocatable. For a pod that holds devices, allocatable is at least
    /// the number of allocated devices. A resource unknown to the node is not checked.
    pub(crate) fn check_fits(&self, pod: &Pod) -> Result<(), InsufficientResource> {
        let counts = self.counts();
        let used = self.used_by_others(&pod.uid);
        for (resource, requested) in pod.effective_limits() {
            let mut allocatable = counts.get(&resource).map(|(_, allocatable)| *allocatable);
            if self.holdings.has_pod(&pod.uid)
                && let Some(in_use) = self.allocated.get(&resource)
            {
                allocatable = Some(allocatable.unwrap_or(0).max(in_use.len()));
            }
            let Some(capacity) = allocatable.map(|count| count as u64) else { continue };
            let used = used.get(&resource).copied().unwrap_or(0);
            if requested > 0 && requested > capacity.saturating_sub(used) {
                return Err(InsufficientResource { resource, requested, used, capacity });
            }
        }
        Ok(())
    }

    fn used_by_others(&self, uid: &str) -> Limits {
        let mut used = Limits::new();
        let others = self.pods.values().filter(|record| record.phase == PodPhase::Admitted);
        for record in others.filter(|record| record.pod.uid != uid) {
            for (resource, quantity) in record.pod.effective_limits() {
                let sum = used.entry(resource).or_default();
                *sum = sum.saturating_add(quantity);
            }
        }
        used
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::tests::{GPU, device, hold, manager},
        *,
    };
    use crate::pod::Container;

    fn pod(name: &str, size: u64) -> Pod {
        let pod = Pod::new(name).container(Container::new("c").limit(GPU, size));
        Pod { uid: name.to_owned(), ..pod }
    }

    fn admit(manager: &mut Manager, pod: Pod) {
        let uid = pod.uid.clone();
        manager.add_pod(pod);
        manager.set_phase(&uid, PodPhase::Admitted);
    }

    #[test]
    fn requests_of_admitted_pods_count_even_without_allocated_devices() {
        let mut manager = manager(vec![device("a", &[]), device("b", &[])]);
        admit(&mut manager, pod("early", 1));
        assert_eq!(manager.check_fits(&pod("p", 1)), Ok(()));
        let insufficient = manager.check_fits(&pod("p", 2)).expect_err("1 of 2 is used");
        assert_eq!(
            insufficient.to_string(),
            "Node didn't have enough resource: example.com/gpu, requested: 2, used: 1, capacity: 2"
        );
    }

    #[test]
    fn a_sum_of_requests_beyond_u64_saturates() {
        let mut manager = manager(vec![device("a", &[])]);
        admit(&mut manager, pod("one", u64::MAX));
        admit(&mut manager, pod("two", u64::MAX));
        manager.check_fits(&pod("p", 1)).expect_err("nothing is left");
        manager.check_fits(&pod("p", u64::MAX)).expect_err("nothing is left");
    }

    #[test]
    fn a_pod_that_holds_devices_fits_although_the_plugin_is_lost() {
        let mut manager = manager(vec![device("a", &[])]);
        manager.mark_unhealthy(GPU);
        assert!(manager.check_fits(&pod("p", 1)).is_err());
        hold(&mut manager, "p", "c", "a");
        assert_eq!(manager.check_fits(&pod("p", 1)), Ok(()));
    }

    #[test]
    fn a_resource_that_the_node_does_not_know_is_not_checked() {
        let other = Pod::new("p").container(Container::new("c").limit("example.com/other", 9));
        assert_eq!(manager(vec![]).check_fits(&other), Ok(()));
    }
}
