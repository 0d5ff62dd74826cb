//! Tests of initialisation, identity, arguments and struct versions.

use std::{
    ffi::{CStr, CString, c_char},
    ptr,
};

use nvml_wrapper_sys::bindings::*;

use crate::rig::{TestMachine, struct_version};

#[test]
fn calls_before_init_return_uninitialized() {
    let rig = TestMachine::new("dgx-h100");
    let mut number = 0;
    // SAFETY: a pointer to a valid number.
    let code = unsafe { rig.nvml.nvmlDeviceGetCount_v2(&raw mut number) };
    assert_eq!(code, nvmlReturn_enum_NVML_ERROR_UNINITIALIZED);
    // SAFETY: the function has no parameters. This is one shutdown too many.
    let code = unsafe { rig.nvml.nvmlShutdown() };
    assert_eq!(code, nvmlReturn_enum_NVML_ERROR_UNINITIALIZED);
}

#[test]
fn identity_comes_from_the_profile() {
    let rig = TestMachine::started("dgx-h100");
    assert_eq!(rig.count(), 8);
    let gpu = rig.gpu(0);
    assert_eq!(rig.name(gpu), "NVIDIA H100 80GB HBM3");
    let model = rig.machine.model().expect("written");
    assert_eq!(rig.uuid(gpu), model.gpus[0].uuid);

    // SAFETY: a struct of numbers.
    let mut pci: nvmlPciInfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: a pointer to a valid struct.
    assert_eq!(unsafe { rig.nvml.nvmlDeviceGetPciInfo_v3(gpu, &raw mut pci) }, 0);
    // SAFETY: the library writes text with a final NUL.
    let bus_id = unsafe { CStr::from_ptr(pci.busId.as_ptr()) };
    assert_eq!(bus_id, c"00000000:1B:00.0");
    assert_eq!((pci.bus, pci.pciDeviceId, pci.pciSubSystemId), (0x1b, 0x2330_10de, 0x16c1_10de));

    // SAFETY: a struct of numbers.
    let mut memory: nvmlMemory_t = unsafe { std::mem::zeroed() };
    // SAFETY: a pointer to a valid struct.
    assert_eq!(unsafe { rig.nvml.nvmlDeviceGetMemoryInfo(gpu, &raw mut memory) }, 0);
    assert_eq!(memory.total, 81559 * 1024 * 1024);
    assert_eq!(memory.free + memory.used, memory.total);
}

#[test]
fn a_simulated_library_names_its_machine() {
    let rig = TestMachine::new("t4-edge");
    // SAFETY: the library has no constructors of its own.
    let library = unsafe { libloading::Library::new(rig.machine.nvml_library()) }.expect("loaded");
    // SAFETY: the symbol has this type.
    let name: libloading::Symbol<'_, extern "C" fn() -> *const c_char> =
        unsafe { library.get(b"windlass_simulated_machine") }.expect("exported");
    // SAFETY: a string that lives as long as the library.
    assert_eq!(unsafe { CStr::from_ptr(name()) }, c"t4-edge");
}

#[test]
fn devices_are_found_by_uuid_serial_and_bus_id() {
    let rig = TestMachine::started("dgx-h100");
    let expected = rig.gpu(2);
    let model = rig.machine.model().expect("written");
    let mut device = ptr::null_mut();
    let text = |text: &str| CString::new(text).expect("no NUL");
    let uuid = text(&model.gpus[2].uuid);
    // SAFETY: a string and a pointer to a valid handle.
    let code = unsafe { rig.nvml.nvmlDeviceGetHandleByUUID(uuid.as_ptr(), &raw mut device) };
    assert_eq!((code, device), (0, expected));
    for bus_id in ["00000000:52:00.0", "0000:52:00.0", "52:00.0"] {
        let bus_id = text(bus_id);
        // SAFETY: a string and a pointer to a valid handle.
        let code =
            unsafe { rig.nvml.nvmlDeviceGetHandleByPciBusId_v2(bus_id.as_ptr(), &raw mut device) };
        assert_eq!((code, device), (0, expected));
    }
    let unknown = text("GPU-00000000-0000-0000-0000-000000000000");
    // SAFETY: a string and a pointer to a valid handle.
    let code = unsafe { rig.nvml.nvmlDeviceGetHandleByUUID(unknown.as_ptr(), &raw mut device) };
    assert_eq!(code, nvmlReturn_enum_NVML_ERROR_NOT_FOUND);
}

#[test]
fn invalid_arguments_return_nvml_s_codes() {
    let rig = TestMachine::started("t4-edge");
    let gpu = rig.gpu(0);
    let mut device = ptr::null_mut();
    let mut name = [0; 4];
    // SAFETY: pointers to valid outputs, or null, which the library checks.
    unsafe {
        let nvml = &rig.nvml;
        assert_eq!(nvml.nvmlDeviceGetHandleByIndex_v2(1, &raw mut device), 2);
        assert_eq!(nvml.nvmlDeviceGetIndex(gpu, ptr::null_mut()), 2);
        assert_eq!(nvml.nvmlDeviceGetIndex(ptr::null_mut(), ptr::null_mut()), 2);
        let code = nvml.nvmlDeviceGetName(gpu, name.as_mut_ptr(), 4);
        assert_eq!(code, nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE);
    }
}

#[test]
fn a_struct_with_another_version_is_refused_and_not_written() {
    let rig = TestMachine::started("dgx-h100");
    let gpu = rig.gpu(0);
    let mut memory = nvmlMemory_v2_t { version: 7, total: 1, reserved: 1, free: 1, used: 1 };
    // SAFETY: a pointer to a valid struct.
    let code = unsafe { rig.nvml.nvmlDeviceGetMemoryInfo_v2(gpu, &raw mut memory) };
    assert_eq!(code, nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    assert_eq!(memory.total, 1);
    memory.version = struct_version::<nvmlMemory_v2_t>(2);
    // SAFETY: a pointer to a valid struct.
    assert_eq!(unsafe { rig.nvml.nvmlDeviceGetMemoryInfo_v2(gpu, &raw mut memory) }, 0);
    assert_eq!(memory.total, memory.used + memory.free + memory.reserved);
}

#[test]
fn unknown_sensors_and_missing_fans_are_refused() {
    let rig = TestMachine::started("dgx-h100");
    let gpu = rig.gpu(0);
    let mut temperature = nvmlTemperature_v1_t {
        version: struct_version::<nvmlTemperature_v1_t>(1),
        sensorType: 7,
        temperature: 0,
    };
    let mut fans = 0;
    // SAFETY: pointers to valid outputs.
    unsafe {
        let nvml = &rig.nvml;
        assert_eq!(nvml.nvmlDeviceGetTemperatureV(gpu, &raw mut temperature), 2);
        temperature.sensorType = nvmlTemperatureSensors_enum_NVML_TEMPERATURE_GPU;
        assert_eq!(nvml.nvmlDeviceGetTemperatureV(gpu, &raw mut temperature), 0);
        assert_eq!(nvml.nvmlDeviceGetNumFans(gpu, &raw mut fans), 3);
    }
    assert_eq!(temperature.temperature, 34);
}

#[test]
fn a_null_array_with_a_capacity_is_refused() {
    let rig = TestMachine::started("t4-edge");
    let gpu = rig.gpu(0);
    rig.machine
        .update(|model| {
            let process = windlass_machine::state::Process {
                pid: 1,
                memory_mib: 512,
                gpu_instance: None,
                sm_percent: 0,
            };
            model.gpus[0].live.processes.push(process);
        })
        .expect("set");
    let query = |mut count| {
        // SAFETY: a count, and null, which the library checks.
        let code = unsafe {
            rig.nvml.nvmlDeviceGetComputeRunningProcesses_v3(gpu, &raw mut count, ptr::null_mut())
        };
        (code, count)
    };
    assert_eq!(query(0), (nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE, 1));
    assert_eq!(query(4).0, nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT);
}
