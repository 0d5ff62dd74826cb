//! What is prepared, on the disk: written before anything is done for a claim, and before the kubelet is
//! told that it is done. Everything that it takes to release a claim is in it.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use windlass_core::{
    cdi::ContainerEdits,
    device::{Device, DeviceId, Partition},
    inventory::Inventory,
};

use super::time_slice::Interval;
use crate::{
    causes, files,
    host::Host,
    kept::BOOT_ID,
    ledger::{ClaimRef, Use, together},
    partitions::standing,
};

/// What is prepared, by the claim's UID.
pub(crate) type Records = BTreeMap<String, Entry>;

/// A claim that something was done for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Entry {
    #[serde(rename = "ref")]
    pub(crate) claim: ClaimRef,
    pub(crate) state: Stage,
    /// In the order of the claim's results.
    pub(crate) devices: Vec<Held>,
}

/// How far a claim is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Stage {
    /// What is to be done may have been done in part.
    PrepareStarted,
    /// All is done.
    PrepareCompleted,
}

/// A device that a claim has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Held {
    pub(crate) pool: String,
    pub(crate) name: String,
    /// `None` if only the kubelet's record tells of it, and not what it is.
    pub(crate) device: Option<DeviceId>,
    /// Where an instance is made for the claim, and removed with it; `device` names the place then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) partition: Option<Partition>,
    pub(crate) usage: Use,
    /// How long turns on it are while the claim has it.
    #[serde(default)]
    pub(crate) interval: Interval,
    /// The requests that it is for, as the kubelet knows them.
    pub(crate) requests: Vec<String>,
    /// Qualified CDI names.
    pub(crate) cdi: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) share: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) consumed: BTreeMap<String, String>,
    /// What the claim's own CDI document says of it.
    #[serde(default)]
    pub(crate) edits: ContainerEdits,
}

/// The file.
#[derive(Clone, Debug)]
pub(crate) struct ClaimFile {
    path: PathBuf,
    host: Host,
}

/// Why nothing may be served: what is prepared is written down, and is not known. To go on without it would
/// hand devices out twice, and write over what is there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unusable {
    #[error("{path} has version {found}, this agent knows {VERSION}: run the newer one")]
    Newer { path: PathBuf, found: u32 },
    #[error("cannot read {path}: {why}")]
    Unreadable { path: PathBuf, why: String },
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    version: u32,
    /// The boot that it was written in, as the kernel names it.
    boot: Option<String>,
    claims: Records,
}

#[derive(Deserialize)]
struct Head {
    version: u32,
}

const VERSION: u32 = 1;

const FILE: &str = "claims.json";

// === impl Held ===

impl Held {
    /// The device, or the instance at the place that was allotted.
    pub(crate) fn found<'a>(&self, inventory: &'a Inventory) -> Option<&'a Device> {
        match &self.partition {
            Some(place) => standing(inventory, place),
            None => inventory.get(self.device.as_ref()?.as_str()),
        }
    }
}

// === impl Entry ===

impl Entry {
    /// The devices that are known, and how the claim has them.
    pub(crate) fn uses(&self) -> impl Iterator<Item = (&DeviceId, Use)> {
        let held = self.devices.iter();
        together(held.filter_map(|held| Some((held.device.as_ref()?, held.usage)))).into_iter()
    }
}

// === impl ClaimFile ===

impl ClaimFile {
    pub(crate) fn new(state_dir: &Path, host: Host) -> Self {
        Self { path: state_dir.join(FILE), host }
    }

    /// What an earlier agent wrote down; nothing where it makes no sense, which is then set aside. What was prepared before the machine was started is begun anew when the kubelet asks: it may
    /// have other devices now. Blocks.
    pub(crate) fn load(&self) -> Result<Records, Unusable> {
        let path = || self.path.clone();
        let text = match fs::read(&self.path) {
            Ok(text) => text,
            Err(error) if is_absence(&error) => return Ok(Records::new()),
            Err(error) => {
                return Err(Unusable::Unreadable { path: path(), why: error.to_string() });
            }
        };
        let newer = serde_json::from_slice(&text).ok().filter(|head: &Head| head.version > VERSION);
        if let Some(Head { version: found }) = newer {
            return Err(Unusable::Newer { path: path(), found });
        }
        match serde_json::from_slice(&text) {
            Ok(document) => Ok(self.taken_up(document)),
            Err(error) => {
                self.set_aside(&causes(&error));
                Ok(Records::new())
            }
        }
    }

    /// Replaces what is kept. Blocks.
    pub(crate) fn write(&self, claims: Records) -> Result<(), (PathBuf, io::Error)> {
        let document = Document { version: VERSION, boot: self.boot(), claims };
        let text = serde_json::to_vec_pretty(&document).map_err(io::Error::from);
        let written = text.and_then(|text| files::replace(&self.path, &text));
        written.map(drop).map_err(|error| (self.path.clone(), error))
    }

    fn taken_up(&self, document: Document) -> Records {
        let mut claims = document.claims;
        let is_another = |then: &String| self.boot().is_some_and(|now| now != *then);
        if document.boot.as_ref().is_some_and(is_another) {
            for entry in claims.values_mut() {
                entry.state = Stage::PrepareStarted;
            }
        }
        claims
    }

    fn boot(&self) -> Option<String> {
        self.host.text(BOOT_ID)
    }

    fn set_aside(&self, error: &str) {
        match files::set_aside(&self.path) {
            Ok(aside) => {
                let aside = aside.display();
                tracing::error!(error, %aside, "record of claims set aside; the kubelet's stands in");
            }
            Err(refused) => tracing::error!(error, %refused, "record of claims cannot be read"),
        }
    }
}

/// Where the folder is a file there was never a record in it.
fn is_absence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    fn file() -> (TempDir, ClaimFile) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let host = Host::new(folder.path(), folder.path());
        let file = ClaimFile::new(&folder.path().join("state"), host);
        set_boot(&folder, "one");
        (folder, file)
    }

    fn set_boot(folder: &TempDir, boot: &str) {
        let path = folder.path().join(BOOT_ID.trim_start_matches('/'));
        fs::create_dir_all(path.parent().expect("it has one")).expect("made");
        fs::write(path, boot).expect("written");
    }

    fn records(state: Stage) -> Records {
        let [namespace, name, uid] = ["ns", "c", "u"].map(ToOwned::to_owned);
        let held = Held {
            pool: "n1/nvidia".to_owned(),
            name: "gpu-0".to_owned(),
            device: Some("GPU-0".parse().expect("an id")),
            partition: None,
            usage: Use::Alone,
            interval: Interval::Default,
            requests: vec!["gpu".to_owned()],
            cdi: vec!["windlass.dev/gpu=GPU-0".to_owned()],
            share: None,
            consumed: BTreeMap::new(),
            edits: ContainerEdits { env: vec!["A=b".to_owned()], ..ContainerEdits::default() },
        };
        let claim = ClaimRef { namespace, name, uid };
        [("u".to_owned(), Entry { claim, state, devices: vec![held] })].into()
    }

    #[test]
    fn what_is_prepared_stays_so_until_the_machine_reboots() {
        let (folder, file) = file();
        assert_eq!(file.load(), Ok(Records::new()), "no file is no record");
        file.write(records(Stage::PrepareCompleted)).expect("written");
        assert_eq!(file.load(), Ok(records(Stage::PrepareCompleted)));
        set_boot(&folder, "two");
        assert_eq!(file.load(), Ok(records(Stage::PrepareStarted)));
    }

    #[test]
    fn a_corrupt_record_is_set_aside_and_a_newer_one_is_left_alone() {
        let (_folder, file) = file();
        file.write(Records::new()).expect("written");
        fs::write(&file.path, r#"{"version": 1, "claims": [1]}"#).expect("written");
        assert_eq!(file.load(), Ok(Records::new()));
        assert!(file.path.with_extension("json.unreadable").exists());
        assert!(!file.path.exists());
        fs::write(&file.path, r#"{"version": 7, "holdings": []}"#).expect("written");
        let error = file.load().expect_err("newer").to_string();
        assert!(error.ends_with("has version 7, this agent knows 1: run the newer one"), "{error}");
        assert!(file.path.exists());
    }

    #[test]
    fn a_record_that_is_there_and_cannot_be_read_is_not_taken_for_none() {
        let (folder, file) = file();
        fs::create_dir_all(&file.path).expect("a folder in place of the file");
        let why = file.load().expect_err("unreadable").to_string();
        assert!(why.contains("claims.json"), "{why}");
        fs::remove_dir_all(folder.path().join("state")).expect("removed");
        fs::write(folder.path().join("state"), "").expect("a file in place of the folder");
        assert_eq!(file.load(), Ok(Records::new()));
    }
}
