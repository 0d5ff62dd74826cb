//! Tests that call every exported function with null arguments.

use std::{collections::BTreeSet, fs, path::Path, ptr};

use nvml_wrapper_sys::bindings::*;

use crate::rig::TestMachine;

/// Signature for a call of any NVML function: none has more than eight parameters.
type AnyFunction =
    unsafe extern "C" fn(usize, usize, usize, usize, usize, usize, usize, usize) -> u32;

/// Functions without parameters, or without a status as result.
const EXCEPTIONS: [&str; 5] =
    ["nvmlInit", "nvmlInit_v2", "nvmlInitWithFlags", "nvmlShutdown", "nvmlErrorString"];

/// Names of NVML functions in this crate's sources.
fn names() -> BTreeSet<String> {
    let sources =
        fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("src")).expect("a folder");
    let text =
        sources.map(|file| fs::read_to_string(file.expect("an entry").path()).expect("a source"));
    let text = text.collect::<String>();
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    words.filter(|word| word.starts_with("nvml")).map(str::to_owned).collect()
}

/// True if a function's first parameter is a handle, which is never dereferenced.
fn takes_a_handle(name: &str) -> bool {
    let lookups = ["nvmlDeviceGetHandleBy", "nvmlDeviceGetCount"];
    let handles = ["nvmlDevice", "nvmlGpuInstance", "nvmlComputeInstance"];
    handles.iter().any(|start| name.starts_with(start))
        && !lookups.iter().any(|start| name.starts_with(start))
}

/// Calls each function with `first` as the first argument and zeros as the others.
fn call_all(rig: &TestMachine, first: usize) -> Vec<(String, u32)> {
    // SAFETY: the library has no constructors of its own.
    let library = unsafe { libloading::Library::new(rig.machine.nvml_library()) }.expect("loaded");
    let mut codes = Vec::new();
    for name in names() {
        // SAFETY: the call below fits all functions of NVML except `EXCEPTIONS`.
        let Ok(function) = (unsafe { library.get::<AnyFunction>(name.as_bytes()) }) else {
            continue;
        };
        if EXCEPTIONS.contains(&name.as_str()) || (first != 0 && !takes_a_handle(&name)) {
            continue;
        }
        // SAFETY: the parameters are at most eight numbers and pointers. By the calling conventions of Linux, a
        // function ignores further arguments. NVML's contract allows null.
        codes.push((name, unsafe { function(first, 0, 0, 0, 0, 0, 0, 0) }));
    }
    codes
}

#[test]
fn every_function_refuses_null() {
    let rig = TestMachine::started("mig-a100");
    let codes = call_all(&rig, 0);
    assert!(codes.len() > 200, "{}", codes.len());
    let refusals = [
        nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT,
        nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED,
        nvmlReturn_enum_NVML_ERROR_NOT_FOUND,
    ];
    let unexpected = codes.iter().filter(|(_, code)| !refusals.contains(code)).collect::<Vec<_>>();
    assert!(unexpected.is_empty(), "{unexpected:?}");
}

#[test]
fn no_function_dereferences_null_after_a_valid_handle() {
    let rig = TestMachine::started("mig-a100");
    let (mut mig, mut instance) = (ptr::null_mut(), ptr::null_mut());
    let mut count = 0;
    // SAFETY: pointers to valid outputs. The list has room for the only instance of the profile.
    unsafe {
        let nvml = &rig.nvml;
        assert_eq!(nvml.nvmlDeviceGetMigDeviceHandleByIndex(rig.gpu(1), 0, &raw mut mig), 0);
        let (list, count) = (&raw mut instance, &raw mut count);
        assert_eq!(nvml.nvmlDeviceGetGpuInstances(rig.gpu(1), 9, list, count), 0);
    }
    let handles = [rig.gpu(0) as usize, rig.gpu(2) as usize, mig as usize, instance as usize];
    for handle in handles {
        let is_unknown = |(_, code): &&(String, u32)| *code == nvmlReturn_enum_NVML_ERROR_UNKNOWN;
        let codes = call_all(&rig, handle);
        assert_eq!(codes.iter().find(is_unknown), None, "a panic");
    }
}
