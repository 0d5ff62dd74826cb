//! NVIDIA's driver while it is in use, for other parts than its source.

use std::path::PathBuf;

use tokio::sync::watch;
use windlass_host::{Host, Roots};
use windlass_nvml::Nvml;

/// NVIDIA's driver while it is in use. Clones share it.
#[derive(Clone, Debug)]
pub struct LiveDriver {
    roots: Roots,
    /// The configured library; `None` for the one of the roots.
    named: Option<PathBuf>,
    library: watch::Receiver<Option<Nvml>>,
}

// === impl LiveDriver ===

impl LiveDriver {
    pub(crate) fn new(
        roots: Roots,
        named: Option<PathBuf>,
        library: watch::Receiver<Option<Nvml>>,
    ) -> Self {
        Self { roots, named, library }
    }

    /// The host, whose `/proc` has the processes.
    pub fn host(&self) -> &Host {
        &self.roots.host
    }

    /// NVML, while it is initialised. It shuts down once nobody has it.
    pub fn nvml(&self) -> Option<Nvml> {
        self.library.borrow().clone()
    }

    /// Absolute path of NVML for programs of the host.
    pub fn library_on_node(&self) -> Option<PathBuf> {
        let path = self.roots.nvml_library(self.named.clone())?;
        let host = &self.roots.host;
        let at_runtime = [&self.roots.driver, host]
            .into_iter()
            .find_map(|root| root.agent_to_runtime_path(&path));
        // Where the runtime has the agent's own paths.
        let is_same = host.path("/") == host.path_on_node("/");
        at_runtime.or_else(|| is_same.then_some(path)).filter(|path| path.is_absolute())
    }
}
