//! Where a daemon has its pipes and logs, and what a container gets of them.
//!
//! ```text
//! <mps_dir>/<device id>/
//!   pipe/      the daemon's sockets; a container gets this folder, under the same path
//!   log/       what the daemon writes
//!   daemon     which process it is
//! ```
//!
//! The path is the same for the daemon and for its clients wherever the daemon sees the host's root
//! as its own, so that it does not matter whether they tell each other paths.

use std::path::{Path, PathBuf};

use windlass_cdi::container_edits::MpsGrant;
use windlass_config::{MpsSettings, Places};
use windlass_core::device::DeviceId;
use windlass_host::Host;

/// Where daemons have their pipes and logs.
#[derive(Clone, Debug)]
pub struct MpsPlaces {
    host: Host,
    dir: PathBuf,
    shm: PathBuf,
}

/// Where the daemon's sockets are; read by CUDA in a client and by the daemon.
pub(super) const PIPE_DIRECTORY: &str = "CUDA_MPS_PIPE_DIRECTORY";

/// Where the files lie that client and server share.
pub(super) const SHM: &str = "/dev/shm";

// === impl MpsPlaces ===

impl MpsPlaces {
    /// The places that the configuration names.
    pub fn new(places: &Places, settings: &MpsSettings) -> Self {
        Self { host: places.host(), dir: places.mps_dir.clone(), shm: settings.shm_dir.clone() }
    }

    /// What a container gets to be a client of this device's daemon. The same device, the same bytes.
    ///
    /// A client has one daemon: a container that is to use MPS on one device can use no second device
    /// through CUDA, shared or not.
    pub fn container(&self, device: &DeviceId) -> MpsGrant {
        let pipe = self.of(device).pipe();
        MpsGrant {
            envs: [(PIPE_DIRECTORY.to_owned(), pipe.display().to_string())].into(),
            mounts: [
                (pipe.clone(), self.host.path_on_node(&pipe)),
                (SHM.into(), self.host.path_on_node(&self.shm)),
            ]
            .into(),
        }
    }

    /// Whether something is left of a daemon of this device. Blocks for a moment.
    pub fn is_left(&self, device: &DeviceId) -> bool {
        self.host.has(self.of(device).record())
    }

    /// The devices of whose daemons something is left, also while they serve. Blocks for a moment.
    pub fn left(&self) -> Vec<DeviceId> {
        self.devices().into_iter().filter(|device| self.is_left(device)).collect()
    }

    /// The folder of one device, as the host names it.
    pub(super) fn of(&self, device: &DeviceId) -> Place {
        Place { folder: self.dir.join(device.as_str()) }
    }

    /// The devices that have a folder here.
    fn devices(&self) -> Vec<DeviceId> {
        self.host.names(&self.dir).iter().filter_map(|name| name.parse().ok()).collect()
    }

    /// The host whose paths these are.
    pub(super) fn host(&self) -> &Host {
        &self.host
    }

    /// The folder of all devices, as the host names it.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// What the host calls the folder that daemons see as `/dev/shm`.
    pub(super) fn shm(&self) -> &Path {
        &self.shm
    }
}

/// The folder of one device, as the host names it.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) folder: PathBuf,
}

// === impl Place ===

impl Place {
    pub(super) fn pipe(&self) -> PathBuf {
        self.folder.join("pipe")
    }

    pub(super) fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    /// What the daemon's process says.
    pub(super) fn output(&self) -> PathBuf {
        self.folder.join("daemon.log")
    }

    /// The file that says which process the daemon is.
    pub(super) fn record(&self) -> PathBuf {
        self.folder.join("daemon")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_gets_the_pipes_of_its_device_and_the_daemons_shared_memory() {
        let places = Places { host_root_on_node: "/node".into(), ..Places::default() };
        let settings =
            MpsSettings { shm_dir: "/dev/shm/windlass".into(), ..MpsSettings::default() };
        let grant = MpsPlaces::new(&places, &settings).container(&"GPU-1".parse().expect("an id"));
        let pipe = "/run/windlass/mps/GPU-1/pipe";
        assert_eq!(grant.envs, [(PIPE_DIRECTORY.to_owned(), pipe.to_owned())].into());
        let expected = [
            ("/dev/shm".into(), "/node/dev/shm/windlass".into()),
            (pipe.into(), format!("/node{pipe}").into()),
        ];
        assert_eq!(grant.mounts, expected.into());
    }
}
