//! Time limits that no file changes: of the conversation with the kubelet, and of cleanup.

use std::time::Duration;

/// Time limits of the conversation with the kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionLimits {
    /// Deadline of Register: the kubelet dials back for up to ten seconds within it.
    pub register_deadline: Duration,
    /// Time from a registration to the kubelet's request for the device list.
    pub stream_deadline: Duration,
    /// The first wait before registering again; it doubles.
    pub retry_first: Duration,
    /// The longest wait before registering again.
    pub retry_most: Duration,
    /// Time after an answer to Allocate in which the kubelet's record may still lack it. A device that a new policy
    /// moves is withheld that long.
    pub checkpoint_delay: Duration,
    /// Deadline to prepare or release a claim. After it the call fails, and the kubelet retries.
    pub claim_deadline: Duration,
    /// Time for another holder to release a device that a claim waits for. Containers of a pod that was deleted by
    /// force are given two seconds to end (`minimumGracePeriodInSeconds` of the kubelet's runtime manager); the rest
    /// is for a busy machine. Well within `claim_deadline`.
    pub claim_patience: Duration,
    /// Interval of checks of the sockets, in case a notice was lost.
    pub check_interval: Duration,
}

/// Time limits of cleanup: before a container starts, and after failed steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CleanupLimits {
    /// Deadline of all steps before a container's start together.
    pub prepare_deadline: Duration,
    /// Deadline of a container's start, which waits for a cleanup that is under way and for its own steps.
    pub start_deadline: Duration,
    /// The first wait before a device whose steps failed is cleaned again; it doubles.
    pub retry_first: Duration,
    /// The longest wait before it is cleaned again.
    pub retry_most: Duration,
}

// === impl SessionLimits ===

impl Default for SessionLimits {
    fn default() -> Self {
        Self {
            register_deadline: Duration::from_secs(15),
            stream_deadline: Duration::from_secs(5),
            retry_first: Duration::from_millis(50),
            retry_most: Duration::from_secs(10),
            // The kubelet writes its record before it starts the container, in a few milliseconds.
            checkpoint_delay: Duration::from_secs(2),
            // The kubelet waits 45 seconds for all claims of a pod. It takes an answer without one of the claims for a
            // failure of all.
            claim_deadline: Duration::from_secs(40),
            claim_patience: Duration::from_secs(10),
            check_interval: Duration::from_secs(10),
        }
    }
}

// === impl CleanupLimits ===

impl Default for CleanupLimits {
    fn default() -> Self {
        Self {
            // The kubelet gives up after 30 seconds (`cm/devicemanager/endpoint.go`) and then knows
            // no reason; an earlier answer tells it one.
            prepare_deadline: Duration::from_secs(24),
            start_deadline: Duration::from_secs(25),
            retry_first: Duration::from_secs(5),
            retry_most: Duration::from_secs(5 * 60),
        }
    }
}
