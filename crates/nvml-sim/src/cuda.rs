//! Subset of the CUDA driver API for filling a GPU's memory: one context, allocations, writes and reads.
//!
//! Names, signatures and numbers are those of `cuda.h` in CUDA 12. The file `cuda/<UUID>` in the machine's
//! folder contains the number of bytes that a program has set to zero.

use std::{
    env,
    ffi::{c_int, c_uint},
    fs,
    sync::{Mutex, MutexGuard, PoisonError},
};

use windlass_machine::{Model, state::CudaFault};

use crate::{
    abi::{Out, OutArray},
    cuda_memory::Space,
    handle::{Device, Found, FoundGpu},
    library,
    memory::Memory,
    memory_limits::{self, Limited},
    process::computing_on,
    status::{Answer, Code, Status},
    watch::Moment,
};

/// `CUresult` other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal(Code);

/// Result of a CUDA function.
type Reply<T = ()> = Result<T, Refusal>;

/// CUDA state of this process.
struct Process {
    /// UUIDs of the visible devices, after initialisation.
    visible: Option<Vec<String>>,
    context: Option<Context>,
}

/// CUDA context. A process has one at a time.
struct Context {
    uuid: String,
    space: Space,
    /// Number of bytes set to zero.
    zeroed: u64,
}

static PROCESS: Mutex<Process> = Mutex::new(Process { visible: None, context: None });

/// Environment variable with the visible devices, in order.
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// Folder of the files with overwritten byte counts.
const TOLD: &str = "cuda";

/// `CU_DEVICE_ATTRIBUTE_INTEGRATED`.
const INTEGRATED: c_int = 18;

/// `CU_COMPUTEMODE_PROHIBITED`.
const PROHIBITED: u32 = 2;

const MIB: u64 = 1 << 20;

/// Memory use of a context.
const OF_CONTEXT: u64 = 256 * MIB;

/// The only context handle: an opaque pointer in C, never dereferenced.
const CONTEXT: usize = 1;

export! {
    fn cuInit(flags: c_uint) {
        cuda(|| {
            if flags != 0 {
                return Err(Refusal::INVALID_VALUE);
            }
            library::init().map_err(|_| Refusal::NO_DEVICE)?;
            let visible = visible(&*library::machine()?);
            if visible.is_empty() {
                return Err(Refusal::NO_DEVICE);
            }
            process().visible = Some(visible);
            Ok(())
        })
    }

    fn cuDeviceGet(device: Out<c_int>, ordinal: c_int) {
        cuda(|| {
            uuid_of(ordinal)?;
            Ok(device.put(ordinal)?)
        })
    }

    fn cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, device: c_int) {
        cuda(|| Ok(uuid.put(bytes_of(&uuid_of(device)?))?))
    }

    fn cuDeviceGetAttribute(value: Out<c_int>, attribute: c_int, device: c_int) {
        cuda(|| {
            uuid_of(device)?;
            if attribute != INTEGRATED {
                return Err(Refusal::INVALID_VALUE);
            }
            Ok(value.put(0)?)
        })
    }

    fn cuCtxCreate_v2(context: Out<usize>, _flags: c_uint, device: c_int) {
        cuda(|| {
            let uuid = uuid_of(device)?;
            let found = device_called(&uuid)?;
            let gpu = gpu_of(&found);
            if let Some(CudaFault::Error(code)) = gpu.faults.cuda {
                return Err(Refusal(code));
            }
            if gpu.compute_mode == PROHIBITED {
                return Err(Refusal::DEVICE_UNAVAILABLE);
            }
            let free = free(&found, 0)?;
            if free == 0 {
                return Err(Refusal::OUT_OF_MEMORY);
            }
            context.put(CONTEXT)?;
            process().context = Some(Context { uuid, space: Space::default(), zeroed: 0 });
            Ok(())
        })
    }

    fn cuCtxDestroy_v2(_context: usize) {
        cuda(|| {
            let context = process().context.take().ok_or(Refusal::INVALID_CONTEXT)?;
            discharge(&context.uuid, 0)
        })
    }

    fn cuCtxSynchronize() {
        cuda(|| current().map(drop))
    }

    fn cuMemGetInfo_v2(free_bytes: Out<usize>, total: Out<usize>) {
        cuda(|| {
            let found = current()?;
            let taken = in_context(|context| Ok(context.space.taken()))?;
            free_bytes.put(as_size(free(&found, taken)?)?)?;
            Ok(total.put(as_size(usable(&found)?)?)?)
        })
    }

    fn cuMemAlloc_v2(address: Out<u64>, bytes: usize) {
        cuda(|| {
            let found = current()?;
            address.check()?;
            let taken = in_context(|context| Ok(context.space.taken()))?;
            let free = free(&found, taken)?;
            let made = in_context(|context| context.space.take(bytes as u64, free))?;
            // Another process of the cgroup may have been faster.
            if !charge(&found, in_context(|context| Ok(context.space.taken()))?)? {
                in_context(|context| context.space.give_back(made))?;
                return Err(Refusal::OUT_OF_MEMORY);
            }
            Ok(address.put(made)?)
        })
    }

    fn cuMemFree_v2(address: u64) {
        cuda(|| {
            in_context(|context| {
                context.space.give_back(address)?;
                discharge(&context.uuid, context.space.taken())
            })
        })
    }

    fn cuMemsetD8_v2(address: u64, value: u8, bytes: usize) {
        cuda(|| {
            let found = current()?;
            if gpu_of(&found).faults.cuda == Some(CudaFault::Stale) {
                return Ok(());
            }
            in_context(|context| {
                context.space.set(address, bytes as u64, value)?;
                if value == 0 {
                    context.zeroed += bytes as u64;
                }
                context.tell()
            })
        })
    }

    fn cuMemcpyDtoH_v2(to: OutArray<u8>, address: u64, bytes: usize) {
        cuda(|| {
            current()?;
            let read = in_context(|context| context.space.read(address, bytes as u64))?;
            Ok(to.put(bytes, &read)?)
        })
    }
}

// === impl Refusal ===

impl Refusal {
    pub(crate) const INVALID_VALUE: Self = Self(1);
    pub(crate) const OUT_OF_MEMORY: Self = Self(2);
    const NOT_INITIALIZED: Self = Self(3);
    const DEVICE_UNAVAILABLE: Self = Self(46);
    const NO_DEVICE: Self = Self(100);
    const INVALID_DEVICE: Self = Self(101);
    const INVALID_CONTEXT: Self = Self(201);
    const UNKNOWN: Self = Self(999);
}

impl From<Status> for Refusal {
    /// Converts a refusal of the machine to CUDA's codes.
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
    fn tell(&self) -> Reply {
        let folder = library::folder()?.join(TOLD);
        let told = fs::create_dir_all(&folder);
        let told = told.and_then(|()| fs::write(folder.join(&self.uuid), self.zeroed.to_string()));
        told.map_err(|_| Refusal::UNKNOWN)
    }
}

/// Converts a result to the status at the ABI, where both kinds of code are plain numbers.
fn cuda(body: impl FnOnce() -> Reply) -> Answer {
    body().map_err(|Refusal(code)| Status(code))
}

/// Visible devices: all unpartitioned GPUs, or the variable's devices up to the first unknown one.
fn visible(model: &Model) -> Vec<String> {
    if let Ok(names) = env::var(VISIBLE) {
        let names = names.split(',').map(|name| name.trim().to_owned());
        return names.take_while(|name| named(model, name).is_some()).collect();
    }
    let whole = model.gpus.iter().filter(|gpu| gpu.mig.is_none());
    whole.map(|gpu| gpu.uuid.clone()).collect()
}

/// Unpartitioned GPU or MIG device with this UUID.
fn named(model: &Model, uuid: &str) -> Option<Device> {
    let parts = model.gpus.iter().flat_map(|gpu| gpu.mig_devices().map(move |one| (gpu, one)));
    let mut parts = parts.filter(|(_, (_, compute))| compute.uuid == uuid);
    let part = || {
        let (gpu, (instance, compute)) = parts.next()?;
        Some(Device::of_instance(gpu, instance, compute))
    };
    let whole = model.gpus.iter().find(|gpu| gpu.uuid == uuid && gpu.mig.is_none());
    whole.map(Device::of_gpu).or_else(part)
}

fn uuid_of(ordinal: c_int) -> Reply<String> {
    let process = process();
    let visible = process.visible.as_ref().ok_or(Refusal::NOT_INITIALIZED)?;
    let uuid = usize::try_from(ordinal).ok().and_then(|ordinal| visible.get(ordinal));
    uuid.cloned().ok_or(Refusal::INVALID_DEVICE)
}

/// Current device, after its faults let the call through.
fn device_called(uuid: &str) -> Reply<Found> {
    loop {
        let moment = Moment::now()?;
        let device = named(&*library::machine()?, uuid).ok_or(Refusal::UNKNOWN)?;
        let found = device.find().map_err(|_| Refusal::UNKNOWN)?;
        if gpu_of(&found).faults.cuda != Some(CudaFault::Hang) {
            return Ok(found);
        }
        moment.wait(None)?;
    }
}

/// Device of the current context.
fn current() -> Reply<Found> {
    let uuid = in_context(|context| Ok(context.uuid.clone()))?;
    device_called(&uuid)
}

fn in_context<T>(act: impl FnOnce(&mut Context) -> Reply<T>) -> Reply<T> {
    process().context.as_mut().ok_or(Refusal::INVALID_CONTEXT).and_then(act)
}

fn gpu_of(found: &Found) -> &FoundGpu {
    match found {
        Found::Gpu(gpu) => gpu,
        Found::Mig(instance) => &instance.gpu,
    }
}

/// Charges this process with the memory that it still has. Faults of the device do not matter.
fn discharge(uuid: &str, taken: u64) -> Reply {
    let Ok(machine) = library::machine() else { return Ok(()) };
    match machine.gpus.iter().find(|gpu| gpu.uuid == uuid) {
        Some(gpu) => Ok(memory_limits::charge(gpu, taken).map(drop)?),
        None => Ok(()),
    }
}

/// Total memory available to programs: that of the device, or the limit of this process.
fn usable(found: &Found) -> Reply<u64> {
    let Memory { total, reserved, .. } = Memory::of(found)?;
    let usable = total - reserved;
    Ok(limits(found).map_or(usable, |limited| limited.hard.min(usable)))
}

/// Limits of this process. MIG devices have none.
fn limits(found: &Found) -> Option<Limited> {
    match found {
        Found::Gpu(gpu) => memory_limits::of_this_process(gpu),
        Found::Mig(_) => None,
    }
}

/// Charges this process with all of its memory. False if that is beyond a limit.
fn charge(found: &Found, taken: u64) -> Reply<bool> {
    match found {
        Found::Gpu(gpu) => Ok(memory_limits::charge(gpu, taken)?),
        Found::Mig(_) => Ok(true),
    }
}

/// Free memory; `taken` is the memory of this process.
fn free(found: &Found, taken: u64) -> Reply<u64> {
    let processes = computing_on(found).iter().map(|process| process.memory_mib * MIB).sum::<u64>();
    let used = Memory::of(found)?.used + processes + OF_CONTEXT + taken;
    let Memory { total, reserved, .. } = Memory::of(found)?;
    let free = (total - reserved).saturating_sub(used);
    Ok(limits(found).map_or(free, |limited| limited.left.min(free)))
}

fn as_size(bytes: u64) -> Reply<usize> {
    usize::try_from(bytes).map_err(|_| Refusal::UNKNOWN)
}

/// Sixteen bytes of a UUID, without `GPU-` or `MIG-`.
fn bytes_of(uuid: &str) -> [u8; 16] {
    let digits = uuid.chars().skip("GPU-".len()).filter_map(|letter| letter.to_digit(16));
    let number = digits.fold(0_u128, |number, digit| number << 4 | u128::from(digit));
    number.to_be_bytes()
}

/// A poisoned lock guards a valid value: each part is replaced as a whole.
fn process() -> MutexGuard<'static, Process> {
    PROCESS.lock().unwrap_or_else(PoisonError::into_inner)
}
