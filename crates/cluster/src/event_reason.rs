//! Reasons of the events that the agent writes.

/// Reason of an event. docs/events.md has a row for each, and a test compares both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventReason(&'static str);

// === impl EventReason ===

impl EventReason {
    /// A device failed, or its cleanup did.
    pub(crate) const DEVICE_UNHEALTHY: Self = Self("DeviceUnhealthy");
    /// A device is healthy again.
    pub(crate) const DEVICE_RECOVERED: Self = Self("DeviceRecovered");
    /// A pod uses more memory of a GPU than its share.
    pub const GPU_MEMORY_EXCEEDED: Self = Self("GpuMemoryExceeded");
    /// A pod uses far more of a busy GPU's time than its share.
    pub const GPU_COMPUTE_EXCEEDED: Self = Self("GpuComputeExceeded");

    /// The reason as one word.
    pub(crate) fn as_str(self) -> &'static str {
        self.0
    }
}
