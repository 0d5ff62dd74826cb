//! NVIDIA's control program: where it is, and how it is run.
//!
//! The program is run from the driver's installation. Where that is the root of another system, as a
//! node's is for an agent in a container, the program is run inside it, so that it finds its libraries
//! and the server that it starts. Where it is a folder with the driver and nothing else, the program
//! is run from outside, with the driver's folders in its search paths.

use std::{
    ffi::OsString,
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use tokio::process::Command;
use windlass_core::device::DeviceId;

use super::place::{MpsPlaces, PIPE_DIRECTORY, Place, SHM};
use crate::{
    config::MpsUsers,
    host::{Host, Roots},
};

/// How the control program is run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Program {
    /// As the process that runs it names it.
    pub(super) path: PathBuf,
    /// The root of another system that it is run in.
    inside: Option<PathBuf>,
    /// What is put in front of paths of the host, so that the daemon finds them.
    host_root: PathBuf,
    /// Folders of programs and of libraries.
    search: Search,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Search {
    programs: Vec<PathBuf>,
    libraries: Option<PathBuf>,
}

/// Why the program cannot be run.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProgramError {
    #[error("there is no {NAME} in {searched}; it comes with the driver's compute utilities")]
    Missing { searched: String },
    #[error(
        "{daemon} of the daemon is not {host} of the node, so clients would not reach it; mount the \
         one as the other, or set the folder that is"
    )]
    SharedMemory { daemon: PathBuf, host: PathBuf },
}

/// The program's name.
const NAME: &str = "nvidia-cuda-mps-control";

/// Where installations put it: packages, then NVIDIA's containers, then GKE.
const FOLDERS: [&str; 5] = [
    "/usr/bin",
    "/usr/local/bin",
    "/usr/local/nvidia/bin",
    "/bin",
    "/home/kubernetes/bin/nvidia/bin",
];

/// What a folder has that is the root of a whole system, and no folder that has only the driver.
const LOADERS: [&str; 2] = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"];

/// A daemon that serves a part of the machine's GPUs, by UUID: an index may mean another GPU after a
/// reboot.
const VISIBLE_DEVICES: &str = "CUDA_VISIBLE_DEVICES";
const LOG_DIRECTORY: &str = "CUDA_MPS_LOG_DIRECTORY";

// === impl Program ===

impl Program {
    /// Finds the program, and makes sure that a client in a container would reach its daemon. The
    /// folder of all daemons must be there.
    pub(super) fn find(roots: &Roots, places: &MpsPlaces) -> Result<Self, ProgramError> {
        let candidates = FOLDERS.map(|folder| Path::new(folder).join(NAME));
        let Some(found) = candidates.iter().find(|path| roots.driver.has(path)) else {
            let searched = FOLDERS.map(|folder| roots.driver.path(folder).display().to_string());
            return Err(ProgramError::Missing { searched: searched.join(", ") });
        };
        let program = match whole_system(&roots.driver, places) {
            Some(root) => Self {
                path: found.clone(),
                inside: Some(root),
                host_root: "/".into(),
                search: Search::default(),
            },
            None => Self {
                path: roots.driver.path(found),
                inside: None,
                host_root: places.host().path("/"),
                search: Search {
                    programs: FOLDERS.map(|folder| roots.driver.path(folder)).into(),
                    libraries: roots.driver.nvml_library().and_then(|path| folder_of(&path)),
                },
            },
        };
        program.check_shared_memory(places)?;
        Ok(program)
    }

    /// A client and its server talk through files that both have under `/dev/shm`.
    fn check_shared_memory(&self, places: &MpsPlaces) -> Result<(), ProgramError> {
        let inside = Host::new(self.inside.as_deref().unwrap_or(Path::new("/")), "/");
        let (daemon, host) = (inside.path(SHM), places.host().path(places.shm()));
        if same(&daemon, &host) { Ok(()) } else { Err(ProgramError::SharedMemory { daemon, host }) }
    }

    /// The command that becomes the daemon of a device.
    pub(super) fn daemon(&self, device: &DeviceId, place: &Place, users: MpsUsers) -> Command {
        let mut command = self.command(place);
        command.arg("-f").env(VISIBLE_DEVICES, device.as_str());
        match users {
            MpsUsers::OneAtATime => {}
            MpsUsers::Together => {
                command.arg("-M");
            }
        }
        command
    }

    /// The command that gives commands to that daemon.
    pub(super) fn command(&self, place: &Place) -> Command {
        let mut command = match &self.inside {
            Some(root) => {
                let mut command = Command::new("chroot");
                command.arg(root).arg(&self.path);
                command
            }
            None => Command::new(&self.path),
        };
        // What the agent's environment says about CUDA is not meant for the daemon.
        command.env_clear().env("PATH", self.search.with_inherited());
        if let Some(libraries) = &self.search.libraries {
            command.env("LD_LIBRARY_PATH", libraries);
        }
        command
            .env(PIPE_DIRECTORY, self.as_daemon_sees(&place.pipe()))
            .env(LOG_DIRECTORY, self.as_daemon_sees(&place.log()));
        command
    }

    fn as_daemon_sees(&self, path: &Path) -> PathBuf {
        Host::new(&self.host_root, "/").path(path)
    }
}

// === impl Search ===

impl Search {
    /// The driver's folders first, then the agent's own: the program may be a script.
    fn with_inherited(&self) -> OsString {
        let inherited = std::env::var_os("PATH").unwrap_or_default();
        let folders = self.programs.iter().cloned().chain(std::env::split_paths(&inherited));
        std::env::join_paths(folders).unwrap_or(inherited)
    }
}

/// The driver's root, if it is that of a whole system other than the agent's own, in which the
/// folder of the daemons is where the host has it.
fn whole_system(driver: &Host, places: &MpsPlaces) -> Option<PathBuf> {
    let root = driver.path("/");
    let is_system = LOADERS.iter().any(|loader| driver.has(loader));
    let daemons = same(&driver.path(places.dir()), &places.host().path(places.dir()));
    (is_system && daemons && !same(&root, Path::new("/"))).then_some(root)
}

/// Whether two paths lead to the same folder.
fn same(one: &Path, other: &Path) -> bool {
    match (fs::metadata(one), fs::metadata(other)) {
        (Ok(one), Ok(other)) => (one.dev(), one.ino()) == (other.dev(), other.ino()),
        _ => false,
    }
}

fn folder_of(file: &Path) -> Option<PathBuf> {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    const PROGRAM: &str = "usr/bin/nvidia-cuda-mps-control";

    /// A folder as an agent may find one, with a program in it.
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

    /// How the program of a driver that is mounted at `driver` is run, on a host that is at `host`.
    fn found(host: &Path, driver: &Path) -> Result<Program, ProgramError> {
        let mut config = Config { host_root: host.to_owned(), ..Config::default() };
        config.driver.mounted_at = Some(driver.to_owned());
        config.mps.shm_dir = "/shm".into();
        Program::find(&Roots::new(&config), &MpsPlaces::new(&config))
    }

    #[test]
    fn a_folder_with_a_driver_and_nothing_else_is_used_from_outside() {
        let dir = tree(&[PROGRAM, "usr/lib64/libnvidia-ml.so.1"]);
        let program = found(dir.path(), dir.path()).expect("found");
        assert_eq!((program.path, program.inside), (dir.path().join(PROGRAM), None));
        assert_eq!(program.host_root, dir.path(), "the daemon sees the host where the agent does");
        assert_eq!(program.search.libraries, Some(dir.path().join("usr/lib64")));
    }

    #[test]
    fn a_system_of_its_own_is_entered_where_the_daemons_folder_is_the_same() {
        let host = tree(&[PROGRAM, LOADERS[0]]);
        let inside = whole_system(&Host::new(host.path(), "/"), &places(host.path()));
        assert_eq!(inside.as_deref(), Some(host.path()));
        let driver = tree(&[PROGRAM, LOADERS[0]]);
        let elsewhere = whole_system(&Host::new(driver.path(), "/"), &places(host.path()));
        assert_eq!(elsewhere, None, "clients would find no pipes");
        assert_eq!(whole_system(&Host::new("/", "/"), &places(Path::new("/"))), None);
    }

    fn places(host: &Path) -> MpsPlaces {
        MpsPlaces::new(&Config { host_root: host.to_owned(), ..Config::default() })
    }

    #[test]
    fn shared_memory_that_is_not_the_nodes_is_named() {
        let host = tree(&[PROGRAM, LOADERS[0]]);
        let error = found(host.path(), host.path()).expect_err("refused").to_string();
        let inside = host.path().join("dev/shm");
        assert!(error.starts_with(&inside.display().to_string()), "{error}");
        let driver = tree(&[]);
        let error = found(host.path(), driver.path()).expect_err("refused").to_string();
        assert!(error.contains("there is no nvidia-cuda-mps-control in"), "{error}");
    }
}
