//! What a GPU measures about itself. A GPU that does not measure something gives `None`, never zero.

use nvml_wrapper_sys::bindings as sys;

use crate::{
    Result,
    error::Optional as _,
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

impl Gpu {
    /// How busy the GPU was. A GPU that is cut into instances does not tell.
    pub fn utilization(&self) -> Result<Option<Utilization>> {
        let mut rates = sys::nvmlUtilization_t { gpu: 0, memory: 0 };
        let asked = call!(self.table, nvmlDeviceGetUtilizationRates, self.handle.0, &raw mut rates);
        let rates = Utilization { compute_percent: rates.gpu, memory_percent: rates.memory };
        Ok(asked.optional()?.map(|()| rates))
    }

    /// The temperature of the chip, in degrees Celsius.
    pub fn temperature_celsius(&self) -> Result<Option<u32>> {
        let chip = sys::nvmlTemperatureSensors_enum_NVML_TEMPERATURE_GPU;
        get!(self.table, nvmlDeviceGetTemperature, self.handle.0, chip).optional()
    }

    /// The power that the board draws.
    pub fn power_milliwatts(&self) -> Result<Option<u32>> {
        get!(self.table, nvmlDeviceGetPowerUsage, self.handle.0).optional()
    }

    /// The energy that the board drew since the driver was loaded.
    pub fn energy_millijoules(&self) -> Result<Option<u64>> {
        get!(self.table, nvmlDeviceGetTotalEnergyConsumption, self.handle.0).optional()
    }
}
