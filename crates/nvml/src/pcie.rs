//! Current state of a GPU's PCIe link.
//!
//! Throughput is not read: `nvmlDeviceGetPcieThroughput` blocks for 20 ms per direction, and the byte counters of newer
//! drivers (`NVML_FI_DEV_PCIE_COUNT_TX_BYTES` in `nvml.h`) may wrap between two samples at full speed.

use crate::{
    Result,
    error::UnsupportedAsNone as _,
    gpu::Gpu,
    library::{get, get_at_most},
};

/// Current PCIe link. An idle GPU may lower its generation to save power.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PcieLink {
    /// PCIe generation, from 1.
    pub generation: u32,
    /// Number of lanes.
    pub width: u32,
}

/// Upper bound of PCIe generations.
const MAX_GENERATION: u32 = 16;

/// Maximum number of lanes of a link (PCI Express Base Specification).
const MAX_WIDTH: u32 = 32;

impl Gpu {
    /// The link; `None` for a GPU on another bus.
    pub fn pcie_link(&self) -> Result<Option<PcieLink>> {
        let gpu_handle = self.handle.0;
        let generation = get_at_most!(
            self.table, nvmlDeviceGetCurrPcieLinkGeneration, gpu_handle; MAX_GENERATION
        );
        let Some(generation) = generation.unsupported_as_none()? else { return Ok(None) };
        let width = get_at_most!(self.table, nvmlDeviceGetCurrPcieLinkWidth, gpu_handle; MAX_WIDTH);
        Ok(width.unsupported_as_none()?.map(|width| PcieLink { generation, width }))
    }
}
