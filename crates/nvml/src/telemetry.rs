//! What a GPU measures about itself. A GPU that does not measure something gives `None`, never zero.

use nvml_wrapper_sys::bindings as sys;

use crate::{
    Result,
    error::{Optional as _, at_most},
    gpu::Gpu,
    library::{call, get},
};

/// Shares of the driver's last sample period, which is between a sixth of a second and a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Utilization {
    /// In which a kernel ran, in percent.
    pub compute_percent: u32,
    /// In which memory was read or written, in percent.
    pub memory_percent: u32,
}

/// Silicon melts before.
const MOST_CELSIUS: u32 = 1000;

/// A hundred times what a board draws.
const MOST_MILLIWATTS: u32 = 100_000_000;

/// What so much power is in a hundred years.
const MOST_MILLIJOULES: u64 = MOST_MILLIWATTS as u64 * 100 * 366 * 24 * 3600;

impl Gpu {
    /// How busy the GPU was. A GPU that is cut into instances does not tell.
    pub fn utilization(&self) -> Result<Option<Utilization>> {
        let mut rates = sys::nvmlUtilization_t { gpu: 0, memory: 0 };
        let asked = call!(self.table, nvmlDeviceGetUtilizationRates, self.handle.0, &raw mut rates);
        let Some(()) = asked.optional()? else { return Ok(None) };
        at_most("nvmlDeviceGetUtilizationRates", rates.gpu.max(rates.memory), 100)?;
        Ok(Some(Utilization { compute_percent: rates.gpu, memory_percent: rates.memory }))
    }

    /// The temperature of the chip, in degrees Celsius.
    pub fn temperature_celsius(&self) -> Result<Option<u32>> {
        let chip = sys::nvmlTemperatureSensors_enum_NVML_TEMPERATURE_GPU;
        sensed("nvmlDeviceGetTemperature", MOST_CELSIUS, || {
            get!(self.table, nvmlDeviceGetTemperature, self.handle.0, chip)
        })
    }

    /// The power that the board draws.
    pub fn power_milliwatts(&self) -> Result<Option<u32>> {
        sensed("nvmlDeviceGetPowerUsage", MOST_MILLIWATTS, || {
            get!(self.table, nvmlDeviceGetPowerUsage, self.handle.0)
        })
    }

    /// The energy that the board drew since the driver was loaded.
    pub fn energy_millijoules(&self) -> Result<Option<u64>> {
        sensed("nvmlDeviceGetTotalEnergyConsumption", MOST_MILLIJOULES, || {
            get!(self.table, nvmlDeviceGetTotalEnergyConsumption, self.handle.0)
        })
    }
}

/// What a sensor says, if the GPU has it and it can be.
fn sensed<T: PartialOrd + Copy>(
    call: &'static str,
    most: T,
    ask: impl FnOnce() -> Result<T>,
) -> Result<Option<T>> {
    ask().optional()?.map(|told| at_most(call, told, most)).transpose()
}
