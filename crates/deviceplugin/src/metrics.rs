//! What the servers of the device plugin API count.

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
use crate::registration::{RegistrationBoard, RegistrationMetrics, Standings};

/// What the servers of all resources count with. Clones count together.
#[derive(Clone, Debug)]
pub struct PluginMetrics {
    rpc: RpcFamilies,
    placements: PlacementFamilies,
    registrations: RegistrationBoard,
}

// === impl PluginMetrics ===

impl PluginMetrics {
    /// Counters in the registry.
    pub fn register(registry: &mut Registry) -> Self {
        Self {
            rpc: RpcFamilies::register(registry),
            placements: PlacementFamilies::register(registry),
            registrations: RegistrationBoard::register(registry),
        }
    }

    /// For the server of a resource.
    pub(crate) fn rpc(&self, resource: &ResourceName) -> RpcMetrics {
        self.rpc.of(resource)
    }

    /// For the choices of a resource.
    pub(crate) fn placements(&self, resource: &ResourceName) -> PlacementMetrics {
        self.placements.of(resource)
    }

    /// For the session of a resource.
    pub(crate) fn registration(&self, resource: &ResourceName) -> RegistrationMetrics {
        self.registrations.line(resource)
    }

    /// How the resources stand with the kubelet.
    pub fn standings(&self) -> watch::Receiver<Standings> {
        self.registrations.standings()
    }
}
