//! CUDA's driver interface, as far as it takes to fill a GPU's memory: one context, allocations, what is
//! written there and read back.
//!
//! Names, signatures and numbers are those of `cuda.h` in CUDA 12. How many bytes a program has set to zero is
//! told in `cuda/<UUID>` of the machine's folder.

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
    process::computing_on,
    status::{Answer, Code, Status},
    watch::Moment,
};

/// A `CUresult` other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal(Code);

/// What a function of CUDA answers.
type Reply<T = ()> = Result<T, Refusal>;

/// What this process has of CUDA.
struct Process {
    /// UUIDs of the devices that it sees, once it has initialised.
    visible: Option<Vec<String>>,
    context: Option<Context>,
}

/// A process has one at a time.
struct Context {
    uuid: String,
    space: Space,
    /// How much of it was set to zero.
    zeroed: u64,
}

static PROCESS: Mutex<Process> = Mutex::new(Process { visible: None, context: None });

/// Which devices a program sees, and in which order.
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// Where it is told what was overwritten.
const TOLD: &str = "cuda";

/// `CU_DEVICE_ATTRIBUTE_INTEGRATED`.
const INTEGRATED: c_int = 18;

/// `CU_COMPUTEMODE_PROHIBITED`.
const PROHIBITED: u32 = 2;

const MIB: u64 = 1 << 20;

/// What a context takes for itself.
const OF_CONTEXT: u64 = 256 * MIB;

/// The only handle that is given out: a pointer in C, which nobody follows.
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
        cuda(|| process().context.take().map(drop).ok_or(Refusal::INVALID_CONTEXT))
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
            Ok(address.put(in_context(|context| context.space.take(bytes as u64, free))?)?)
        })
    }

    fn cuMemFree_v2(address: u64) {
        cuda(|| in_context(|context| context.space.give_back(address)))
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
    /// What the machine refuses, in CUDA's words.
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
    /// For whoever wants to know what was done.
    fn tell(&self) -> Reply {
        let folder = library::folder()?.join(TOLD);
        let told = fs::create_dir_all(&folder);
        let told = told.and_then(|()| fs::write(folder.join(&self.uuid), self.zeroed.to_string()));
        told.map_err(|_| Refusal::UNKNOWN)
    }
}

/// A number is a number where it crosses the ABI, whoever gave it its meaning.
fn cuda(body: impl FnOnce() -> Reply) -> Answer {
    body().map_err(|Refusal(code)| Status(code))
}

/// All GPUs that are not cut, or those that the variable names, up to the first that is not there.
fn visible(model: &Model) -> Vec<String> {
    if let Ok(names) = env::var(VISIBLE) {
        let names = names.split(',').map(|name| name.trim().to_owned());
        return names.take_while(|name| named(model, name).is_some()).collect();
    }
    let whole = model.gpus.iter().filter(|gpu| gpu.mig.is_none());
    whole.map(|gpu| gpu.uuid.clone()).collect()
}

/// A GPU that is not cut, or a MIG device.
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

/// The device as it is now, once its faults let the call through.
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

/// The device of the context.
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

/// What programs can have at all.
fn usable(found: &Found) -> Reply<u64> {
    let Memory { total, reserved, .. } = Memory::of(found)?;
    Ok(total - reserved)
}

/// What is left of it, of which this process has some.
fn free(found: &Found, taken: u64) -> Reply<u64> {
    let processes = computing_on(found).iter().map(|process| process.memory_mib * MIB).sum::<u64>();
    let used = Memory::of(found)?.used + processes + OF_CONTEXT + taken;
    Ok(usable(found)?.saturating_sub(used))
}

fn as_size(bytes: u64) -> Reply<usize> {
    usize::try_from(bytes).map_err(|_| Refusal::UNKNOWN)
}

/// The sixteen bytes behind `GPU-` or `MIG-`.
fn bytes_of(uuid: &str) -> [u8; 16] {
    let digits = uuid.chars().skip("GPU-".len()).filter_map(|letter| letter.to_digit(16));
    let number = digits.fold(0_u128, |number, digit| number << 4 | u128::from(digit));
    number.to_be_bytes()
}

/// What a panic left behind is still good: each part of it is replaced as a whole.
fn process() -> MutexGuard<'static, Process> {
    PROCESS.lock().unwrap_or_else(PoisonError::into_inner)
}
