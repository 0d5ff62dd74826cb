//! Reasons of the Kubernetes Events that Windlass writes.

/// Limit of the API server for the note of an event, in bytes (`NoteLengthLimit` in pkg/apis/events/validation).
pub const MAX_NOTE_BYTES: usize = 1024;
/// Limit of the API server for the name of an event's writer, in bytes (same package).
pub const MAX_INSTANCE_BYTES: usize = 128;

/// Reason of an event. docs/events.md has a row for each, and a test compares both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventReason(&'static str);

// === impl EventReason ===

impl EventReason {
    /// A device failed, or its cleanup did.
    pub const DEVICE_UNHEALTHY: Self = Self("DeviceUnhealthy");
    /// A device is healthy again.
    pub const DEVICE_RECOVERED: Self = Self("DeviceRecovered");
    /// A pod uses more memory of a GPU than its share.
    pub const GPU_MEMORY_EXCEEDED: Self = Self("GpuMemoryExceeded");
    /// A pod uses far more of a busy GPU's time than its share.
    pub const GPU_COMPUTE_EXCEEDED: Self = Self("GpuComputeExceeded");
    /// No node has the devices, CPU and memory of a pod.
    pub const DEVICES_UNAVAILABLE: Self = Self("DevicesUnavailable");

    /// The reason as one word.
    pub fn as_str(self) -> &'static str {
        self.0
    }
}
