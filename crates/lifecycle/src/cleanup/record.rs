//! The record of hand-overs on disk: what an agent that was killed was about to do, for the next one.
//!
//! A change is on the disk before what it says is done, and before it is reported. Without a disk that
//! takes it no step is made, and no container starts: what cannot be remembered would be forgotten with
//! whatever the last pod left on the device.

use std::{collections::BTreeMap, path::Path};

use windlass_core::device::DeviceId;
use windlass_host::{
    Host,
    state_file::{Boot, Format, Journal, KeptFile, Writer},
};

use super::state::State;

/// Where each device stands, as it is written down.
pub type Records = BTreeMap<DeviceId, State>;

/// The file.
#[derive(Clone, Debug)]
pub(super) struct RecordFile(KeptFile<Records>);

/// The format of `handover.json`.
pub const FORMAT: Format = Format { what: "record of hand-overs", about: "devices" };

const FILE: &str = "handover.json";

// === impl RecordFile ===

impl RecordFile {
    pub(super) fn new(state_dir: &Path, host: Host) -> Self {
        Self(KeptFile::new(state_dir.join(FILE), FORMAT, host))
    }

    /// What an earlier agent wrote down, as the next one takes it up; nothing where there is nothing
    /// that can be read. Blocks.
    pub(super) fn load(&self) -> Records {
        let Some(earlier) = self.0.load() else { return Records::new() };
        // Where either boot is not known the machine counts as rebooted: a cleaning too many costs
        // less than one too few.
        let rebooted = earlier.boot != Boot::Same;
        let records = earlier.content.into_iter();
        records.map(|(id, state)| (id, state.taken_up(rebooted))).collect()
    }

    /// Moves a file that cannot be understood out of the way, for a person to look at. Blocks.
    pub(super) fn set_aside(&self) {
        self.0.set_aside();
    }

    /// A journal that the file follows.
    pub(super) fn journal(&self) -> (Journal<Records>, Writer<Records>) {
        Journal::new(self.0.clone(), "hand-overs wait until they can be recorded")
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;
    use windlass_host::state_file::BOOT_ID;

    use super::*;

    fn records(state: State) -> Records {
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
        fs::create_dir_all(path.parent().expect("it has one")).expect("made");
        fs::write(path, boot).expect("written");
    }

    #[test]
    fn a_record_holds_until_the_machine_reboots() {
        let (folder, file) = file("one");
        assert_eq!(file.load(), Records::new(), "no file is no record");
        file.0.write(&records(in_use())).expect("written");
        assert_eq!(file.load(), records(in_use()));
        set_boot(&folder, "two");
        assert_eq!(file.load(), records(State::Unsure));
    }

    #[test]
    fn a_file_that_cannot_be_understood_is_set_aside() {
        let (_folder, file) = file("one");
        file.0.write(&Records::new()).expect("written");
        fs::write(file.0.path(), r#"{"version": 2}"#).expect("written");
        assert_eq!(file.load(), Records::new());
        file.set_aside();
        assert!(file.0.path().with_extension("json.unreadable").exists());
        assert!(!file.0.path().exists());
    }
}
