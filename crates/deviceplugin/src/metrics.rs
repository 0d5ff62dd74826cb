//! Metrics of the device plugin servers.

mod placements;
mod rpc;

use prometheus_client::registry::Registry;
use tokio::sync::watch;
use windlass_core::resource::ResourceName;

use self::{placements::PlacementFamilies, rpc::RpcFamilies};
pub(crate) use self::{
    placements::PlacementMetrics,
    rpc::{Method, RpcMetrics},
};
use crate::registration::{RegistrationMetrics, RegistrationStates, Registrations};

/// Metrics of all resources; clones share their counters.
#[derive(Clone, Debug)]
pub struct PluginMetrics {
    rpc: RpcFamilies,
    placements: PlacementFamilies,
    registrations: Registrations,
}

// === impl PluginMetrics ===

impl PluginMetrics {
    /// Creates the families in the registry.
    pub fn register(registry: &mut Registry) -> Self {
        Self {
            rpc: RpcFamilies::register(registry),
            placements: PlacementFamilies::register(registry),
            registrations: Registrations::register(registry),
        }
    }

    pub(crate) fn rpc(&self, resource: &ResourceName) -> RpcMetrics {
        self.rpc.for_resource(resource)
    }

    pub(crate) fn placements(&self, resource: &ResourceName) -> PlacementMetrics {
        self.placements.for_resource(resource)
    }

    pub(crate) fn registration(&self, resource: &ResourceName) -> RegistrationMetrics {
        self.registrations.add(resource)
    }

    /// Registration states of all resources.
    pub fn states(&self) -> watch::Receiver<RegistrationStates> {
        self.registrations.states()
    }
}
