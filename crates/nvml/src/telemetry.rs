//! Sensors of a GPU. An unsupported sensor is `None`, never zero.

use nvml_wrapper_sys::bindings as sys;

use crate::{
    Result,
    error::{UnsupportedAsNone as _, at_most},
    gpu::Gpu,
    library::{get, get_at_most},
};

/// Utilisation over the driver's last sample period, a sixth of a second to a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Utilization {
    /// Share of time in which a kernel ran, in percent.
    pub compute_percent: u32,
    /// Share of time in which memory was accessed, in percent.
    pub memory_percent: u32,
}

/// Upper bound of temperatures.
pub(crate) const MAX_CELSIUS: u32 = 1000;

/// Upper bound of power: a hundred times a board's.
const MAX_MILLIWATTS: u32 = 100_000_000;

/// Upper bound of clocks: ten times a GPU's.
const MAX_MEGAHERTZ: u32 = 100_000;

/// Upper bound of energy: the maximum power for a hundred years.
const MAX_MILLIJOULES: u64 = MAX_MILLIWATTS as u64 * 100 * 366 * 24 * 3600;

impl Gpu {
    /// Utilisation. Unsupported in MIG mode.
    pub fn utilization(&self) -> Result<Option<Utilization>> {
        let rates: Result<sys::nvmlUtilization_t> =
            get!(self.table, nvmlDeviceGetUtilizationRates, self.handle.0);
        let Some(rates) = rates.unsupported_as_none()? else { return Ok(None) };
        at_most("nvmlDeviceGetUtilizationRates", rates.gpu.max(rates.memory), 100)?;
        Ok(Some(Utilization { compute_percent: rates.gpu, memory_percent: rates.memory }))
    }

    /// Chip temperature in degrees Celsius.
    pub fn temperature_celsius(&self) -> Result<Option<u32>> {
        let chip = sys::nvmlTemperatureSensors_enum_NVML_TEMPERATURE_GPU;
        get_at_most!(self.table, nvmlDeviceGetTemperature, self.handle.0, chip; MAX_CELSIUS)
            .unsupported_as_none()
    }

    /// Power draw of the board in milliwatts.
    pub fn power_milliwatts(&self) -> Result<Option<u32>> {
        get_at_most!(self.table, nvmlDeviceGetPowerUsage, self.handle.0; MAX_MILLIWATTS)
            .unsupported_as_none()
    }

    /// Enforced power limit in milliwatts: the lowest of all limits that apply.
    pub fn power_limit_milliwatts(&self) -> Result<Option<u32>> {
        get_at_most!(self.table, nvmlDeviceGetEnforcedPowerLimit, self.handle.0; MAX_MILLIWATTS)
            .unsupported_as_none()
    }

    /// Current clock of the streaming multiprocessors in megahertz.
    pub fn compute_clock_mhz(&self) -> Result<Option<u32>> {
        self.clock_mhz(sys::nvmlClockType_enum_NVML_CLOCK_SM)
    }

    /// Current clock of the memory in megahertz.
    pub fn memory_clock_mhz(&self) -> Result<Option<u32>> {
        self.clock_mhz(sys::nvmlClockType_enum_NVML_CLOCK_MEM)
    }

    fn clock_mhz(&self, clock: sys::nvmlClockType_t) -> Result<Option<u32>> {
        get_at_most!(self.table, nvmlDeviceGetClockInfo, self.handle.0, clock; MAX_MEGAHERTZ)
            .unsupported_as_none()
    }

    /// Energy in millijoules since the driver was loaded.
    pub fn energy_millijoules(&self) -> Result<Option<u64>> {
        let gpu_handle = self.handle.0;
        get_at_most!(self.table, nvmlDeviceGetTotalEnergyConsumption, gpu_handle; MAX_MILLIJOULES)
            .unsupported_as_none()
    }
}
