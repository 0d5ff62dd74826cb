//! The memory of a GPU, overwritten by a process of its own: `windlass scrub`.
//!
//! Not by the agent: a CUDA context holds memory of the GPU until its process ends, and a call into a sick driver may
//! never return. The process is killed when the step's time is over.

use std::{
    env,
    path::{Path, PathBuf},
};

use tokio::process::Command;
use windlass_config::Places;
use windlass_core::device::DeviceId;
use windlass_host::{Roots, external::run_to_end};

use super::steps::{Bench, StepError};

/// How that process is started.
#[derive(Clone, Debug)]
pub(super) struct Scrubber {
    program: PathBuf,
    host_root: PathBuf,
    roots: Roots,
    /// `None` is looked for each time: a driver may be installed later.
    nvml_library: Option<PathBuf>,
}

/// This program, also where its file was replaced since it started (`proc_pid_exe(5)`).
const THIS: &str = "/proc/self/exe";

/// Where a library is looked for that has a name alone; the agent found the driver's so.
const LIBRARIES: &str = "LD_LIBRARY_PATH";

/// What it is called in errors.
const NAME: &str = "windlass scrub";

/// Overwrites what is free of the device's memory.
pub(super) async fn overwrite(bench: &Bench) -> Result<(), StepError> {
    run_to_end(NAME, bench.scrubber.command(&bench.device)).await?;
    tracing::info!(device = %bench.device, "memory overwritten");
    Ok(())
}

// === impl Scrubber ===

impl Scrubber {
    pub(super) fn new(places: &Places) -> Self {
        Self {
            program: THIS.into(),
            host_root: absolute(&places.host_root),
            roots: places.roots(),
            nvml_library: places.driver.nvml_library.as_deref().map(absolute),
        }
    }

    /// In surroundings of its own, but for where libraries are: what the agent's say about CUDA is not meant for it.
    fn command(&self, device: &DeviceId) -> Command {
        let mut command = Command::new(&self.program);
        command.env_clear().envs(env::var_os(LIBRARIES).map(|folders| (LIBRARIES, folders)));
        command.args(["scrub", device.as_str(), "--host-root"]).arg(&self.host_root);
        if let Some(library) = self.roots.nvml_library(self.nvml_library.clone()) {
            command.arg("--nvml-library").arg(library);
        }
        command
    }
}

/// The process is started elsewhere. A library's name alone is for the dynamic linker to find.
fn absolute(path: &Path) -> PathBuf {
    let is_path = path.components().nth(1).is_some();
    let absolute = is_path.then(|| std::path::absolute(path).ok()).flatten();
    absolute.unwrap_or_else(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_is_told_the_device_the_host_and_the_library_and_nothing_else() {
        let mut places = Places { host_root: "/host".into(), ..Places::default() };
        places.driver.nvml_library = Some("/lib/libnvidia-ml.so.1".into());
        let command = Scrubber::new(&places).command(&"GPU-1".parse().expect("an id"));
        let arguments: Vec<_> = command.as_std().get_args().collect();
        let expected =
            ["scrub", "GPU-1", "--host-root", "/host", "--nvml-library", "/lib/libnvidia-ml.so.1"];
        assert_eq!(arguments, expected);
        assert!(command.as_std().get_envs().all(|(name, _)| name == LIBRARIES));
    }

    #[test]
    fn what_is_named_from_here_is_found_from_elsewhere() {
        let here = std::env::current_dir().expect("a folder");
        assert_eq!(absolute(Path::new("m/host")), here.join("m/host"));
        assert_eq!(absolute(Path::new("/host")), Path::new("/host"));
        assert_eq!(absolute(Path::new("libnvidia-ml.so.1")), Path::new("libnvidia-ml.so.1"));
    }
}
