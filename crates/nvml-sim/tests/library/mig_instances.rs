//! Tests of the creation and destruction of MIG instances, and of refusals.

use std::ptr;

use nvml_wrapper_sys::bindings::*;
use windlass_machine::state::Process;

use crate::rig::TestMachine;

/// Profile ids of an A100 in the driver.
const ONE_SLICE: u32 = 19;
const ONE_SLICE_WITH_MEDIA: u32 = 20;
const THREE_SLICES: u32 = 9;

/// Compute instance profile that fills three slices.
const THREE_SLICE_COMPUTE: u32 = NVML_COMPUTE_INSTANCE_PROFILE_3_SLICE;

const OK: nvmlReturn_t = nvmlReturn_enum_NVML_SUCCESS;
const INSUFFICIENT_RESOURCES: nvmlReturn_t = nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_RESOURCES;
const IN_USE: nvmlReturn_t = nvmlReturn_enum_NVML_ERROR_IN_USE;

/// GPU 2 of the machine, with MIG on and no instances.
fn rig() -> (TestMachine, nvmlDevice_t) {
    let rig = TestMachine::started("mig-a100");
    rig.machine.set_mig(2, Some(&[])).expect("MIG on");
    let gpu = rig.gpu(2);
    (rig, gpu)
}

fn create_gpu_instance(
    rig: &TestMachine,
    profile: u32,
    start: u32,
    size: u32,
) -> (nvmlReturn_t, nvmlGpuInstance_t) {
    let placement = nvmlGpuInstancePlacement_t { start, size };
    let (gpu, mut handle) = (rig.gpu(2), ptr::null_mut());
    let out = &raw mut handle;
    // SAFETY: pointers to a placement and to a valid handle.
    let code = unsafe {
        rig.nvml.nvmlDeviceCreateGpuInstanceWithPlacement(gpu, profile, &raw const placement, out)
    };
    (code, handle)
}

fn create_compute_instance(
    rig: &TestMachine,
    instance: nvmlGpuInstance_t,
    profile: u32,
) -> (nvmlReturn_t, nvmlComputeInstance_t) {
    let mut handle = ptr::null_mut();
    let out = &raw mut handle;
    // SAFETY: a pointer to a valid handle.
    let code = unsafe { rig.nvml.nvmlGpuInstanceCreateComputeInstance(instance, profile, out) };
    (code, handle)
}

fn destroy_gpu_instance(rig: &TestMachine, instance: nvmlGpuInstance_t) -> nvmlReturn_t {
    // SAFETY: a handle, which is never dereferenced.
    unsafe { rig.nvml.nvmlGpuInstanceDestroy(instance) }
}

fn destroy_compute_instance(rig: &TestMachine, compute: nvmlComputeInstance_t) -> nvmlReturn_t {
    // SAFETY: a handle, which is never dereferenced.
    unsafe { rig.nvml.nvmlComputeInstanceDestroy(compute) }
}

/// UUIDs of the MIG devices.
fn devices(rig: &TestMachine) -> Vec<String> {
    let uuids = (0..7).map_while(|index| {
        let mut mig = ptr::null_mut();
        let out = &raw mut mig;
        // SAFETY: a pointer to a valid handle.
        let code = unsafe { rig.nvml.nvmlDeviceGetMigDeviceHandleByIndex(rig.gpu(2), index, out) };
        (code == OK).then(|| rig.uuid(mig))
    });
    uuids.collect()
}

#[test]
fn overlapping_and_excess_instances_are_refused() {
    let (rig, gpu) = rig();
    assert_eq!(create_gpu_instance(&rig, THREE_SLICES, 4, 4).0, OK);
    assert_eq!(create_gpu_instance(&rig, ONE_SLICE_WITH_MEDIA, 0, 1).0, OK);
    for (profile, start, size) in [(ONE_SLICE, 4, 1), (ONE_SLICE, 0, 1), (THREE_SLICES, 0, 4)] {
        assert_eq!(
            create_gpu_instance(&rig, profile, start, size).0,
            INSUFFICIENT_RESOURCES,
            "{profile} at {start}"
        );
    }
    assert_eq!(
        create_gpu_instance(&rig, ONE_SLICE_WITH_MEDIA, 1, 1).0,
        INSUFFICIENT_RESOURCES,
        "the GPU has one set of media engines"
    );
    let invalid_argument = nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT;
    assert_eq!(
        create_gpu_instance(&rig, THREE_SLICES, 2, 4).0,
        invalid_argument,
        "the profile starts at 0 or 4"
    );
    assert_eq!(
        create_gpu_instance(&rig, ONE_SLICE, 1, 2).0,
        invalid_argument,
        "the profile has one slice"
    );
    assert_eq!(create_gpu_instance(&rig, 77, 1, 1).0, invalid_argument, "no such profile");
    let mut handle = ptr::null_mut();
    let gpu_without_mig = rig.gpu(3);
    // SAFETY: a pointer to a valid handle.
    unsafe {
        let (nvml, out) = (&rig.nvml, &raw mut handle);
        assert_eq!(nvml.nvmlDeviceCreateGpuInstance(gpu, ONE_SLICE, out), OK);
        let code = nvml.nvmlDeviceCreateGpuInstance(gpu_without_mig, ONE_SLICE, out);
        assert_eq!(code, nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED, "MIG is off");
    }
}

#[test]
fn a_mig_device_exists_with_its_compute_instance_and_has_a_new_uuid_each_time() {
    let (rig, _) = rig();
    let (_, instance) = create_gpu_instance(&rig, THREE_SLICES, 0, 4);
    assert_eq!(devices(&rig).len(), 0);
    let (code, compute) = create_compute_instance(&rig, instance, THREE_SLICE_COMPUTE);
    assert_eq!(code, OK);
    assert_eq!(
        create_compute_instance(&rig, instance, THREE_SLICE_COMPUTE).0,
        INSUFFICIENT_RESOURCES
    );
    let first = devices(&rig);
    assert_eq!(first.len(), 1);
    assert_eq!(destroy_gpu_instance(&rig, instance), IN_USE);
    assert_eq!(destroy_compute_instance(&rig, compute), OK);
    assert_eq!(
        destroy_compute_instance(&rig, compute),
        nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT,
        "the compute instance is destroyed"
    );
    assert_eq!(create_compute_instance(&rig, instance, THREE_SLICE_COMPUTE).0, OK);
    let second = devices(&rig);
    assert_eq!(second.len(), 1);
    assert_ne!(first, second);
}

#[test]
fn instances_with_a_process_cannot_be_destroyed() {
    let (rig, _) = rig();
    let (_, instance) = create_gpu_instance(&rig, THREE_SLICES, 0, 4);
    let (_, compute) = create_compute_instance(&rig, instance, THREE_SLICE_COMPUTE);
    let set_processes = |processes: Vec<Process>| {
        rig.machine.update(|model| model.gpus[2].live.processes = processes).expect("set");
    };
    set_processes(vec![Process { pid: 7, memory_mib: 512, gpu_instance: Some(1), sm_percent: 0 }]);
    assert_eq!(
        (destroy_compute_instance(&rig, compute), destroy_gpu_instance(&rig, instance)),
        (IN_USE, IN_USE)
    );
    set_processes(Vec::new());
    assert_eq!(
        (destroy_compute_instance(&rig, compute), destroy_gpu_instance(&rig, instance)),
        (OK, OK)
    );
    assert_eq!(devices(&rig).len(), 0);
}

#[test]
fn a_failed_compute_instance_leaves_the_gpu_instance_empty() {
    let (rig, _) = rig();
    rig.inject("no-compute-instance@2");
    let (_, instance) = create_gpu_instance(&rig, THREE_SLICES, 0, 4);
    assert_eq!(
        create_compute_instance(&rig, instance, THREE_SLICE_COMPUTE).0,
        nvmlReturn_enum_NVML_ERROR_UNKNOWN
    );
    assert_eq!(destroy_gpu_instance(&rig, instance), OK);
    rig.inject("recover@2");
    let (_, instance) = create_gpu_instance(&rig, THREE_SLICES, 0, 4);
    let smaller = create_compute_instance(&rig, instance, NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE).0;
    assert_eq!(
        smaller, nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED,
        "the compute instance must fill the GPU instance"
    );
    assert_eq!(create_compute_instance(&rig, instance, THREE_SLICE_COMPUTE).0, OK);
}
