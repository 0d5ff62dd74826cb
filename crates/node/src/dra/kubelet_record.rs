//! What the kubelet has written down of our driver's claims: it stands in for our own record where that
//! says nothing, so that nothing is handed out twice.
//!
//! Source of the format: `pkg/kubelet/cm/dra/state` of Kubernetes 1.36. The checksum is the kubelet's own
//! affair: what can be read is believed, since to believe too much only withholds a device.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
};

use serde::Deserialize;
use windlass_core::{cdi::ContainerEdits, device::DeviceId};

use super::{
    catalog::EntryName,
    record::{Entry, Held, Records, Stage},
    time_slice::Interval,
};
use crate::{
    config::DriverName,
    ledger::{ClaimRef, Use},
};

/// The kubelet's record of claims.
#[derive(Clone, Debug)]
pub(crate) struct KubeletRecord {
    path: PathBuf,
    driver: DriverName,
}

const FILE: &str = "dra_manager_state";

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Document {
    data: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Data {
    claim_info_state_list: Option<Vec<ClaimInfo>>,
}

#[derive(Deserialize)]
struct ClaimInfo {
    #[serde(rename = "ClaimUID")]
    uid: String,
    #[serde(rename = "ClaimName")]
    name: String,
    #[serde(rename = "Namespace")]
    namespace: String,
    #[serde(rename = "DriverState")]
    drivers: Option<BTreeMap<String, DriverState>>,
}

#[derive(Clone, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DriverState {
    devices: Option<Vec<DeviceInfo>>,
}

#[derive(Clone, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DeviceInfo {
    pool_name: String,
    device_name: String,
    #[serde(rename = "ShareID")]
    share: Option<String>,
    request_names: Option<Vec<String>>,
    #[serde(rename = "CDIDeviceIDs")]
    cdi: Option<Vec<String>>,
}

// === impl KubeletRecord ===

impl KubeletRecord {
    pub(crate) fn new(kubelet_dir: &Path, driver: &DriverName) -> Self {
        Self { path: kubelet_dir.join(FILE), driver: driver.clone() }
    }

    /// The claims in which our driver has devices, as they would stand in our own record. Blocks.
    pub(crate) fn entries(&self) -> io::Result<Records> {
        let ours = |info: ClaimInfo| {
            let state = info.drivers.as_ref()?.get(self.driver.as_str())?.clone();
            let devices: Vec<_> = state.devices?.into_iter().map(DeviceInfo::held).collect();
            let ClaimInfo { uid, name, namespace, .. } = info;
            let claim = ClaimRef { namespace, name, uid };
            let entry = Entry { claim, state: Stage::PrepareStarted, devices };
            (!entry.devices.is_empty()).then(|| (entry.claim.uid.clone(), entry))
        };
        Ok(self.claims()?.into_iter().filter_map(ours).collect())
    }

    /// The UIDs of all claims in it. Blocks.
    pub(crate) fn uids(&self) -> io::Result<BTreeSet<String>> {
        Ok(self.claims()?.into_iter().map(|info| info.uid).collect())
    }

    fn claims(&self) -> io::Result<Vec<ClaimInfo>> {
        let text = match fs::read(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let document: Document = serde_json::from_slice(&text)?;
        let data: Data = serde_json::from_str(&document.data)?;
        Ok(data.claim_info_state_list.unwrap_or_default())
    }
}

// === impl DeviceInfo ===

impl DeviceInfo {
    fn held(self) -> Held {
        let cdi = self.cdi.unwrap_or_default();
        let ids = cdi.iter().filter_map(|name| name.split_once('=')?.1.parse().ok());
        let device = { ids }.find(|id: &DeviceId| EntryName::of(id).as_str() == self.device_name);
        Held {
            pool: self.pool_name,
            name: self.device_name,
            device,
            partition: None,
            usage: if self.share.is_some() { Use::Share } else { Use::Alone },
            interval: Interval::Default,
            requests: self.request_names.unwrap_or_default(),
            cdi,
            share: self.share,
            consumed: BTreeMap::new(),
            edits: ContainerEdits::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn our_drivers_claims_are_found_with_the_devices_that_their_cdi_names_tell() {
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
        fs::write(folder.path().join(FILE), document).expect("written");

        let record = KubeletRecord::new(folder.path(), &DriverName::default());
        let entries = record.entries().expect("read");
        assert_eq!(entries.keys().collect::<Vec<_>>(), ["u1"]);
        let held = &entries["u1"].devices[0];
        assert_eq!(held.device.as_ref().map(DeviceId::as_str), Some("GPU-0a"));
        assert_eq!(held.usage, Use::Alone);
        assert_eq!(record.uids().expect("read").len(), 2);
    }

    #[test]
    fn no_record_is_an_empty_one_and_an_unreadable_one_is_said_to_be() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let record = KubeletRecord::new(folder.path(), &DriverName::default());
        assert!(record.entries().expect("none").is_empty());
        fs::write(folder.path().join(FILE), "{").expect("written");
        record.uids().expect_err("unreadable");
    }
}
