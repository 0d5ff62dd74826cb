//! Time limits without keys in the file: of calls to and from the kubelet, and of cleanup.

use std::time::Duration;

/// Time limits of calls to and from the kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KubeletLimits {
    /// Deadline of Register: within it the kubelet dials back for up to ten seconds.
    pub register_deadline: Duration,
    /// Time from a registration to the kubelet's request for the device list.
    pub stream_deadline: Duration,
    /// The first wait before registering again; it doubles.
    pub retry_min: Duration,
    /// The longest wait before registering again.
    pub retry_max: Duration,
    /// Longest time between an answer to Allocate and its entry in the kubelet's checkpoint. A device that moves to
    /// another resource is withheld for this time.
    pub checkpoint_delay: Duration,
    /// Deadline to prepare or release a claim. After it the call fails, and the kubelet retries.
    pub claim_deadline: Duration,
    /// Time that a claim waits for another holder to release its device. Containers of a force-deleted pod get two
    /// seconds to end (`minimumGracePeriodInSeconds` of the kubelet's runtime manager); the remaining time is for a
    /// busy machine. Must be well below `claim_deadline`.
    pub claim_wait: Duration,
    /// Interval of checks of the sockets, in case an event of their folder was lost.
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
    pub retry_min: Duration,
    /// The longest wait before such a device is cleaned again.
    pub retry_max: Duration,
}

// === impl KubeletLimits ===

impl Default for KubeletLimits {
    fn default() -> Self {
        Self {
            register_deadline: Duration::from_secs(15),
            stream_deadline: Duration::from_secs(5),
            retry_min: Duration::from_millis(50),
            retry_max: Duration::from_secs(10),
            // The kubelet writes its checkpoint before it starts the container, in a few milliseconds.
            checkpoint_delay: Duration::from_secs(2),
            // The kubelet waits 45 seconds for all claims of a pod. An answer that lacks one claim counts as a failure
            // of all.
            claim_deadline: Duration::from_secs(40),
            claim_wait: Duration::from_secs(10),
            check_interval: Duration::from_secs(10),
        }
    }
}

// === impl CleanupLimits ===

impl Default for CleanupLimits {
    fn default() -> Self {
        Self {
            // The kubelet gives up after 30 seconds (`cm/devicemanager/endpoint.go`) without a
            // reason. An earlier answer has one.
            prepare_deadline: Duration::from_secs(24),
            start_deadline: Duration::from_secs(25),
            retry_min: Duration::from_secs(5),
            retry_max: Duration::from_secs(5 * 60),
        }
    }
}
