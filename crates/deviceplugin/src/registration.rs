//! Which resources the kubelet knows: a board on which each session keeps its own line.

use std::collections::BTreeMap;

use prometheus_client::{metrics::counter::Counter, registry::Registry};
use tokio::sync::watch;
use windlass_core::resource::ResourceName;
use windlass_host::counters::CounterFamily;

/// How each resource that is served stands with the kubelet.
pub type Standings = BTreeMap<ResourceName, Standing>;

/// How a resource stands with the kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The kubelet is away, refused, or does not ask for the device list.
    Unregistered,
    /// It reads the device list.
    Registered,
}

/// The board, handed out line by line.
#[derive(Clone, Debug)]
pub struct RegistrationBoard {
    standings: watch::Sender<Standings>,
    attempts: CounterFamily,
}

/// One session's line; it goes when the session does.
#[derive(Debug)]
pub struct RegistrationMetrics {
    resource: ResourceName,
    standings: watch::Sender<Standings>,
    accepted: Counter,
    failed: Counter,
}

// === impl RegistrationBoard ===

impl RegistrationBoard {
    /// An empty board that counts in the registry.
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let attempts = CounterFamily::default();
        let help = "Registrations with the kubelet, by outcome";
        registry.register("kubelet_registrations", help, attempts.clone());
        Self { standings: watch::Sender::default(), attempts }
    }

    /// A line for a resource, not registered yet.
    pub(crate) fn line(&self, resource: &ResourceName) -> RegistrationMetrics {
        let count = |result: &str| {
            let labels = vec![("resource", resource.to_string()), ("result", result.to_owned())];
            self.attempts.get_or_create_owned(&labels)
        };
        let line = RegistrationMetrics {
            resource: resource.clone(),
            standings: self.standings.clone(),
            accepted: count("accepted"),
            failed: count("failed"),
        };
        line.stands(Standing::Unregistered);
        line
    }

    pub(crate) fn standings(&self) -> watch::Receiver<Standings> {
        self.standings.subscribe()
    }
}

// === impl RegistrationMetrics ===

impl RegistrationMetrics {
    /// Writes how the resource stands.
    pub(crate) fn stands(&self, standing: Standing) {
        self.standings
            .send_if_modified(|all| all.insert(self.resource.clone(), standing) != Some(standing));
    }

    /// The kubelet took a registration.
    pub(crate) fn accepted(&self) {
        self.accepted.inc();
    }

    /// The kubelet refused a registration, or did not answer.
    pub(crate) fn failed(&self) {
        self.failed.inc();
    }
}

impl Drop for RegistrationMetrics {
    fn drop(&mut self) {
        self.standings.send_if_modified(|all| all.remove(&self.resource).is_some());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_there_as_long_as_its_session() {
        let board = RegistrationBoard::register(&mut Registry::default());
        let standings = board.standings();
        let name: ResourceName = "nvidia.com/gpu".parse().expect("valid");
        let line = board.line(&name);
        assert_eq!(standings.borrow().get(&name), Some(&Standing::Unregistered));
        line.stands(Standing::Registered);
        assert_eq!(standings.borrow().get(&name), Some(&Standing::Registered));
        drop(line);
        assert!(standings.borrow().is_empty());
    }
}
