//! MIG: a GPU cut into instances.

use nvml_wrapper_sys::bindings as sys;

use crate::{
    Result,
    error::{NvmlError, Optional as _, at_most},
    gpu::Gpu,
    library::{call, get},
};

/// Whether a GPU is cut into instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MigMode {
    /// The GPU cannot do MIG.
    Unsupported,
    /// It could, and is whole.
    Disabled,
    /// Only its instances can be used.
    Enabled,
}

/// One instance that a container can be given.
#[derive(Clone, Debug, PartialEq)]
pub struct MigInstance {
    /// Position among the GPU's instances.
    pub index: u32,
    /// The instance as a device; it answers uuid, name and memory.
    pub device: Gpu,
    /// Id of the GPU instance, which has the memory and engines.
    pub gpu_instance: u32,
    /// Id of the compute instance within it.
    pub compute_instance: u32,
    /// What it has of the GPU.
    pub share: MigShare,
}

/// What an instance has of its GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MigShare {
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

/// More than any GPU is cut to, which is eight for now.
const MOST_INSTANCES: u32 = 256;

impl Gpu {
    /// Whether the GPU is cut into instances now.
    pub fn mig_mode(&self) -> Result<MigMode> {
        let (mut current, mut pending) = (0, 0);
        let asked = call!(
            self.table,
            nvmlDeviceGetMigMode,
            self.handle.0,
            &raw mut current,
            &raw mut pending
        );
        Ok(match asked.optional()? {
            None => MigMode::Unsupported,
            Some(()) if current == sys::NVML_DEVICE_MIG_ENABLE => MigMode::Enabled,
            Some(()) => MigMode::Disabled,
        })
    }

    /// Turns MIG on. The driver refuses while somebody uses the GPU
    /// ([`NvmlError::is_in_use`](crate::NvmlError::is_in_use)), and where it takes a reset, before Hopper as a rule,
    /// the mode is only asked for, and that is the error
    /// ([`NvmlError::is_lost`](crate::NvmlError::is_lost)).
    pub fn turn_mig_on(&self) -> Result<()> {
        self.set_mig_mode(sys::NVML_DEVICE_MIG_ENABLE)
    }

    /// Turns MIG off, as [`Self::turn_mig_on`] turns it on. No instance may stand.
    pub fn turn_mig_off(&self) -> Result<()> {
        self.set_mig_mode(sys::NVML_DEVICE_MIG_DISABLE)
    }

    /// What the call gives is that the mode was asked for; whether it took effect is told beside it.
    fn set_mig_mode(&self, mode: u32) -> Result<()> {
        let mut activation = 0;
        call!(self.table, nvmlDeviceSetMigMode, self.handle.0, mode, &raw mut activation)?;
        NvmlError::check("nvmlDeviceSetMigMode", activation)
    }

    /// The instances, in NVML's order, each with its own error. Positions that hold none, or hold
    /// none any more, are skipped.
    pub fn mig_instances(&self) -> Result<Vec<Result<MigInstance>>> {
        let places = get!(self.table, nvmlDeviceGetMaxMigDeviceCount, self.handle.0)?;
        let places = at_most("nvmlDeviceGetMaxMigDeviceCount", places, MOST_INSTANCES)?;
        let there = |instance: &Result<MigInstance>| {
            !instance.as_ref().is_err_and(|error| error.is_absent())
        };
        Ok((0..places).map(|index| self.mig_instance(index)).filter(there).collect())
    }

    fn mig_instance(&self, index: u32) -> Result<MigInstance> {
        let device = self.mig_device(index)?;
        let handle = device.handle.0;
        Ok(MigInstance {
            index,
            gpu_instance: get!(self.table, nvmlDeviceGetGpuInstanceId, handle)?,
            compute_instance: get!(self.table, nvmlDeviceGetComputeInstanceId, handle)?,
            share: device.mig_share()?,
            device,
        })
    }

    /// The instance at a position, as a device: it answers uuid, name and memory.
    pub fn mig_device(&self, index: u32) -> Result<Self> {
        let mut handle = std::ptr::null_mut();
        call!(
            self.table,
            nvmlDeviceGetMigDeviceHandleByIndex,
            self.handle.0,
            index,
            &raw mut handle
        )?;
        Ok(Self::new(self.table.clone(), handle))
    }

    fn mig_share(&self) -> Result<MigShare> {
        // SAFETY: integers, for which all zeros is a value.
        let mut attributes: sys::nvmlDeviceAttributes_t = unsafe { std::mem::zeroed() };
        call!(self.table, nvmlDeviceGetAttributes_v2, self.handle.0, &raw mut attributes)?;
        Ok(MigShare {
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
