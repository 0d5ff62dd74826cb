//! Roots of a device's files: host, driver installation, device nodes.

use std::path::{Path, PathBuf};

use super::Host;

/// Roots of a device's files. On most nodes they are equal; with a driver container the last two lie below
/// `/run/nvidia/driver`.
#[derive(Clone, Debug)]
pub struct Roots {
    /// `/sys`, `/proc`, `/run`.
    pub host: Host,
    /// Libraries, programs, firmware and sockets of the driver.
    pub driver: Host,
    /// `/dev`.
    pub dev: Host,
}

/// Location of the driver's installation. All but the library are host paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverPlaces {
    /// NVML; `None` searches the default folders.
    pub nvml_library: Option<PathBuf>,
    /// Root of libraries, programs and firmware: `/`, or `/run/nvidia/driver` with a driver container.
    pub root: PathBuf,
    /// Mount point of that root for this process, if not below the host's.
    pub mounted_at: Option<PathBuf>,
    /// Root of `/dev` for containers; `None` is the host's.
    pub dev_root: Option<PathBuf>,
}

/// CUDA driver library.
const CUDA: &str = "libcuda.so.1";

// === impl Roots ===

impl Roots {
    /// Roots of a host with this driver location.
    pub fn new(host: Host, places: &DriverPlaces) -> Self {
        let driver = match &places.mounted_at {
            None if places.root == Path::new("/") => host.clone(),
            None => Host::new(host.path(&places.root), host.path_on_node(&places.root)),
            Some(root) => Host::new(root, host.path_on_node(&places.root)),
        };
        let dev = match &places.dev_root {
            // A mounted driver root includes its devices.
            Some(root) if *root == places.root => driver.clone(),
            Some(root) => Host::new(host.path(root), host.path_on_node(root)),
            None => host.clone(),
        };
        Self { host, driver, dev }
    }

    /// The roots with a cache for one scan, like [`Host::for_one_scan`].
    #[must_use]
    pub fn for_one_scan(&self) -> Self {
        let host = self.host.for_one_scan();
        let is_host = |tree: &Host| tree.root == self.host.root;
        let cached = |tree: &Host| if is_host(tree) { host.clone() } else { tree.for_one_scan() };
        Self { driver: cached(&self.driver), dev: cached(&self.dev), host }
    }

    /// NVML: the named one, else the driver's.
    pub fn nvml_library(&self, named: Option<PathBuf>) -> Option<PathBuf> {
        let of_driver = || self.driver.nvml_library();
        named.or_else(of_driver).or_else(|| self.host.nvml_library())
    }

    /// CUDA driver library, which installations have beside NVML in the same version.
    pub fn cuda_library(&self, named: Option<PathBuf>) -> Option<PathBuf> {
        self.nvml_library(named).map(|nvml| nvml.with_file_name(CUDA))
    }
}

// === impl DriverPlaces ===

impl Default for DriverPlaces {
    fn default() -> Self {
        Self { nvml_library: None, root: "/".into(), mounted_at: None, dev_root: None }
    }
}
