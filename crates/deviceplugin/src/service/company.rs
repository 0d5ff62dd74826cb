//! What a container seems to have got already, of other resources.
//!
//! The kubelet admits one pod after another and asks for one resource after another, in any order, and does
//! not say for which container. Allocations that follow each other at once are taken for one container's,
//! until a resource comes again: a container asks for each once.
//!
//! It is a guess, and made use of as one: a preference among devices that would all do.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;
use windlass_core::{device::DeviceId, resource::ResourceName};

/// The devices of one container, as far as can be told.
#[derive(Clone, Debug, Default)]
pub(crate) struct Company {
    devices: BTreeMap<ResourceName, Vec<DeviceId>>,
    last: Option<Instant>,
}

/// Longer than an admission takes between two resources, a few milliseconds; shorter than pods that have
/// nothing to do with each other are usually apart.
const TOGETHER: Duration = Duration::from_secs(1);

// === impl Company ===

impl Company {
    /// What the container that asks for this resource now has of others.
    pub(super) fn beside(
        &self,
        resource: &ResourceName,
        now: Instant,
    ) -> impl Iterator<Item = &DeviceId> {
        let same = self.is_joined_by(resource, now);
        self.devices.values().filter(move |_| same).flatten()
    }

    /// Notes an allocation.
    pub(super) fn note(&mut self, resource: &ResourceName, devices: Vec<DeviceId>, now: Instant) {
        if !self.is_joined_by(resource, now) {
            self.devices.clear();
        }
        self.devices.insert(resource.clone(), devices);
        self.last = Some(now);
    }

    fn is_joined_by(&self, resource: &ResourceName, now: Instant) -> bool {
        let recent = self.last.is_some_and(|last| now.duration_since(last) < TOGETHER);
        recent && !self.devices.contains_key(resource)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> ResourceName {
        text.parse().expect("valid")
    }

    fn beside(company: &Company, resource: &str, now: Instant) -> Vec<String> {
        company.beside(&name(resource), now).map(ToString::to_string).collect()
    }

    #[test]
    fn a_resource_that_comes_again_is_another_containers() {
        let (mut company, begun) = (Company::default(), Instant::now());
        let ids = |id: &str| vec![id.parse().expect("valid")];
        assert!(beside(&company, "a/nic", begun).is_empty());
        company.note(&name("a/gpu"), ids("GPU-3"), begun);
        assert_eq!(beside(&company, "a/nic", begun), ["GPU-3"]);
        assert!(beside(&company, "a/gpu", begun).is_empty(), "the next container's");
        company.note(&name("a/nic"), ids("nic-3"), begun);
        assert_eq!(beside(&company, "a/fpga", begun), ["GPU-3", "nic-3"]);
        company.note(&name("a/gpu"), ids("GPU-4"), begun);
        assert_eq!(beside(&company, "a/nic", begun), ["GPU-4"], "and not the one of before");
    }

    #[test]
    fn what_was_given_a_while_ago_is_another_pods() {
        let (mut company, begun) = (Company::default(), Instant::now());
        company.note(&name("a/gpu"), vec!["GPU-3".parse().expect("valid")], begun);
        assert!(beside(&company, "a/nic", begun + TOGETHER).is_empty());
        company.note(&name("a/nic"), Vec::new(), begun + TOGETHER);
        assert!(beside(&company, "a/fpga", begun + TOGETHER).is_empty());
    }
}
