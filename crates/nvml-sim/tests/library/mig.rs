//! Tests of MIG mode, MIG devices and their instances.

use std::ptr;

use nvml_wrapper_sys::bindings::*;
use windlass_machine::state::Process;

use crate::rig::{TestMachine, struct_version};

#[test]
fn mig_devices_have_names_parents_and_attributes() {
    let rig = TestMachine::started("mig-a100");
    let gpu = rig.gpu(1);
    let mut mig = ptr::null_mut();
    // SAFETY: a pointer to a valid handle.
    let code = unsafe { rig.nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0, &raw mut mig) };
    assert_eq!(code, 0);
    assert_eq!(rig.name(mig), "NVIDIA A100-SXM4-40GB MIG 3g.20gb");
    assert!(rig.uuid(mig).starts_with("MIG-"));
    let mut parent = ptr::null_mut();
    // SAFETY: a pointer to a valid handle.
    let code =
        unsafe { rig.nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mig, &raw mut parent) };
    assert_eq!((code, parent), (0, gpu));
    // SAFETY: a struct of numbers.
    let mut attributes: nvmlDeviceAttributes_t = unsafe { std::mem::zeroed() };
    // SAFETY: a pointer to a valid struct.
    assert_eq!(unsafe { rig.nvml.nvmlDeviceGetAttributes_v2(mig, &raw mut attributes) }, 0);
    assert_eq!((attributes.multiprocessorCount, attributes.gpuInstanceSliceCount), (42, 3));
    // SAFETY: a pointer to a valid handle.
    let code = unsafe { rig.nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 5, &raw mut mig) };
    assert_eq!(code, nvmlReturn_enum_NVML_ERROR_NOT_FOUND);
}

#[test]
fn a_gpu_instance_is_found_by_its_profile_and_contains_a_compute_instance() {
    let rig = TestMachine::started("mig-a100");
    let gpu = rig.gpu(1);
    // SAFETY: a struct of numbers.
    let mut profile: nvmlGpuInstanceProfileInfo_v2_t = unsafe { std::mem::zeroed() };
    profile.version = struct_version::<nvmlGpuInstanceProfileInfo_v2_t>(2);
    let kind = NVML_GPU_INSTANCE_PROFILE_3_SLICE;
    let (mut instance, mut compute, mut count) = (ptr::null_mut(), ptr::null_mut(), 0);
    // SAFETY: pointers to valid outputs. Each list has room for the only instance.
    unsafe {
        let nvml = &rig.nvml;
        let info = (&raw mut profile).cast();
        assert_eq!(nvml.nvmlDeviceGetGpuInstanceProfileInfoV(gpu, kind, info), 0);
        assert_eq!((profile.id, profile.memorySizeMB, profile.instanceCount), (9, 19968, 2));
        let list = &raw mut instance;
        assert_eq!(nvml.nvmlDeviceGetGpuInstances(gpu, profile.id, list, &raw mut count), 0);
        assert_eq!(count, 1);
        let list = &raw mut compute;
        assert_eq!(nvml.nvmlGpuInstanceGetComputeInstances(instance, 2, list, &raw mut count), 0);
        assert_eq!(count, 1);
        let mut info: nvmlComputeInstanceInfo_t = std::mem::zeroed();
        assert_eq!(nvml.nvmlComputeInstanceGetInfo_v2(compute, &raw mut info), 0);
        assert_eq!((info.device, info.gpuInstance, info.profileId), (gpu, instance, 2));
    }
}

/// Current mode, and mode after a reset.
fn mode(rig: &TestMachine, index: u32) -> (u32, u32) {
    let (mut current, mut pending) = (9, 9);
    // SAFETY: pointers to valid numbers.
    let code = unsafe {
        rig.nvml.nvmlDeviceGetMigMode(rig.gpu(index), &raw mut current, &raw mut pending)
    };
    assert_eq!(code, 0);
    (current, pending)
}

/// Requests a mode and returns the activation status.
fn set_mode(rig: &TestMachine, index: u32, mode: u32) -> u32 {
    let mut activation = 9;
    // SAFETY: a pointer to a valid number.
    let code = unsafe { rig.nvml.nvmlDeviceSetMigMode(rig.gpu(index), mode, &raw mut activation) };
    assert_eq!(code, 0);
    activation
}

#[test]
fn since_hopper_mig_mode_changes_at_once_on_an_unused_gpu() {
    let rig = TestMachine::started("dgx-h100");
    assert_eq!((mode(&rig, 2), set_mode(&rig, 2, 1), mode(&rig, 2)), ((0, 0), 0, (1, 1)));
    rig.machine.set_mig(2, Some(&["1g.10gb"])).expect("there is room");
    let in_use = nvmlReturn_enum_NVML_ERROR_IN_USE;
    assert_eq!((set_mode(&rig, 2, 0), mode(&rig, 2)), (in_use, (1, 1)));
    rig.machine.set_mig(2, Some(&[])).expect("removed");
    assert_eq!((set_mode(&rig, 2, 0), mode(&rig, 2)), (0, (0, 0)));
    let process = Process { pid: 7, memory_mib: 1, gpu_instance: None, sm_percent: 0 };
    rig.machine.update(|model| model.gpus[2].live.processes.push(process)).expect("changed");
    assert_eq!((set_mode(&rig, 2, 1), mode(&rig, 2)), (in_use, (0, 0)));
    // SAFETY: null, which the library checks.
    let code = unsafe { rig.nvml.nvmlDeviceSetMigMode(rig.gpu(3), 1, ptr::null_mut()) };
    assert_eq!(code, nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT);
    assert_eq!(mode(&rig, 3), (0, 0));
}

#[test]
fn before_hopper_mig_mode_waits_for_a_reset() {
    let rig = TestMachine::started("mig-a100");
    let at_reset = nvmlReturn_enum_NVML_ERROR_RESET_REQUIRED;
    assert_eq!((set_mode(&rig, 2, 1), mode(&rig, 2)), (at_reset, (0, 1)));
    assert_eq!((set_mode(&rig, 2, 0), mode(&rig, 2)), (0, (0, 0)));
}

#[test]
fn while_mig_is_off_instances_are_not_supported() {
    let rig = TestMachine::started("mig-a100");
    let (mut instances, mut count) = ([ptr::null_mut(); 8], 0);
    let (list, count_out) = (instances.as_mut_ptr(), &raw mut count);
    // SAFETY: an array with room for the maximum number of instances.
    let code = unsafe { rig.nvml.nvmlDeviceGetGpuInstances(rig.gpu(2), 19, list, count_out) };
    assert_eq!(code, nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED);
    let mut mig = ptr::null_mut();
    // SAFETY: a pointer to a valid handle.
    let code = unsafe { rig.nvml.nvmlDeviceGetMigDeviceHandleByIndex(rig.gpu(2), 0, &raw mut mig) };
    assert_eq!(code, nvmlReturn_enum_NVML_ERROR_NOT_FOUND);
}

#[test]
fn a_running_client_sees_created_and_destroyed_instances() {
    let rig = TestMachine::started("mig-a100");
    let gpu = rig.gpu(2);
    rig.machine.set_mig(2, Some(&["3g.20gb", "1g.5gb"])).expect("there is room");
    let mut mig = ptr::null_mut();
    // SAFETY: a pointer to a valid handle.
    let code = unsafe { rig.nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 1, &raw mut mig) };
    assert_eq!((code, rig.name(mig).as_str()), (0, "NVIDIA A100-SXM4-40GB MIG 1g.5gb"));
    rig.machine.set_mig(2, Some(&["3g.20gb"])).expect("one less");
    assert_eq!(rig.index_status(mig), nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT);
}

#[test]
fn a_mig_device_of_a_lost_gpu_has_no_handle() {
    let rig = TestMachine::started("mig-a100");
    let model = rig.machine.model().expect("written");
    let (_, device) = model.gpus[0].mig_devices().next().expect("partitioned");
    let uuid = std::ffi::CString::new(device.uuid.as_str()).expect("no NUL");
    rig.inject("lost@0");
    let mut mig = ptr::null_mut();
    // SAFETY: a string and a pointer to a valid handle.
    let code = unsafe { rig.nvml.nvmlDeviceGetHandleByUUID(uuid.as_ptr(), &raw mut mig) };
    assert_eq!(code, nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST);
}
