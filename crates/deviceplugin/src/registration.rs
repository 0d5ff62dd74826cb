//! Registration state of each resource, written by its session.

use std::collections::BTreeMap;

use prometheus_client::{metrics::counter::Counter, registry::Registry};
use tokio::sync::watch;
use windlass_core::resource::ResourceName;
use windlass_host::counters::CounterFamily;

/// Registration state by resource.
pub type RegistrationStates = BTreeMap<ResourceName, RegistrationState>;

/// Registration state of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegistrationState {
    /// Kubelet absent, registration refused, or device list not read.
    Unregistered,
    /// The kubelet reads the device list.
    Registered,
}

/// Table of all sessions.
#[derive(Clone, Debug)]
pub struct Registrations {
    states: watch::Sender<RegistrationStates>,
    attempts: CounterFamily,
}

/// Entry of one session, removed on drop.
#[derive(Debug)]
pub struct RegistrationMetrics {
    resource: ResourceName,
    states: watch::Sender<RegistrationStates>,
    accepted: Counter,
    failed: Counter,
}

// === impl Registrations ===

impl Registrations {
    /// Creates an empty table with counters in the registry.
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let attempts = CounterFamily::default();
        let help = "Registrations with the kubelet, by outcome";
        registry.register("kubelet_registrations", help, attempts.clone());
        Self { states: watch::Sender::default(), attempts }
    }

    pub(crate) fn add(&self, resource: &ResourceName) -> RegistrationMetrics {
        let count = |result: &str| {
            let labels = vec![("resource", resource.to_string()), ("result", result.to_owned())];
            self.attempts.get_or_create_owned(&labels)
        };
        let entry = RegistrationMetrics {
            resource: resource.clone(),
            states: self.states.clone(),
            accepted: count("accepted"),
            failed: count("failed"),
        };
        entry.set(RegistrationState::Unregistered);
        entry
    }

    pub(crate) fn states(&self) -> watch::Receiver<RegistrationStates> {
        self.states.subscribe()
    }
}

// === impl RegistrationMetrics ===

impl RegistrationMetrics {
    pub(crate) fn set(&self, state: RegistrationState) {
        self.states
            .send_if_modified(|states| states.insert(self.resource.clone(), state) != Some(state));
    }

    pub(crate) fn count_accepted(&self) {
        self.accepted.inc();
    }

    /// Counts a refused or unanswered registration.
    pub(crate) fn count_failed(&self) {
        self.failed.inc();
    }
}

impl Drop for RegistrationMetrics {
    fn drop(&mut self) {
        self.states.send_if_modified(|states| states.remove(&self.resource).is_some());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resource_is_listed_as_long_as_its_session_lives() {
        let registrations = Registrations::register(&mut Registry::default());
        let states = registrations.states();
        let name: ResourceName = "nvidia.com/gpu".parse().expect("valid");
        let entry = registrations.add(&name);
        assert_eq!(states.borrow().get(&name), Some(&RegistrationState::Unregistered));
        entry.set(RegistrationState::Registered);
        assert_eq!(states.borrow().get(&name), Some(&RegistrationState::Registered));
        drop(entry);
        assert!(states.borrow().is_empty());
    }
}
