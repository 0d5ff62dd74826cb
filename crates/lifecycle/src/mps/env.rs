//! Environment of an MPS daemon: folders, compute mode, process.
//!
//! A daemon outlives the agent, because the programs on its GPU die with it. The next agent finds each daemon by its
//! record, and adopts it if it still runs. On a host without cgroup v2 all daemons end with the agent's container; the
//! next agent then finds records of ended processes, and starts new daemons.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::fs::XattrFlags;
use windlass_config::{HostPaths, MpsSettings};
use windlass_core::device::DeviceId;
use windlass_host::{Roots, causes};
use windlass_nvml::ComputeMode;

use super::{
    cgroup,
    mode::{ModeError, ModeSetter},
    place::{DaemonFolder, MpsFolders},
    process::{KillError, Process},
    program::{Program, ProgramError},
    spec::{MpsRefusal, MpsSpec},
};

/// Common environment of all daemons.
#[derive(Debug)]
pub(super) struct Env {
    pub(super) folders: MpsFolders,
    pub(super) settings: MpsSettings,
    roots: Roots,
    /// Configured path of NVML. If `None`, each use searches for the library: a driver may be installed later.
    nvml_library: Option<PathBuf>,
}

/// One daemon: its process, and its GPU's compute mode.
#[derive(Debug)]
pub(super) struct DaemonInstance {
    pub(super) device: DeviceId,
    pub(super) process: Option<Process>,
    compute_mode: ModeSetter,
}

/// Error of preparing or stopping a daemon.
#[derive(Debug, thiserror::Error)]
pub(super) enum DaemonError {
    #[error(transparent)]
    Unshareable(#[from] MpsRefusal),
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error(transparent)]
    Mode(#[from] ModeError),
    #[error("cannot make {path}")]
    Folder { path: PathBuf, source: io::Error },
    #[error("cannot start the daemon")]
    Start(#[source] io::Error),
    #[error(transparent)]
    Unkillable(#[from] KillError),
}

/// File mode of folders in which MPS servers of any user create their sockets, and file mode of all other folders.
const WORLD_WRITABLE_MODE: u32 = 0o1777;
const DEFAULT_MODE: u32 = 0o755;

/// The kernel's `SELinux` switch, and the label of files for containers (`container_selinux(8)`).
const SELINUX: &str = "/sys/fs/selinux/enforce";
const SELINUX_ATTRIBUTE: &str = "security.selinux";
const CONTAINER_LABEL: &[u8] = b"system_u:object_r:container_file_t:s0\0";

// === impl Env ===

impl Env {
    pub(super) fn new(paths: &HostPaths, settings: &MpsSettings) -> Self {
        Self {
            folders: MpsFolders::new(paths, settings),
            settings: settings.clone(),
            roots: paths.roots(),
            nvml_library: paths.nvml_library.clone(),
        }
    }

    /// A daemon without a process.
    pub(super) fn instance(&self, device: DeviceId) -> DaemonInstance {
        let compute_mode = ModeSetter::new(device.clone(), self.settings.answer_deadline);
        DaemonInstance { device, process: None, compute_mode }
    }

    fn nvml_library(&self) -> Option<PathBuf> {
        self.roots.nvml_library(self.nvml_library.clone())
    }

    pub(super) fn program(&self) -> Result<Program, ProgramError> {
        Program::find(&self.roots, &self.folders)
    }

    /// Adopts a running daemon, or starts a new one.
    pub(super) async fn prepare(
        self: &Arc<Self>,
        instance: &mut DaemonInstance,
        spec: &MpsSpec,
    ) -> Result<(), DaemonError> {
        spec.client_limits()?;
        let device = &instance.device;
        let daemon_folder = self.folders.daemon_folder(device);
        self.make_folders(&daemon_folder)?;
        let program = self.program()?;
        instance.compute_mode.set(self.nvml_library(), ComputeMode::ExclusiveProcess).await?;
        if let Some(process) = self.find(device) {
            tracing::info!(%device, "running MPS daemon adopted");
            self.move_to_own_group(device, &process);
            instance.process = Some(process);
            return Ok(());
        }
        let host_path = |path| self.folders.host.path(path);
        let pipe = host_path(daemon_folder.pipe());
        clear_pipe_folder(&pipe).map_err(|source| DaemonError::Folder { path: pipe, source })?;
        let command = program.daemon(device, &daemon_folder, self.settings.users);
        let process = Process::start(
            command,
            &host_path(daemon_folder.output()),
            &host_path(daemon_folder.record()),
        );
        let process = process.map_err(DaemonError::Start)?;
        self.move_to_own_group(device, &process);
        instance.process = Some(process);
        Ok(())
    }

    /// Moves a daemon out of the agent's control group. The servers of an adopted daemon stay in their group.
    fn move_to_own_group(&self, device: &DeviceId, process: &Process) {
        if let Err(error) = cgroup::move_to_own_group(&self.folders.host, device, process.pid()) {
            let error = causes(&error);
            tracing::warn!(%device, error, "MPS daemon stays in the agent's control group, and ends with it");
        }
    }

    /// Ends the process of a failed daemon, if it still runs.
    pub(super) async fn end_process(
        &self,
        instance: &mut DaemonInstance,
    ) -> Result<(), DaemonError> {
        if let Some(process) = instance.process.take() {
            process.end(self.settings.stop_grace).await?;
        }
        cgroup::remove(&self.folders.host, &instance.device);
        Ok(())
    }

    /// Stops the daemon by its own command, or else by signals, and resets the GPU's compute mode. The folder is
    /// removed last: as long as it exists, the next agent stops the daemon again.
    pub(super) async fn stop(
        self: &Arc<Self>,
        instance: &mut DaemonInstance,
    ) -> Result<(), DaemonError> {
        let daemon_folder = self.folders.daemon_folder(&instance.device);
        if let Some(process) = instance.process.take().or_else(|| self.find(&instance.device)) {
            if let Ok(program) = self.program()
                && program.quit(&daemon_folder, self.settings.answer_deadline).await.is_ok()
            {
                process.wait_exit_within(self.settings.stop_grace).await;
            }
            process.end(self.settings.stop_grace).await?;
        }
        cgroup::remove(&self.folders.host, &instance.device);
        instance.compute_mode.set(self.nvml_library(), ComputeMode::Default).await?;
        let folder = self.folders.host.path(&daemon_folder.folder);
        match fs::remove_dir_all(&folder) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(DaemonError::Folder { path: folder, source })
            }
            _ => Ok(()),
        }
    }

    /// Last line of the daemon's output.
    pub(super) fn last_output(&self, device: &DeviceId) -> Option<String> {
        let output = self.folders.host.read_text(self.folders.daemon_folder(device).output())?;
        output.lines().next_back().map(str::to_owned)
    }

    fn find(&self, device: &DeviceId) -> Option<Process> {
        Process::find(&self.folders.host.path(self.folders.daemon_folder(device).record()))
    }

    fn make_folders(&self, daemon_folder: &DaemonFolder) -> Result<(), DaemonError> {
        let (pipe, log) = (daemon_folder.pipe(), daemon_folder.log());
        for (folder, mode) in [
            (&self.folders.dir, DEFAULT_MODE),
            (&daemon_folder.folder, DEFAULT_MODE),
            (&pipe, WORLD_WRITABLE_MODE),
            (&log, WORLD_WRITABLE_MODE),
        ] {
            let path = self.folders.host.path(folder);
            make_folder(&path, mode)
                .and_then(|()| self.label(&path))
                .map_err(|source| DaemonError::Folder { path, source })?;
        }
        let path = self.folders.host.path(daemon_folder.record());
        if path.exists() {
            return Ok(());
        }
        // The record tells the next agent that this device has a daemon to stop, or a compute mode to reset.
        fs::write(&path, "").map_err(|source| DaemonError::Folder { path, source })
    }

    /// Labels a folder for containers, if `SELinux` is on.
    fn label(&self, folder: &Path) -> io::Result<()> {
        if !self.roots.host.exists(SELINUX) {
            return Ok(());
        }
        let result =
            rustix::fs::setxattr(folder, SELINUX_ATTRIBUTE, CONTAINER_LABEL, XattrFlags::empty());
        result.map_err(io::Error::from)
    }
}

/// Makes a folder with exactly this mode, independent of the umask.
fn make_folder(path: &Path, mode: u32) -> io::Result<()> {
    fs::create_dir_all(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

/// Removes the sockets of an ended daemon, and all files that containers created beside them.
fn clear_pipe_folder(pipe: &Path) -> io::Result<()> {
    for entry in fs::read_dir(pipe)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}
