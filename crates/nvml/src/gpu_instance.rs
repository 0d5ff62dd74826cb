//! GPU instances and compute instances, which form MIG devices.
//!
//! Changes need root or the MIG configuration capability. The driver refuses to create an instance for which the GPU
//! has no room ([`NvmlError::is_insufficient_resources`](crate::NvmlError::is_insufficient_resources)), and to remove
//! an instance in use ([`NvmlError::is_in_use`](crate::NvmlError::is_in_use)). While MIG is off, calls fail with
//! [`NvmlError::is_unsupported`](crate::NvmlError::is_unsupported).

use std::{fmt, ptr, sync::Arc};

use nvml_wrapper_sys::bindings as sys;

use crate::{
    MigPlacement, Result,
    error::{NvmlError, UnsupportedAsNone as _},
    gpu::Gpu,
    library::{Table, call, get},
};

/// GPU instance: a part of a GPU with its own memory and engines.
#[derive(Clone)]
pub struct GpuInstance {
    table: Arc<Table>,
    handle: sys::nvmlGpuInstance_t,
}

/// Compute instance: runs programs in a GPU instance.
#[derive(Clone)]
pub struct ComputeInstance {
    table: Arc<Table>,
    handle: sys::nvmlComputeInstance_t,
}

/// Properties of a GPU instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuInstanceInfo {
    /// Id on the GPU.
    pub id: u32,
    /// Profile id of the driver.
    pub profile_id: u32,
    /// Position in memory slices.
    pub placement: MigPlacement,
}

// SAFETY: the pointer is an opaque handle that only NVML dereferences, and NVML is thread-safe.
unsafe impl Send for GpuInstance {}
// SAFETY: as above.
unsafe impl Sync for GpuInstance {}
// SAFETY: as above.
unsafe impl Send for ComputeInstance {}
// SAFETY: as above.
unsafe impl Sync for ComputeInstance {}

/// Capacity of the buffer for handles, which the functions do not check. No GPU has as many instances of a profile.
const MAX_INSTANCES: usize = 16;

/// Calls a function whose last arguments are a buffer for handles and their number; returns the handles.
macro_rules! get_handles {
    ($table:expr, $function:ident $(, $argument:expr)*) => {{
        let mut handles = [ptr::null_mut(); MAX_INSTANCES];
        let count = get!($table, $function $(, $argument)*, handles.as_mut_ptr());
        count.map(|count: u32| handles.into_iter().take(count as usize))
    }};
}

impl Gpu {
    /// Creates a GPU instance at a placement of a profile.
    pub fn create_gpu_instance(
        &self,
        profile_id: u32,
        placement: MigPlacement,
    ) -> Result<GpuInstance> {
        let placement = sys::nvmlGpuInstancePlacement_t::from(placement);
        let handle = get!(
            self.table,
            nvmlDeviceCreateGpuInstanceWithPlacement,
            self.handle.0,
            profile_id,
            &raw const placement
        )?;
        Ok(GpuInstance { table: self.table.clone(), handle })
    }

    /// The GPU instance with this id.
    pub fn gpu_instance(&self, id: u32) -> Result<GpuInstance> {
        let handle = get!(self.table, nvmlDeviceGetGpuInstanceById, self.handle.0, id)?;
        Ok(GpuInstance { table: self.table.clone(), handle })
    }

    /// The parent GPU of a MIG device.
    pub fn parent_gpu(&self) -> Result<Self> {
        let mig_handle = self.handle.0;
        let handle = get!(self.table, nvmlDeviceGetDeviceHandleFromMigDeviceHandle, mig_handle)?;
        Ok(Self::new(self.table.clone(), handle))
    }

    /// Id of a MIG device's GPU instance.
    pub fn gpu_instance_id(&self) -> Result<u32> {
        get!(self.table, nvmlDeviceGetGpuInstanceId, self.handle.0)
    }

    /// GPU instances of one profile.
    pub fn gpu_instances_of(&self, profile_id: u32) -> Result<Vec<GpuInstance>> {
        let (table, gpu_handle) = (&self.table, self.handle.0);
        let handles = get_handles!(table, nvmlDeviceGetGpuInstances, gpu_handle, profile_id)?;
        Ok(handles.map(|handle| GpuInstance { table: table.clone(), handle }).collect())
    }
}

// === impl GpuInstance ===

impl GpuInstance {
    /// Id, profile and placement.
    pub fn info(&self) -> Result<GpuInstanceInfo> {
        let info = get!(self.table, nvmlGpuInstanceGetInfo, self.handle)?;
        let (id, profile_id) = (info.id, info.profileId);
        Ok(GpuInstanceInfo { id, profile_id, placement: info.placement.into() })
    }

    /// Creates the compute instance that fills this GPU instance.
    pub fn create_compute_instance(&self) -> Result<ComputeInstance> {
        let profiles = self.compute_profiles()?;
        // Of equally large profiles, the first has no additional engines. `max_by_key` returns the last, hence `rev`.
        let largest_profile = profiles.iter().rev().max_by_key(|profile| profile.sliceCount);
        let largest_profile = largest_profile.ok_or(NvmlError {
            call: "nvmlGpuInstanceGetComputeInstanceProfileInfo",
            code: sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED,
        })?;
        let (table, instance_handle) = (&self.table, self.handle);
        let handle =
            get!(table, nvmlGpuInstanceCreateComputeInstance, instance_handle, largest_profile.id)?;
        Ok(ComputeInstance { table: table.clone(), handle })
    }

    /// Compute instances of any size in this GPU instance.
    pub fn compute_instances(&self) -> Result<Vec<ComputeInstance>> {
        let profiles = self.compute_profiles()?;
        let instances_of_profile =
            |profile: &sys::nvmlComputeInstanceProfileInfo_t| self.compute_instances_of(profile.id);
        let instances: Result<Vec<_>> = profiles.iter().map(instances_of_profile).collect();
        Ok(instances?.into_iter().flatten().collect())
    }

    /// Destroys this GPU instance, which must have no compute instance.
    pub fn destroy(&self) -> Result<()> {
        call!(self.table, nvmlGpuInstanceDestroy, self.handle)
    }

    fn compute_profiles(&self) -> Result<Vec<sys::nvmlComputeInstanceProfileInfo_t>> {
        let profile = |number| {
            let result = get!(
                self.table,
                nvmlGpuInstanceGetComputeInstanceProfileInfo,
                self.handle,
                number,
                sys::NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
            );
            match result {
                // An unknown profile number is an invalid argument.
                Err(error) if error.is_absent() => None,
                profile => profile.unsupported_as_none().transpose(),
            }
        };
        (0..sys::NVML_COMPUTE_INSTANCE_PROFILE_COUNT).filter_map(profile).collect()
    }

    fn compute_instances_of(&self, profile_id: u32) -> Result<Vec<ComputeInstance>> {
        let (table, instance_handle) = (&self.table, self.handle);
        let handles =
            get_handles!(table, nvmlGpuInstanceGetComputeInstances, instance_handle, profile_id)?;
        Ok(handles.map(|handle| ComputeInstance { table: table.clone(), handle }).collect())
    }
}

impl fmt::Debug for GpuInstance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("GpuInstance").field(&self.handle).finish()
    }
}

// === impl ComputeInstance ===

impl ComputeInstance {
    /// Id within its GPU instance.
    pub fn id(&self) -> Result<u32> {
        Ok(get!(self.table, nvmlComputeInstanceGetInfo_v2, self.handle)?.id)
    }

    /// Destroys this compute instance, which no process may use.
    pub fn destroy(&self) -> Result<()> {
        call!(self.table, nvmlComputeInstanceDestroy, self.handle)
    }
}

impl fmt::Debug for ComputeInstance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ComputeInstance").field(&self.handle).finish()
    }
}
