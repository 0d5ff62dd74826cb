//! Devices that finished init containers leave to later containers of their pod.

use std::collections::BTreeMap;

use super::Manager;
use crate::{device::DeviceIds, pod::InitRole};

/// The real manager's `devicesToReuse`: the reusable devices of the pod admitted last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reusable {
    pod: String,
    by_resource: BTreeMap<String, DeviceIds>,
}

// === impl Reusable ===

impl Reusable {
    /// Devices that a container of this pod may reuse.
    pub(super) fn of(&self, pod: &str, resource: &str) -> DeviceIds {
        if self.pod != pod {
            return DeviceIds::new();
        }
        self.by_resource.get(resource).cloned().unwrap_or_default()
    }

    fn turn_to(&mut self, pod: &str) {
        if self.pod != pod {
            *self = Self { pod: pod.to_owned(), by_resource: BTreeMap::new() };
        }
    }
}

impl Manager {
    /// Drops the devices of any other pod: the next container belongs to this one.
    pub(crate) fn turn_to_pod(&mut self, pod: &str) {
        self.reusable.turn_to(pod);
    }

    /// Records a served container. The devices become reusable if the container ends before the
    /// next one starts; otherwise they stop being reusable.
    pub(crate) fn container_served(&mut self, pod: &str, container: &str, role: Option<InitRole>) {
        match role {
            Some(InitRole::RunsToCompletion) => self.lend(pod, container),
            Some(InitRole::Sidecar) | None => self.keep(pod, container),
        }
    }

    pub(super) fn lend(&mut self, pod: &str, container: &str) {
        self.reusable.turn_to(pod);
        for (resource, held) in self.holdings.container(pod, container).into_iter().flatten() {
            self.reusable.by_resource.entry(resource.clone()).or_default().extend(held.ids());
        }
    }

    fn keep(&mut self, pod: &str, container: &str) {
        for (resource, held) in self.holdings.container(pod, container).into_iter().flatten() {
            if let Some(reusable) = self.reusable.by_resource.get_mut(resource) {
                let kept = held.ids();
                reusable.retain(|id| !kept.contains(id));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::tests::{GPU, hold, ids, manager},
        *,
    };

    #[test]
    fn devices_pass_from_init_containers_to_those_that_keep_them() {
        let mut manager = manager(vec![]);
        manager.turn_to_pod("pod");
        hold(&mut manager, "pod", "init", "a b c");
        manager.container_served("pod", "init", Some(InitRole::RunsToCompletion));
        assert_eq!(manager.reusable.of("pod", GPU), ids("a b c"));

        hold(&mut manager, "pod", "sidecar", "a");
        manager.container_served("pod", "sidecar", Some(InitRole::Sidecar));
        assert_eq!(manager.reusable.of("pod", GPU), ids("b c"));

        hold(&mut manager, "pod", "app", "b");
        manager.container_served("pod", "app", None);
        assert_eq!(manager.reusable.of("pod", GPU), ids("c"));

        manager.turn_to_pod("next");
        assert_eq!(manager.reusable.of("pod", GPU), ids(""));
    }
}
