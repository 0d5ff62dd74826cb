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
        let test_machine = Self::new();
        test_machine.machine.inject(&fault.parse().expect(fault)).expect(fault);
        test_machine
    }

    fn uuid(&self, gpu: usize) -> String {
        self.machine.model().expect("a model").gpus[gpu].uuid.clone()
    }

    fn overwrite(&self) -> Result<OverwriteReport, OverwriteError> {
        overwrite(&self.machine.cuda_library(), &self.uuid(0))
    }

    fn failure(&self) -> String {
        let error = self.overwrite().expect_err("the overwrite fails");
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
    let test_machine = TestMachine::new();
    let OverwriteReport { overwritten, free, total } = test_machine.overwrite().expect("done");
    assert_eq!(test_machine.zeroed(), Some(overwritten));
    assert!(free - overwritten < 2 * MIB, "{} bytes are left", free - overwritten);
    assert_eq!(total - free, 256 * MIB, "the memory of the context");
}

#[test]
fn memory_in_use_is_not_overwritten() {
    let (test_machine, machine_in_use) =
        (TestMachine::new(), TestMachine::with_fault("memory:4096@0"));
    let (whole, reduced) =
        (test_machine.overwrite().expect("done"), machine_in_use.overwrite().expect("done"));
    assert_eq!((whole.free - reduced.free, whole.total), (4096 * MIB, reduced.total));
    assert!(reduced.overwritten <= reduced.free);
}

#[test]
fn memory_that_ignores_writes_is_detected() {
    let test_machine = TestMachine::with_fault("cuda:stale@0");
    assert_eq!(test_machine.failure(), "memory reads back 0x5a after 0xa5 was written");
    assert_eq!(test_machine.zeroed(), None);
}

#[test]
fn a_driver_error_has_its_cause() {
    let error = TestMachine::with_fault("cuda:802@0").failure();
    assert!(error.starts_with("cuCtxCreate_v2: CUDA_ERROR_SYSTEM_NOT_READY (802)"), "{error}");
    let error = TestMachine::with_fault("cuda:2@0").failure();
    assert!(error.starts_with("cuCtxCreate_v2: CUDA_ERROR_OUT_OF_MEMORY (2)"), "{error}");
    let test_machine = TestMachine::new();
    test_machine.machine.update(|it| it.gpus.clear()).expect("changed");
    let library = test_machine.machine.cuda_library();
    let error = overwrite(&library, "GPU-0").expect_err("no GPU");
    let OverwriteError::Load(error) = error else { panic!("{error}") };
    let cause = std::error::Error::source(&error).expect("a cause").to_string();
    assert!(cause.starts_with("cuInit: CUDA_ERROR_NO_DEVICE (100)"), "{cause}");
}

#[test]
fn only_the_named_device_is_overwritten() {
    let test_machine = TestMachine::new();
    let error = overwrite(&test_machine.machine.cuda_library(), &test_machine.uuid(1))
        .expect_err("CUDA shows the first GPU");
    let first = test_machine.uuid(0).replace("GPU-", "");
    assert_eq!(error.to_string(), format!("CUDA shows another device: {first}"));
    assert_eq!(test_machine.zeroed(), None);
}

#[test]
fn the_error_names_a_missing_library() {
    let error = overwrite(Path::new("/no/libcuda.so.1"), "GPU-0").expect_err("there is none");
    assert_eq!(error.to_string(), "cannot load /no/libcuda.so.1");
}
