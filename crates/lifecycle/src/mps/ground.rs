//! What a daemon stands on: its folders, its GPU's compute mode, and the process itself.
//!
//! A daemon outlives the agent. Programs on its GPU hold its pipes and die with it, so an agent that
//! ends leaves its daemons alone, and the next one takes over each that still runs, found by its record
//! and asked like any other. Where the agent runs in a container, the end of the container ends them
//! all; the next agent then finds records of processes that are gone, and starts anew.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::fs::XattrFlags;
use windlass_config::{MpsSettings, Places};
use windlass_core::device::DeviceId;
use windlass_host::Roots;
use windlass_nvml::ComputeMode;

use super::{
    mode::{ModeError, ModeSetter},
    place::{MpsPlaces, Place},
    process::{Process, Unkillable},
    program::{Program, ProgramError},
    want::{MpsWant, Unshareable},
};

/// What all daemons have in common.
#[derive(Debug)]
pub(super) struct Ground {
    pub(super) places: MpsPlaces,
    pub(super) settings: MpsSettings,
    roots: Roots,
    /// `None` is looked for each time: a driver may be installed later.
    nvml_library: Option<PathBuf>,
}

/// What is held for one daemon.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) device: DeviceId,
    pub(super) process: Option<Process>,
    mode: ModeSetter,
}

/// Why a daemon could not be made ready to be asked.
#[derive(Debug, thiserror::Error)]
pub(super) enum GroundError {
    #[error(transparent)]
    Unshareable(#[from] Unshareable),
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error(transparent)]
    Mode(#[from] ModeError),
    #[error("cannot make {path}")]
    Folder { path: PathBuf, source: io::Error },
    #[error("cannot start the daemon")]
    Start(#[source] io::Error),
    #[error(transparent)]
    Unkillable(#[from] Unkillable),
}

/// Every user's server makes its sockets beside the daemon's.
const EVERYONE: u32 = 0o1777;
const ENTERED_BY_EVERYONE: u32 = 0o755;

/// Where a kernel with `SELinux` has its switch, and the label of what containers may use
/// (`container_selinux(8)`).
const SELINUX: &str = "/sys/fs/selinux/enforce";
const SELINUX_ATTRIBUTE: &str = "security.selinux";
const OF_CONTAINERS: &[u8] = b"system_u:object_r:container_file_t:s0\0";

// === impl Ground ===

impl Ground {
    pub(super) fn new(places: &Places, settings: &MpsSettings) -> Self {
        Self {
            places: MpsPlaces::new(places, settings),
            settings: settings.clone(),
            roots: places.roots(),
            nvml_library: places.driver.nvml_library.clone(),
        }
    }

    /// Nothing, to begin with.
    pub(super) fn hold(&self, device: DeviceId) -> Held {
        let mode = ModeSetter::new(device.clone(), self.settings.answer_deadline);
        Held { device, process: None, mode }
    }

    fn nvml_library(&self) -> Option<PathBuf> {
        self.roots.nvml_library(self.nvml_library.clone())
    }

    pub(super) fn program(&self) -> Result<Program, ProgramError> {
        Program::find(&self.roots, &self.places)
    }

    /// Sees to it that a daemon runs: one of an earlier life, or a new one.
    pub(super) async fn prepare(
        self: &Arc<Self>,
        held: &mut Held,
        want: &MpsWant,
    ) -> Result<(), GroundError> {
        want.share()?;
        let place = self.places.of(&held.device);
        self.make_folders(&place)?;
        let program = self.program()?;
        held.mode.set(self.nvml_library(), ComputeMode::ExclusiveProcess).await?;
        if let Some(process) = self.find(&held.device) {
            tracing::info!(device = %held.device, "taking over a running MPS daemon");
            held.process = Some(process);
            return Ok(());
        }
        let path = |path| self.places.host().path(path);
        let pipe = path(place.pipe());
        clear(&pipe).map_err(|source| GroundError::Folder { path: pipe, source })?;
        let command = program.daemon(&held.device, &place, self.settings.users);
        let process = Process::start(command, &path(place.output()), &path(place.record()));
        held.process = Some(process.map_err(GroundError::Start)?);
        Ok(())
    }

    /// Ends what is left of a daemon that failed.
    pub(super) async fn end(&self, held: &mut Held) -> Result<(), GroundError> {
        if let Some(process) = held.process.take() {
            process.end(self.settings.stop_grace).await?;
        }
        Ok(())
    }

    /// Ends the daemon: asked to, then made to; then anyone may use the GPU again. The folder goes
    /// last: while it is there, an agent knows that something is left to be done.
    pub(super) async fn stop(self: &Arc<Self>, held: &mut Held) -> Result<(), GroundError> {
        let place = self.places.of(&held.device);
        if let Some(process) = held.process.take().or_else(|| self.find(&held.device)) {
            if let Ok(program) = self.program()
                && program.quit(&place, self.settings.answer_deadline).await.is_ok()
            {
                process.ends_within(self.settings.stop_grace).await;
            }
            process.end(self.settings.stop_grace).await?;
        }
        held.mode.set(self.nvml_library(), ComputeMode::Default).await?;
        let folder = self.places.host().path(&place.folder);
        let removed = fs::remove_dir_all(&folder);
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(GroundError::Folder { path: folder, source: error })
            }
            _ => Ok(()),
        }
    }

    /// The last words of the daemon.
    pub(super) fn last_words(&self, device: &DeviceId) -> Option<String> {
        let said = self.places.host().text(self.places.of(device).output())?;
        said.lines().next_back().map(str::to_owned)
    }

    fn find(&self, device: &DeviceId) -> Option<Process> {
        Process::find(&self.places.host().path(self.places.of(device).record()))
    }

    fn make_folders(&self, place: &Place) -> Result<(), GroundError> {
        let (pipe, log) = (place.pipe(), place.log());
        for (folder, mode) in [
            (self.places.dir(), ENTERED_BY_EVERYONE),
            (&place.folder, ENTERED_BY_EVERYONE),
            (&pipe, EVERYONE),
            (&log, EVERYONE),
        ] {
            let path = self.places.host().path(folder);
            make_folder(&path, mode)
                .and_then(|()| self.label(&path))
                .map_err(|source| GroundError::Folder { path, source })?;
        }
        let path = self.places.host().path(place.record());
        if path.exists() {
            return Ok(());
        }
        // From here on there is something to be undone.
        fs::write(&path, "").map_err(|source| GroundError::Folder { path, source })
    }

    /// Lets containers in where `SELinux` guards folders.
    fn label(&self, folder: &Path) -> io::Result<()> {
        if !self.roots.host.has(SELINUX) {
            return Ok(());
        }
        let set =
            rustix::fs::setxattr(folder, SELINUX_ATTRIBUTE, OF_CONTAINERS, XattrFlags::empty());
        set.map_err(io::Error::from)
    }
}

/// Makes a folder, with the permissions that the umask would take away.
fn make_folder(path: &Path, mode: u32) -> io::Result<()> {
    fs::create_dir_all(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

/// Removes the sockets of a daemon that is gone, and whatever a container has put beside them.
fn clear(pipe: &Path) -> io::Result<()> {
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
