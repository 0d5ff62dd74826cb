//! Checkpoint of the kubelet's DRA manager, `dra_manager_state`, in the kubelet's format.
//!
//! The file has two fields: a JSON document encoded as a string, and the CRC-32 of that string. The document lists
//! each claim's pods and prepared devices. It does not record that a preparation completed.
//! Source: `pkg/kubelet/cm/dra/state` of Kubernetes 1.36.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

/// File name, in the kubelet's directory.
pub const FILE_NAME: &str = "dra_manager_state";

/// File name of the CPU manager's checkpoint, in the same directory. Every kubelet on Linux writes it at start, with
/// any policy (`pkg/kubelet/cm/cpumanager/cpu_manager.go`). The DRA manager's checkpoint appears with the first claim.
pub const CPU_MANAGER_FILE: &str = "cpu_manager_state";

/// Value of [`CheckpointData::kind`].
const KIND: &str = "DRACheckpoint";

/// Value of [`CheckpointData::api_version`] since Kubernetes 1.32.
const API_VERSION: &str = "checkpoint.dra.kubelet.k8s.io/v1";

/// Bit-reversed polynomial of CRC-32 (IEEE 802.3): `IEEE` in Go's `hash/crc32`.
const CRC_POLYNOMIAL: u32 = 0xedb8_8320;

/// Persistent state of the DRA manager.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// Claims of pods on the node. `None` is Go's nil slice: no pod on this node has used a claim yet.
    pub claims: Option<Vec<ClaimState>>,
}

/// One claim: the pods that use it, and the devices that drivers prepared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct ClaimState {
    /// UID of the claim.
    #[serde(rename = "ClaimUID")]
    pub claim_uid: String,
    /// Name of the claim.
    pub claim_name: String,
    /// Namespace of the claim.
    pub namespace: String,
    /// UIDs of the pods that use the claim.
    #[serde(rename = "PodUIDs", serialize_with = "to_go_set", deserialize_with = "from_go_set")]
    pub pod_uids: BTreeSet<String>,
    /// State by driver. Every driver with a device in the claim's allocation has an entry, prepared or not.
    #[serde(rename = "DriverState", deserialize_with = "null_is_empty")]
    pub drivers: BTreeMap<String, DriverState>,
}

/// Devices that one driver prepared for a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct DriverState {
    /// Devices in the driver's order. `None` before the driver's response, or after a response without devices.
    pub devices: Option<Vec<Device>>,
}

/// A prepared device, as described by its driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Device {
    /// Name of the pool.
    pub pool_name: String,
    /// Name of the device within the pool.
    pub device_name: String,
    /// Id of the allocated share; `None` for a device that allows one allocation only.
    #[serde(rename = "ShareID", default)]
    pub share_id: Option<String>,
    /// Requests of the claim that the device serves. Without names, the device serves all requests.
    #[serde(default)]
    pub request_names: Option<Vec<String>>,
    /// Qualified CDI device names.
    #[serde(rename = "CDIDeviceIDs", default)]
    pub cdi_device_ids: Option<Vec<String>>,
}

/// Reasons to reject a checkpoint. A kubelet with such a checkpoint refuses to start.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The text is not the kubelet's JSON document.
    #[error("the DRA manager's checkpoint does not parse")]
    Parse(#[from] serde_json::Error),
    /// The checksum does not match the data.
    #[error("the DRA manager's checkpoint is corrupt: checksum {found}, computed {computed}")]
    Corrupt {
        /// Checksum in the document.
        found: u32,
        /// Checksum of the data.
        computed: u32,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Document {
    data: String,
    checksum: u32,
}

#[derive(Serialize, Deserialize)]
struct CheckpointData {
    #[serde(default)]
    kind: String,
    #[serde(default, rename = "apiVersion")]
    api_version: String,
    #[serde(default, rename = "ClaimInfoStateList")]
    claims: Option<Vec<ClaimState>>,
}

// === impl Checkpoint ===

impl Checkpoint {
    /// Parses the file's text and verifies the checksum.
    pub fn parse(json: &str) -> Result<Self, CheckpointError> {
        let document: Document = serde_json::from_str(json)?;
        let computed = crc32(document.data.as_bytes());
        if document.checksum != computed {
            return Err(CheckpointError::Corrupt { found: document.checksum, computed });
        }
        Ok(Self::from_data(&document.data)?)
    }

    /// Parses the file's text without verifying the checksum. For callers that prefer unverified data to none.
    pub fn parse_unverified(json: &str) -> Result<Self, CheckpointError> {
        let document: Document = serde_json::from_str(json)?;
        Ok(Self::from_data(&document.data)?)
    }

    fn from_data(json: &str) -> serde_json::Result<Self> {
        let data: CheckpointData = serde_json::from_str(json)?;
        Ok(Self { claims: data.claims })
    }

    /// Serializes the checkpoint as the kubelet does: one line, checksum last.
    pub fn to_json(&self) -> String {
        let data = to_go_json(&CheckpointData {
            kind: KIND.to_owned(),
            api_version: API_VERSION.to_owned(),
            claims: self.claims.clone(),
        });
        let checksum = crc32(data.as_bytes());
        to_go_json(&Document { data, checksum })
    }
}

/// JSON as Go's encoder writes it: escaped for HTML and JavaScript. In JSON, these characters occur only in strings.
fn to_go_json(value: &impl Serialize) -> String {
    let json = serde_json::to_string(value).expect("strings, integers and maps with plain keys");
    json.replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('&', "\\u0026")
        .replace('\u{2028}', "\\u2028")
        .replace('\u{2029}', "\\u2029")
}

fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ CRC_POLYNOMIAL } else { crc >> 1 };
    !bytes.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

/// Serializes a set as Go does: a map from each key to an empty object.
fn to_go_set<S: Serializer>(set: &BTreeSet<String>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(set.iter().map(|key| (key, Map::new())))
}

fn from_go_set<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeSet<String>, D::Error> {
    let map = Option::<Map<String, Value>>::deserialize(deserializer)?.unwrap_or_default();
    Ok(map.into_iter().map(|(key, _)| key).collect())
}

/// Deserializes `null`, Go's nil map, as the empty value.
fn null_is_empty<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(name: &str, uid: &str, device: Device) -> ClaimState {
        let pod = "139cdb46-f989-4f17-9561-ca10cfb509a6";
        let drivers = DriverState { devices: Some(vec![device]) };
        ClaimState {
            claim_uid: uid.to_owned(),
            claim_name: name.to_owned(),
            namespace: "default".to_owned(),
            pod_uids: BTreeSet::from([pod.to_owned()]),
            drivers: BTreeMap::from([("test-driver.cdi.k8s.io".to_owned(), drivers)]),
        }
    }

    fn device(name: &str) -> Device {
        Device {
            pool_name: "worker-1".to_owned(),
            device_name: name.to_owned(),
            ..Device::default()
        }
    }

    fn device_with_request_and_cdi(name: &str) -> Device {
        Device {
            request_names: Some(vec!["test request".to_owned()]),
            cdi_device_ids: Some(vec!["example.com/example=cdi-example".to_owned()]),
            ..device(name)
        }
    }

    /// The expected checksums are those of the kubelet's own tests for the same claims.
    #[test]
    fn a_checkpoint_is_written_to_the_byte_as_the_kubelet_writes_it() {
        let first = "067798be-454e-4be4-9047-1aa06aea63f7";
        let share = Some("aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa".to_owned());
        let shared = Device { share_id: share, ..device_with_request_and_cdi("dev-1") };
        let second = claim("example-2", "4cf8db2d-06c0-7d70-1a51-e59b25b2c16c", device("dev-2"));
        for (claims, checksum) in [
            (
                vec![claim("example", first, device_with_request_and_cdi("dev-1"))],
                2_570_581_864_u32,
            ),
            (vec![claim("example", first, shared)], 736_302_156),
            (
                vec![claim("example-1", first, device_with_request_and_cdi("dev-1")), second],
                2_820_117_767,
            ),
        ] {
            let checkpoint = Checkpoint { claims: Some(claims) };
            let json = checkpoint.to_json();
            assert!(json.ends_with(&format!(",\"Checksum\":{checksum}}}")), "{json}");
            assert_eq!(Checkpoint::parse(&json).expect("the checkpoint parses"), checkpoint);
        }
    }

    #[test]
    fn a_kubelet_that_never_had_a_claim_writes_null() {
        let json = Checkpoint::default().to_json();
        assert!(json.contains(r#"\"ClaimInfoStateList\":null}""#), "{json}");
        assert_eq!(Checkpoint::parse(&json).expect("the checkpoint parses"), Checkpoint::default());
    }

    #[test]
    fn a_changed_byte_fails_the_checksum() {
        let json = Checkpoint::default().to_json().replacen("v1", "v2", 1);
        let error = Checkpoint::parse(&json).expect_err("the checkpoint is corrupt");
        assert!(matches!(error, CheckpointError::Corrupt { .. }), "{error}");
        Checkpoint::parse_unverified(&json).expect("parses without the checksum");
    }
}
