//! Subset of the CUDA driver API for overwriting a GPU's memory: one context, allocations, writes and reads.
//!
//! Names, signatures and numbers match `cuda.h` of CUDA 12. The file `cuda/<UUID>` in the machine's folder contains the
//! number of bytes that the last program has set to zero.

use std::{
    env,
    ffi::{c_int, c_uint},
    fs,
    sync::{Mutex, MutexGuard, PoisonError},
};

use windlass_machine::{Model, state::CudaFault};

use crate::{
    abi::{Out, OutArray},
    cuda_memory::AddressSpace,
    handle::{Device, DeviceSnapshot, GpuSnapshot},
    library,
    memory::Memory,
    memory_limits::{self, ProcessLimit},
    process::compute_processes_of,
    status::{Code, NvmlResult, Status},
    watch::Generation,
};

/// `CUresult` other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CudaError(Code);

/// Result of a CUDA function.
type CudaResult<T = ()> = Result<T, CudaError>;

/// CUDA state of this process.
struct ProcessState {
    /// UUIDs of the visible devices, after initialisation.
    visible: Option<Vec<String>>,
    context: Option<Context>,
}

/// CUDA context. A process has one at a time.
struct Context {
    uuid: String,
    address_space: AddressSpace,
    /// Number of bytes set to zero.
    zeroed: u64,
}

static STATE: Mutex<ProcessState> = Mutex::new(ProcessState { visible: None, context: None });

/// Environment variable with the UUIDs of the visible devices, in order.
const VISIBLE_DEVICES: &str = "CUDA_VISIBLE_DEVICES";

/// Folder of the files with the numbers of zeroed bytes.
const ZEROED_FOLDER: &str = "cuda";

/// `CU_DEVICE_ATTRIBUTE_INTEGRATED`.
const ATTRIBUTE_INTEGRATED: c_int = 18;

/// `CU_COMPUTEMODE_PROHIBITED`.
const COMPUTE_MODE_PROHIBITED: u32 = 2;

const MIB: u64 = 1 << 20;

/// Memory that a context itself uses.
const CONTEXT_BYTES: u64 = 256 * MIB;

/// Only context handle: in C an opaque pointer, which callers do not dereference.
const CONTEXT_HANDLE: usize = 1;

export! {
    fn cuInit(flags: c_uint) {
        to_nvml_result(|| {
            if flags != 0 {
                return Err(CudaError::INVALID_VALUE);
            }
            library::init().map_err(|_| CudaError::NO_DEVICE)?;
            let visible = visible_uuids(&*library::current_model()?);
            if visible.is_empty() {
                return Err(CudaError::NO_DEVICE);
            }
            lock_state().visible = Some(visible);
            Ok(())
        })
    }

    fn cuDeviceGet(device: Out<c_int>, ordinal: c_int) {
        to_nvml_result(|| {
            uuid_of(ordinal)?;
            Ok(device.put(ordinal)?)
        })
    }

    fn cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, device: c_int) {
        to_nvml_result(|| Ok(uuid.put(bytes_of(&uuid_of(device)?))?))
    }

    fn cuDeviceGetAttribute(value: Out<c_int>, attribute: c_int, device: c_int) {
        to_nvml_result(|| {
            uuid_of(device)?;
            if attribute != ATTRIBUTE_INTEGRATED {
                return Err(CudaError::INVALID_VALUE);
            }
            Ok(value.put(0)?)
        })
    }

    fn cuCtxCreate_v2(context: Out<usize>, _flags: c_uint, device: c_int) {
        to_nvml_result(|| {
            let uuid = uuid_of(device)?;
            let snapshot = find_device(&uuid)?;
            let gpu = gpu_of(&snapshot);
            if let Some(CudaFault::Error(code)) = gpu.faults.cuda {
                return Err(CudaError(code));
            }
            if gpu.compute_mode == COMPUTE_MODE_PROHIBITED {
                return Err(CudaError::DEVICE_UNAVAILABLE);
            }
            let free = free_for_process(&snapshot, 0)?;
            if free == 0 {
                return Err(CudaError::OUT_OF_MEMORY);
            }
            context.put(CONTEXT_HANDLE)?;
            lock_state().context = Some(Context { uuid, address_space: AddressSpace::default(), zeroed: 0 });
            Ok(())
        })
    }

    fn cuCtxDestroy_v2(_context: usize) {
        to_nvml_result(|| {
            let context = lock_state().context.take().ok_or(CudaError::INVALID_CONTEXT)?;
            discharge(&context.uuid, 0)
        })
    }

    fn cuCtxSynchronize() {
        to_nvml_result(|| current_device().map(drop))
    }

    fn cuMemGetInfo_v2(free_bytes: Out<usize>, total: Out<usize>) {
        to_nvml_result(|| {
            let snapshot = current_device()?;
            let allocated = with_context(|context| Ok(context.address_space.allocated()))?;
            free_bytes.put(as_size(free_for_process(&snapshot, allocated)?)?)?;
            Ok(total.put(as_size(total_for_process(&snapshot)?)?)?)
        })
    }

    fn cuMemAlloc_v2(address: Out<u64>, bytes: usize) {
        to_nvml_result(|| {
            let snapshot = current_device()?;
            address.check()?;
            let allocated = with_context(|context| Ok(context.address_space.allocated()))?;
            let free = free_for_process(&snapshot, allocated)?;
            let start = with_context(|context| context.address_space.allocate(bytes as u64, free))?;
            // Another process of the cgroup may have allocated the memory meanwhile.
            if !charge(&snapshot, with_context(|context| Ok(context.address_space.allocated()))?)? {
                with_context(|context| context.address_space.free(start))?;
                return Err(CudaError::OUT_OF_MEMORY);
            }
            Ok(address.put(start)?)
        })
    }

    fn cuMemFree_v2(address: u64) {
        to_nvml_result(|| {
            with_context(|context| {
                context.address_space.free(address)?;
                discharge(&context.uuid, context.address_space.allocated())
            })
        })
    }

    fn cuMemsetD8_v2(address: u64, value: u8, bytes: usize) {
        to_nvml_result(|| {
            let snapshot = current_device()?;
            if gpu_of(&snapshot).faults.cuda == Some(CudaFault::Stale) {
                return Ok(());
            }
            with_context(|context| {
                context.address_space.set(address, bytes as u64, value)?;
                if value == 0 {
                    context.zeroed += bytes as u64;
                }
                context.publish_zeroed()
            })
        })
    }

    fn cuMemcpyDtoH_v2(buffer: OutArray<u8>, address: u64, bytes: usize) {
        to_nvml_result(|| {
            current_device()?;
            let content = with_context(|context| context.address_space.read(address, bytes as u64))?;
            Ok(buffer.put(bytes, &content)?)
        })
    }
}

// === impl CudaError ===

impl CudaError {
    pub(crate) const INVALID_VALUE: Self = Self(1);
    pub(crate) const OUT_OF_MEMORY: Self = Self(2);
    const NOT_INITIALIZED: Self = Self(3);
    const DEVICE_UNAVAILABLE: Self = Self(46);
    const NO_DEVICE: Self = Self(100);
    const INVALID_DEVICE: Self = Self(101);
    const INVALID_CONTEXT: Self = Self(201);
    const UNKNOWN: Self = Self(999);
}

impl From<Status> for CudaError {
    /// Converts an NVML status to a CUDA result.
    fn from(status: Status) -> Self {
        match status {
            Status::INVALID_ARGUMENT => Self::INVALID_VALUE,
            Status::UNINITIALIZED => Self::NOT_INITIALIZED,
            Status::DRIVER_NOT_LOADED => Self::NO_DEVICE,
            _ => Self::UNKNOWN,
        }
    }
}

// === impl Context ===

impl Context {
    /// Publishes the number of zeroed bytes for tests and tools.
    fn publish_zeroed(&self) -> CudaResult {
        let folder = library::machine_dir()?.join(ZEROED_FOLDER);
        let result = fs::create_dir_all(&folder);
        let result =
            result.and_then(|()| fs::write(folder.join(&self.uuid), self.zeroed.to_string()));
        result.map_err(|_| CudaError::UNKNOWN)
    }
}

/// Converts a CUDA result to the type of [`export`]. NVML's and CUDA's codes are both plain numbers in the ABI.
fn to_nvml_result(body: impl FnOnce() -> CudaResult) -> NvmlResult {
    body().map_err(|CudaError(code)| Status(code))
}

/// UUIDs of visible devices: all unpartitioned GPUs, or those of the variable up to the first unknown one.
fn visible_uuids(model: &Model) -> Vec<String> {
    if let Ok(names) = env::var(VISIBLE_DEVICES) {
        let names = names.split(',').map(|name| name.trim().to_owned());
        return names.take_while(|name| device_with_uuid(model, name).is_some()).collect();
    }
    let unpartitioned = model.gpus.iter().filter(|gpu| gpu.mig.is_none());
    unpartitioned.map(|gpu| gpu.uuid.clone()).collect()
}

/// Unpartitioned GPU or MIG device with this UUID.
fn device_with_uuid(model: &Model, uuid: &str) -> Option<Device> {
    let mig_devices = model
        .gpus
        .iter()
        .flat_map(|gpu| gpu.mig_devices().map(move |mig_device| (gpu, mig_device)));
    let mut mig_devices = mig_devices.filter(|(_, (_, compute))| compute.uuid == uuid);
    let find_mig_device = || {
        let (gpu, (instance, compute)) = mig_devices.next()?;
        Some(Device::of_instance(gpu, instance, compute))
    };
    let gpu = model.gpus.iter().find(|gpu| gpu.uuid == uuid && gpu.mig.is_none());
    gpu.map(Device::of_gpu).or_else(find_mig_device)
}

fn uuid_of(ordinal: c_int) -> CudaResult<String> {
    let process = lock_state();
    let visible = process.visible.as_ref().ok_or(CudaError::NOT_INITIALIZED)?;
    let uuid = usize::try_from(ordinal).ok().and_then(|ordinal| visible.get(ordinal));
    uuid.cloned().ok_or(CudaError::INVALID_DEVICE)
}

/// Device with this UUID. Blocks while its CUDA fault is a hang.
fn find_device(uuid: &str) -> CudaResult<DeviceSnapshot> {
    loop {
        let generation = Generation::current()?;
        let device =
            device_with_uuid(&*library::current_model()?, uuid).ok_or(CudaError::UNKNOWN)?;
        let snapshot = device.find().map_err(|_| CudaError::UNKNOWN)?;
        if gpu_of(&snapshot).faults.cuda != Some(CudaFault::Hang) {
            return Ok(snapshot);
        }
        generation.wait(None)?;
    }
}

/// Device of the current context.
fn current_device() -> CudaResult<DeviceSnapshot> {
    let uuid = with_context(|context| Ok(context.uuid.clone()))?;
    find_device(&uuid)
}

fn with_context<T>(action: impl FnOnce(&mut Context) -> CudaResult<T>) -> CudaResult<T> {
    lock_state().context.as_mut().ok_or(CudaError::INVALID_CONTEXT).and_then(action)
}

fn gpu_of(snapshot: &DeviceSnapshot) -> &GpuSnapshot {
    match snapshot {
        DeviceSnapshot::Gpu(gpu) => gpu,
        DeviceSnapshot::Mig(instance) => &instance.gpu,
    }
}

/// Reduces the charge of this process to `allocated` bytes. Faults of the device are ignored.
fn discharge(uuid: &str, allocated: u64) -> CudaResult {
    let Ok(model) = library::current_model() else { return Ok(()) };
    match model.gpus.iter().find(|gpu| gpu.uuid == uuid) {
        Some(gpu) => Ok(memory_limits::charge(gpu, allocated).map(drop)?),
        None => Ok(()),
    }
}

/// Total memory available to this process: the device's, or a lower limit of this process.
fn total_for_process(snapshot: &DeviceSnapshot) -> CudaResult<u64> {
    let Memory { total, reserved, .. } = Memory::of(snapshot)?;
    let usable_bytes = total - reserved;
    Ok(limits(snapshot).map_or(usable_bytes, |limit| limit.hard.min(usable_bytes)))
}

/// Limits of this process. A MIG device has no limits.
fn limits(snapshot: &DeviceSnapshot) -> Option<ProcessLimit> {
    match snapshot {
        DeviceSnapshot::Gpu(gpu) => memory_limits::process_limit(gpu),
        DeviceSnapshot::Mig(_) => None,
    }
}

/// Sets the charge of this process to `allocated` bytes. Returns false if a limit would be exceeded.
fn charge(snapshot: &DeviceSnapshot, allocated: u64) -> CudaResult<bool> {
    match snapshot {
        DeviceSnapshot::Gpu(gpu) => Ok(memory_limits::charge(gpu, allocated)?),
        DeviceSnapshot::Mig(_) => Ok(true),
    }
}

/// Free memory for this process, which already has `allocated` bytes.
fn free_for_process(snapshot: &DeviceSnapshot, allocated: u64) -> CudaResult<u64> {
    let processes =
        compute_processes_of(snapshot).iter().map(|process| process.memory_mib * MIB).sum::<u64>();
    let used = Memory::of(snapshot)?.used + processes + CONTEXT_BYTES + allocated;
    let Memory { total, reserved, .. } = Memory::of(snapshot)?;
    let free = (total - reserved).saturating_sub(used);
    Ok(limits(snapshot).map_or(free, |limit| limit.remaining.min(free)))
}

fn as_size(bytes: u64) -> CudaResult<usize> {
    usize::try_from(bytes).map_err(|_| CudaError::UNKNOWN)
}

/// Sixteen bytes of a UUID, without `GPU-` or `MIG-`.
fn bytes_of(uuid: &str) -> [u8; 16] {
    let digits = uuid.chars().skip("GPU-".len()).filter_map(|letter| letter.to_digit(16));
    let number = digits.fold(0_u128, |number, digit| number << 4 | u128::from(digit));
    number.to_be_bytes()
}

/// Locks the CUDA state. A poisoned lock guards a valid value, because each field is replaced as a whole.
fn lock_state() -> MutexGuard<'static, ProcessState> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}
