//! Event sets: waits for faults that the driver reports.

use std::{fmt, sync::Arc, time::Duration};

use nvml_wrapper_sys::bindings as sys;

use crate::{
    Result,
    error::UnsupportedAsNone as _,
    gpu::Gpu,
    library::{Table, Zeros as _, call, get},
};

/// Event set: GPUs whose faults a single wait returns.
pub struct EventSet {
    table: Arc<Table>,
    set: SetHandle,
}

/// A fault of a GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// The GPU, also for faults inside a MIG instance.
    pub gpu: Gpu,
    /// Kind of fault.
    pub kind: EventKind,
    /// Affected GPU instance in MIG mode, if confined to one.
    pub gpu_instance: Option<u32>,
    /// Affected compute instance, if confined to one.
    pub compute_instance: Option<u32>,
}

/// Kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// An XID.
    Xid(u64),
    /// Double-bit ECC error.
    DoubleBitEcc,
    /// An event of a type that was not requested.
    Other(u64),
}

struct SetHandle(sys::nvmlEventSet_t);

// SAFETY: the pointer is an opaque handle that only NVML dereferences, and NVML is thread-safe.
unsafe impl Send for SetHandle {}
// SAFETY: as above.
unsafe impl Sync for SetHandle {}

/// Requested event types: XIDs and double-bit ECC errors.
const FAULTS: u64 =
    (sys::nvmlEventTypeXidCriticalError | sys::nvmlEventTypeDoubleBitEccError) as u64;

/// Instance id of an event without one.
const NO_INSTANCE: u32 = u32::MAX;

// === impl EventSet ===

impl EventSet {
    pub(crate) fn new(table: Arc<Table>) -> Result<Self> {
        let set = get!(table, nvmlEventSetCreate)?;
        Ok(Self { table, set: SetHandle(set) })
    }

    /// Adds a GPU, with the event types that it supports. Returns false if it supports none.
    pub fn watch(&self, gpu: &Gpu) -> Result<bool> {
        let supported: Result<u64> =
            get!(self.table, nvmlDeviceGetSupportedEventTypes, gpu.handle.0);
        let types = supported.unsupported_as_none()?.unwrap_or(0) & FAULTS;
        if types == 0 {
            return Ok(false);
        }
        let result = call!(self.table, nvmlDeviceRegisterEvents, gpu.handle.0, types, self.set.0);
        Ok(result.unsupported_as_none()?.is_some())
    }

    /// Blocks until a fault occurs. Returns `None` after the timeout.
    pub fn wait(&self, timeout: Duration) -> Result<Option<Event>> {
        let timeout_ms = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
        let mut data = sys::nvmlEventData_t::zeros();
        match call!(self.table, nvmlEventSetWait_v2, self.set.0, &raw mut data, timeout_ms) {
            Ok(()) => Ok(Some(self.event(&data))),
            Err(error) if error.is_timeout() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn event(&self, data: &sys::nvmlEventData_t) -> Event {
        const XID: u64 = sys::nvmlEventTypeXidCriticalError as u64;
        const DOUBLE_BIT: u64 = sys::nvmlEventTypeDoubleBitEccError as u64;
        let instance = |id: u32| (id != NO_INSTANCE).then_some(id);
        Event {
            gpu: Gpu::new(self.table.clone(), data.device),
            kind: match data.eventType {
                XID => EventKind::Xid(data.eventData),
                DOUBLE_BIT => EventKind::DoubleBitEcc,
                other => EventKind::Other(other),
            },
            gpu_instance: instance(data.gpuInstanceId),
            compute_instance: instance(data.computeInstanceId),
        }
    }
}

impl Drop for EventSet {
    fn drop(&mut self) {
        // A failure has no remedy, and no effect on the agent.
        let _ = call!(self.table, nvmlEventSetFree, self.set.0);
    }
}

impl fmt::Debug for EventSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventSet").finish_non_exhaustive()
    }
}
