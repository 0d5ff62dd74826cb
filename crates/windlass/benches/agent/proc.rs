//! Process statistics from /proc.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context as _, Result};

/// Resident memory of a process in KiB, by origin.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Resident {
    /// All resident memory.
    pub(crate) total: u64,
    /// Mappings of the NVML library's file.
    pub(crate) nvml: u64,
    /// Anonymous memory outside the NVML library: heap, stacks, changed pages of files.
    pub(crate) anonymous: u64,
}

// === impl Resident ===

impl Resident {
    /// Adds up `/proc/<pid>/smaps`.
    pub(crate) fn of(process: u32) -> Result<Self> {
        let mut resident = Self::default();
        let mut in_nvml = false;
        for line in read(format!("/proc/{process}/smaps"))?.lines() {
            if let Some(size) = kib(line, "Rss:") {
                resident.total += size;
                resident.nvml += if in_nvml { size } else { 0 };
            } else if let Some(size) = kib(line, "Anonymous:") {
                resident.anonymous += if in_nvml { 0 } else { size };
            } else if is_mapping(line) {
                in_nvml = line.contains("libnvidia-ml.so");
            }
        }
        Ok(resident)
    }

    /// Figure that counts against the budget.
    pub(crate) fn without_nvml_mib(self) -> f64 {
        mib(self.total - self.nvml)
    }
}

/// Waits and wake-ups by thread id.
pub(crate) fn wakeups(process: u32) -> Result<BTreeMap<String, u64>> {
    let threads = format!("/proc/{process}/task");
    let entries = fs::read_dir(&threads).with_context(|| format!("cannot read {threads}"))?;
    // A thread may end meanwhile.
    let count = |entry: fs::DirEntry| {
        let status = fs::read_to_string(entry.path().join("status")).ok()?;
        let count =
            status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        Some((entry.file_name().into_string().ok()?, count.trim().parse().ok()?))
    };
    Ok(entries.flatten().filter_map(count).collect())
}

/// Processor time of a process, in clock ticks of 10 ms (`proc_pid_stat(5)`).
pub(crate) fn ticks(process: u32) -> Result<u64> {
    let stat = read(format!("/proc/{process}/stat"))?;
    // The third field follows the name, which can contain any character. Fields 14 and 15 are the times.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let times = fields.split_whitespace().skip(11).take(2);
    Ok(times.filter_map(|time| time.parse::<u64>().ok()).sum())
}

/// Mebibytes.
#[expect(clippy::cast_precision_loss, reason = "no process has 2^53 KiB")]
pub(crate) fn mib(kib: u64) -> f64 {
    kib as f64 / 1024.0
}

fn read(path: impl AsRef<Path>) -> Result<String> {
    let path = path.as_ref();
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

fn kib(line: &str, key: &str) -> Option<u64> {
    line.strip_prefix(key)?.trim().strip_suffix(" kB")?.parse().ok()
}

/// True for the first line of a mapping, `55d0c0a00000-55d0c0c00000 r--p ...`. Its other lines begin with a capital.
fn is_mapping(line: &str) -> bool {
    line.starts_with(|character: char| {
        character.is_ascii_digit() || ('a'..='f').contains(&character)
    })
}
