//! Overwrite of a GPU's free memory by a separate process: `windlass scrub`.
//!
//! The agent itself creates no CUDA context: a context holds GPU memory until its process ends, and a call into a
//! failing driver may never return. The process is killed at the step's time limit.

use std::{
    env,
    path::{Path, PathBuf},
};

use tokio::process::Command;
use windlass_config::HostPaths;
use windlass_core::device::DeviceId;
use windlass_host::{Roots, external::run_to_end};

use super::steps::{StepContext, StepError};

/// Program and arguments of the overwriting process.
#[derive(Clone, Debug)]
pub(super) struct Scrubber {
    program: PathBuf,
    host_root: PathBuf,
    roots: Roots,
    /// If `None`, each run searches for the library: a driver may be installed later.
    nvml_library: Option<PathBuf>,
}

/// The agent's own program, even if its file was replaced since the start (`proc_pid_exe(5)`).
const OWN_PROGRAM: &str = "/proc/self/exe";

/// Variable with the search path for libraries. The agent may have found the driver's libraries through it.
const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";

/// Name of the process in errors.
const PROCESS_NAME: &str = "windlass scrub";

/// Overwrites the device's free memory.
pub(super) async fn overwrite(context: &StepContext) -> Result<(), StepError> {
    run_to_end(PROCESS_NAME, context.scrubber.command(&context.device)).await?;
    tracing::info!(device = %context.device, "memory overwritten");
    Ok(())
}

// === impl Scrubber ===

impl Scrubber {
    pub(super) fn new(paths: &HostPaths) -> Self {
        Self {
            program: OWN_PROGRAM.into(),
            host_root: absolute(&paths.host_root),
            roots: paths.roots(),
            nvml_library: paths.nvml_library.as_deref().map(absolute),
        }
    }

    /// The command. It gets only the library path of the agent's environment, since the agent's CUDA variables could
    /// hide the device.
    fn command(&self, device: &DeviceId) -> Command {
        let mut command = Command::new(&self.program);
        command.env_clear().envs(env::var_os(LIBRARY_PATH).map(|folders| (LIBRARY_PATH, folders)));
        command.args(["scrub", device.as_str(), "--host-root"]).arg(&self.host_root);
        if let Some(library) = self.roots.nvml_library(self.nvml_library.clone()) {
            command.arg("--nvml-library").arg(library);
        }
        command
    }
}

/// The path as an absolute one, since the process may have another working folder. The bare name of a library is
/// unchanged, because the dynamic linker searches for it.
fn absolute(path: &Path) -> PathBuf {
    let is_path = path.components().nth(1).is_some();
    let absolute = is_path.then(|| std::path::absolute(path).ok()).flatten();
    absolute.unwrap_or_else(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_gets_device_host_and_library_and_nothing_else() {
        let mut paths = HostPaths { host_root: "/host".into(), ..HostPaths::default() };
        paths.nvml_library = Some("/lib/libnvidia-ml.so.1".into());
        let command = Scrubber::new(&paths).command(&"GPU-1".parse().expect("an id"));
        let arguments: Vec<_> = command.as_std().get_args().collect();
        let expected =
            ["scrub", "GPU-1", "--host-root", "/host", "--nvml-library", "/lib/libnvidia-ml.so.1"];
        assert_eq!(arguments, expected);
        assert!(command.as_std().get_envs().all(|(name, _)| name == LIBRARY_PATH));
    }

    #[test]
    fn relative_paths_become_absolute_and_bare_names_stay() {
        let working_folder = std::env::current_dir().expect("a folder");
        assert_eq!(absolute(Path::new("m/host")), working_folder.join("m/host"));
        assert_eq!(absolute(Path::new("/host")), Path::new("/host"));
        assert_eq!(absolute(Path::new("libnvidia-ml.so.1")), Path::new("libnvidia-ml.so.1"));
    }
}
