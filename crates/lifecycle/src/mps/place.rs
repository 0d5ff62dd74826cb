//! Folders of MPS daemons: pipes and logs, and their mounts for containers.
//!
//! ```text
//! <mps_dir>/<device id>/
//!   pipe/      the daemon's sockets; a container gets this folder, under the same path
//!   log/       the daemon's logs
//!   daemon     record of the daemon's process: id and start time
//! ```
//!
//! Daemon and clients have the same path for the sockets if the daemon's root is the host's, so paths that they
//! exchange are valid for both.

use std::path::PathBuf;

use windlass_cdi::container_edits::MpsClientEdits;
use windlass_config::{HostPaths, MpsSettings};
use windlass_core::device::DeviceId;
use windlass_host::Host;

/// Folders of all daemons.
#[derive(Clone, Debug)]
pub struct MpsFolders {
    pub(super) host: Host,
    /// Host path of the folder with one folder per device.
    pub(super) dir: PathBuf,
    /// Host path of the daemons' `/dev/shm`.
    pub(super) shm: PathBuf,
}

/// Folder of the daemon's sockets, for CUDA in a client and for the daemon.
pub(super) const PIPE_DIRECTORY: &str = "CUDA_MPS_PIPE_DIRECTORY";

/// Folder of the files that client and server share.
pub(super) const SHM: &str = "/dev/shm";

// === impl MpsFolders ===

impl MpsFolders {
    /// The configured folders.
    pub fn new(paths: &HostPaths, settings: &MpsSettings) -> Self {
        Self { host: paths.host(), dir: paths.mps_dir.clone(), shm: settings.shm_dir.clone() }
    }

    /// Edits that make a container a client of this device's daemon: the same for all containers of a device.
    ///
    /// A client has one daemon: a container with MPS on one device can use no second device through CUDA,
    /// shared or not.
    pub fn client_edits(&self, device: &DeviceId) -> MpsClientEdits {
        let pipe = self.daemon_folder(device).pipe();
        MpsClientEdits {
            envs: [(PIPE_DIRECTORY.to_owned(), pipe.display().to_string())].into(),
            mounts: [
                (pipe.clone(), self.host.path_on_node(&pipe)),
                (SHM.into(), self.host.path_on_node(&self.shm)),
            ]
            .into(),
        }
    }

    /// True if this device has the record of a daemon, running or not. Blocks on a file check.
    pub fn has_record(&self, device: &DeviceId) -> bool {
        self.host.exists(self.daemon_folder(device).record())
    }

    /// Devices that have the record of a daemon, running or not. Blocks on file checks.
    pub fn recorded_devices(&self) -> Vec<DeviceId> {
        self.devices().into_iter().filter(|device| self.has_record(device)).collect()
    }

    /// Folder of one device.
    pub(super) fn daemon_folder(&self, device: &DeviceId) -> DaemonFolder {
        DaemonFolder { folder: self.dir.join(device.as_str()) }
    }

    /// Devices with a folder in `dir`.
    fn devices(&self) -> Vec<DeviceId> {
        self.host.entry_names(&self.dir).iter().filter_map(|name| name.parse().ok()).collect()
    }
}

/// Folder of one device, by its host path.
#[derive(Clone, Debug)]
pub(super) struct DaemonFolder {
    pub(super) folder: PathBuf,
}

// === impl DaemonFolder ===

impl DaemonFolder {
    pub(super) fn pipe(&self) -> PathBuf {
        self.folder.join("pipe")
    }

    pub(super) fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    /// Output of the daemon's process.
    pub(super) fn output(&self) -> PathBuf {
        self.folder.join("daemon.log")
    }

    /// Record of the daemon's process.
    pub(super) fn record(&self) -> PathBuf {
        self.folder.join("daemon")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_gets_the_pipes_of_its_device_and_the_daemons_shared_memory() {
        let paths = HostPaths { host_root_on_node: "/node".into(), ..HostPaths::default() };
        let settings =
            MpsSettings { shm_dir: "/dev/shm/windlass".into(), ..MpsSettings::default() };
        let edits =
            MpsFolders::new(&paths, &settings).client_edits(&"GPU-1".parse().expect("an id"));
        let pipe = "/run/windlass/mps/GPU-1/pipe";
        assert_eq!(edits.envs, [(PIPE_DIRECTORY.to_owned(), pipe.to_owned())].into());
        let expected = [
            ("/dev/shm".into(), "/node/dev/shm/windlass".into()),
            (pipe.into(), format!("/node{pipe}").into()),
        ];
        assert_eq!(edits.mounts, expected.into());
    }
}
