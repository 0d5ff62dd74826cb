//! Test machine with its loaded library, and functions that call the library.

use std::{
    ffi::{CStr, c_char, c_uint},
    ptr,
};

use nvml_wrapper_sys::bindings::*;
use tempfile::TempDir;
use windlass_machine::{Machine, MachineProfile, find_driver};

/// `NVML_STRUCT_VERSION` of nvml.h.
pub(crate) fn struct_version<T>(number: c_uint) -> c_uint {
    c_uint::try_from(size_of::<T>()).expect("a struct below 4 GiB") | (number << 24)
}

/// Machine with a loaded library.
pub(crate) struct TestMachine {
    pub(crate) nvml: NvmlLib,
    pub(crate) machine: Machine,
    _dir: TempDir,
}

impl TestMachine {
    /// Loads the library without initialisation.
    pub(crate) fn new(profile: &str) -> Self {
        Self::of(&MachineProfile::named(profile).expect("built in"))
    }

    /// Loads the library of a machine without initialisation.
    pub(crate) fn of(profile: &MachineProfile) -> Self {
        let dir = TempDir::new().expect("a folder");
        let driver = find_driver().expect("built with these tests");
        let machine = Machine::create(dir.path(), profile, &driver).expect("a machine");
        // SAFETY: the library has no constructors of its own.
        let nvml = unsafe { NvmlLib::new(machine.nvml_library()) }.expect("a library");
        Self { nvml, machine, _dir: dir }
    }

    pub(crate) fn started(profile: &str) -> Self {
        let rig = Self::new(profile);
        // SAFETY: the function has no parameters.
        assert_eq!(unsafe { rig.nvml.nvmlInit_v2() }, 0);
        rig
    }

    pub(crate) fn inject(&self, fault: &str) {
        self.machine.inject(&fault.parse().expect(fault)).expect(fault);
    }

    pub(crate) fn gpu(&self, index: u32) -> nvmlDevice_t {
        let mut device = ptr::null_mut();
        // SAFETY: a pointer to a valid handle.
        let code = unsafe { self.nvml.nvmlDeviceGetHandleByIndex_v2(index, &raw mut device) };
        assert_eq!(code, 0);
        device
    }

    pub(crate) fn count(&self) -> u32 {
        // SAFETY: a pointer to a valid number.
        self.read_number(|nvml, out| unsafe { nvml.nvmlDeviceGetCount_v2(out) })
    }

    /// Number that a call returns.
    pub(crate) fn read_number(
        &self,
        call: impl Fn(&NvmlLib, *mut c_uint) -> nvmlReturn_t,
    ) -> c_uint {
        let mut number = 0;
        assert_eq!(call(&self.nvml, &raw mut number), 0);
        number
    }

    /// Text that a call returns.
    pub(crate) fn read_text(
        &self,
        call: impl Fn(&NvmlLib, *mut c_char, c_uint) -> nvmlReturn_t,
    ) -> String {
        let mut buffer = [0; 96];
        assert_eq!(call(&self.nvml, buffer.as_mut_ptr(), 96), 0);
        // SAFETY: the library writes text with a final NUL.
        unsafe { CStr::from_ptr(buffer.as_ptr()) }.to_str().expect("ASCII").to_owned()
    }

    pub(crate) fn name(&self, device: nvmlDevice_t) -> String {
        // SAFETY: a buffer and its length.
        self.read_text(|nvml, text, length| unsafe { nvml.nvmlDeviceGetName(device, text, length) })
    }

    pub(crate) fn uuid(&self, device: nvmlDevice_t) -> String {
        // SAFETY: a buffer and its length.
        self.read_text(|nvml, text, length| unsafe { nvml.nvmlDeviceGetUUID(device, text, length) })
    }

    pub(crate) fn index_status(&self, device: nvmlDevice_t) -> nvmlReturn_t {
        let mut index = 0;
        // SAFETY: a pointer to a valid number.
        unsafe { self.nvml.nvmlDeviceGetIndex(device, &raw mut index) }
    }

    /// Event set without registrations.
    pub(crate) fn event_set(&self) -> EventSet {
        let mut set = ptr::null_mut();
        // SAFETY: a pointer to a valid handle.
        assert_eq!(unsafe { self.nvml.nvmlEventSetCreate(&raw mut set) }, 0);
        EventSet(set)
    }

    pub(crate) fn register(&self, set: &EventSet, device: nvmlDevice_t, types: u32) {
        // SAFETY: live handles.
        let code = unsafe { self.nvml.nvmlDeviceRegisterEvents(device, types.into(), set.0) };
        assert_eq!(code, 0);
    }

    /// Event set registered for XIDs of one GPU.
    pub(crate) fn xid_event_set(&self, device: nvmlDevice_t) -> EventSet {
        let set = self.event_set();
        self.register(&set, device, nvmlEventTypeXidCriticalError);
        set
    }

    /// Status and value of one field.
    pub(crate) fn field(&self, device: nvmlDevice_t, id: u32) -> (nvmlReturn_t, u64) {
        // SAFETY: a struct of numbers.
        let mut field: nvmlFieldValue_t = unsafe { std::mem::zeroed() };
        field.fieldId = id;
        // SAFETY: an array of one.
        let code = unsafe { self.nvml.nvmlDeviceGetFieldValues(device, 1, &raw mut field) };
        assert_eq!(code, 0);
        // SAFETY: any number is valid in each member of the union.
        (field.nvmlReturn, unsafe { field.value.ullVal })
    }

    pub(crate) fn wait(&self, set: &EventSet, timeout_ms: u32) -> (nvmlReturn_t, nvmlEventData_t) {
        // SAFETY: a struct of numbers and a pointer that is not followed.
        let mut data: nvmlEventData_t = unsafe { std::mem::zeroed() };
        // SAFETY: a live handle and a pointer to a valid struct.
        let code = unsafe { self.nvml.nvmlEventSetWait_v2(set.0, &raw mut data, timeout_ms) };
        (code, data)
    }
}

impl Drop for TestMachine {
    /// Shuts down before the library is unloaded, as a client should. The call fails if the test did not initialise the
    /// library.
    fn drop(&mut self) {
        // SAFETY: the function has no parameters.
        unsafe { self.nvml.nvmlShutdown() };
    }
}

/// Event set that may move between threads, as NVML allows.
#[derive(Clone, Copy)]
pub(crate) struct EventSet(nvmlEventSet_t);

// SAFETY: the library locks its event sets, and the pointer is never dereferenced.
unsafe impl Sync for EventSet {}
// SAFETY: as above.
unsafe impl Send for EventSet {}

/// Device handle that may move between threads.
#[derive(Clone, Copy)]
pub(crate) struct Device(pub(crate) nvmlDevice_t);

// SAFETY: the pointer is never dereferenced.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}
