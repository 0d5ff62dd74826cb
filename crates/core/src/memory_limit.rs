//! Memory limits of a container on GPUs: the agent's record for `windlass-hook`, and the hook's note.
//!
//! The agent writes a record per allocation. The container runtime starts `windlass-hook` with the record's path for
//! each container of the allocation. The hook sets the limits and leaves a note per container beside the record:
//!
//! ```text
//! shares/gpu-0a1b.json               {"version":1,"library":"/usr/lib64/libnvidia-ml.so.1",
//!                                     "cgroupRoot":"/sys/fs/cgroup","gpus":[{"uuid":"GPU-…","hardMib":4096}]}
//! shares/gpu-0a1b.limited-<id>.json  {"version":1,"bootId":"…","library":"/usr/lib64/libnvidia-ml.so.1",
//!                                     "cgroup":"/sys/fs/cgroup/kubepods.slice/…/cri-containerd-<id>.scope",
//!                                     "gpus":[{"uuid":"GPU-…","hardBytes":4294967296}]}
//! ```
//!
//! NVIDIA's driver limits a GPU by its UUID. The kernel's cgroup controller `dmem` limits other vendors' GPUs by
//! region; a record with such GPUs alone needs no library:
//!
//! ```text
//! {"version":1,"cgroupRoot":"/sys/fs/cgroup","gpus":[{"uuid":"amd-…","region":"drm/0000:03:00.0/vram","hardMib":4096}]}
//! ```

mod note;

use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{device::DeviceId, dmem::DmemRegion};

pub use note::{LimitedGpu, MemoryLimitNote};

/// Record of an allocation: the limits of each of its containers.
///
/// # Guarantees
///
/// Paths are absolute and without `..`. There is at least one GPU, and each occurs once. Each limit is between 1 MiB
/// and [`GpuMemoryLimit::MAX_MIB`]. NVML's path is present if a GPU has no region. Both constructors check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MemoryLimitRecord {
    version: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    library: Option<PathBuf>,
    #[serde(default = "default_cgroup_root")]
    cgroup_root: PathBuf,
    gpus: Vec<GpuMemoryLimit>,
}

/// Hard limit of a container on one GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GpuMemoryLimit {
    /// UUID of the whole GPU, `GPU-…`; the device id if `region` is present.
    pub uuid: String,
    /// Region by which the kernel's `dmem` controller limits the GPU; `None` if NVIDIA's driver limits it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<DmemRegion>,
    /// Maximum memory of all processes of the container together, in MiB.
    pub hard_mib: u64,
}

/// Reason why a record or a note is invalid.
#[derive(Debug, thiserror::Error)]
pub enum MemoryLimitError {
    /// The bytes do not parse: damaged, a missing field, or an unknown field.
    #[error("the document is damaged")]
    Parse(#[from] serde_json::Error),
    /// Another version wrote the document.
    #[error("the document has version {0}, and this program knows {VERSION}")]
    UnsupportedVersion(u32),
    /// The path is relative, contains `..`, or is not UTF-8.
    #[error("{0} is not an absolute UTF-8 path without `..`")]
    InvalidPath(PathBuf),
    /// The document names no GPU.
    #[error("the document names no GPU")]
    NoGpu,
    /// The id is not that of a whole GPU. MIG devices have no limits.
    #[error("`{0}` is not the UUID of a whole GPU")]
    NotWholeGpu(String),
    /// A GPU has no region, and the document names no library.
    #[error("the document limits {0} by NVIDIA's driver, and names no library")]
    NoLibrary(String),
    /// The GPU occurs twice.
    #[error("{0} occurs twice")]
    DuplicateGpu(String),
    /// The limit is 0 or larger than any GPU.
    #[error("the limit of {} is {} MiB, it must be 1 to {}", .0.uuid, .0.hard_mib, GpuMemoryLimit::MAX_MIB)]
    InvalidLimit(GpuMemoryLimit),
}

/// Version of both documents.
const VERSION: u32 = 1;

/// Mount point of cgroup v2 (`cgroups(7)`).
pub const CGROUP_ROOT: &str = "/sys/fs/cgroup";

/// Version of a document, read before all other fields.
#[derive(Deserialize)]
struct Header {
    version: u32,
}

// === impl MemoryLimitRecord ===

impl MemoryLimitRecord {
    /// Record with the default mount point of cgroup v2. `library` is NVML's path on the host; `None` if every GPU has
    /// a region.
    pub fn new(
        library: Option<PathBuf>,
        gpus: Vec<GpuMemoryLimit>,
    ) -> Result<Self, MemoryLimitError> {
        Self { version: VERSION, library, cgroup_root: default_cgroup_root(), gpus }.checked()
    }

    /// This record with another mount point of cgroup v2.
    pub fn with_cgroup_root(self, root: impl Into<PathBuf>) -> Result<Self, MemoryLimitError> {
        Self { cgroup_root: root.into(), ..self }.checked()
    }

    /// This record with each limit multiplied, for a container with several replicas.
    pub fn times(mut self, replicas: u32) -> Result<Self, MemoryLimitError> {
        for gpu in &mut self.gpus {
            gpu.hard_mib = gpu.hard_mib.saturating_mul(replicas.into());
        }
        self.checked()
    }

    /// Reads a record.
    pub fn parse(bytes: &[u8]) -> Result<Self, MemoryLimitError> {
        read::<Self>(bytes)?.checked()
    }

    /// The record as JSON.
    pub fn to_json(&self) -> Vec<u8> {
        json(self)
    }

    /// Path of NVML on the host; `None` only if each GPU has a region.
    pub fn library(&self) -> Option<&Path> {
        self.library.as_deref()
    }

    /// Mount point of cgroup v2 on the host.
    pub fn cgroup_root(&self) -> &Path {
        &self.cgroup_root
    }

    /// Limit of each GPU.
    pub fn gpus(&self) -> &[GpuMemoryLimit] {
        &self.gpus
    }

    fn checked(self) -> Result<Self, MemoryLimitError> {
        check_path(&self.cgroup_root)?;
        let gpus = self.gpus.iter().map(|gpu| (gpu.uuid.as_str(), gpu.region.as_ref()));
        check_gpus(self.library.as_deref(), gpus)?;
        match self.gpus.iter().find(|gpu| !(1..=GpuMemoryLimit::MAX_MIB).contains(&gpu.hard_mib)) {
            Some(limit) => Err(MemoryLimitError::InvalidLimit(limit.clone())),
            None => Ok(self),
        }
    }
}

// === impl GpuMemoryLimit ===

impl GpuMemoryLimit {
    /// Highest limit: one PiB, a thousand times any GPU's memory.
    pub const MAX_MIB: u64 = 1 << 30;

    /// The limit in bytes.
    pub fn hard_bytes(&self) -> u64 {
        self.hard_mib << 20
    }
}

fn default_cgroup_root() -> PathBuf {
    CGROUP_ROOT.into()
}

fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, MemoryLimitError> {
    let Header { version } = serde_json::from_slice(bytes)?;
    if version != VERSION {
        return Err(MemoryLimitError::UnsupportedVersion(version));
    }
    Ok(serde_json::from_slice(bytes)?)
}

fn json(document: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(document).expect("strings, numbers and lists")
}

fn check_path(path: &Path) -> Result<(), MemoryLimitError> {
    let has_parent = path.components().any(|component| component == Component::ParentDir);
    let is_valid = path.is_absolute() && !has_parent && path.to_str().is_some();
    if is_valid { Ok(()) } else { Err(MemoryLimitError::InvalidPath(path.to_owned())) }
}

/// Checks that each id is that of a whole GPU and occurs once, and that a library is present for GPUs without a region.
fn check_gpus<'a>(
    library: Option<&Path>,
    gpus: impl Iterator<Item = (&'a str, Option<&'a DmemRegion>)>,
) -> Result<(), MemoryLimitError> {
    library.map_or(Ok(()), check_path)?;
    let mut uuids = Vec::new();
    for (uuid, region) in gpus {
        let is_id = if region.is_some() { uuid.parse::<DeviceId>().is_ok() } else { is_uuid(uuid) };
        if !is_id {
            return Err(MemoryLimitError::NotWholeGpu(uuid.to_owned()));
        }
        if region.is_none() && library.is_none() {
            return Err(MemoryLimitError::NoLibrary(uuid.to_owned()));
        }
        if uuids.contains(&uuid) {
            return Err(MemoryLimitError::DuplicateGpu(uuid.to_owned()));
        }
        uuids.push(uuid);
    }
    if uuids.is_empty() { Err(MemoryLimitError::NoGpu) } else { Ok(()) }
}

/// True for the UUID of a whole NVIDIA GPU.
fn is_uuid(text: &str) -> bool {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
    text.strip_prefix("GPU-").is_some_and(|id| !id.is_empty() && id.chars().all(is_plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"version":1,"library":"/usr/lib64/libnvidia-ml.so.1","cgroupRoot":"/sys/fs/cgroup","gpus":[{"uuid":"GPU-1a-2","hardMib":4096}]}"#;

    fn limit(uuid: &str, hard_mib: u64) -> GpuMemoryLimit {
        GpuMemoryLimit { uuid: uuid.to_owned(), region: None, hard_mib }
    }

    #[test]
    fn a_record_reads_back_as_it_is_written() {
        let gpus = vec![limit("GPU-1a-2", 4096)];
        let record = MemoryLimitRecord::new(Some("/usr/lib64/libnvidia-ml.so.1".into()), gpus)
            .expect("a valid record");
        assert_eq!(String::from_utf8(record.to_json()).expect("text"), GOOD);
        assert_eq!(MemoryLimitRecord::parse(GOOD.as_bytes()).expect("a valid record"), record);
        let without_root = GOOD.replace(r#""cgroupRoot":"/sys/fs/cgroup","#, "");
        assert_eq!(
            MemoryLimitRecord::parse(without_root.as_bytes()).expect("a valid record"),
            record
        );
        assert_eq!(record.gpus()[0].hard_bytes(), 4 << 30);
        let with_root = record.clone().with_cgroup_root("/host/cgroup").expect("a valid record");
        assert_eq!(with_root.cgroup_root(), Path::new("/host/cgroup"));
        assert_eq!(
            record.clone().times(3).expect("a valid record").gpus(),
            [limit("GPU-1a-2", 12_288)]
        );
        for factor in [0, 1 << 20] {
            record.clone().times(factor).expect_err("the limit is out of bounds");
        }
    }

    #[test]
    fn a_record_with_any_mistake_is_refused_with_the_mistake() {
        for (from, to, expected) in [
            (GOOD, "", "damaged"),
            ("}", "", "damaged"),
            (GOOD, "{}", "damaged"),
            ("\"version\":1,", "", "damaged"),
            ("\"hardMib\":4096", "\"hardMiB\":4096", "damaged"),
            (",\"hardMib\":4096", "", "damaged"),
            ("\"gpus\"", "\"x\":1,\"gpus\"", "damaged"),
            ("4096", "-1", "damaged"),
            ("4096", "18446744073709551616", "damaged"),
            ("\"version\":1", "\"version\":2,\"more\":0", "has version 2"),
            ("4096", "0", "the limit of GPU-1a-2 is 0 MiB"),
            ("4096", "18446744073709551615", "must be 1 to 1073741824"),
            ("[{\"uuid\":\"GPU-1a-2\",\"hardMib\":4096}]", "[]", "no GPU"),
            ("GPU-1a-2", "MIG-1a-2", "`MIG-1a-2` is not the UUID of a whole GPU"),
            ("GPU-1a-2", "GPU-", "not the UUID"),
            ("GPU-1a-2", "GPU-a/b", "not the UUID"),
            ("\"/usr", "\"usr", "usr/lib64/libnvidia-ml.so.1 is not an absolute"),
            ("/sys/fs", "/sys/../fs", "not an absolute UTF-8 path without `..`"),
        ] {
            let error = MemoryLimitRecord::parse(GOOD.replace(from, to).as_bytes());
            let error = error.expect_err(to).to_string();
            assert!(error.contains(expected), "{from} -> {to}: {error}");
        }
    }

    #[test]
    fn a_record_of_regions_needs_no_library_and_names_devices_of_any_vendor() {
        const AMD: &str = r#"{"version":1,"cgroupRoot":"/sys/fs/cgroup","gpus":[{"uuid":"amd-0000-03-00-0","region":"drm/0000:03:00.0/vram","hardMib":4096}]}"#;
        let record = MemoryLimitRecord::parse(AMD.as_bytes()).expect("a valid record");
        assert_eq!(record.library(), None);
        let region = record.gpus()[0].region.as_ref().expect("a region");
        assert_eq!(region.as_str(), "drm/0000:03:00.0/vram");
        assert_eq!(String::from_utf8(record.to_json()).expect("text"), AMD);
        for (from, to, expected) in [
            ("drm/0000", "drm/00 00", "damaged"),
            ("amd-", "a/", "not the UUID of a whole GPU"),
            (r#""region":"drm/0000:03:00.0/vram","#, "", "not the UUID of a whole GPU"),
            (r#""amd-0000-03-00-0","region":"drm/0000:03:00.0/vram""#, r#""GPU-a""#, "no library"),
            (r#""cgroupRoot""#, r#""library":"lib","cgroupRoot""#, "not an absolute"),
        ] {
            let error = MemoryLimitRecord::parse(AMD.replace(from, to).as_bytes());
            let error = error.expect_err(to).to_string();
            assert!(error.contains(expected), "{from} -> {to}: {error}");
        }
    }

    #[test]
    fn a_path_that_json_cannot_hold_is_refused() {
        use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _};
        let library = PathBuf::from(OsStr::from_bytes(b"/\xff"));
        let error = MemoryLimitRecord::new(Some(library), vec![limit("GPU-a", 1)]);
        assert!(matches!(error, Err(MemoryLimitError::InvalidPath(_))), "{error:?}");
    }

    #[test]
    fn a_gpu_has_one_limit() {
        let twice = vec![limit("GPU-a", 1), limit("GPU-b", 1), limit("GPU-a", 2)];
        let error =
            MemoryLimitRecord::new(Some("/lib".into()), twice).expect_err("refused").to_string();
        assert_eq!(error, "GPU-a occurs twice");
    }
}
