//! Memory limits of shares by NVIDIA's driver: the records that the hook of the container runtime reads.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
};

use windlass_config::Policy;
use windlass_core::{
    cdi::Hook,
    device::DeviceId,
    enforcement::Enforcement,
    memory_limit::{GpuMemoryLimit, MemoryLimitNote, MemoryLimitRecord},
};
use windlass_discovery::live_driver::LiveDriver;
use windlass_host::{
    Host, causes,
    container::ContainerId,
    files::{self, Links, Readers},
    state_file::BOOT_ID,
};

use super::{error::BindError, hold::HeldGpu};

/// The folder of the records. The container runtime has it at the same path.
#[derive(Clone, Debug)]
pub(crate) struct LimitRecords(PathBuf);

/// A limit that the hook sets before the container's first instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DriverLimit {
    record: MemoryLimitRecord,
    /// Path of the record.
    path: PathBuf,
    /// Path of the hook on the host.
    hook: PathBuf,
}

/// Pods that the driver limits on each GPU, by the kubelet's UID.
pub(crate) type LimitedPods = BTreeMap<DeviceId, BTreeSet<String>>;

/// Folder below the state folder.
const FOLDER: &str = "memory-limits";

/// The stage at which a container has its control group and has not started.
const STAGE: &str = "createRuntime";

/// Seconds until the runtime gives the hook up. It takes milliseconds; a driver that hangs takes for ever.
const TIMEOUT: i64 = 30;

const JSON: &str = ".json";

// === impl DriverLimit ===

impl DriverLimit {
    /// The driver's limit of a container with these GPUs, or none where the configuration is content with less. Blocks for
    /// small files.
    pub(super) fn of(
        gpus: &[HeldGpu],
        path: PathBuf,
        policy: &Policy,
        driver: &LiveDriver,
    ) -> Result<Option<Self>, BindError> {
        let is_part = |gpu: &&HeldGpu| (1..gpu.of_mib).contains(&gpu.amounts.memory_mib);
        let limit = |gpu: &HeldGpu| GpuMemoryLimit {
            uuid: gpu.device.to_string(),
            hard_mib: gpu.amounts.memory_mib,
        };
        let wanted = policy.memory_limits.at_least.enforcement();
        if wanted > Enforcement::None && gpus.iter().any(|gpu| gpu.amounts.memory_mib == 0) {
            return Err(BindError::NoMemory(wanted));
        }
        let limits: Vec<_> = gpus.iter().filter(is_part).map(limit).collect();
        if limits.is_empty() {
            return Ok(None);
        }
        let found = policy.memory_limits.hook.as_ref().map(|hook| {
            let places = driver.memory_limits().map_err(|error| error.to_string())?;
            let record = MemoryLimitRecord::new(places.library, limits)
                .and_then(|record| record.with_cgroup_root(places.cgroups));
            let record = record.map_err(|error| causes(&error))?;
            Ok::<_, String>(Self { record, path, hook: hook.clone() })
        });
        let without = match found {
            Some(Ok(limit)) => return Ok(Some(limit)),
            Some(Err(why)) => why,
            None => "the configuration names no hook".to_owned(),
        };
        let is_watched = policy.watchdog.action.acts() && driver.host().shows_own_process();
        let found = if is_watched { Enforcement::Watched } else { Enforcement::None };
        if found >= wanted {
            Ok(None)
        } else {
            Err(BindError::NotLimited { found, wanted, without })
        }
    }

    /// The hook, for the container's document.
    pub(super) fn hook(&self) -> Hook {
        let program = self.hook.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let arguments = ["memory-limit", "--record"].map(ToOwned::to_owned);
        let record = self.path.to_string_lossy().into_owned();
        Hook {
            hook_name: STAGE.to_owned(),
            path: self.hook.clone(),
            args: [program].into_iter().chain(arguments).chain([record]).collect(),
            env: Vec::new(),
            timeout: Some(TIMEOUT),
        }
    }
}

// === impl LimitRecords ===

impl LimitRecords {
    pub(crate) fn new(state_dir: &Path) -> Self {
        Self(state_dir.join(FOLDER))
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}{JSON}"))
    }

    /// Writes the record of a document, or removes it with the hook's notes. Blocks.
    pub(super) fn settle(&self, name: &str, limit: Option<&DriverLimit>) -> Result<(), String> {
        let path = self.path(name);
        let done = match limit {
            Some(limit) => fs::create_dir_all(&self.0).and_then(|()| {
                files::replace(&path, &limit.record.to_json(), Readers::Owner).map(drop)
            }),
            None => self.remove(&path),
        };
        done.map_err(|error| format!("cannot write {}: {error}", path.display()))
    }

    /// Pods that the hook has limited since the boot. Blocks.
    pub(crate) fn limited(&self, host: &Host) -> LimitedPods {
        let boot = host.text(BOOT_ID).unwrap_or_default();
        let mut limited = LimitedPods::new();
        for file in fs::read_dir(&self.0).into_iter().flatten().flatten() {
            let text = files::read_regular_text(&file.path(), Links::Refused, files::MAX_BYTES);
            let note = text.ok().and_then(|text| MemoryLimitNote::parse(text.as_bytes()).ok());
            let Some(note) = note.filter(|note| note.boot_id() == boot) else { continue };
            let group = note.cgroup().to_str().and_then(ContainerId::in_group);
            let Some(container) = group else { continue };
            let ids = note.gpus().iter().filter_map(|gpu| gpu.uuid.parse::<DeviceId>().ok());
            for id in ids {
                limited.entry(id).or_default().insert(container.pod.clone());
            }
        }
        limited
    }

    /// Removes the records of ended shares, which a killed agent left. Blocks.
    pub(super) fn retain(&self, is_there: impl Fn(&str) -> bool) {
        let files = fs::read_dir(&self.0).into_iter().flatten().flatten();
        for file in files.map(|file| file.path()) {
            let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let name = name.split('.').next().unwrap_or_default();
            if !is_there(name) {
                // The next agent tries again; nobody reads the file.
                let _ = fs::remove_file(file);
            }
        }
    }

    fn remove(&self, record: &Path) -> io::Result<()> {
        let entries = match fs::read_dir(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        for file in entries.flatten() {
            let name = file.file_name();
            let is_note = name
                .to_str()
                .is_some_and(|name| MemoryLimitNote::container(record, name).is_some());
            if is_note || file.path() == record {
                fs::remove_file(file.path())?;
            }
        }
        Ok(())
    }
}
