//! State file of claims, `claims.json`. It is written before each step of a preparation, and before the kubelet gets an
//! answer. It has everything that the release of a claim needs.
//!
//! A copy is beside the CDI documents of claims, so that the loss of one folder does not lose the file. Container
//! runtimes read `.json` and `.yaml` files there, and ignore the copy.

use std::{collections::BTreeMap, path::Path};

use serde::{Deserialize, Serialize};
use windlass_allocations::ledger::{ClaimRef, ClaimUse, Portion, combined};
use windlass_config::HostPaths;
use windlass_core::{
    cdi::ContainerEdits,
    device::{Device, DeviceId, Partition},
    inventory::Inventory,
    memory_limit::MemoryLimitRecord,
    partition::instance_at,
};
use windlass_host::state_file::{
    Boot, Format, Journal, SavedState, StateFile, StateFileError, Writer,
};

use super::{
    claim::{AllocatedDevice, Claim},
    time_slice::Interval,
};

/// Records by the claim's UID.
pub type Records = BTreeMap<String, PreparedClaim>;

/// A claim that is prepared, or whose preparation has begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PreparedClaim {
    /// The claim.
    #[serde(rename = "ref")]
    pub claim: ClaimRef,
    pub(crate) state: Stage,
    /// Devices in the order of the allocation.
    pub devices: Vec<PreparedDevice>,
    /// Memory limits of each container of the claim. The hook in the devices' edits sets them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) limits: Option<MemoryLimitRecord>,
}

/// Stage of a claim's preparation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stage {
    /// The steps may be done in part.
    PrepareStarted,
    /// All steps are done.
    PrepareCompleted,
}

/// A device of a claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PreparedDevice {
    pub(crate) pool: String,
    pub(crate) name: String,
    /// `None` if only the kubelet's checkpoint names the device, and the name is unknown.
    pub device: Option<DeviceId>,
    /// Placement of a MIG instance that is made for the claim, and removed with it. Then `device` is the id of the
    /// placement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<Partition>,
    pub(crate) usage: ClaimUse,
    /// Time slice while the claim holds the device.
    #[serde(default)]
    pub(crate) interval: Interval,
    /// Requests that it serves, by the kubelet's names.
    pub(crate) requests: Vec<String>,
    /// Qualified CDI names.
    pub(crate) cdi: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) share: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) consumed: BTreeMap<String, String>,
    /// Edits in the claim's own CDI document.
    #[serde(default)]
    pub(crate) edits: ContainerEdits,
}

/// The state file of claims, and its copy.
#[derive(Clone, Debug)]
pub struct ClaimFile(StateFile<Records>);

/// Format of `claims.json`.
pub const FORMAT: Format = Format { name: "record of claims", content_key: "claims" };

const FILE: &str = "claims.json";

/// Name of the copy in the folder of CDI documents.
const COPY: &str = "windlass.dev-claims.copy";

// === impl PreparedDevice ===

impl PreparedDevice {
    fn matches(&self, result: &AllocatedDevice) -> bool {
        let Self { pool, name, share, requests, .. } = self;
        (pool, name, share) == (&result.pool, &result.device, &result.share)
            && *requests == [result.base_request()]
    }

    /// The claim's share of a GPU, if it has one by amounts.
    pub fn portion(&self) -> Option<Portion> {
        self.usage.portion()
    }

    /// The device, or the instance at the allocated placement.
    pub(crate) fn find_in<'a>(&self, inventory: &'a Inventory) -> Option<&'a Device> {
        match &self.partition {
            Some(placement) => instance_at(inventory, placement),
            None => inventory.get(self.device.as_ref()?.as_str()),
        }
    }
}

// === impl PreparedClaim ===

impl PreparedClaim {
    /// True if the claim was allocated exactly these devices, for the same requests.
    pub(crate) fn matches(&self, claim: &Claim) -> bool {
        let mut pairs = self.devices.iter().zip(&claim.results);
        self.devices.len() == claim.results.len()
            && pairs.all(|(device, result)| device.matches(result))
    }

    /// The known devices and their uses: each device once.
    pub(crate) fn uses(&self) -> impl Iterator<Item = (&DeviceId, ClaimUse)> {
        let devices = self.devices.iter();
        combined(devices.filter_map(|device| Some((device.device.as_ref()?, device.usage))))
            .into_iter()
    }
}

// === impl ClaimFile ===

impl ClaimFile {
    /// The file in the state folder, with its copy in the CDI folder.
    pub fn new(places: &HostPaths) -> Self {
        let file = StateFile::new(places.state_dir.join(FILE), FORMAT, places.roots().host);
        Self(file.with_copy(places.cdi_dir.join(COPY)))
    }

    /// Records of an earlier agent; `None` if file and copy are absent. A claim that was prepared before a reboot is
    /// prepared again when the kubelet asks: its devices may have changed. Blocks.
    pub fn read(&self) -> Result<Option<Records>, StateFileError> {
        let Some(SavedState { content: mut claims, boot }) = self.0.read()? else {
            return Ok(None);
        };
        if boot == Boot::Earlier {
            for record in claims.values_mut() {
                record.state = Stage::PrepareStarted;
            }
        }
        Ok(Some(claims))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Renames an unreadable file, so that a person can inspect it. Blocks.
    pub(crate) fn set_aside(&self) {
        self.0.set_aside();
    }

    pub(crate) fn journal(&self) -> (Journal<Records>, Writer<Records>) {
        Journal::new(self.0.clone(), "claims wait until they can be recorded")
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;
    use windlass_host::{Host, abbreviate::checksum, state_file::BOOT_ID};

    use super::*;

    fn file() -> (TempDir, ClaimFile) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let host = Host::new(folder.path(), folder.path());
        let file = ClaimFile(StateFile::new(folder.path().join("state").join(FILE), FORMAT, host));
        set_boot(&folder, "one");
        (folder, file)
    }

    fn set_boot(folder: &TempDir, boot: &str) {
        let path = folder.path().join(BOOT_ID.trim_start_matches('/'));
        fs::create_dir_all(path.parent().expect("a folder")).expect("created");
        fs::write(path, boot).expect("written");
    }

    fn records(state: Stage) -> Records {
        let [namespace, name, uid] = ["ns", "c", "u"].map(ToOwned::to_owned);
        let device = PreparedDevice {
            pool: "n1/nvidia".to_owned(),
            name: "gpu-0".to_owned(),
            device: Some("GPU-0".parse().expect("an id")),
            partition: None,
            usage: ClaimUse::Exclusive,
            interval: Interval::Default,
            requests: vec!["gpu".to_owned()],
            cdi: vec!["windlass.dev/gpu=GPU-0".to_owned()],
            share: None,
            consumed: BTreeMap::new(),
            edits: ContainerEdits { env: vec!["A=b".to_owned()], ..ContainerEdits::default() },
        };
        let claim = ClaimRef { namespace, name, uid };
        let record = PreparedClaim { claim, state, devices: vec![device], limits: None };
        [("u".to_owned(), record)].into()
    }

    fn read(file: &ClaimFile) -> Records {
        file.read().expect("a readable file").unwrap_or_default()
    }

    #[test]
    fn a_prepared_claim_stays_prepared_until_a_reboot() {
        let (folder, file) = file();
        assert_eq!(file.read().expect("a readable file"), None, "no file is no record");
        file.0.write(&records(Stage::PrepareCompleted)).expect("written");
        assert_eq!(read(&file), records(Stage::PrepareCompleted));
        set_boot(&folder, "two");
        assert_eq!(read(&file), records(Stage::PrepareStarted));
    }

    #[test]
    fn a_corrupt_file_may_be_set_aside_and_one_of_a_newer_version_may_not() {
        let (_folder, file) = file();
        file.0.write(&records(Stage::PrepareCompleted)).expect("written");
        let text = fs::read_to_string(file.0.path()).expect("the file");
        fs::write(file.0.path(), text.replace("GPU-0", "GPU-1")).expect("written");
        let error = file.read().expect_err("changed");
        assert!(!error.is_retryable() && error.to_string().contains("checksum"), "{error}");
        file.set_aside();
        assert!(file.0.path().with_extension("json.unreadable").exists());
        assert_eq!(read(&file), Records::new());
        fs::write(file.0.path(), r#"{"version": 7, "holdings": []}"#).expect("written");
        let error = file.read().expect_err("newer");
        assert!(error.is_retryable(), "{error}");
        assert!(error.to_string().ends_with("has version 7, this agent knows 2"), "{error}");
    }

    #[test]
    fn a_file_of_version_1_is_read_if_it_has_a_checksum() {
        let (_folder, file) = file();
        let claims = serde_json::to_string(&records(Stage::PrepareCompleted)).expect("JSON");
        let sum = checksum(&claims);
        fs::create_dir_all(file.0.path().parent().expect("a folder")).expect("created");
        let write = |checksum: &str| {
            let text = format!(r#"{{"version": 1, "boot": "one", {checksum}"claims": {claims}}}"#);
            fs::write(file.0.path(), text).expect("written");
        };
        write(&format!(r#""checksum": {sum}, "#));
        assert_eq!(read(&file), records(Stage::PrepareCompleted));
        write("");
        let error = file.read().expect_err("a file without a checksum");
        assert!(error.to_string().ends_with("it has no checksum"), "{error}");
    }

    #[test]
    fn a_flipped_bit_in_version_boot_or_claims_is_detected() {
        let (_folder, file) = file();
        file.0.write(&records(Stage::PrepareCompleted)).expect("written");
        let whole = fs::read(file.0.path()).expect("the file");
        for position in 0..whole.len() {
            for bit in 0..8 {
                let mut text = whole.clone();
                text[position] ^= 1 << bit;
                fs::write(file.0.path(), &text).expect("written");
                // White space between the fields has no meaning.
                if let Ok(read_records) = file.read() {
                    let text = String::from_utf8_lossy(&text);
                    let expected = Some(records(Stage::PrepareCompleted));
                    assert_eq!(read_records, expected, "{position} {bit}: {text}");
                }
            }
        }
    }

    #[test]
    fn an_existing_file_that_cannot_be_read_is_an_error() {
        let (folder, file) = file();
        fs::create_dir_all(file.0.path()).expect("a folder in place of the file");
        let error = file.read().expect_err("unreadable");
        assert!(error.is_retryable() && error.to_string().contains("claims.json"), "{error}");
        fs::remove_dir_all(folder.path().join("state")).expect("removed");
        fs::write(folder.path().join("state"), "").expect("a file in place of the folder");
        assert!(file.read().expect_err("unreadable").is_retryable());
    }
}
