//! Checkpoint of the kubelet's device manager, `kubelet_internal_checkpoint`, in the kubelet's format.
//!
//! The document has a checksum over Go's debug print of the data. This module reproduces the print exactly: types in
//! parentheses, maps sorted by key, slices in file order.
//! Source: `pkg/kubelet/cm/devicemanager/checkpoint` and `pkg/util/hash` of Kubernetes 1.36.

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// File name, in the device plugin directory.
pub const FILE_NAME: &str = "kubelet_internal_checkpoint";

/// Key of [`PodDevices::device_ids`] for devices without a NUMA node.
pub const NO_NUMA_NODE: i64 = -1;

/// Persistent state of the device manager.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// Devices allocated to containers. `None` is Go's nil slice; its checksum differs from that of an empty one.
    #[serde(rename = "PodDeviceEntries")]
    pub pods: Option<Vec<PodDevices>>,
    /// Healthy device ids by resource, from each plugin's last list. An inner `None` is Go's nil slice.
    #[serde(rename = "RegisteredDevices")]
    pub registered: Option<BTreeMap<String, Option<Vec<String>>>>,
}

/// Devices of one resource, allocated to one container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct PodDevices {
    /// UID of the pod.
    #[serde(rename = "PodUID")]
    pub pod_uid: String,
    /// Name of the container.
    pub container_name: String,
    /// Extended resource name.
    pub resource_name: String,
    /// Device ids by NUMA node. Devices without a node are under [`NO_NUMA_NODE`].
    #[serde(rename = "DeviceIDs")]
    pub device_ids: BTreeMap<i64, Vec<String>>,
    /// The plugin's encoded `ContainerAllocateResponse`.
    #[serde(rename = "AllocResp", serialize_with = "to_base64", deserialize_with = "from_base64")]
    pub allocate_response: Vec<u8>,
}

/// Reasons to reject a checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The text is not the kubelet's JSON document.
    #[error("the device manager's checkpoint does not parse")]
    Parse(#[from] serde_json::Error),
    /// The checksum does not match the data.
    #[error("the device manager's checkpoint is corrupt: checksum {found}, computed {computed}")]
    Corrupt {
        /// Checksum in the document.
        found: u64,
        /// Checksum of the data.
        computed: u64,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Document {
    data: Checkpoint,
    checksum: u64,
}

// === impl Checkpoint ===

impl Checkpoint {
    /// Parses the file's text and verifies the checksum.
    pub fn parse(json: &str) -> Result<Self, CheckpointError> {
        let document: Document = serde_json::from_str(json)?;
        let computed = document.data.checksum();
        if document.checksum != computed {
            return Err(CheckpointError::Corrupt { found: document.checksum, computed });
        }
        Ok(document.data)
    }

    /// Serializes the checkpoint as the kubelet does: one line, checksum last.
    pub fn to_json(&self) -> String {
        let document = Document { data: self.clone(), checksum: self.checksum() };
        serde_json::to_string(&document).expect("strings, integers and maps with plain keys")
    }

    /// Ids of a resource's devices that were allocated when the kubelet wrote the checkpoint.
    pub fn allocated_ids<'a>(&'a self, resource: &'a str) -> impl Iterator<Item = &'a str> {
        self.pods
            .iter()
            .flatten()
            .filter(move |entry| entry.resource_name == resource)
            .flat_map(|entry| entry.device_ids.values().flatten())
            .map(String::as_str)
    }

    /// 32-bit FNV-1a hash of the Go print, widened to the kubelet's `uint64` field.
    pub fn checksum(&self) -> u64 {
        const OFFSET_BASIS: u32 = 0x811c_9dc5;
        const PRIME: u32 = 0x0100_0193;
        let print = GoPrint(self).to_string();
        let hash = print
            .bytes()
            .fold(OFFSET_BASIS, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(PRIME));
        u64::from(hash)
    }
}

/// Prints the data as Go's `spew` does for `%#v`, with pointer addresses and methods disabled.
struct GoPrint<'a>(&'a Checkpoint);

impl fmt::Display for GoPrint<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(checkpoint.checkpointData){PodDeviceEntries:([]checkpoint.PodDevicesEntry)")?;
        match &self.0.pods {
            None => f.write_str("<nil>")?,
            Some(pods) => print_bracketed(f, pods, print_pod)?,
        }
        f.write_str(" RegisteredDevices:(map[string][]string)")?;
        match &self.0.registered {
            None => f.write_str("<nil>")?,
            Some(resources) => print_map(f, resources, |f, ids| match ids {
                None => f.write_str("<nil>"),
                Some(ids) => print_bracketed(f, ids, |f, id| f.write_str(id)),
            })?,
        }
        f.write_char('}')
    }
}

fn print_pod(f: &mut fmt::Formatter<'_>, pod: &PodDevices) -> fmt::Result {
    write!(
        f,
        "{{PodUID:(string){} ContainerName:(string){} ResourceName:(string){} ",
        pod.pod_uid, pod.container_name, pod.resource_name
    )?;
    f.write_str("DeviceIDs:(checkpoint.DevicesPerNUMA)")?;
    print_map(f, &pod.device_ids, |f, ids| print_bracketed(f, ids, |f, id| f.write_str(id)))?;
    f.write_str(" AllocResp:([]uint8)")?;
    print_bracketed(f, &pod.allocate_response, |f, byte| write!(f, "{byte}"))?;
    f.write_char('}')
}

fn print_map<K: fmt::Display, V>(
    f: &mut fmt::Formatter<'_>,
    map: &BTreeMap<K, V>,
    print: impl Fn(&mut fmt::Formatter<'_>, &V) -> fmt::Result,
) -> fmt::Result {
    f.write_str("map")?;
    print_bracketed(f, map, |f, (key, value)| {
        write!(f, "{key}:")?;
        print(f, value)
    })
}

fn print_bracketed<T>(
    f: &mut fmt::Formatter<'_>,
    items: impl IntoIterator<Item = T>,
    print: impl Fn(&mut fmt::Formatter<'_>, T) -> fmt::Result,
) -> fmt::Result {
    f.write_char('[')?;
    for (position, item) in items.into_iter().enumerate() {
        if position > 0 {
            f.write_char(' ')?;
        }
        print(f, item)?;
    }
    f.write_char(']')
}

fn to_base64<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&STANDARD.encode(bytes))
}

fn from_base64<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?.unwrap_or_default();
    STANDARD.decode(text).map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checkpoint of a kubelet 1.36.2 that runs two pods with two devices each.
    const GOLDEN: &str = include_str!("../tests/kubelet-checkpoint-golden.json");

    #[test]
    fn a_live_kubelets_checkpoint_is_read_and_written_to_the_byte() {
        let checkpoint = Checkpoint::parse(GOLDEN.trim_end()).expect("the checksum matches");
        assert_eq!(checkpoint.to_json(), GOLDEN.trim_end());
        assert_eq!(checkpoint.allocated_ids("nvidia.com/gpu").count(), 4);
        assert_eq!(checkpoint.allocated_ids("nvidia.com/other").count(), 0);
    }

    #[test]
    fn a_changed_byte_fails_the_checksum() {
        let changed = GOLDEN.replacen("0003", "0009", 1);
        let error = Checkpoint::parse(&changed).expect_err("the checkpoint is corrupt");
        assert!(matches!(error, CheckpointError::Corrupt { found: 3_711_385_807, .. }), "{error}");
    }

    #[test]
    fn an_empty_checkpoint_survives_the_round_trip() {
        for empty in [
            Checkpoint::default(),
            Checkpoint { pods: Some(Vec::new()), registered: Some(BTreeMap::new()) },
        ] {
            assert_eq!(Checkpoint::parse(&empty.to_json()).expect("the checkpoint parses"), empty);
        }
    }
}
