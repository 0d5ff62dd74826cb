//! Properties of the library and the driver.

use std::{
    ffi::{CString, c_char, c_int, c_uint},
    ptr,
    sync::OnceLock,
};

use nvml_wrapper_sys::bindings as sys;

use windlass_machine::profile::Driver;

use crate::{
    abi::{Out, OutArray, OutText},
    library,
    status::{NvmlResult, Status},
};

export! {
    fn [nvmlInit nvmlInit_v2]() {
        library::init()
    }

    fn nvmlInitWithFlags(_flags: c_uint) {
        library::init()
    }

    fn nvmlShutdown() {
        library::shutdown()
    }

    fn nvmlSystemGetDriverVersion(version: OutText, length: c_uint) {
        version.put(length, &driver()?.version)
    }

    /// CUDA's major version, a dot, and the driver version: `12.570.133.20`.
    fn nvmlSystemGetNVMLVersion(version: OutText, length: c_uint) {
        let driver = driver()?;
        let major = driver.cuda.split('.').next().unwrap_or_default();
        version.put(length, &format!("{major}.{}", driver.version))
    }

    /// Version as a number: 12.8 is 12080.
    fn [nvmlSystemGetCudaDriverVersion nvmlSystemGetCudaDriverVersion_v2](version: Out<c_int>) {
        version.put(cuda_number(&driver()?.cuda)?)
    }

    fn nvmlSystemGetProcessName(pid: c_uint, name: OutText, length: c_uint) {
        library::current_model()?;
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).map_err(|_| Status::NOT_FOUND)?;
        let command = line.split(|byte| *byte == 0).next().unwrap_or_default();
        let command = String::from_utf8_lossy(command);
        let capacity = (length as usize).saturating_sub(1);
        name.put(length, command.get(..capacity).unwrap_or(&command))
    }

    fn nvmlSystemGetHicVersion(count: Out<c_uint>, _entries: OutArray<sys::nvmlHwbcEntry_t>) {
        library::current_model()?;
        count.put(0)
    }

    fn nvmlUnitGetCount(count: Out<c_uint>) {
        library::current_model()?;
        count.put(0)
    }

    fn nvmlGetExcludedDeviceCount(count: Out<c_uint>) {
        library::current_model()?;
        count.put(0)
    }
}

/// Name of the machine profile; null for a library outside of a machine. Only the simulated library has this function.
// SAFETY: no other library exports a symbol with the prefix `windlass`.
#[unsafe(no_mangle)]
extern "C" fn windlass_simulated_machine() -> *const c_char {
    static PROFILE: OnceLock<Option<CString>> = OnceLock::new();
    let find = || library::profile_name().and_then(|profile| CString::new(profile).ok());
    // A panic must not abort the client.
    let find = || std::panic::catch_unwind(find).ok().flatten();
    PROFILE.get_or_init(find).as_ref().map_or(ptr::null(), |profile| profile.as_ptr())
}

fn cuda_number(version: &str) -> NvmlResult<c_int> {
    let (major, minor) = version.split_once('.').unwrap_or((version, "0"));
    let number = |text: &str| text.parse::<c_int>().map_err(|_| Status::UNKNOWN);
    Ok(number(major)? * 1000 + number(minor)? * 10)
}

/// Versions of the driver. A machine without a driver is `DRIVER_NOT_LOADED`.
fn driver() -> NvmlResult<Driver> {
    library::current_model()?.driver.clone().ok_or(Status::DRIVER_NOT_LOADED)
}
