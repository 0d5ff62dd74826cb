//! Note that the hook leaves per container: the memory limits, as read back from the driver or the kernel.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{MemoryLimitError, VERSION, check_gpus, check_path, json, read};
use crate::dmem::DmemRegion;

/// Limits that `windlass-hook` set and read back for one container. The note's file is beside the record of the
/// container's allocation ([`MemoryLimitRecord`](super::MemoryLimitRecord)).
///
/// # Guarantees
///
/// Paths are absolute and without `..`. There is at least one GPU, and each occurs once. Both constructors check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MemoryLimitNote {
    version: u32,
    boot_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    library: Option<PathBuf>,
    cgroup: PathBuf,
    gpus: Vec<LimitedGpu>,
}

/// Hard limit of a container on one GPU, as read back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LimitedGpu {
    /// UUID of the GPU; the device id if `region` is present.
    pub uuid: String,
    /// Region by which the kernel's `dmem` controller limits the GPU; `None` if NVIDIA's driver limits it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<DmemRegion>,
    /// Hard limit in bytes. The driver may round the record's limit up to its page size.
    pub hard_bytes: u64,
}

/// Infix of a note's file name, between the record's stem and the container id.
const NOTE_INFIX: &str = ".limited-";
const EXTENSION: &str = ".json";

/// Longest container id in a file name, in bytes. Ids of containerd and CRI-O have 64.
const MAX_ID: usize = 128;

// === impl MemoryLimitNote ===

impl MemoryLimitNote {
    /// Note for a cgroup, given by the full path of its directory.
    pub fn new(
        boot_id: impl Into<String>,
        library: Option<PathBuf>,
        cgroup: impl Into<PathBuf>,
        gpus: Vec<LimitedGpu>,
    ) -> Result<Self, MemoryLimitError> {
        let (boot_id, cgroup) = (boot_id.into(), cgroup.into());
        Self { version: VERSION, boot_id, library, cgroup, gpus }.checked()
    }

    /// Reads a note.
    pub fn parse(bytes: &[u8]) -> Result<Self, MemoryLimitError> {
        read::<Self>(bytes)?.checked()
    }

    /// The note as JSON.
    pub fn to_json(&self) -> Vec<u8> {
        json(self)
    }

    /// Boot id of the host when the limits were set. A reboot clears them.
    pub fn boot_id(&self) -> &str {
        &self.boot_id
    }

    /// Path of NVML on the host; `None` only if each GPU has a region.
    pub fn library(&self) -> Option<&Path> {
        self.library.as_deref()
    }

    /// Directory of the container's cgroup on the host.
    pub fn cgroup(&self) -> &Path {
        &self.cgroup
    }

    /// Limit of each GPU.
    pub fn gpus(&self) -> &[LimitedGpu] {
        &self.gpus
    }

    /// Path of a container's note, beside the record of its allocation; `None` for an invalid container id.
    pub fn path(record: &Path, container: &str) -> Option<PathBuf> {
        let name = format!("{}{NOTE_INFIX}{container}{EXTENSION}", stem(record)?);
        is_id(container).then(|| record.with_file_name(name))
    }

    /// Id of the container whose note beside this record has this file name; `None` for other files.
    pub fn container<'a>(record: &Path, file_name: &'a str) -> Option<&'a str> {
        let suffix = file_name.strip_prefix(stem(record)?)?.strip_prefix(NOTE_INFIX)?;
        suffix.strip_suffix(EXTENSION).filter(|id| is_id(id))
    }

    fn checked(self) -> Result<Self, MemoryLimitError> {
        check_path(&self.cgroup)?;
        let gpus = self.gpus.iter().map(|gpu| (gpu.uuid.as_str(), gpu.region.as_ref()));
        check_gpus(self.library.as_deref(), gpus)?;
        Ok(self)
    }
}

fn stem(record: &Path) -> Option<&str> {
    record.file_stem()?.to_str()
}

/// True for a valid container id: runc's characters, at most [`MAX_ID`] of them.
fn is_id(container: &str) -> bool {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "_+-.".contains(letter);
    !container.is_empty() && container.len() <= MAX_ID && container.chars().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"version":1,"bootId":"b","library":"/lib/nvml","cgroup":"/sys/fs/cgroup/a","gpus":[{"uuid":"GPU-1","hardBytes":2097152}]}"#;

    #[test]
    fn a_note_reads_back_as_it_is_written() {
        let gpus = vec![LimitedGpu { uuid: "GPU-1".to_owned(), region: None, hard_bytes: 2 << 20 }];
        let library = Some("/lib/nvml".into());
        let note =
            MemoryLimitNote::new("b", library, "/sys/fs/cgroup/a", gpus).expect("a valid note");
        assert_eq!(String::from_utf8(note.to_json()).expect("text"), GOOD);
        assert_eq!(MemoryLimitNote::parse(GOOD.as_bytes()).expect("a valid note"), note);
    }

    #[test]
    fn a_damaged_note_is_refused() {
        for (from, to) in [
            (GOOD, ""),
            ("\"bootId\":\"b\",", ""),
            ("\"gpus\"", "\"x\":1,\"gpus\""),
            ("\"version\":1", "\"version\":0"),
            ("/sys/fs/cgroup/a", "/sys/fs/cgroup/../a"),
            ("/lib/nvml", "nvml"),
            ("GPU-1", "MIG-1"),
        ] {
            MemoryLimitNote::parse(GOOD.replace(from, to).as_bytes()).expect_err(to);
        }
    }

    #[test]
    fn a_notes_file_name_contains_its_record_and_its_container() {
        let record = Path::new("/state/gpu-1.json");
        let path = MemoryLimitNote::path(record, "0a1b_+-.").expect("an id");
        assert_eq!(path, Path::new("/state/gpu-1.limited-0a1b_+-..json"));
        let container = |name| MemoryLimitNote::container(record, name);
        assert_eq!(container("gpu-1.limited-0a1b_+-..json"), Some("0a1b_+-."));
        for other in ["gpu-1.json", "gpu-11.limited-a.json", "gpu-1.limited-.json", "x"] {
            assert_eq!(container(other), None, "{other}");
        }
        for id in ["", "a/b", "..\u{e4}", "a b", &"a".repeat(129)] {
            assert_eq!(MemoryLimitNote::path(record, id), None, "{id}");
        }
    }
}
