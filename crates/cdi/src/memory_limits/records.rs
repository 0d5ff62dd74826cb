//! Records of memory limits, which the runtime hook reads, and the notes that the hook writes beside them.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use windlass_core::{
    device::DeviceId,
    enforcement::Enforcement,
    memory_limit::{MemoryLimitNote, MemoryLimitRecord},
};
use windlass_host::{
    Host,
    container::ContainerId,
    files::{self, FileAccess, Symlinks},
    state_file::BOOT_ID,
};

/// Records of one kind of holder. The container runtime has the folder at the same path.
#[derive(Clone, Debug)]
pub struct LimitRecords(PathBuf);

/// Enforcement of each limited holder, by GPU, then by the UID of the pod or claim.
pub type LimitedHolders = BTreeMap<DeviceId, BTreeMap<String, Enforcement>>;

/// Folder below the state folder, and its folder for each kind of holder.
const FOLDER: &str = "memory-limits";
const SHARES: &str = "shares";
const CLAIMS: &str = "claims";
const REPLICAS: &str = "replicas";
const FRACTIONS: &str = "fractions";

const JSON: &str = ".json";

// === impl LimitRecords ===

impl LimitRecords {
    /// Records of shares by amounts.
    pub fn of_shares(state_dir: &Path) -> Self {
        Self(state_dir.join(FOLDER).join(SHARES))
    }

    /// Records of claims, by UID.
    pub fn of_claims(state_dir: &Path) -> Self {
        Self(state_dir.join(FOLDER).join(CLAIMS))
    }

    /// Records of replicas by memory.
    pub fn of_replicas(state_dir: &Path) -> Self {
        Self(state_dir.join(FOLDER).join(REPLICAS))
    }

    /// Records of containers with GPU fractions, by the runtime's id.
    pub fn of_fractions(state_dir: &Path) -> Self {
        Self(state_dir.join(FOLDER).join(FRACTIONS))
    }

    /// Path of a record.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}{JSON}"))
    }

    /// Writes the record, or removes it together with the hook's notes if it is `None`. Blocks.
    pub fn write_or_remove(
        &self,
        name: &str,
        record: Option<&MemoryLimitRecord>,
    ) -> Result<(), String> {
        let path = self.path(name);
        let result = match record {
            Some(record) => fs::create_dir_all(&self.0).and_then(|()| {
                files::replace(&path, &record.to_json(), FileAccess::Owner).map(drop)
            }),
            None => self.remove(|file| record_of(file) == name),
        };
        result.map_err(|error| format!("cannot write {}: {error}", path.display()))
    }

    /// Retains the records of these names. Removes others with their notes, which a killed agent may leave behind.
    /// Blocks.
    pub fn retain(&self, is_retained: impl Fn(&str) -> bool) {
        // A file that cannot be removed is harmless: no hook reads it, and the next agent tries to remove it again.
        let _ = self.remove(|file| !is_retained(record_of(file)));
    }

    /// Removes the files whose names match.
    fn remove(&self, matches: impl Fn(&str) -> bool) -> io::Result<()> {
        let mut outcome = Ok(());
        for (_, path) in files_in(&self.0)?.into_iter().filter(|(name, _)| matches(name)) {
            match fs::remove_file(path) {
                // The hook removes notes of ended containers.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => outcome = Err(error),
                Ok(()) => {}
            }
        }
        outcome
    }
}

/// Holders that the hook has limited since the boot. Blocks.
pub fn limited_holders(state_dir: &Path, host: &Host) -> LimitedHolders {
    let boot = host.read_text(BOOT_ID).unwrap_or_default();
    let mut holders = LimitedHolders::new();
    for kind in [SHARES, CLAIMS, REPLICAS, FRACTIONS] {
        let files = files_in(&state_dir.join(FOLDER).join(kind)).unwrap_or_default();
        for (name, path) in files {
            let text = files::read_regular_text(&path, Symlinks::Refused, files::MAX_BYTES);
            let note = text.ok().and_then(|text| MemoryLimitNote::parse(text.as_bytes()).ok());
            let Some(note) = note.filter(|note| note.boot_id() == boot) else { continue };
            let pod = || Some(ContainerId::in_group(note.cgroup().to_str()?)?.pod);
            let holder = if kind == CLAIMS { Some(record_of(&name).to_owned()) } else { pod() };
            let Some(holder) = holder else { continue };
            for gpu in note.gpus() {
                let Ok(id) = gpu.uuid.parse::<DeviceId>() else { continue };
                let enforcement =
                    if gpu.region.is_some() { Enforcement::Dmem } else { Enforcement::Driver };
                holders.entry(id).or_default().insert(holder.clone(), enforcement);
            }
        }
    }
    holders
}

/// Names and paths of the files in a folder; empty if the folder does not exist.
fn files_in(folder: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let files = entries.flatten().filter_map(|file| {
        let name = file.file_name().into_string().ok()?;
        Some((name, file.path()))
    });
    Ok(files.collect())
}

/// Name of the record that a file belongs to: the record itself, a note, or a draft of either. Names have no dot.
fn record_of(file: &str) -> &str {
    files::target_of_draft(file).unwrap_or(file).split('.').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_removed_with_its_notes_and_drafts() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let records = LimitRecords::of_claims(folder.path());
        fs::create_dir_all(&records.0).expect("made");
        let file_names =
            ["a.json", "a.limited-c0.json", ".a.json.draft", "b.json", ".b.limited-c1.json.draft"];
        for name in file_names {
            fs::write(records.0.join(name), "{").expect("written");
        }
        let remaining = || {
            let files = files_in(&records.0).expect("read").into_iter();
            let mut names: Vec<_> = files.map(|(name, _)| name).collect();
            names.sort();
            names
        };
        // The hook writes its note at this moment.
        records.retain(|name| name == "b");
        assert_eq!(remaining(), [".b.limited-c1.json.draft", "b.json"]);
        records.write_or_remove("b", None).expect("removed");
        assert_eq!(remaining(), [""; 0]);
        records.write_or_remove("b", None).expect("none is there");
    }
}
