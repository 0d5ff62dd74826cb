//! Overwrites memory of simulated GPUs. Without `CUDA_VISIBLE_DEVICES` CUDA uses the first GPU.

use std::{fs, path::Path};

use tempfile::TempDir;
use windlass_cuda::{OverwriteError, OverwriteReport, overwrite};
use windlass_machine::{Machine, MachineProfile, find_driver};

const MIB: u64 = 1 << 20;

/// Simulated machine, with its library.
struct TestMachine {
    machine: Machine,
    _folder: TempDir,
}

// === impl TestMachine ===

impl TestMachine {
    fn new() -> Self {
        let mut builder = tempfile::Builder::new();
        builder.prefix("wl");
        let folder = builder.tempdir_in("/dev/shm").or_else(|_| builder.tempdir());
        let folder = folder.expect("a temporary folder");
        let profile = MachineProfile::named("l40s-pcie").expect("a shipped profile");
        let driver = find_driver().expect("cargo builds the simulated driver with the tests");
        let machine = Machine::create(folder.path(), &profile, &driver).expect("a machine");
        Self { machine, _folder: folder }
    }

    fn with_fault(fault: &str) -> Self {
        let rig = Self::new();
        rig.machine.inject(&fault.parse().expect(fault)).expect(fault);
        rig
    }

    fn uuid(&self, gpu: usize) -> String {
        self.machine.model().expect("a model").gpus[gpu].uuid.clone()
    }

    fn overwrite(&self) -> Result<OverwriteReport, OverwriteError> {
        overwrite(&self.machine.cuda_library(), &self.uuid(0))
    }

    fn failure(&self) -> String {
        let error = self.overwrite().expect_err("it fails");
        let cause = std::error::Error::source(&error);
        cause.map_or(error.to_string(), |cause| format!("{error}: {cause}"))
    }

    /// Zeroed bytes of the first GPU, as reported by the library.
    fn zeroed(&self) -> Option<u64> {
        let text = fs::read_to_string(self.machine.dir().join("cuda").join(self.uuid(0)));
        Some(text.ok()?.parse().expect("a number"))
    }
}

#[test]
fn all_free_memory_is_overwritten_except_for_less_than_a_page() {
    let rig = TestMachine::new();
    let OverwriteReport { overwritten, free, total } = rig.overwrite().expect("done");
    assert_eq!(rig.zeroed(), Some(overwritten));
    assert!(free - overwritten < 2 * MIB, "{} bytes are left", free - overwritten);
    assert_eq!(total - free, 256 * MIB, "the memory of the context");
}

#[test]
fn memory_in_use_is_not_overwritten() {
    let (rig, other) = (TestMachine::new(), TestMachine::with_fault("memory:4096@0"));
    let (all, less) = (rig.overwrite().expect("done"), other.overwrite().expect("done"));
    assert_eq!((all.free - less.free, all.total), (4096 * MIB, less.total));
    assert!(less.overwritten <= less.free);
}

#[test]
fn memory_that_ignores_writes_is_detected() {
    let rig = TestMachine::with_fault("cuda:stale@0");
    assert_eq!(rig.failure(), "memory reads back 0x5a after 0xa5 was written");
    assert_eq!(rig.zeroed(), None);
}

#[test]
fn a_driver_error_has_its_cause() {
    let why = TestMachine::with_fault("cuda:802@0").failure();
    assert!(why.starts_with("cuCtxCreate_v2: CUDA_ERROR_SYSTEM_NOT_READY (802)"), "{why}");
    let why = TestMachine::with_fault("cuda:2@0").failure();
    assert!(why.starts_with("cuCtxCreate_v2: CUDA_ERROR_OUT_OF_MEMORY (2)"), "{why}");
    let rig = TestMachine::new();
    rig.machine.update(|it| it.gpus.clear()).expect("changed");
    let library = rig.machine.cuda_library();
    let why = overwrite(&library, "GPU-0").expect_err("no GPU");
    let OverwriteError::Load(why) = why else { panic!("{why}") };
    let cause = std::error::Error::source(&why).expect("a cause").to_string();
    assert!(cause.starts_with("cuInit: CUDA_ERROR_NO_DEVICE (100)"), "{cause}");
}

#[test]
fn only_the_named_device_is_overwritten() {
    let rig = TestMachine::new();
    let why = overwrite(&rig.machine.cuda_library(), &rig.uuid(1)).expect_err("the first is shown");
    let first = rig.uuid(0).replace("GPU-", "");
    assert_eq!(why.to_string(), format!("CUDA shows another device: {first}"));
    assert_eq!(rig.zeroed(), None);
}

#[test]
fn the_error_names_a_missing_library() {
    let why = overwrite(Path::new("/no/libcuda.so.1"), "GPU-0").expect_err("there is none");
    assert_eq!(why.to_string(), "cannot load /no/libcuda.so.1");
}
