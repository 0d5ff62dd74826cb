//! Roots of a device's files: host, driver installation, device nodes.

use std::path::{Path, PathBuf};

use super::Host;

/// Roots of a device's files. On most nodes all three are equal. With a driver container, the roots of driver and
/// devices are below `/run/nvidia/driver`.
#[derive(Clone, Debug)]
pub struct Roots {
    /// `/sys`, `/proc`, `/run`.
    pub host: Host,
    /// Libraries, programs, firmware and sockets of the driver.
    pub driver: Host,
    /// `/dev`.
    pub dev: Host,
}

/// CUDA driver library.
const CUDA: &str = "libcuda.so.1";

// === impl Roots ===

impl Roots {
    /// Roots of a host whose driver is below `root`, a host path. `mounted_at` is the path of that root for this
    /// process, if it is mounted elsewhere. `dev_root` is the host path of the root of `/dev`; `None` means the
    /// host's root.
    pub fn new(
        host: Host,
        root: &Path,
        mounted_at: Option<&Path>,
        dev_root: Option<&Path>,
    ) -> Self {
        let driver = match mounted_at {
            None if root == Path::new("/") => host.clone(),
            None => Host::new(host.path(root), host.path_on_node(root)),
            Some(mount) => Host::new(mount, host.path_on_node(root)),
        };
        let dev = match dev_root {
            // A mounted driver root includes its devices.
            Some(dev_root) if dev_root == root => driver.clone(),
            Some(root) => Host::new(host.path(root), host.path_on_node(root)),
            None => host.clone(),
        };
        Self { host, driver, dev }
    }

    /// The roots with a cache for one scan, like [`Host::for_one_scan`].
    #[must_use]
    pub fn for_one_scan(&self) -> Self {
        let host = self.host.for_one_scan();
        let is_host = |other: &Host| other.root == self.host.root;
        let with_cache =
            |other: &Host| if is_host(other) { host.clone() } else { other.for_one_scan() };
        Self { driver: with_cache(&self.driver), dev: with_cache(&self.dev), host }
    }

    /// Path of NVML: the configured one, or else the driver's, or else the host's.
    pub fn nvml_library(&self, configured: Option<PathBuf>) -> Option<PathBuf> {
        let driver_library = || self.driver.nvml_library();
        configured.or_else(driver_library).or_else(|| self.host.nvml_library())
    }

    /// Path of the CUDA driver library, which every installation has in NVML's folder, in the same version.
    pub fn cuda_library(&self, configured: Option<PathBuf>) -> Option<PathBuf> {
        self.nvml_library(configured).map(|nvml| nvml.with_file_name(CUDA))
    }
}
