//! The trees that a device's files lie in: the host, the driver's installation, the device nodes.

use std::path::PathBuf;

use super::Host;
use crate::config::Config;

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

/// The driver's library for programs that compute.
const CUDA: &str = "libcuda.so.1";

// === impl Roots ===

impl Roots {
    /// The trees that the configuration names.
    pub fn new(config: &Config) -> Self {
        let host = Host::new(&config.host_root, &config.host_root_on_node);
        let places = &config.driver;
        let root = places.mounted_at.clone().unwrap_or_else(|| host.path(&places.root));
        let driver = Host::new(root, host.path_on_node(&places.root));
        let dev = match &places.dev_root {
            // Where the driver's root is mounted, its devices are too.
            Some(root) if *root == places.root => driver.clone(),
            Some(root) => Host::new(host.path(root), host.path_on_node(root)),
            None => host.clone(),
        };
        Self { host, driver, dev }
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
