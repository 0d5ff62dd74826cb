//! Means of a node to keep containers to their memory of a shared GPU.

use windlass_config::Policy;
use windlass_core::enforcement::Enforcement;
use windlass_discovery::live_driver::{LiveDriver, MemoryLimitPlaces, NoMemoryLimits};

/// Means of this node to keep containers to their memory of a shared GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitMeans {
    /// Places that the driver's limits need; `None` before they were looked for.
    pub driver: Option<Result<MemoryLimitPlaces, NoMemoryLimits>>,
    /// True if the agent sees the host's processes, which the watchdog needs.
    pub shows_processes: bool,
}

// === impl LimitMeans ===

impl LimitMeans {
    /// The means at present. Blocks for small files.
    pub fn read(driver: &LiveDriver) -> Self {
        let shows_processes = driver.host().shows_own_process();
        Self { driver: Some(driver.memory_limits()), shows_processes }
    }

    /// The strongest enforcement of a share apart from the driver's, MPS and MIG.
    pub fn without_driver(&self, policy: &Policy) -> Enforcement {
        let is_watched = policy.watchdog.action.acts() && self.shows_processes;
        if is_watched { Enforcement::Watched } else { Enforcement::None }
    }

    /// False before the driver was asked, and while it is being initialised.
    pub(super) fn is_known(&self) -> bool {
        !matches!(self.driver, None | Some(Err(NoMemoryLimits::NoDriver)))
    }

    /// Places that the driver's limits need, or the reason against them.
    pub(super) fn places(&self) -> Result<&MemoryLimitPlaces, String> {
        match &self.driver {
            Some(Ok(places)) => Ok(places),
            Some(Err(why)) => Err(why.to_string()),
            None => Err("the driver was not asked yet".to_owned()),
        }
    }
}
