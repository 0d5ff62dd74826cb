//! NVIDIA's MPS control program on this node: its search, and its command lines.

use std::path::{Path, PathBuf};

use tokio::process::Command;
use windlass_config::MpsUsers;
use windlass_core::device::DeviceId;
use windlass_host::{
    Host, Roots,
    driver_program::{DriverProgram, MissingProgram, is_same_folder, system_root},
};

use super::place::{DaemonFolder, MpsFolders, PIPE_DIRECTORY, SHM};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Program {
    pub(super) program: DriverProgram,
    /// Folder at which the daemon sees the host's root.
    host_root: PathBuf,
}

/// Reason why the program cannot run a daemon.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProgramError {
    #[error("{0}; it comes with the driver's compute utilities")]
    Missing(#[from] MissingProgram),
    #[error(
        "{daemon} of the daemon is not {host} of the node, so daemon and clients would share no \
         files; mount one as the other, or set mps.shmDir"
    )]
    SharedMemoryMismatch { daemon: PathBuf, host: PathBuf },
}

const PROGRAM_NAME: &str = "nvidia-cuda-mps-control";

/// Selects the daemon's GPU by UUID: an index may change at a reboot.
const VISIBLE_DEVICES: &str = "CUDA_VISIBLE_DEVICES";
const LOG_DIRECTORY: &str = "CUDA_MPS_LOG_DIRECTORY";

// === impl Program ===

impl Program {
    /// Finds the program, and checks that its daemon and clients in containers share files. The folder of all daemons
    /// must exist.
    pub(super) fn find(roots: &Roots, folders: &MpsFolders) -> Result<Self, ProgramError> {
        let daemon_root_path = daemon_root(&roots.driver, folders);
        let host_root =
            daemon_root_path.as_ref().map_or_else(|| folders.host.path("/"), |_| "/".into());
        let program = Self {
            program: DriverProgram::find(PROGRAM_NAME, &roots.driver, daemon_root_path)?,
            host_root,
        };
        program.check_shared_memory(folders)?;
        Ok(program)
    }

    /// Compares the daemon's `/dev/shm` with the host's: clients and servers share files there.
    fn check_shared_memory(&self, folders: &MpsFolders) -> Result<(), ProgramError> {
        let daemon_host = Host::new(self.program.chroot.as_deref().unwrap_or(Path::new("/")), "/");
        let (daemon, host) = (daemon_host.path(SHM), folders.host.path(&folders.shm));
        if is_same_folder(&daemon, &host) {
            Ok(())
        } else {
            Err(ProgramError::SharedMemoryMismatch { daemon, host })
        }
    }

    pub(super) fn daemon(
        &self,
        device: &DeviceId,
        folder: &DaemonFolder,
        users: MpsUsers,
    ) -> Command {
        let mut command = self.command(folder);
        command.arg("-f").env(VISIBLE_DEVICES, device.as_str());
        match users {
            MpsUsers::OneAtATime => {}
            MpsUsers::Together => {
                command.arg("-M");
            }
        }
        command
    }

    /// The program with the folders of one daemon, to start or control it.
    pub(super) fn command(&self, folder: &DaemonFolder) -> Command {
        let mut command = self.program.command();
        command
            .env(PIPE_DIRECTORY, self.daemon_path(&folder.pipe()))
            .env(LOG_DIRECTORY, self.daemon_path(&folder.log()));
        command
    }

    fn daemon_path(&self, path: &Path) -> PathBuf {
        Host::new(&self.host_root, "/").path(path)
    }
}

/// The driver's root to run the daemon in, if it is a complete system and sees the host's folder of daemons.
fn daemon_root(driver: &Host, folders: &MpsFolders) -> Option<PathBuf> {
    let has_daemon_folders =
        is_same_folder(&driver.path(&folders.dir), &folders.host.path(&folders.dir));
    system_root(driver).filter(|_| has_daemon_folders)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use windlass_config::{HostPaths, MpsSettings};

    use super::*;

    const PROGRAM: &str = "usr/bin/nvidia-cuda-mps-control";
    const LOADER: &str = "lib64/ld-linux-x86-64.so.2";

    /// A root folder with these files.
    fn tree(files: &[&str]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a temporary folder");
        for file in files {
            let path = dir.path().join(file.trim_start_matches('/'));
            fs::create_dir_all(path.parent().expect("a folder")).expect("created");
            fs::write(path, "").expect("written");
        }
        fs::create_dir_all(dir.path().join("run/windlass/mps")).expect("created");
        std::os::unix::fs::symlink(SHM, dir.path().join("shm")).expect("linked");
        dir
    }

    /// The program of a driver that is mounted at `driver`, on a host that is at `host`.
    fn find_program(host: &Path, driver: &Path) -> Result<Program, ProgramError> {
        let mut paths = HostPaths { host_root: host.to_owned(), ..HostPaths::default() };
        paths.driver.mounted_at = Some(driver.to_owned());
        let settings = MpsSettings { shm_dir: "/shm".into(), ..MpsSettings::default() };
        Program::find(&paths.roots(), &MpsFolders::new(&paths, &settings))
    }

    #[test]
    fn a_daemon_outside_the_drivers_root_has_the_agents_paths() {
        let dir = tree(&[PROGRAM]);
        let program = find_program(dir.path(), dir.path()).expect("found");
        assert_eq!((program.program.chroot, program.host_root), (None, dir.path().to_owned()));
    }

    #[test]
    fn a_complete_driver_root_is_entered_if_it_has_the_daemons_folder() {
        let host = tree(&[PROGRAM, LOADER]);
        let daemon_root_path = daemon_root(&Host::new(host.path(), "/"), &mps_folders(host.path()));
        assert_eq!(daemon_root_path.as_deref(), Some(host.path()));
        let driver = tree(&[PROGRAM, LOADER]);
        let other_root = daemon_root(&Host::new(driver.path(), "/"), &mps_folders(host.path()));
        assert_eq!(other_root, None, "clients would find no pipes");
    }

    fn mps_folders(host: &Path) -> MpsFolders {
        let paths = HostPaths { host_root: host.to_owned(), ..HostPaths::default() };
        MpsFolders::new(&paths, &MpsSettings::default())
    }

    #[test]
    fn shared_memory_other_than_the_nodes_is_refused() {
        let host = tree(&[PROGRAM, LOADER]);
        let error = find_program(host.path(), host.path()).expect_err("refused").to_string();
        let daemon_shm = host.path().join("dev/shm");
        assert!(error.starts_with(&daemon_shm.display().to_string()), "{error}");
        let driver = tree(&[]);
        let error = find_program(host.path(), driver.path()).expect_err("refused").to_string();
        assert!(error.contains("there is no nvidia-cuda-mps-control in"), "{error}");
    }
}
