//! Cleanup records on disk: the states of devices, for the next agent after a crash.
//!
//! A change is on disk before its steps run, and before it is reported. Without a working disk no step runs and no
//! container starts: if a state were lost, a pod could get a device with the data of another.

use std::{collections::BTreeMap, path::Path};

use windlass_core::device::DeviceId;
use windlass_host::{
    Host,
    state_file::{Boot, Format, Journal, StateFile, Writer},
};

use super::state::State;

/// Recorded state of each device.
pub type CleanupRecords = BTreeMap<DeviceId, State>;

#[derive(Clone, Debug)]
pub(super) struct RecordFile(StateFile<CleanupRecords>);

/// Format of `handover.json`.
pub const FORMAT: Format = Format { name: "cleanup record", content_key: "devices" };

const FILE: &str = "handover.json";

// === impl RecordFile ===

impl RecordFile {
    pub(super) fn new(state_dir: &Path, host: Host) -> Self {
        Self(StateFile::new(state_dir.join(FILE), FORMAT, host))
    }

    /// Records of an earlier agent, as the states of this one. Empty if the file is missing or unreadable.
    /// Blocks.
    pub(super) fn load(&self) -> CleanupRecords {
        let Some(earlier) = self.0.load() else { return CleanupRecords::new() };
        // An unknown boot counts as a reboot: an unnecessary cleaning is safer than a missing one.
        let rebooted = earlier.boot != Boot::Current;
        let records = earlier.content.into_iter();
        records.map(|(id, state)| (id, state.after_restart(rebooted))).collect()
    }

    /// Renames an unreadable file, so that an administrator can read it. Blocks.
    pub(super) fn set_aside(&self) {
        self.0.set_aside();
    }

    pub(super) fn journal(&self) -> (Journal<CleanupRecords>, Writer<CleanupRecords>) {
        Journal::new(self.0.clone(), "cleanup waits: its records cannot be written")
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;
    use windlass_host::state_file::BOOT_ID;

    use super::*;

    fn records(state: State) -> CleanupRecords {
        [("board".parse().expect("an id"), state)].into()
    }

    fn in_use() -> State {
        State::InUse { tenants: ["uid".to_owned()].into() }
    }

    fn file(boot: &str) -> (TempDir, RecordFile) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let host = Host::new(folder.path(), folder.path());
        let file = RecordFile::new(&folder.path().join("state"), host);
        set_boot(&folder, boot);
        (folder, file)
    }

    fn set_boot(folder: &TempDir, boot: &str) {
        let path = folder.path().join(BOOT_ID.trim_start_matches('/'));
        fs::create_dir_all(path.parent().expect("the path has a parent")).expect("made");
        fs::write(path, boot).expect("written");
    }

    #[test]
    fn a_record_holds_until_the_machine_reboots() {
        let (folder, file) = file("one");
        assert_eq!(file.load(), CleanupRecords::new(), "no file is no record");
        file.0.write(&records(in_use())).expect("written");
        assert_eq!(file.load(), records(in_use()));
        set_boot(&folder, "two");
        assert_eq!(file.load(), records(State::Unsure));
    }

    #[test]
    fn an_unreadable_file_is_set_aside() {
        let (_folder, file) = file("one");
        file.0.write(&CleanupRecords::new()).expect("written");
        fs::write(file.0.path(), r#"{"version": 2}"#).expect("written");
        assert_eq!(file.load(), CleanupRecords::new());
        file.set_aside();
        assert!(file.0.path().with_extension("json.unreadable").exists());
        assert!(!file.0.path().exists());
    }
}
