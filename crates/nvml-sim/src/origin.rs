//! Location of the machine: the folder of the library's own file.

use std::{
    env,
    ffi::{CStr, OsStr, c_void},
    fs,
    mem::MaybeUninit,
    os::unix::ffi::OsStrExt as _,
    path::PathBuf,
};

/// Environment variable with the state file, for a library outside of a machine's folder.
const STATE_VARIABLE: &str = "WINDLASS_SIM_STATE";

/// Path of the machine's state file, existing or not.
pub(crate) fn state_file() -> Option<PathBuf> {
    if let Some(path) = env::var_os(STATE_VARIABLE) {
        return Some(PathBuf::from(path));
    }
    // Resolve symbolic links, because programs may load the library through a link elsewhere.
    let library = fs::canonicalize(library_path()?).ok()?;
    Some(library.with_file_name("state.json"))
}

/// Path of this library, as known to the loader.
fn library_path() -> Option<PathBuf> {
    let function_address: *const c_void =
        (library_path as fn() -> Option<PathBuf>) as *const c_void;
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: dladdr accepts any address, and writes to a valid `Dl_info` (dladdr(3)).
    let status = unsafe { libc::dladdr(function_address, info.as_mut_ptr()) };
    if status == 0 {
        return None;
    }
    // SAFETY: zeroed above, which is a valid value, and then filled by dladdr.
    let info = unsafe { info.assume_init() };
    if info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: dladdr returns a string of the loader, which is valid while this library is loaded.
    let path = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(PathBuf::from(OsStr::from_bytes(path.to_bytes())))
}
