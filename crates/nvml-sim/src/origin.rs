//! Machine of this library: the folder of the library's own file.

use std::{
    env,
    ffi::{CStr, OsStr, c_void},
    fs,
    mem::MaybeUninit,
    os::unix::ffi::OsStrExt as _,
    path::PathBuf,
};

/// Environment variable with the state file, for a library outside of a machine's folder.
const VARIABLE: &str = "WINDLASS_SIM_STATE";

/// Path of the machine's state file, existing or not.
pub(crate) fn state_file() -> Option<PathBuf> {
    if let Some(path) = env::var_os(VARIABLE) {
        return Some(PathBuf::from(path));
    }
    // Symbolic links to the machine's library lead to the machine.
    let library = fs::canonicalize(own_path()?).ok()?;
    Some(library.with_file_name("state.json"))
}

/// Path of this library, as known to the loader.
fn own_path() -> Option<PathBuf> {
    let own: *const c_void = (own_path as fn() -> Option<PathBuf>) as *const c_void;
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: dladdr takes any address and a place for its answer (dladdr(3)).
    let found = unsafe { libc::dladdr(own, info.as_mut_ptr()) };
    if found == 0 {
        return None;
    }
    // SAFETY: filled by dladdr, and a struct of zeroes would be valid too.
    let info = unsafe { info.assume_init() };
    if info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: a string of the loader that lives as long as this library is loaded.
    let path = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(PathBuf::from(OsStr::from_bytes(path.to_bytes())))
}
