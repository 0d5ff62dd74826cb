//! Reuse of devices: later containers of a pod reuse the devices of its finished init containers.

use std::collections::BTreeMap;

use super::Manager;
use crate::{device::DeviceIds, pod::InitRole};

/// The real manager's `devicesToReuse`: reusable devices of the pod whose admission began last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReusableDevices {
    pod: String,
    by_resource: BTreeMap<String, DeviceIds>,
}

// === impl ReusableDevices ===

impl ReusableDevices {
    /// Devices of a resource that the pod's next container may reuse.
    pub(super) fn reusable_for(&self, pod: &str, resource: &str) -> DeviceIds {
        if self.pod != pod {
            return DeviceIds::new();
        }
        self.by_resource.get(resource).cloned().unwrap_or_default()
    }

    /// Clears the devices if they belong to another pod.
    fn switch_to(&mut self, pod: &str) {
        if self.pod != pod {
            *self = Self { pod: pod.to_owned(), by_resource: BTreeMap::new() };
        }
    }
}

impl Manager {
    /// Makes this pod the owner of the reusable devices. Clears those of another pod.
    pub(crate) fn switch_reusable_devices(&mut self, pod: &str) {
        self.reusable.switch_to(pod);
    }

    /// Updates the reusable devices after the allocation for a container. An init container that runs
    /// to completion adds its devices; any other container removes its devices.
    pub(crate) fn update_reusable(&mut self, pod: &str, container: &str, role: Option<InitRole>) {
        match role {
            Some(InitRole::RunsToCompletion) => self.allow_reuse(pod, container),
            Some(InitRole::Sidecar) | None => self.forbid_reuse(pod, container),
        }
    }

    pub(super) fn allow_reuse(&mut self, pod: &str, container: &str) {
        self.reusable.switch_to(pod);
        for (resource, holding) in self.holdings.container(pod, container).into_iter().flatten() {
            self.reusable.by_resource.entry(resource.clone()).or_default().extend(holding.ids());
        }
    }

    fn forbid_reuse(&mut self, pod: &str, container: &str) {
        for (resource, holding) in self.holdings.container(pod, container).into_iter().flatten() {
            if let Some(reusable) = self.reusable.by_resource.get_mut(resource) {
                let exclusive = holding.ids();
                reusable.retain(|id| !exclusive.contains(id));
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
    fn containers_that_run_on_remove_the_devices_they_reuse() {
        let mut manager = manager(vec![]);
        manager.switch_reusable_devices("pod");
        hold(&mut manager, "pod", "init", "a b c");
        manager.update_reusable("pod", "init", Some(InitRole::RunsToCompletion));
        assert_eq!(manager.reusable.reusable_for("pod", GPU), ids("a b c"));

        hold(&mut manager, "pod", "sidecar", "a");
        manager.update_reusable("pod", "sidecar", Some(InitRole::Sidecar));
        assert_eq!(manager.reusable.reusable_for("pod", GPU), ids("b c"));

        hold(&mut manager, "pod", "app", "b");
        manager.update_reusable("pod", "app", None);
        assert_eq!(manager.reusable.reusable_for("pod", GPU), ids("c"));

        manager.switch_reusable_devices("next");
        assert_eq!(manager.reusable.reusable_for("pod", GPU), ids(""));
    }
}
