//! How long the DRA manager waits, and for what.

use std::time::Duration;

/// Time limits; tests shorten them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraLimits {
    /// How often the registration sockets are looked through (`loopSleepDuration`: 1 s). What the
    /// folder tells is looked at at once.
    pub registry_period: Duration,
    /// Deadline of `GetInfo` (1 s).
    pub get_info: Duration,
    /// Deadline of `NotifyRegistrationStatus` (`notifyTimeoutDuration`: 5 s).
    pub notify: Duration,
    /// First pause after a failed registration (`initialDurationBeforeRetry`: 500 ms); doubled each
    /// time, up to 122 s.
    pub registration_pause: Duration,
    /// Deadline of `NodePrepareResources` and `NodeUnprepareResources` (`defaultClientCallTimeout`:
    /// 45 s).
    pub call: Duration,
    /// How often claims of pods that are gone are looked for (`defaultReconcilePeriod`: 60 s).
    pub reconcile_period: Duration,
    /// How long a driver may be away before its slices are deleted (`defaultWipingDelay`: 30 s).
    pub wipe_delay: Duration,
    /// Pause after the end of a health stream (5 s).
    pub health_pause: Duration,
}

impl Default for DraLimits {
    fn default() -> Self {
        Self {
            registry_period: Duration::from_secs(1),
            get_info: Duration::from_secs(1),
            notify: Duration::from_secs(5),
            registration_pause: Duration::from_millis(500),
            call: Duration::from_secs(45),
            reconcile_period: Duration::from_secs(60),
            wipe_delay: Duration::from_secs(30),
            health_pause: Duration::from_secs(5),
        }
    }
}
