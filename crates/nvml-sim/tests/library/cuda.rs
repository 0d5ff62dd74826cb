//! Tests of the CUDA functions, under the library name that programs load.

use std::{
    collections::BTreeMap,
    env,
    ffi::{c_int, c_uint, c_void},
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    path::Path,
    process::{Command, Stdio},
    ptr,
};

use libloading::Library;
use nvml_wrapper_sys::bindings::*;
use windlass_machine::{CgroupLimits, Machine, MachineProfile, profile::Driver};

use crate::rig::{TestMachine, struct_version};

type Function<A> = unsafe extern "C" fn(A) -> c_uint;
type Function2<A, B> = unsafe extern "C" fn(A, B) -> c_uint;
type Function3<A, B, C> = unsafe extern "C" fn(A, B, C) -> c_uint;

const INVALID_VALUE: c_uint = 1;
const OUT_OF_MEMORY: c_uint = 2;
const NOT_INITIALIZED: c_uint = 3;
const INVALID_CONTEXT: c_uint = 201;

/// Loaded CUDA library of a machine.
struct Cuda {
    library: Library,
    /// Machine of this process; `None` if another process created the machine.
    rig: Option<TestMachine>,
}

// === impl Cuda ===

impl Cuda {
    fn new() -> Self {
        Self::of(TestMachine::new("l40s-pcie"))
    }

    fn of(rig: TestMachine) -> Self {
        let Self { library, .. } = Self::open(&rig.machine);
        Self { library, rig: Some(rig) }
    }

    fn open(machine: &Machine) -> Self {
        // SAFETY: the library has no constructors of its own.
        let library = unsafe { Library::new(machine.cuda_library()) }.expect("a library");
        Self { library, rig: None }
    }

    fn rig(&self) -> &TestMachine {
        self.rig.as_ref().expect("this process created the machine")
    }

    /// Library with a context on the first GPU.
    fn with_context() -> Self {
        Self::new().in_context()
    }

    fn in_context(self) -> Self {
        let cuda = self;
        let mut context = ptr::null_mut();
        assert_eq!(cuda.init(), 0);
        assert_eq!(cuda.create(&raw mut context), 0);
        cuda
    }

    fn function<T: Copy>(&self, name: &str) -> T {
        // SAFETY: each caller below uses the function's signature in `cuda.h`.
        unsafe { *self.library.get::<T>(name.as_bytes()).expect(name) }
    }

    fn init(&self) -> c_uint {
        // SAFETY: a number.
        unsafe { self.function::<Function<c_uint>>("cuInit")(0) }
    }

    fn create(&self, context: *mut *mut c_void) -> c_uint {
        let create: Function3<*mut *mut c_void, c_uint, c_int> = self.function("cuCtxCreate_v2");
        // SAFETY: null, or a pointer to a valid handle.
        unsafe { create(context, 0, 0) }
    }

    fn free(&self) -> usize {
        self.memory().0
    }

    /// Free and total memory.
    fn memory(&self) -> (usize, usize) {
        let info: Function2<*mut usize, *mut usize> = self.function("cuMemGetInfo_v2");
        let (mut free, mut total) = (0, 0);
        // SAFETY: pointers to valid numbers.
        assert_eq!(unsafe { info(&raw mut free, &raw mut total) }, 0);
        (free, total)
    }

    fn allocate(&self, bytes: usize) -> Result<u64, c_uint> {
        let allocate: Function2<*mut u64, usize> = self.function("cuMemAlloc_v2");
        let mut address = 0;
        // SAFETY: a pointer to a valid address.
        match unsafe { allocate(&raw mut address, bytes) } {
            0 => Ok(address),
            code => Err(code),
        }
    }

    fn set(&self, address: u64, value: u8, bytes: usize) -> c_uint {
        // SAFETY: a device address, which the library checks.
        unsafe {
            self.function::<Function3<u64, u8, usize>>("cuMemsetD8_v2")(address, value, bytes)
        }
    }

    fn read<const BYTES: usize>(&self, address: u64) -> Result<[u8; BYTES], c_uint> {
        let read: Function3<*mut u8, u64, usize> = self.function("cuMemcpyDtoH_v2");
        let mut buffer = [0; BYTES];
        // SAFETY: a buffer and its length.
        match unsafe { read(buffer.as_mut_ptr(), address, BYTES) } {
            0 => Ok(buffer),
            code => Err(code),
        }
    }

    fn release(&self, address: u64) -> c_uint {
        // SAFETY: a device address, which the library checks.
        unsafe { self.function::<Function<u64>>("cuMemFree_v2")(address) }
    }
}

#[test]
fn allocations_need_initialisation_and_a_context() {
    let cuda = Cuda::new();
    let mut context = ptr::null_mut();
    assert_eq!(cuda.create(&raw mut context), NOT_INITIALIZED);
    assert_eq!(cuda.init(), 0);
    assert_eq!(cuda.allocate(1), Err(INVALID_CONTEXT));
    assert_eq!(cuda.create(ptr::null_mut()), INVALID_VALUE);
    assert_eq!(cuda.create(&raw mut context), 0);
    assert!(cuda.allocate(1).is_ok());
}

#[test]
fn memory_has_residue_until_the_first_write() {
    let cuda = Cuda::with_context();
    let address = cuda.allocate(4 << 20).expect("free");
    assert_eq!(cuda.read(address), Ok([0x5a; 4]));
    assert_eq!(cuda.set(address + 1, 7, 2), 0);
    assert_eq!(cuda.read(address), Ok([0x5a, 7, 7, 0x5a]));
    assert_eq!(cuda.set(address, 0, (4 << 20) + 1), INVALID_VALUE, "beyond the end");
    assert_eq!(cuda.read::<2>(address + (4 << 20) - 1), Err(INVALID_VALUE));
    assert_eq!(cuda.release(address), 0);
    assert_eq!(cuda.set(address, 0, 1), INVALID_VALUE, "the memory is freed");
}

#[test]
fn an_allocation_is_at_most_half_of_the_free_memory_and_is_counted() {
    let cuda = Cuda::with_context();
    let free = cuda.free();
    assert_eq!(cuda.allocate(free), Err(OUT_OF_MEMORY));
    assert_eq!(cuda.allocate(0), Err(INVALID_VALUE));
    let address = cuda.allocate(3 << 20).expect("free");
    assert_eq!(free - cuda.free(), 4 << 20, "whole pages");
    assert_eq!(cuda.release(address), 0);
    assert_eq!(cuda.free(), free);
}

/// Environment variable with the folder of a process's simulated cgroup.
const CGROUP: &str = "WINDLASS_SIM_CGROUP";

/// Runs again in a child process, because a process has only one cgroup.
#[test]
fn a_process_gets_no_more_memory_than_the_limit_of_its_cgroup() {
    let Some(cgroup) = env::var_os(CGROUP) else {
        let name = "cuda::a_process_gets_no_more_memory_than_the_limit_of_its_cgroup";
        let mut command = Command::new(env::current_exe().expect("this program"));
        let output = command.args(["--exact", name]).env(CGROUP, "/pod/one").output();
        let output = output.expect("it runs");
        let output_text = String::from_utf8_lossy(&output.stdout);
        return assert!(
            output.status.success() && output_text.contains("1 passed"),
            "{output_text}"
        );
    };
    let mut profile = MachineProfile::named("l40s-pcie").expect("built in");
    profile.driver = Some(Driver { version: "615.10".to_owned(), cuda: "13.4".to_owned() });
    let cuda = Cuda::of(TestMachine::of(&profile)).in_context();
    // Process 1 always runs, and the highest process id is never used.
    let charged = BTreeMap::from([(1, 4 << 20), (u32::MAX, 64 << 20)]);
    let limits = CgroupLimits { soft: 0, hard: 24 << 20, charged };
    let cgroup = cgroup.into_string().expect("UTF-8 text");
    let limit = |model: &mut windlass_machine::Model| {
        model.gpus[0].memory_limits = BTreeMap::from([("/pod".to_owned(), limits)]);
        assert!(cgroup.starts_with("/pod/"));
    };
    cuda.rig().machine.update(limit).expect("changed");
    assert_eq!(cuda.memory(), (20 << 20, 24 << 20), "the limit is the total");
    let (gpu, mut memory) = (
        cuda.rig().gpu(0),
        nvmlMemory_v2_t {
            version: struct_version::<nvmlMemory_v2_t>(2),
            total: 0,
            reserved: 0,
            free: 0,
            used: 0,
        },
    );
    // SAFETY: a live handle, and a struct of the version that it names.
    assert_eq!(unsafe { cuda.rig().nvml.nvmlDeviceGetMemoryInfo_v2(gpu, &raw mut memory) }, 0);
    assert_eq!((memory.total, memory.free), (24 << 20, 20 << 20));
    let address = cuda.allocate(10 << 20).expect("half of the free memory");
    assert_eq!(cuda.allocate(6 << 20), Err(OUT_OF_MEMORY));
    assert_eq!(cuda.free(), 10 << 20);
    assert_eq!(cuda.release(address), 0);
    assert_eq!(cuda.free(), 20 << 20, "freed memory is not charged");
    cuda.allocate(10 << 20).expect("free again");
}

/// Environment variable with the machine's folder. It turns this test program into one of the racers.
const RACER: &str = "WINDLASS_SIM_RACER";

/// Memory limit of the racers' cgroup in MiB, and the number of racers.
const LIMIT_MIB: u64 = 96;
const RACERS: usize = 4;

/// All racers are processes of one cgroup, like a program and its child processes.
#[test]
fn processes_of_a_cgroup_that_race_for_memory_stay_within_its_limit() {
    if let Some(machine) = env::var_os(RACER) {
        return race(&Machine::open(Path::new(&machine)).expect("a machine"));
    }
    let mut profile = MachineProfile::named("l40s-pcie").expect("built in");
    profile.driver = Some(Driver { version: "615.10".to_owned(), cuda: "13.4".to_owned() });
    let rig = TestMachine::of(&profile);
    let limits = CgroupLimits { soft: 0, hard: LIMIT_MIB << 20, charged: BTreeMap::new() };
    let limit = |model: &mut windlass_machine::Model| {
        model.gpus[0].memory_limits = BTreeMap::from([("/pod/one".to_owned(), limits)]);
    };
    rig.machine.update(limit).expect("changed");
    let name = "cuda::processes_of_a_cgroup_that_race_for_memory_stay_within_its_limit";
    let racer = |_| {
        let mut command = Command::new(env::current_exe().expect("this program"));
        command.args(["--exact", name, "--nocapture"]).env(CGROUP, "/pod/one");
        command.env(RACER, rig.machine.dir()).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.spawn().expect("it runs")
    };
    let mut racers: Vec<_> = (0..RACERS).map(racer).collect();
    let outputs = racers.iter_mut().map(|racer| racer.stdout.take().expect("piped"));
    let mut outputs: Vec<_> = outputs.map(|output| BufReader::new(output).lines()).collect();
    let allocated_mib = |lines: &mut io::Lines<_>| {
        let mut lines = lines.map_while(Result::ok);
        let result = lines.find_map(|line| Some(line.split_once("took ")?.1.parse::<u64>()));
        result.expect("a result").expect("a number")
    };
    let allocated: Vec<_> = outputs.iter_mut().map(allocated_mib).collect();
    // All racers still hold their memory.
    assert_eq!(allocated.iter().sum::<u64>(), LIMIT_MIB, "{allocated:?}");
    for racer in racers {
        // Closes the racer's standard input, which ends the racer.
        assert!(racer.wait_with_output().expect("it ends").status.success());
    }
}

/// Allocates pages of 2 MiB until an allocation fails, and holds all of them until standard input ends.
fn race(machine: &Machine) {
    let cuda = Cuda::open(machine).in_context();
    let mut allocated = 0_u64;
    while cuda.allocate(2 << 20).is_ok() {
        allocated += 2;
    }
    writeln!(io::stdout(), "took {allocated}").expect("written");
    let _ = io::stdin().read_to_end(&mut Vec::new());
}
