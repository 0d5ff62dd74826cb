//! Time limits and periods of the DRA manager.

use std::time::Duration;

/// Time limits and periods. The defaults are the real kubelet's; tests shorten them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraLimits {
    /// Period of scans of the folder of registration sockets (`loopSleepDuration`: 1 s). A change of the
    /// folder starts a scan at once.
    pub registry_period: Duration,
    /// Deadline of `GetInfo` (1 s).
    pub get_info_timeout: Duration,
    /// Deadline of `NotifyRegistrationStatus` (`notifyTimeoutDuration`: 5 s).
    pub notify_timeout: Duration,
    /// First pause after a failed registration (`initialDurationBeforeRetry`: 500 ms). Each further failure
    /// doubles the pause, up to 122 s.
    pub registration_retry_min: Duration,
    /// Deadline of `NodePrepareResources` and `NodeUnprepareResources` (`defaultClientCallTimeout`: 45 s).
    pub call_timeout: Duration,
    /// Period of the reconciliation, which releases claims of inactive pods (`defaultReconcilePeriod`: 60 s).
    pub reconcile_period: Duration,
    /// Time between the loss of a driver's last connection and the deletion of its `ResourceSlices`
    /// (`defaultWipingDelay`: 30 s).
    pub wipe_delay: Duration,
    /// Pause between the end of a health stream and the next call of `NodeWatchResources` (5 s).
    pub health_retry_delay: Duration,
}

impl Default for DraLimits {
    fn default() -> Self {
        Self {
            registry_period: Duration::from_secs(1),
            get_info_timeout: Duration::from_secs(1),
            notify_timeout: Duration::from_secs(5),
            registration_retry_min: Duration::from_millis(500),
            call_timeout: Duration::from_secs(45),
            reconcile_period: Duration::from_secs(60),
            wipe_delay: Duration::from_secs(30),
            health_retry_delay: Duration::from_secs(5),
        }
    }
}
