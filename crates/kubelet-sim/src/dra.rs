//! The DRA manager: prepares a pod's claims before its containers start, and releases a claim when its last pod ends.
//!
//! ```text
//!  plugins_registry ──> registry ──GetInfo, Notify──> drivers ──NodeWatchResources──> health
//!                                                        │
//!  start_container, sync_pod ──> prepare ────────────────┤ one call per driver
//!  finish, delete, reconcile ──> unprepare ──────────────┘
//!                                    │
//!                                 claims ──> dra_manager_state
//! ```
//!
//! Order and texts from `pkg/kubelet/cm/dra` and `pkg/kubelet/pluginmanager` of Kubernetes 1.36.

mod claim;
mod claims;
mod connector;
mod driver;
mod drivers;
mod error;
mod health;
mod health_stream;
mod limits;
mod pod_workers;
mod prepare;
mod registry;
mod status;
mod unprepare;
mod wipes;

use std::time::Duration;

pub use claim::{ClaimId, ClaimOrigin, ClaimUse, PodClaim};
pub(crate) use claims::{Claim, Claims};
pub use driver::DraService;
pub(crate) use drivers::Drivers;
pub use error::ClaimCall;
pub(crate) use error::ClaimError;
pub(crate) use health::HealthCache;
pub use health::ResourceHealthStatus;
pub use limits::DraLimits;
pub(crate) use pod_workers::PodWorkers;
pub(crate) use prepare::prepare;
pub(crate) use registry::watch as watch_registry;
pub use status::{ClaimDeviceHealth, ClaimStatus, DriverStatus, PreparedDevice};
pub(crate) use unprepare::{reconcile, reconcile_periodically, unprepare, with_worker_prefix};

use self::wipes::Wipes;

/// State of the DRA manager.
#[derive(Debug, Default)]
pub(crate) struct Dra {
    /// Claims of the node's pods.
    pub(crate) claims: Claims,
    /// Registered drivers.
    pub(crate) drivers: Drivers,
    /// Health of devices, as drivers reported it.
    pub(crate) health: HealthCache,
    /// Times of the deletion of each driver's `ResourceSlices`.
    pub(crate) wipes: Wipes,
}

impl Dra {
    /// Updates the deletion times from the drivers' current connections. `delay` is the time between the
    /// loss of a driver's last connection and the deletion.
    pub(crate) fn update_wipe_times(&mut self, delay: Duration) {
        let is_connected = |endpoints: &[driver::Driver]| {
            endpoints.iter().any(|endpoint| *endpoint.connected.borrow())
        };
        let drivers = self.drivers.iter().map(|(name, endpoints)| (name, is_connected(endpoints)));
        self.wipes.update(drivers, delay);
    }
}
