//! Access to NVIDIA's driver library while it is initialised, for components other than the GPUs' source.

use std::path::PathBuf;

use tokio::sync::watch;
use windlass_host::{Host, Roots};
use windlass_nvml::Nvml;

/// NVIDIA's driver library while it is initialised. Clones share one handle.
#[derive(Clone, Debug)]
pub struct LiveDriver {
    roots: Roots,
    /// Configured path of NVML; `None` to search for it below the roots.
    configured_path: Option<PathBuf>,
    library: watch::Receiver<Option<Nvml>>,
}

// === impl LiveDriver ===

impl LiveDriver {
    pub(crate) fn new(
        roots: Roots,
        configured_path: Option<PathBuf>,
        library: watch::Receiver<Option<Nvml>>,
    ) -> Self {
        Self { roots, configured_path, library }
    }

    /// The host, whose `/proc` lists the processes that use the driver.
    pub fn host(&self) -> &Host {
        &self.roots.host
    }

    /// NVML, while it is initialised. It is shut down when the last clone is dropped.
    pub fn nvml(&self) -> Option<Nvml> {
        self.library.borrow().clone()
    }

    /// Absolute path of NVML for programs that run on the host. `None` if the host cannot reach the library.
    pub fn library_on_node(&self) -> Option<PathBuf> {
        let path = self.roots.nvml_library(self.configured_path.clone())?;
        let host = &self.roots.host;
        let runtime_path = [&self.roots.driver, host]
            .into_iter()
            .find_map(|root| root.agent_to_runtime_path(&path));
        // On a host that shares the agent's paths, the path needs no translation.
        let shares_paths = host.path("/") == host.path_on_node("/");
        runtime_path.or_else(|| shares_paths.then_some(path)).filter(|path| path.is_absolute())
    }
}
