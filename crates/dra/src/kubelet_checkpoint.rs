//! This driver's claims in the kubelet's checkpoint. They replace the agent's own state file if that is unusable, so
//! that no device is allocated twice.
//!
//! The checksum is not verified: a wrong claim only withholds a device.
//!
//! A kubelet writes its checkpoint with the first claim, so a missing file may mean that there are no claims. It may
//! also mean that the agent's pod does not mount it: the whole folder of the kubelet has the secrets of all pods, and a
//! mount of the file alone breaks when the kubelet replaces it. Another file that every kubelet writes into the same
//! folder distinguishes the two cases.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
};

use windlass_allocations::ledger::{ClaimRef, ClaimUse};
use windlass_config::DriverName;
use windlass_core::{cdi::ContainerEdits, device::DeviceId};
use windlass_host::files::{MAX_BYTES, Symlinks, read_regular_text};
use windlass_kubelet_api::dra::checkpoint::{
    CPU_MANAGER_FILE, Checkpoint, CheckpointError, ClaimState, Device, FILE_NAME,
};

use super::{
    catalog::DeviceName,
    record::{PreparedClaim, PreparedDevice, Records, Stage},
    time_slice::Interval,
};

/// The kubelet's checkpoint of claims.
#[derive(Clone, Debug)]
pub(crate) struct KubeletCheckpoint {
    path: PathBuf,
    driver: DriverName,
}

/// Error of reading the checkpoint.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KubeletCheckpointError {
    #[error("cannot read the kubelet's checkpoint of claims")]
    Read(#[from] io::Error),
    #[error("cannot parse the kubelet's checkpoint of claims")]
    Parse(#[from] CheckpointError),
    #[error("the kubelet's checkpoint of claims, {}, is not visible to this agent", .0.display())]
    NotMounted(PathBuf),
}

/// UIDs of the pods that use each claim, by the claim's UID; empty if the checkpoint cannot be read. Blocks.
pub fn pods_by_claim(kubelet_dir: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let claims = read(&kubelet_dir.join(FILE_NAME)).unwrap_or_default();
    claims.into_iter().map(|claim| (claim.claim_uid, claim.pod_uids)).collect()
}

fn read(path: &Path) -> Result<Vec<ClaimState>, KubeletCheckpointError> {
    let text = match read_regular_text(path, Symlinks::Refused, MAX_BYTES) {
        Ok(text) => text,
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        Err(_) if path.with_file_name(CPU_MANAGER_FILE).exists() => return Ok(Vec::new()),
        Err(_) => return Err(KubeletCheckpointError::NotMounted(path.to_owned())),
    };
    Ok(Checkpoint::parse_unverified(&text)?.claims.unwrap_or_default())
}

// === impl KubeletCheckpoint ===

impl KubeletCheckpoint {
    pub(crate) fn new(kubelet_dir: &Path, driver: &DriverName) -> Self {
        Self { path: kubelet_dir.join(FILE_NAME), driver: driver.clone() }
    }

    /// Claims with devices of this driver, as entries of the agent's state file. Blocks.
    pub(crate) fn records(&self) -> Result<Records, KubeletCheckpointError> {
        let to_record = |mut state: ClaimState| {
            let devices = state.drivers.remove(self.driver.as_str())?.devices?;
            let ClaimState { claim_uid: uid, claim_name: name, namespace, .. } = state;
            let claim = ClaimRef { namespace, name, uid };
            // The checkpoint repeats a device for each call of the kubelet.
            let mut seen = BTreeSet::new();
            let is_new = |device: &Device| {
                seen.insert((
                    device.pool_name.clone(),
                    device.device_name.clone(),
                    device.share_id.clone(),
                ))
            };
            let devices: Vec<_> =
                devices.into_iter().filter(is_new).map(to_prepared_device).collect();
            let record =
                PreparedClaim { claim, state: Stage::PrepareStarted, devices, limits: None };
            (!record.devices.is_empty()).then(|| (record.claim.uid.clone(), record))
        };
        Ok(read(&self.path)?.into_iter().filter_map(to_record).collect())
    }

    /// True if the checkpoint has a claim for this driver, prepared or not. Blocks.
    pub(crate) fn has_claims(&self) -> Result<bool, KubeletCheckpointError> {
        let claims = read(&self.path)?;
        Ok(claims.iter().any(|state| state.drivers.contains_key(self.driver.as_str())))
    }

    /// UIDs of all claims. Blocks.
    pub(crate) fn uids(&self) -> Result<BTreeSet<String>, KubeletCheckpointError> {
        Ok(read(&self.path)?.into_iter().map(|state| state.claim_uid).collect())
    }
}

/// Converts a device to an entry of the agent's state file.
fn to_prepared_device(recorded: Device) -> PreparedDevice {
    let cdi = recorded.cdi_device_ids.unwrap_or_default();
    let mut ids = cdi.iter().filter_map(|name| name.split_once('=')?.1.parse().ok());
    let device = ids.find(|id: &DeviceId| DeviceName::of(id).as_str() == recorded.device_name);
    PreparedDevice {
        pool: recorded.pool_name,
        name: recorded.device_name,
        device,
        partition: None,
        usage: if recorded.share_id.is_some() {
            ClaimUse::UnsizedShare
        } else {
            ClaimUse::Exclusive
        },
        interval: Interval::Default,
        requests: recorded.request_names.unwrap_or_default(),
        cdi,
        share: recorded.share_id,
        consumed: BTreeMap::new(),
        edits: ContainerEdits::default(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;

    #[test]
    fn claims_of_this_driver_are_found_and_cdi_names_give_their_devices() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let device = json!({
            "PoolName": "n1/nvidia", "DeviceName": "gpu-0a", "ShareID": null,
            "RequestNames": ["gpu"],
            "CDIDeviceIDs": ["windlass.dev/gds=all", "windlass.dev/gpu=GPU-0a"],
        });
        let claim = |uid: &str, driver: &str, device: &serde_json::Value| {
            json!({
                "ClaimUID": uid, "ClaimName": "c", "Namespace": "ns", "PodUIDs": {"p": {}},
                "DriverState": {driver: {"Devices": [device]}},
            })
        };
        let list = [claim("u1", "windlass.dev", &device), claim("u2", "other.dev", &device)];
        let data = json!({"kind": "DRACheckpoint", "ClaimInfoStateList": list}).to_string();
        let document = json!({"Data": data, "Checksum": 1}).to_string();
        fs::write(folder.path().join(FILE_NAME), document).expect("written");

        let checkpoint = KubeletCheckpoint::new(folder.path(), &DriverName::default());
        let records = checkpoint.records().expect("read");
        assert_eq!(records.keys().collect::<Vec<_>>(), ["u1"]);
        let device = &records["u1"].devices[0];
        assert_eq!(device.device.as_ref().map(DeviceId::as_str), Some("GPU-0a"));
        assert_eq!(device.usage, ClaimUse::Exclusive);
        assert_eq!(checkpoint.uids().expect("read").len(), 2);
    }

    #[test]
    fn a_missing_checkpoint_is_empty_if_its_folder_is_mounted_and_else_an_error() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let checkpoint = KubeletCheckpoint::new(folder.path(), &DriverName::default());
        let error = checkpoint.uids().expect_err("the folder is not mounted").to_string();
        assert!(error.contains("dra_manager_state, is not visible to this agent"), "{error}");
        fs::write(folder.path().join(CPU_MANAGER_FILE), "{}").expect("written");
        assert!(checkpoint.records().expect("no records").is_empty());
        fs::write(folder.path().join(FILE_NAME), "{").expect("written");
        checkpoint.uids().expect_err("unreadable");
    }
}
