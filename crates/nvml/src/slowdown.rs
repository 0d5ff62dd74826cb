//! Clock slowdown of a GPU by heat or power.

use nvml_wrapper_sys::bindings as sys;

use crate::{Result, error::UnsupportedAsNone as _, gpu::Gpu, library::get};

/// Current causes of slowed clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slowdown {
    /// Bits of `nvmlClocksEventReason*`.
    reasons: u64,
}

/// Cause of slowed clocks. Idleness, and clocks that an operator set, do not count as causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlowdownCause {
    /// The hardware divides its clocks, for heat or power.
    Hardware,
    /// Hardware protection from heat.
    HardwareThermal,
    /// The driver keeps the temperature below the threshold of the hardware protection.
    SoftwareThermal,
    /// The board is at its power limit, as a busy GPU normally is.
    PowerCap,
    /// The power supply asserts its brake.
    PowerBrake,
}

// === impl Slowdown ===

impl Slowdown {
    /// True if this cause slows the clocks now.
    pub fn is_by(self, cause: SlowdownCause) -> bool {
        self.reasons & cause.bit() != 0
    }

    /// True if the GPU or its memory is too hot.
    pub fn is_thermal(self) -> bool {
        self.is_by(SlowdownCause::HardwareThermal) || self.is_by(SlowdownCause::SoftwareThermal)
    }

    /// True if the power supply asserts its brake. The power limit does not count, because a busy GPU normally reaches
    /// it.
    pub fn is_power_brake(self) -> bool {
        self.is_by(SlowdownCause::PowerBrake)
    }
}

// === impl SlowdownCause ===

impl SlowdownCause {
    fn bit(self) -> u64 {
        u64::from(match self {
            Self::Hardware => sys::nvmlClocksThrottleReasonHwSlowdown,
            Self::HardwareThermal => sys::nvmlClocksThrottleReasonHwThermalSlowdown,
            Self::SoftwareThermal => sys::nvmlClocksEventReasonSwThermalSlowdown,
            Self::PowerCap => sys::nvmlClocksEventReasonSwPowerCap,
            Self::PowerBrake => sys::nvmlClocksThrottleReasonHwPowerBrakeSlowdown,
        })
    }
}

// === impl Gpu ===

impl Gpu {
    /// Current causes; `None` if unsupported.
    pub fn slowdown(&self) -> Result<Option<Slowdown>> {
        let result: Result<u64> =
            get!(self.table, nvmlDeviceGetCurrentClocksEventReasons, self.handle.0);
        let reasons = match result.unsupported_as_none()? {
            // Name before driver 535.
            None => get!(self.table, nvmlDeviceGetCurrentClocksThrottleReasons, self.handle.0)
                .unsupported_as_none()?,
            reasons => reasons,
        };
        Ok(reasons.map(|reasons| Slowdown { reasons }))
    }
}
