//! The DRA manager: claims are prepared before a pod's containers start, and released when its last pod ends.
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
mod prepare;
mod registry;
mod status;
mod turns;
mod unprepare;
mod wipes;

use std::time::Duration;

pub use claim::{ClaimId, ClaimOrigin, ClaimUse, PodClaim};
pub(crate) use claims::{Claim, Claims};
pub use driver::Service;
pub(crate) use drivers::Drivers;
pub use error::ClaimCall;
pub(crate) use error::ClaimError;
pub(crate) use health::HealthCache;
pub use health::HealthWord;
pub use limits::DraLimits;
pub(crate) use prepare::prepare;
pub(crate) use registry::watch as watch_registry;
pub use status::{ClaimDeviceHealth, ClaimStatus, DriverStatus, PreparedDevice};
pub(crate) use turns::Turns;
pub(crate) use unprepare::{in_context, reconcile, reconcile_now_and_then, unprepare};

use self::wipes::Wipes;

/// State of the DRA manager.
#[derive(Debug, Default)]
pub(crate) struct Dra {
    /// Claims that pods use.
    pub(crate) claims: Claims,
    /// Registered drivers.
    pub(crate) drivers: Drivers,
    /// Health of devices, as drivers reported it.
    pub(crate) health: HealthCache,
    /// Times at which a driver's slices are deleted.
    pub(crate) wipes: Wipes,
}

impl Dra {
    /// Updates the deletion times from the current connections.
    pub(crate) fn look_at_connections(&mut self, delay: Duration) {
        let usable = |known: &[driver::Driver]| known.iter().any(|one| *one.connected.borrow());
        let known = self.drivers.iter().map(|(name, known)| (name, usable(known)));
        self.wipes.update(known, delay);
    }
}
