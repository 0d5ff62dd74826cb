//! The trees that a device's files lie in: the host, the driver's installation, the device nodes.

use std::path::{Path, PathBuf};

use super::Host;

/// The trees that a device's files lie in. On most nodes they are one; with a driver in a container
/// the last two lie below `/run/nvidia/driver`.
#[derive(Clone, Debug)]
pub struct Roots {
    /// `/sys`, `/proc`, `/run`.
    pub host: Host,
    /// Libraries, programs, firmware and sockets of the driver.
    pub driver: Host,
    /// `/dev`.
    pub dev: Host,
}

/// Where the driver's installation lies. Everything but the library is a path of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverPlaces {
    /// The NVML library; `None` looks where drivers put it.
    pub nvml_library: Option<PathBuf>,
    /// The root that libraries, binaries and firmware lie under: `/`, or `/run/nvidia/driver` with
    /// a driver container.
    pub root: PathBuf,
    /// Where this process finds that root, if not below the host's.
    pub mounted_at: Option<PathBuf>,
    /// The root that `/dev` lies under, as containers shall get it from; `None` is the host's own.
    pub dev_root: Option<PathBuf>,
}

/// The driver's library for programs that compute.
const CUDA: &str = "libcuda.so.1";

// === impl Roots ===

impl Roots {
    /// The trees of a host whose driver lies at these places.
    pub fn new(host: Host, places: &DriverPlaces) -> Self {
        let driver = match &places.mounted_at {
            None if places.root == Path::new("/") => host.clone(),
            None => Host::new(host.path(&places.root), host.path_on_node(&places.root)),
            Some(root) => Host::new(root, host.path_on_node(&places.root)),
        };
        let dev = match &places.dev_root {
            // Where the driver's root is mounted, its devices are too.
            Some(root) if *root == places.root => driver.clone(),
            Some(root) => Host::new(host.path(root), host.path_on_node(root)),
            None => host.clone(),
        };
        Self { host, driver, dev }
    }

    /// The same trees for one look, as [`Host::for_one_look`].
    #[must_use]
    pub fn for_one_look(&self) -> Self {
        let host = self.host.for_one_look();
        let is_host = |tree: &Host| tree.root == self.host.root;
        let look = |tree: &Host| if is_host(tree) { host.clone() } else { tree.for_one_look() };
        Self { driver: look(&self.driver), dev: look(&self.dev), host }
    }

    /// NVML's library: the one that is named, else the driver's.
    pub fn nvml_library(&self, named: Option<PathBuf>) -> Option<PathBuf> {
        let of_driver = || self.driver.nvml_library();
        named.or_else(of_driver).or_else(|| self.host.nvml_library())
    }

    /// CUDA's library: installations of a driver have it beside NVML's, of the same version.
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
