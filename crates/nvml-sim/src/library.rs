//! The library's own state: who uses it, and the machine as last read.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Instant,
};

use windlass_machine::{Machine, Model, state::Gpu};

use crate::{
    origin,
    status::{Answer, Status},
};

static LIBRARY: Mutex<Library> = Mutex::new(Library { users: 0, state_file: None, seen: None });

/// Since when this process uses the library.
static STARTED: OnceLock<Instant> = OnceLock::new();

struct Library {
    /// `nvmlInit` less `nvmlShutdown`.
    users: u32,
    state_file: Option<PathBuf>,
    seen: Option<(Stamp, Arc<Model>)>,
}

/// Tells one version of the state file from another: it is replaced by rename.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

/// One more user.
pub(crate) fn init() -> Answer {
    let mut library = lock();
    if library.state_file.is_none() {
        library.state_file = origin::state_file();
    }
    library.machine()?;
    library.users += 1;
    STARTED.get_or_init(Instant::now);
    Ok(())
}

/// One user less.
pub(crate) fn shutdown() -> Answer {
    let mut library = lock();
    library.users = library.users.checked_sub(1).ok_or(Status::UNINITIALIZED)?;
    Ok(())
}

/// The machine as it is now.
pub(crate) fn machine() -> Answer<Arc<Model>> {
    let mut library = lock();
    if library.users == 0 {
        return Err(Status::UNINITIALIZED);
    }
    library.machine()
}

/// The folder whose changes are changes of the machine.
pub(crate) fn folder() -> Answer<PathBuf> {
    let library = lock();
    let folder = library.state_file.as_deref().and_then(Path::parent);
    folder.map(Path::to_owned).ok_or(Status::UNINITIALIZED)
}

/// Changes a GPU, as `nvidia-smi` can; nothing if it was pulled out meanwhile.
pub(crate) fn change(number: u32, change: impl FnOnce(&mut Gpu)) -> Answer {
    let machine = Machine::open(&folder()?).map_err(|_| Status::DRIVER_NOT_LOADED)?;
    let find = |model: &mut Model| {
        model.gpus.iter_mut().find(|gpu| gpu.number == number).map(change);
    };
    machine.update(find).map_err(|_| Status::OPERATING_SYSTEM)
}

/// The profile's name, whether anyone called `nvmlInit` or not.
pub(crate) fn profile() -> Option<String> {
    let state_file = lock().state_file.clone().or_else(origin::state_file)?;
    Some(read(&state_file).ok()?.profile)
}

/// How long this process has used the library.
pub(crate) fn seconds_in_use() -> u64 {
    STARTED.get().map_or(0, |started| started.elapsed().as_secs())
}

// === impl Library ===

impl Library {
    fn machine(&mut self) -> Answer<Arc<Model>> {
        let path = self.state_file.as_deref().ok_or(Status::DRIVER_NOT_LOADED)?;
        let stamp = Stamp::of(path)?;
        let model = match &self.seen {
            Some((seen, model)) if *seen == stamp => Arc::clone(model),
            _ => Arc::new(read(path)?),
        };
        self.seen = Some((stamp, Arc::clone(&model)));
        if model.driver_loaded { Ok(model) } else { Err(Status::DRIVER_NOT_LOADED) }
    }
}

// === impl Stamp ===

impl Stamp {
    fn of(path: &Path) -> Answer<Self> {
        let found = fs::metadata(path).map_err(|_| Status::DRIVER_NOT_LOADED)?;
        Ok(Self {
            inode: found.ino(),
            size: found.size(),
            modified: (found.mtime(), found.mtime_nsec()),
        })
    }
}

fn read(path: &Path) -> Answer<Model> {
    let json = fs::read(path).map_err(|_| Status::DRIVER_NOT_LOADED)?;
    serde_json::from_slice(&json).map_err(|_| Status::UNKNOWN)
}

/// The state is replaced as a whole, so what a panic left behind is still good.
fn lock() -> MutexGuard<'static, Library> {
    LIBRARY.lock().unwrap_or_else(PoisonError::into_inner)
}
