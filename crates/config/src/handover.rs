//! How patient hand-overs are: before a container starts, and with a device whose steps fail.

use std::time::Duration;

/// How patient hand-overs are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandoverLimits {
    /// How long all steps before a container's start may take together.
    pub prepare_deadline: Duration,
    /// How long a container's start waits, for a cleaning that is under way and for its own steps.
    pub start_deadline: Duration,
    /// The first wait before a device whose steps failed is cleaned again; it doubles.
    pub retry_first: Duration,
    /// The longest wait before it is cleaned again.
    pub retry_most: Duration,
}

// === impl HandoverLimits ===

impl Default for HandoverLimits {
    fn default() -> Self {
        Self {
            // The kubelet waits for 30 seconds (kubelet reference, PreStartContainer) and then knows
            // no reason; this leaves the time to tell it one.
            prepare_deadline: Duration::from_secs(24),
            start_deadline: Duration::from_secs(25),
            retry_first: Duration::from_secs(5),
            retry_most: Duration::from_secs(5 * 60),
        }
    }
}
