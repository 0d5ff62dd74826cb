//! Device and instance handles: numbers in pointer form, never dereferenced.
//!
//! ```text
//! GPU number + 1 | kind | GPU instance | compute instance
//!   bits 16..    | 12.. |     4..      |       0..
//! ```

use std::{ops::Deref, ptr, sync::Arc};

use nvml_wrapper_sys::bindings as sys;
use windlass_machine::{
    Model,
    card::MigCapability,
    mig::GpuInstanceProfile,
    state::{ComputeInstance as Compute, Gpu, LibraryDefect, MigInstance},
};

use crate::{
    abi, faults, library,
    status::{NvmlResult, Status},
};

/// `nvmlDevice_t`: a GPU or a MIG device.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Device(sys::nvmlDevice_t);

/// `nvmlGpuInstance_t`.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GpuInstance(sys::nvmlGpuInstance_t);

/// `nvmlComputeInstance_t`.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ComputeInstance(sys::nvmlComputeInstance_t);

/// Current state of a GPU.
#[derive(Debug)]
pub(crate) struct GpuSnapshot {
    model: Arc<Model>,
    index: usize,
}

/// Current state of a MIG instance.
#[derive(Debug)]
pub(crate) struct InstanceSnapshot {
    /// GPU of the instance.
    pub(crate) gpu: GpuSnapshot,
    index: usize,
}

/// Target of a device handle.
#[derive(Debug)]
pub(crate) enum DeviceSnapshot {
    /// GPU, in any MIG mode.
    Gpu(GpuSnapshot),
    /// MIG device.
    Mig(InstanceSnapshot),
}

/// Decoded handle.
#[derive(Clone, Copy, PartialEq, Eq)]
struct DecodedHandle {
    number: u32,
    kind: HandleKind,
    gpu_instance: u32,
    compute_instance: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum HandleKind {
    Gpu,
    MigDevice,
    GpuInstance,
    ComputeInstance,
}

// === impl Device ===

impl Device {
    pub(crate) fn of_gpu(gpu: &Gpu) -> Self {
        Self(DecodedHandle::gpu(gpu).to_pointer())
    }

    pub(crate) fn of_instance(gpu: &Gpu, instance: &MigInstance, compute: &Compute) -> Self {
        Self(
            DecodedHandle::with_compute(HandleKind::MigDevice, gpu, (instance, compute))
                .to_pointer(),
        )
    }

    /// Finds the target. Faults of its GPU delay or fail the call.
    pub(crate) fn find(self) -> NvmlResult<DeviceSnapshot> {
        match DecodedHandle::from_address(self.0.addr()) {
            Some(handle) if handle.kind == HandleKind::Gpu => {
                handle.find_gpu().map(DeviceSnapshot::Gpu)
            }
            Some(handle) if handle.kind == HandleKind::MigDevice => {
                handle.find_instance().map(DeviceSnapshot::Mig)
            }
            // An uninitialised library takes precedence over an invalid handle.
            Some(_) | None => library::current_model().and(Err(Status::INVALID_ARGUMENT)),
        }
    }

    /// Finds a GPU. A MIG device is "not supported", as in most functions.
    pub(crate) fn gpu(self) -> NvmlResult<GpuSnapshot> {
        match self.find()? {
            DeviceSnapshot::Gpu(gpu) => Ok(gpu),
            DeviceSnapshot::Mig(_) => Err(Status::NOT_SUPPORTED),
        }
    }

    /// Finds a GPU, even a lost one.
    pub(crate) fn gpu_even_if_lost(self) -> NvmlResult<GpuSnapshot> {
        let handle = DecodedHandle::from_address(self.0.addr())
            .filter(|handle| handle.kind == HandleKind::Gpu);
        match handle {
            Some(handle) => {
                faults::find_gpu_even_if_lost(handle.number).map(GpuSnapshot::with_garbage_fault)
            }
            None => self.gpu(),
        }
    }

    /// Handle for use in structs.
    pub(crate) fn raw(self) -> sys::nvmlDevice_t {
        self.0
    }
}

// === impl GpuInstance ===

impl GpuInstance {
    pub(crate) fn of(gpu: &Gpu, instance: &MigInstance) -> Self {
        Self::with_id(gpu, instance.gpu_instance)
    }

    pub(crate) fn with_id(gpu: &Gpu, gpu_instance: u32) -> Self {
        let handle = DecodedHandle {
            kind: HandleKind::GpuInstance,
            gpu_instance,
            ..DecodedHandle::gpu(gpu)
        };
        Self(handle.to_pointer())
    }

    pub(crate) fn find(self) -> NvmlResult<InstanceSnapshot> {
        find_instance(self.0.addr(), HandleKind::GpuInstance)
    }

    /// Handle for use in structs.
    pub(crate) fn raw(self) -> sys::nvmlGpuInstance_t {
        self.0
    }
}

// === impl ComputeInstance ===

impl ComputeInstance {
    pub(crate) fn of(gpu: &Gpu, instance: &MigInstance, compute: &Compute) -> Self {
        Self(
            DecodedHandle::with_compute(HandleKind::ComputeInstance, gpu, (instance, compute))
                .to_pointer(),
        )
    }

    pub(crate) fn with_ids(gpu: &Gpu, gpu_instance: u32, compute_instance: u32) -> Self {
        let kind = HandleKind::ComputeInstance;
        let handle =
            DecodedHandle { kind, gpu_instance, compute_instance, ..DecodedHandle::gpu(gpu) };
        Self(handle.to_pointer())
    }

    pub(crate) fn find(self) -> NvmlResult<InstanceSnapshot> {
        find_instance(self.0.addr(), HandleKind::ComputeInstance)
    }
}

// === impl GpuSnapshot ===

impl GpuSnapshot {
    pub(crate) fn new(model: Arc<Model>, index: usize) -> Self {
        Self { model, index }
    }

    /// Turns further output of the call into garbage if the GPU has that fault. Functions that return GPU handles skip
    /// this step, so a handle is always valid.
    fn with_garbage_fault(self) -> Self {
        if self.faults.defect == Some(LibraryDefect::Garbage) {
            abi::write_garbage();
        }
        self
    }

    /// NVML index of the GPU.
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// Machine of the GPU.
    pub(crate) fn machine(&self) -> &Model {
        &self.model
    }

    /// MIG capability of the card; fails on a card without MIG.
    pub(crate) fn capability(&self) -> NvmlResult<MigCapability> {
        self.card.mig.ok_or(Status::NOT_SUPPORTED)
    }

    /// MIG instances; fails on a card without MIG, and while MIG is off.
    pub(crate) fn instances(&self) -> NvmlResult<&[MigInstance]> {
        self.mig.as_deref().ok_or(Status::NOT_SUPPORTED)
    }
}

impl Deref for GpuSnapshot {
    type Target = Gpu;

    fn deref(&self) -> &Gpu {
        &self.model.gpus[self.index]
    }
}

// === impl InstanceSnapshot ===

impl InstanceSnapshot {
    /// Position among the MIG devices of the GPU.
    pub(crate) fn index(&self) -> usize {
        let earlier_instances = self.gpu.mig.iter().flatten().take(self.index);
        earlier_instances.filter(|instance| instance.compute.is_some()).count()
    }

    /// Profile of the instance.
    pub(crate) fn gpu_instance_profile(&self) -> NvmlResult<GpuInstanceProfile> {
        MigInstance::gpu_instance_profile(self, self.gpu.capability()?).ok_or(Status::UNKNOWN)
    }

    /// Compute instance that fills the GPU instance; a MIG device has one.
    pub(crate) fn compute(&self) -> NvmlResult<&Compute> {
        self.compute.as_ref().ok_or(Status::NOT_FOUND)
    }
}

impl Deref for InstanceSnapshot {
    type Target = MigInstance;

    fn deref(&self) -> &MigInstance {
        let instances = self.gpu.mig.as_deref().expect("the constructor found the instance");
        &instances[self.index]
    }
}

// === impl DecodedHandle ===

impl DecodedHandle {
    fn gpu(gpu: &Gpu) -> Self {
        Self { number: gpu.number, kind: HandleKind::Gpu, gpu_instance: 0, compute_instance: 0 }
    }

    fn with_compute(
        kind: HandleKind,
        gpu: &Gpu,
        (instance, compute): (&MigInstance, &Compute),
    ) -> Self {
        Self {
            kind,
            gpu_instance: instance.gpu_instance,
            compute_instance: compute.id,
            ..Self::gpu(gpu)
        }
    }

    fn to_pointer<T>(self) -> *mut T {
        let low = (self.kind as usize) << 12 | (self.gpu_instance as usize) << 4;
        let address = (self.number as usize + 1) << 16 | low | self.compute_instance as usize;
        ptr::without_provenance_mut(address)
    }

    fn from_address(address: usize) -> Option<Self> {
        let bits = |from: u32, count: u32| (address >> from) & ((1 << count) - 1);
        Some(Self {
            number: u32::try_from((address >> 16).checked_sub(1)?).ok()?,
            kind: match bits(12, 4) {
                0 => HandleKind::Gpu,
                1 => HandleKind::MigDevice,
                2 => HandleKind::GpuInstance,
                3 => HandleKind::ComputeInstance,
                _ => return None,
            },
            gpu_instance: u32::try_from(bits(4, 8)).ok()?,
            compute_instance: u32::try_from(bits(0, 4)).ok()?,
        })
    }

    fn find_gpu(self) -> NvmlResult<GpuSnapshot> {
        faults::find_gpu(self.number).map(GpuSnapshot::with_garbage_fault)
    }

    fn find_instance(self) -> NvmlResult<InstanceSnapshot> {
        let gpu = self.find_gpu()?;
        let is_target = |instance: &MigInstance| {
            let compute = instance.compute.as_ref().map(|compute| compute.id);
            instance.gpu_instance == self.gpu_instance
                && (self.kind == HandleKind::GpuInstance || compute == Some(self.compute_instance))
        };
        let position = gpu.mig.iter().flatten().position(is_target);
        let index = position.ok_or(Status::INVALID_ARGUMENT)?;
        Ok(InstanceSnapshot { gpu, index })
    }
}

fn find_instance(address: usize, kind: HandleKind) -> NvmlResult<InstanceSnapshot> {
    library::current_model()?;
    let handle = DecodedHandle::from_address(address).filter(|handle| handle.kind == kind);
    handle.ok_or(Status::INVALID_ARGUMENT)?.find_instance()
}
