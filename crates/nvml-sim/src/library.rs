//! State of the library: the number of its users, and the cached model of the machine.

use std::{
    ffi::OsStr,
    fs::{self, File, Metadata},
    io::Read as _,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
    time::Instant,
};

use windlass_machine::{Fault, Machine, MachineError, Model, mig::MigRefusal, state::Gpu};

use crate::{
    events, origin,
    status::{NvmlResult, Status},
    watch,
};

static LIBRARY: RwLock<Library> =
    RwLock::new(Library { users: 0, state_file: None, cached: None, in_use_lock: None });

/// Time of the first `nvmlInit` in this process.
static STARTED: OnceLock<Instant> = OnceLock::new();

/// Lock file that every process with an initialised library shares, and the folder of `nvidia-smi`'s reset files.
/// Both are in the machine's folder.
const IN_USE_LOCK_FILE: &str = "in-use";
const RESET_DIR: &str = "nvidia-smi";

struct Library {
    /// Number of `nvmlInit` calls minus the number of `nvmlShutdown` calls.
    users: u32,
    state_file: Option<Arc<Path>>,
    cached: Option<CachedModel>,
    /// Shared lock on [`IN_USE_LOCK_FILE`]. While a process holds it, `nvidia-smi` refuses to reset a GPU.
    in_use_lock: Option<File>,
}

/// Cached model. The file stays open, so that no newer state file gets its inode number.
struct CachedModel {
    _file: File,
    version: FileVersion,
    model: Arc<Model>,
}

/// Identity of one version of the state file, which each change replaces by rename.
#[derive(Clone, Copy, PartialEq, Eq)]
struct FileVersion {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

/// Adds a user: `nvmlInit`.
pub(crate) fn init() -> NvmlResult {
    let mut library = write_library();
    if library.state_file.is_none() {
        library.state_file = origin::state_file().map(Arc::from);
    }
    library.reload()?;
    if library.users == 0 {
        library.lock_gpus()?;
    }
    library.users += 1;
    STARTED.get_or_init(Instant::now);
    Ok(())
}

/// Removes a user: `nvmlShutdown`.
pub(crate) fn shutdown() -> NvmlResult {
    let mut library = write_library();
    library.users = library.users.checked_sub(1).ok_or(Status::UNINITIALIZED)?;
    if library.users == 0 {
        (library.cached, library.in_use_lock) = (None, None);
        // Unlock first: threads that wait for an event call `current_model`, which needs the lock.
        drop(library);
        events::free_all_sets();
        watch::stop_watch();
    }
    Ok(())
}

/// Current model of the machine. Reading an unchanged file needs only the read lock.
pub(crate) fn current_model() -> NvmlResult<Arc<Model>> {
    let path = read_library().state_file_path()?;
    let metadata = fs::metadata(&path).map_err(|_| Status::DRIVER_NOT_LOADED)?;
    let cached = read_library().cached_at(FileVersion::of(&metadata));
    let model = cached.map_or_else(|| write_library().reload(), Ok)?;
    if model.driver_loaded { Ok(model) } else { Err(Status::DRIVER_NOT_LOADED) }
}

/// Folder to watch for changes of the machine.
pub(crate) fn machine_dir() -> NvmlResult<PathBuf> {
    let library = read_library();
    let folder = library.state_file.as_deref().and_then(Path::parent);
    folder.map(Path::to_owned).ok_or(Status::UNINITIALIZED)
}

/// Changes a GPU, as `nvidia-smi` does. A removed GPU is ignored.
pub(crate) fn update_gpu(number: u32, change: impl FnOnce(&mut Gpu)) -> NvmlResult {
    let machine = Machine::open(&machine_dir()?).map_err(|_| Status::DRIVER_NOT_LOADED)?;
    let find = |model: &mut Model| {
        model.gpus.iter_mut().find(|gpu| gpu.number == number).map(change);
    };
    machine.update(find).map_err(|_| Status::OPERATING_SYSTEM)
}

/// Changes a GPU, unless `attempt` refuses. A refusal leaves the GPU unchanged.
pub(crate) fn try_update_gpu<T>(
    number: u32,
    attempt: impl FnOnce(&mut Gpu) -> Result<T, MigRefusal>,
) -> NvmlResult<T> {
    let mut outcome = Err(Status::GPU_IS_LOST);
    update_gpu(number, |gpu| outcome = attempt(gpu).map_err(Status::from_refusal))?;
    outcome
}

/// Name of the machine profile. Works before `nvmlInit` too.
pub(crate) fn profile_name() -> Option<String> {
    let initialised_path = read_library().state_file.clone();
    let state_file = initialised_path.or_else(|| origin::state_file().map(Arc::from))?;
    Some(CachedModel::read(&state_file).ok()?.model.profile.clone())
}

/// Seconds since this process began to use the library.
pub(crate) fn seconds_in_use() -> u64 {
    STARTED.get().map_or(0, |started| started.elapsed().as_secs())
}

// === impl Library ===

impl Library {
    /// Path of the state file, after `nvmlInit`.
    fn state_file_path(&self) -> NvmlResult<Arc<Path>> {
        let path = self.state_file.clone().filter(|_| self.users > 0);
        path.ok_or(Status::UNINITIALIZED)
    }

    /// Takes the lock that blocks resets by `nvidia-smi`, and applies earlier resets.
    fn lock_gpus(&mut self) -> NvmlResult {
        let folder = self.state_file.as_deref().and_then(Path::parent);
        let folder = folder.ok_or(Status::DRIVER_NOT_LOADED)?;
        let in_use_lock = File::create(folder.join(IN_USE_LOCK_FILE)).ok();
        self.in_use_lock = in_use_lock.filter(|in_use_lock| in_use_lock.lock_shared().is_ok());
        let resets = fs::read_dir(folder.join(RESET_DIR)).into_iter().flatten().flatten();
        resets.map(|file| file.path()).try_for_each(|file| apply_reset(folder, &file))
    }

    /// Cached model, if the file is unchanged.
    fn cached_at(&self, version: FileVersion) -> Option<Arc<Model>> {
        self.cached
            .as_ref()
            .filter(|cached| cached.version == version)
            .map(|cached| Arc::clone(&cached.model))
    }

    fn reload(&mut self) -> NvmlResult<Arc<Model>> {
        let path = self.state_file.as_deref().ok_or(Status::DRIVER_NOT_LOADED)?;
        let model = Arc::clone(&self.cached.insert(CachedModel::read(path)?).model);
        if model.driver_loaded { Ok(model) } else { Err(Status::DRIVER_NOT_LOADED) }
    }
}

// === impl CachedModel ===

impl CachedModel {
    fn read(path: &Path) -> NvmlResult<Self> {
        let mut file = File::open(path).map_err(|_| Status::DRIVER_NOT_LOADED)?;
        let metadata = file.metadata().map_err(|_| Status::DRIVER_NOT_LOADED)?;
        let mut json = Vec::new();
        file.read_to_end(&mut json).map_err(|_| Status::DRIVER_NOT_LOADED)?;
        let model = serde_json::from_slice(&json).map_err(|_| Status::UNKNOWN)?;
        Ok(Self { _file: file, version: FileVersion::of(&metadata), model: Arc::new(model) })
    }
}

// === impl FileVersion ===

impl FileVersion {
    fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }
}

/// Resets the GPU that the reset file names, and deletes the file.
fn apply_reset(folder: &Path, reset_file: &Path) -> NvmlResult {
    let name = reset_file.file_name().and_then(OsStr::to_str).unwrap_or_default();
    let Some(uuid) = name.strip_suffix(".reset") else { return Ok(()) };
    let reset = || -> Result<(), MachineError> {
        let machine = Machine::open(folder)?;
        let gpu = machine.model()?.gpus.iter().position(|gpu| gpu.uuid == uuid);
        gpu.map_or(Ok(()), |gpu| machine.inject(&Fault::Recover { gpu }))
    };
    reset().map_err(|_| Status::OPERATING_SYSTEM)?;
    fs::remove_file(reset_file).map_err(|_| Status::OPERATING_SYSTEM)
}

/// Locks the state for reading. A poisoned lock guards a valid value, because each field is replaced as a whole.
fn read_library() -> RwLockReadGuard<'static, Library> {
    LIBRARY.read().unwrap_or_else(PoisonError::into_inner)
}

/// Locks the state for a change; see [`read_library`] for poisoning.
fn write_library() -> RwLockWriteGuard<'static, Library> {
    LIBRARY.write().unwrap_or_else(PoisonError::into_inner)
}
