//! MIG mode and instances.

use nvml_wrapper_sys::bindings as sys;

use crate::{
    Result,
    error::{NvmlError, UnsupportedAsNone as _},
    gpu::Gpu,
    library::{call, get, get_at_most},
};

/// MIG mode of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MigMode {
    /// The GPU does not support MIG.
    Unsupported,
    /// MIG is off.
    Disabled,
    /// MIG is on, and only instances are usable.
    Enabled,
}

/// A MIG instance, which can be allocated.
#[derive(Clone, Debug, PartialEq)]
pub struct MigInstance {
    /// Index among the GPU's instances.
    pub index: u32,
    /// Device handle of the instance, for UUID, name and memory.
    pub device: Gpu,
    /// Id of the GPU instance.
    pub gpu_instance: u32,
    /// Id of the compute instance.
    pub compute_instance: u32,
    /// Capacities.
    pub capacities: MigCapacities,
}

/// Capacities of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MigCapacities {
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Copy engines.
    pub copy_engines: u32,
    /// Video decoders.
    pub decoders: u32,
    /// Video encoders.
    pub encoders: u32,
    /// JPEG engines.
    pub jpeg_engines: u32,
    /// Optical flow engines.
    pub ofa_engines: u32,
    /// Memory in MiB.
    pub memory_mib: u64,
}

/// Upper bound of instances per GPU; real GPUs have at most eight.
const MAX_INSTANCES: u32 = 256;

impl Gpu {
    /// Current MIG mode.
    pub fn mig_mode(&self) -> Result<MigMode> {
        let (mut current, mut pending) = (0, 0);
        let result = call!(
            self.table,
            nvmlDeviceGetMigMode,
            self.handle.0,
            &raw mut current,
            &raw mut pending
        );
        Ok(match result.unsupported_as_none()? {
            None => MigMode::Unsupported,
            Some(()) if current == sys::NVML_DEVICE_MIG_ENABLE => MigMode::Enabled,
            Some(()) => MigMode::Disabled,
        })
    }

    /// Turns MIG on. Fails while the GPU is in use ([`NvmlError::is_in_use`](crate::NvmlError::is_in_use)).
    /// On most GPUs before Hopper the mode becomes pending until a reset, which is an error too
    /// ([`NvmlError::is_lost`](crate::NvmlError::is_lost)).
    pub fn enable_mig(&self) -> Result<()> {
        self.set_mig_mode(sys::NVML_DEVICE_MIG_ENABLE)
    }

    /// Turns MIG off, with the same errors. No instance may exist.
    pub fn disable_mig(&self) -> Result<()> {
        self.set_mig_mode(sys::NVML_DEVICE_MIG_DISABLE)
    }

    /// Sets the mode. The call itself returns the result of the request; `activation` is the result of the change.
    fn set_mig_mode(&self, mode: u32) -> Result<()> {
        let activation = get!(self.table, nvmlDeviceSetMigMode, self.handle.0, mode)?;
        NvmlError::check("nvmlDeviceSetMigMode", activation)
    }

    /// Instances in NVML's order, each with its own error. Indexes without an instance are skipped.
    pub fn mig_instances(&self) -> Result<Vec<Result<MigInstance>>> {
        let (table, gpu_handle) = (&self.table, self.handle.0);
        let indexes =
            get_at_most!(table, nvmlDeviceGetMaxMigDeviceCount, gpu_handle; MAX_INSTANCES)?;
        let exists = |instance: &Result<MigInstance>| {
            !instance.as_ref().is_err_and(|error| error.is_absent())
        };
        Ok((0..indexes).map(|index| self.mig_instance(index)).filter(exists).collect())
    }

    fn mig_instance(&self, index: u32) -> Result<MigInstance> {
        let device = self.mig_device(index)?;
        let handle = device.handle.0;
        Ok(MigInstance {
            index,
            gpu_instance: get!(self.table, nvmlDeviceGetGpuInstanceId, handle)?,
            compute_instance: get!(self.table, nvmlDeviceGetComputeInstanceId, handle)?,
            capacities: device.mig_capacities()?,
            device,
        })
    }

    /// Device handle of the instance at an index, for UUID, name and memory.
    pub fn mig_device(&self, index: u32) -> Result<Self> {
        let handle = get!(self.table, nvmlDeviceGetMigDeviceHandleByIndex, self.handle.0, index)?;
        Ok(Self::new(self.table.clone(), handle))
    }

    fn mig_capacities(&self) -> Result<MigCapacities> {
        let attributes = get!(self.table, nvmlDeviceGetAttributes_v2, self.handle.0)?;
        Ok(MigCapacities {
            multiprocessors: attributes.multiprocessorCount,
            copy_engines: attributes.sharedCopyEngineCount,
            decoders: attributes.sharedDecoderCount,
            encoders: attributes.sharedEncoderCount,
            jpeg_engines: attributes.sharedJpegCount,
            ofa_engines: attributes.sharedOfaCount,
            memory_mib: attributes.memorySizeMB,
        })
    }
}
