//! Clock slowdown of a GPU by external causes.

use nvml_wrapper_sys::bindings as sys;

use crate::{Result, error::Optional as _, gpu::Gpu, library::get};

/// Current causes of slowed clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slowdown {
    /// The GPU or its memory is too hot.
    pub thermal: bool,
    /// The power supply asserts its brake. Running at the power limit is normal and does not count.
    pub power: bool,
}

/// Hardware protection, and the driver's a few degrees below.
const THERMAL: u64 = (sys::nvmlClocksThrottleReasonHwThermalSlowdown
    | sys::nvmlClocksEventReasonSwThermalSlowdown) as u64;
const POWER: u64 = sys::nvmlClocksThrottleReasonHwPowerBrakeSlowdown as u64;

impl Gpu {
    /// Current causes; `None` if unsupported.
    pub fn slowdown(&self) -> Result<Option<Slowdown>> {
        let newer: Result<u64> =
            get!(self.table, nvmlDeviceGetCurrentClocksEventReasons, self.handle.0);
        let reasons = match newer.optional()? {
            // Name before driver 535.
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
