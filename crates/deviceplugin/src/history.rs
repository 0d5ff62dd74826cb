//! Allocation history on disk. From it, `windlass explain` says why a pod has its devices.

mod file;
mod numbers;
mod writer;

use std::path::Path;

use file::HistoryFile;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use windlass_core::{
    device::DeviceId,
    placement::{Policy, shares::Span},
    replica::ReplicaId,
    resource::ResourceName,
};

pub use file::HistoryError;
pub use file::reserialize;
pub use numbers::{InvalidReplicaNumbers, ReplicaNumbers};
pub use writer::{HistorySender, history_channel};

/// One `GetPreferredAllocation` request of the kubelet with its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RecordedChoice {
    /// Time of the answer.
    pub at: Timestamp,
    /// Requested resource.
    pub resource: ResourceName,
    /// Placement policy that ranked the candidate sets.
    pub policy: Policy,
    /// Number of devices, or of replicas, that were requested.
    pub size: usize,
    /// True if the search proved that no set is better; false if it stopped at its bound.
    pub exact: bool,
    /// Candidates and the set chosen from them.
    #[serde(flatten)]
    pub candidates: Candidates,
}

/// Candidates and the set chosen from them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Candidates {
    /// Exclusive devices.
    Devices {
        /// Devices that could be chosen.
        available: Vec<DeviceId>,
        /// Devices that the answer had to contain.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        required: Vec<DeviceId>,
        /// Devices that the container probably has from other resources; placement prefers neighbours of these.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        near: Vec<DeviceId>,
        /// Chosen devices.
        chosen: Vec<DeviceId>,
    },
    /// Replicas of shared devices.
    Replicas {
        /// Limit on the number of devices behind one answer.
        span: Span,
        /// Devices that the container probably has from other resources.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        near: Vec<DeviceId>,
        /// State and outcome of each shared device.
        pools: Vec<ReplicaPool>,
    },
}

/// One shared device at the time of a choice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaPool {
    /// Id of the device.
    pub device: DeviceId,
    /// Number of the device's replicas that other containers held.
    pub in_use: usize,
    /// Replicas that could be chosen.
    pub free: ReplicaNumbers,
    /// Replicas that the answer had to contain.
    #[serde(default, skip_serializing_if = "ReplicaNumbers::is_empty")]
    pub required: ReplicaNumbers,
    /// Chosen replicas.
    #[serde(default, skip_serializing_if = "ReplicaNumbers::is_empty")]
    pub chosen: ReplicaNumbers,
}

/// Reads the history, newest first; empty if no agent has written one. Blocks.
pub fn read(state_dir: &Path) -> Result<Vec<RecordedChoice>, HistoryError> {
    HistoryFile::new(state_dir).read()
}

// === impl RecordedChoice ===

impl RecordedChoice {
    /// Chosen ids, in the kubelet's form: `GPU-a`, or `GPU-a::0` for a replica.
    pub fn chosen(&self) -> Vec<String> {
        match &self.candidates {
            Candidates::Devices { chosen, .. } => chosen.iter().map(ToString::to_string).collect(),
            Candidates::Replicas { pools, .. } => pools
                .iter()
                .flat_map(|pool| pool.replicas(&pool.chosen))
                .map(|replica| replica.to_string())
                .collect(),
        }
    }
}

// === impl ReplicaPool ===

impl ReplicaPool {
    /// Replicas of this device with these numbers.
    pub fn replicas<'a>(
        &'a self,
        numbers: &'a ReplicaNumbers,
    ) -> impl Iterator<Item = ReplicaId> + 'a {
        numbers.iter().map(|number| ReplicaId { device: self.device.clone(), number })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pins the file format: an incompatible change needs a new version.
    #[test]
    fn a_choice_is_written_in_one_line_and_read_back() {
        for line in [
            r#"{"at":"2026-01-02T03:04:05Z","resource":"nvidia.com/gpu","policy":"numa-strict","size":1,"exact":true,"devices":{"available":["GPU-a","GPU-b"],"chosen":["GPU-b"]}}"#,
            r#"{"at":"2026-01-02T03:04:05Z","resource":"a.com/x","policy":"aligned","size":1,"exact":true,"devices":{"available":["nic-a","nic-b"],"near":["GPU-a"],"chosen":["nic-b"]}}"#,
            r#"{"at":"2026-01-02T03:04:05Z","resource":"a.com/x","policy":"packed","size":3,"exact":false,"replicas":{"span":"anyDevices","pools":[{"device":"GPU-a","inUse":4,"free":"0-2,7","required":"7","chosen":"0-1,7"},{"device":"GPU-b","inUse":8,"free":""}]}}"#,
        ] {
            let choice: RecordedChoice = serde_json::from_str(line).expect("a choice");
            assert_eq!(serde_json::to_string(&choice).expect("JSON"), line);
        }
    }

    #[test]
    fn an_answer_has_the_ids_that_the_kubelet_knows() {
        let numbers = |text: &str| text.parse().expect("numbers");
        let pool = ReplicaPool {
            device: "GPU-a".parse().expect("an id"),
            in_use: 0,
            free: numbers("0-3"),
            required: numbers("3"),
            chosen: numbers("0-1,3"),
        };
        let choice = RecordedChoice {
            at: Timestamp::UNIX_EPOCH,
            resource: "a.com/x".parse().expect("a name"),
            policy: Policy::Packed,
            size: 3,
            exact: true,
            candidates: Candidates::Replicas {
                span: Span::AnyDevices,
                near: Vec::new(),
                pools: vec![pool],
            },
        };
        assert_eq!(choice.chosen(), ["GPU-a::0", "GPU-a::1", "GPU-a::3"]);
    }
}
