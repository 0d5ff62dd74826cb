//! Installation of this program in a folder of the host, from which container runtimes start it.

use std::{fs, path::Path};

use windlass_host::files::{self, FileAccess};

use crate::HookError;

/// The running program, even if its file was replaced meanwhile (`proc_pid_exe(5)`).
const PROGRAM: &str = "/proc/self/exe";

/// Name of the installed file.
const NAME: &str = "windlass-hook";

/// Copies this program to `windlass-hook` in a folder, atomically and with mode 0755. Creates missing folders with mode
/// 0755. Does not write a file that is identical already.
///
/// # Errors
///
/// Fails if the program cannot be read, or the folder or the file cannot be written.
pub fn install(folder: &Path) -> Result<(), HookError> {
    let program =
        fs::read(PROGRAM).map_err(|source| HookError::Read { path: PROGRAM.into(), source })?;
    let path = folder.join(NAME);
    let installed = files::replace(&path, &program, FileAccess::Executable);
    installed.map(drop).map_err(|source| HookError::Write { path, source })
}
