//! Checkpoint of the kubelet's device manager, `kubelet_internal_checkpoint`, in its original format.
//!
//! The kubelet guards the document with a checksum of a Go debug print, which is reproduced here exactly: types in
//! parentheses, maps sorted by key, slices in file order.
//! Source: `pkg/kubelet/cm/devicemanager/checkpoint` and `pkg/util/hash` of Kubernetes 1.36.

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// File name, in the device plugin directory.
pub const FILE: &str = "kubelet_internal_checkpoint";

/// Key of [`PodDevices::device_ids`] for devices that have no NUMA node.
pub const NO_NUMA_NODE: i64 = -1;

/// Persistent state of the device manager.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// Devices that containers hold. `None` is Go's nil slice, which has its own checksum.
    #[serde(rename = "PodDeviceEntries")]
    pub pods: Option<Vec<PodDevices>>,
    /// Healthy device ids by resource, as last reported by the plugins.
    #[serde(rename = "RegisteredDevices")]
    pub registered: Option<BTreeMap<String, Option<Vec<String>>>>,
}

/// Devices of one resource in one container.
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
    /// Device ids by NUMA node, [`NO_NUMA_NODE`] without one.
    #[serde(rename = "DeviceIDs")]
    pub device_ids: BTreeMap<i64, Vec<String>>,
    /// The plugin's encoded `ContainerAllocateResponse`.
    #[serde(rename = "AllocResp", serialize_with = "to_base64", deserialize_with = "from_base64")]
    pub allocate_response: Vec<u8>,
}

/// Rejected checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// Not the kubelet's JSON.
    #[error("the device manager's checkpoint does not parse")]
    Parse(#[from] serde_json::Error),
    /// The data differs from the checksum.
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
    /// Reads a document and verifies its checksum.
    pub fn parse(json: &str) -> Result<Self, CheckpointError> {
        let document: Document = serde_json::from_str(json)?;
        let computed = document.data.checksum();
        if document.checksum != computed {
            return Err(CheckpointError::Corrupt { found: document.checksum, computed });
        }
        Ok(document.data)
    }

    /// Serializes the document as the kubelet does: one line, checksum last.
    pub fn to_json(&self) -> String {
        let document = Document { data: self.clone(), checksum: self.checksum() };
        serde_json::to_string(&document).expect("strings, integers and maps with plain keys")
    }

    /// Device ids of a resource that containers held when the checkpoint was written.
    pub fn held<'a>(&'a self, resource: &'a str) -> impl Iterator<Item = &'a str> {
        self.pods
            .iter()
            .flatten()
            .filter(move |entry| entry.resource_name == resource)
            .flat_map(|entry| entry.device_ids.values().flatten())
            .map(String::as_str)
    }

    /// FNV-1a over the Go print, 32 bits wide, widened as the kubelet's `uint64` field.
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

/// Data as Go's `spew` prints it with `%#v`, without pointer addresses and methods.
struct GoPrint<'a>(&'a Checkpoint);

impl fmt::Display for GoPrint<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(checkpoint.checkpointData){PodDeviceEntries:([]checkpoint.PodDevicesEntry)")?;
        match &self.0.pods {
            None => f.write_str("<nil>")?,
            Some(pods) => bracketed(f, pods, print_pod)?,
        }
        f.write_str(" RegisteredDevices:(map[string][]string)")?;
        match &self.0.registered {
            None => f.write_str("<nil>")?,
            Some(resources) => print_map(f, resources, |f, ids| match ids {
                None => f.write_str("<nil>"),
                Some(ids) => bracketed(f, ids, |f, id| f.write_str(id)),
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
    print_map(f, &pod.device_ids, |f, ids| bracketed(f, ids, |f, id| f.write_str(id)))?;
    f.write_str(" AllocResp:([]uint8)")?;
    bracketed(f, &pod.allocate_response, |f, byte| write!(f, "{byte}"))?;
    f.write_char('}')
}

fn print_map<K: fmt::Display, V>(
    f: &mut fmt::Formatter<'_>,
    map: &BTreeMap<K, V>,
    print: impl Fn(&mut fmt::Formatter<'_>, &V) -> fmt::Result,
) -> fmt::Result {
    f.write_str("map")?;
    bracketed(f, map, |f, (key, value)| {
        write!(f, "{key}:")?;
        print(f, value)
    })
}

fn bracketed<T>(
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

    /// Written by kubelet 1.36.2 with two pods of two devices each.
    const GOLDEN: &str = include_str!("../tests/kubelet-checkpoint-golden.json");

    #[test]
    fn a_live_kubelets_checkpoint_is_read_and_written_to_the_byte() {
        let checkpoint = Checkpoint::parse(GOLDEN.trim_end()).expect("the checksum matches");
        assert_eq!(checkpoint.to_json(), GOLDEN.trim_end());
        assert_eq!(checkpoint.held("nvidia.com/gpu").count(), 4);
        assert_eq!(checkpoint.held("nvidia.com/other").count(), 0);
    }

    #[test]
    fn one_changed_byte_is_noticed() {
        let changed = GOLDEN.replacen("0003", "0009", 1);
        let error = Checkpoint::parse(&changed).expect_err("corrupt");
        assert!(matches!(error, CheckpointError::Corrupt { found: 3_711_385_807, .. }), "{error}");
    }

    #[test]
    fn an_empty_state_survives_the_round_trip() {
        for empty in [
            Checkpoint::default(),
            Checkpoint { pods: Some(Vec::new()), registered: Some(BTreeMap::new()) },
        ] {
            assert_eq!(Checkpoint::parse(&empty.to_json()).expect("own document"), empty);
        }
    }
}
