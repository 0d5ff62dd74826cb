//! Pods of the node from the kubelet's view, and the predicate that counts their requests.

use std::collections::BTreeSet;

use super::Manager;
use crate::{
    pod::{Limits, Pod},
    status::PodPhase,
};

/// A pod and its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodRecord {
    /// The pod at its binding.
    pub(crate) pod: Pod,
    /// State of the pod.
    pub(crate) phase: PodPhase,
    /// Running containers.
    pub(crate) running: BTreeSet<String>,
    /// Containers that ran at the start of this kubelet.
    pub(crate) running_at_start: BTreeSet<String>,
    /// True if claims were prepared for the pod's current sandbox.
    pub(crate) has_sandbox: bool,
    /// True if all containers ended with success, and claims may be left to release.
    pub(crate) is_ending: bool,
}

/// A resource that the node has too little of.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, capacity: {capacity}"
)]
pub(crate) struct Insufficient {
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

    /// Records the success of all containers. A pod with claims ends after their release.
    pub(crate) fn containers_ended(&mut self) {
        self.running.clear();
        if self.pod.claims.is_empty() || !self.is_active() {
            self.phase = PodPhase::Succeeded;
        } else {
            self.is_ending = true;
        }
    }

    /// True if the pod keeps its devices.
    pub(crate) fn is_active(&self) -> bool {
        matches!(self.phase, PodPhase::Pending | PodPhase::Admitted)
    }
}

impl Manager {
    /// Adds a pod bound to this node. Until its rejection it counts as active.
    pub(crate) fn add_pod(&mut self, pod: Pod) {
        let uid = pod.uid.clone();
        let known = self.pods.remove(&uid).unwrap_or_else(|| PodRecord::new(pod.clone()));
        let record = PodRecord { pod, phase: PodPhase::Pending, ..known };
        self.pods.insert(uid, record);
    }

    /// UIDs of the pods that keep their holdings.
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

    /// Moves the pod to another phase, if it exists.
    pub(crate) fn set_phase(&mut self, uid: &str, phase: PodPhase) {
        if let Some(record) = self.pods.get_mut(uid) {
            if matches!(phase, PodPhase::Failed { .. } | PodPhase::Succeeded) {
                record.running.clear();
            }
            record.phase = phase;
        }
    }

    /// True if the container runtime reported the container as running when the kubelet started.
    pub(super) fn was_running_at_start(&self, pod: &str, container: &str) -> bool {
        self.pods.get(pod).is_some_and(|record| record.running_at_start.contains(container))
    }

    /// Counts extended resources: the requests of all admitted pods must fit the node. For a pod
    /// with devices, allocatable is raised to the allocated number. A resource unknown to the node
    /// is not counted.
    pub(crate) fn fits(&self, pod: &Pod) -> Result<(), Insufficient> {
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
                return Err(Insufficient { resource, requested, used, capacity });
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

    fn admitted(manager: &mut Manager, pod: Pod) {
        let uid = pod.uid.clone();
        manager.add_pod(pod);
        manager.set_phase(&uid, PodPhase::Admitted);
    }

    #[test]
    fn what_admitted_pods_ask_for_must_fit_even_if_they_hold_nothing() {
        let mut manager = manager(vec![device("a", &[]), device("b", &[])]);
        admitted(&mut manager, pod("early", 1));
        assert_eq!(manager.fits(&pod("p", 1)), Ok(()));
        let insufficient = manager.fits(&pod("p", 2)).expect_err("1 of 2 is used");
        assert_eq!(
            insufficient.to_string(),
            "Node didn't have enough resource: example.com/gpu, requested: 2, used: 1, capacity: 2"
        );
    }

    #[test]
    fn requests_beyond_counting_use_everything() {
        let mut manager = manager(vec![device("a", &[])]);
        admitted(&mut manager, pod("one", u64::MAX));
        admitted(&mut manager, pod("two", u64::MAX));
        manager.fits(&pod("p", 1)).expect_err("nothing is left");
        manager.fits(&pod("p", u64::MAX)).expect_err("nothing is left");
    }

    #[test]
    fn a_pod_that_holds_devices_fits_although_the_plugin_is_gone() {
        let mut manager = manager(vec![device("a", &[])]);
        manager.mark_unhealthy(GPU);
        assert!(manager.fits(&pod("p", 1)).is_err());
        hold(&mut manager, "p", "c", "a");
        assert_eq!(manager.fits(&pod("p", 1)), Ok(()));
    }

    #[test]
    fn a_resource_that_the_node_does_not_know_is_not_counted() {
        let other = Pod::new("p").container(Container::new("c").limit("example.com/other", 9));
        assert_eq!(manager(vec![]).fits(&other), Ok(()));
    }
}
