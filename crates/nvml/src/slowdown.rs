//! Whether something from outside holds a GPU's clocks back.

use nvml_wrapper_sys::bindings as sys;

use crate::{Result, error::Optional as _, gpu::Gpu, library::get};

/// What holds the clocks back now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slowdown {
    /// The GPU or its memory is too hot.
    pub thermal: bool,
    /// The power supply asks for it. Reaching the limit that was set for the GPU is no such thing:
    /// that is how a busy GPU runs.
    pub power: bool,
}

/// The GPU's own protection, and the driver's a few degrees earlier.
const THERMAL: u64 = (sys::nvmlClocksThrottleReasonHwThermalSlowdown
    | sys::nvmlClocksEventReasonSwThermalSlowdown) as u64;
const POWER: u64 = sys::nvmlClocksThrottleReasonHwPowerBrakeSlowdown as u64;

impl Gpu {
    /// What holds the clocks back; `None` for a GPU that does not tell.
    pub fn slowdown(&self) -> Result<Option<Slowdown>> {
        let newer: Result<u64> =
            get!(self.table, nvmlDeviceGetCurrentClocksEventReasons, self.handle.0);
        let reasons = match newer.optional()? {
            // The name before 535.
            None => get!(self.table, nvmlDeviceGetCurrentClocksThrottleReasons, self.handle.0)
                .optional()?,
            reasons => reasons,
        };
        let held_back = |reasons: u64| Slowdown {
            thermal: reasons & THERMAL != 0,
            power: reasons & POWER != 0,
        };
        Ok(reasons.map(held_back))
    }
}
