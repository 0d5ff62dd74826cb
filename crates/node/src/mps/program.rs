//! NVIDIA's control program: where it is, how it is run, and what it is told.
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
    process::Stdio,
    time::Duration,
};

use tokio::{io::AsyncWriteExt as _, process::Command, time::timeout};
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
    path: PathBuf,
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

/// Why a daemon did not do what it was told.
#[derive(Debug, thiserror::Error)]
pub(super) enum AskError {
    #[error("cannot run {path}")]
    Run { path: PathBuf, source: std::io::Error },
    #[error("no answer to {command} within {deadline:?}")]
    Late { command: String, deadline: Duration },
    #[error("{command} was refused: {said}")]
    Refused { command: String, said: String },
    #[error("the daemon limits clients to {said}% of the threads though {wanted}% were set")]
    NotTaken { said: String, wanted: u32 },
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

const GET_THREADS: &str = "get_default_active_thread_percentage";
const SET_THREADS: &str = "set_default_active_thread_percentage";
const SET_MEMORY: &str = "set_default_device_pinned_mem_limit";

/// The daemon's own number of its one device.
const DEVICE: u32 = 0;

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

    fn command(&self, place: &Place) -> Command {
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

    /// Whether the daemon answers.
    pub(super) async fn ping(&self, place: &Place, deadline: Duration) -> Result<(), AskError> {
        self.threads_percent(place, deadline).await.map(drop)
    }

    /// Sets what each client is limited to, and asks whether it is.
    pub(super) async fn limit(
        &self,
        place: &Place,
        share: super::want::Share,
        deadline: Duration,
    ) -> Result<(), AskError> {
        if let Some(memory) = share.memory_mib {
            self.ask(place, &format!("{SET_MEMORY} {DEVICE} {memory}M"), deadline).await?;
        }
        let wanted = share.threads_percent;
        self.ask(place, &format!("{SET_THREADS} {wanted}"), deadline).await?;
        let (said, percent) = self.threads_percent(place, deadline).await?;
        if (percent - f64::from(wanted)).abs() < 1.0 {
            Ok(())
        } else {
            Err(AskError::NotTaken { said, wanted })
        }
    }

    /// Asks the daemon to end with all its servers.
    pub(super) async fn quit(&self, place: &Place, deadline: Duration) -> Result<(), AskError> {
        self.ask(place, "quit", deadline).await.map(drop)
    }

    async fn threads_percent(
        &self,
        place: &Place,
        deadline: Duration,
    ) -> Result<(String, f64), AskError> {
        let said = self.ask(place, GET_THREADS, deadline).await?;
        // The program says that there is no daemon in words, and may call that a success.
        match said.parse() {
            Ok(percent) => Ok((said, percent)),
            Err(_) => Err(AskError::Refused { command: GET_THREADS.to_owned(), said }),
        }
    }

    /// Gives one command to the daemon, by a second process of the program. One that gets no answer
    /// is killed.
    async fn ask(&self, place: &Place, text: &str, deadline: Duration) -> Result<String, AskError> {
        let mut command = self.command(place);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.kill_on_drop(true);
        let asked = async {
            let mut client = command.spawn()?;
            let mut stdin = client.stdin.take().expect("it is piped");
            // A program that did not wait for the command says why below.
            let _ = stdin.write_all(format!("{text}\n").as_bytes()).await;
            drop(stdin);
            client.wait_with_output().await
        };
        let output = match timeout(deadline, asked).await {
            Err(_) => return Err(AskError::Late { command: text.to_owned(), deadline }),
            Ok(Err(source)) => return Err(AskError::Run { path: self.path.clone(), source }),
            Ok(Ok(output)) => output,
        };
        let line = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().replace('\n', "; ");
        if output.status.success() {
            return Ok(line(&output.stdout));
        }
        let said = [line(&output.stdout), line(&output.stderr)].join(" ").trim().to_owned();
        Err(AskError::Refused { command: text.to_owned(), said })
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
