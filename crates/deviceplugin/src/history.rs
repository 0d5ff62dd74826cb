//! Choices that were made, kept on disk: with its question, a choice can be explained when its pod has
//! long been running.

mod file;
mod memory;
mod numbers;

use std::path::Path;

use file::ChoicesFile;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use windlass_core::{
    device::DeviceId,
    placement::{Policy, shares::Span},
    replica::ReplicaId,
    resource::ResourceName,
};

pub use file::ChoicesError;
pub use file::reread;
pub use memory::{Teller, memory};
pub use numbers::{InvalidNumbers, Numbers};

/// A question of the kubelet's, and its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Remembered {
    /// When it was answered.
    pub at: Timestamp,
    /// The resource that was asked for.
    pub resource: ResourceName,
    /// What made one set better than another.
    pub policy: Policy,
    /// How many devices, or replicas, were asked for.
    pub size: usize,
    /// Whether no other set was better; otherwise it was the best found within the bound.
    pub exact: bool,
    /// What was chosen, and from what.
    #[serde(flatten)]
    pub among: Among,
}

/// What was chosen, and from what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Among {
    /// Devices that serve one container each.
    Devices {
        /// Those to choose from.
        available: Vec<DeviceId>,
        /// Those of them that the answer had to hold.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        required: Vec<DeviceId>,
        /// What the container seemed to have got of other resources: the choice is near them.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        near: Vec<DeviceId>,
        /// The answer.
        chosen: Vec<DeviceId>,
    },
    /// Replicas of devices that serve several containers.
    Replicas {
        /// How many devices the answer could name.
        span: Span,
        /// What the container seemed to have got of other resources.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        near: Vec<DeviceId>,
        /// What each device had, and gave.
        pools: Vec<Pool>,
    },
}

/// A shared device when it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pool {
    /// The device.
    pub device: DeviceId,
    /// How many of its replicas other containers held.
    pub in_use: usize,
    /// The replicas to choose from.
    pub free: Numbers,
    /// Those of them that the answer had to hold.
    #[serde(default, skip_serializing_if = "Numbers::is_empty")]
    pub required: Numbers,
    /// Those of them that are the answer.
    #[serde(default, skip_serializing_if = "Numbers::is_empty")]
    pub chosen: Numbers,
}

/// The remembered choices, the newest first; none where no agent has made one. Blocks.
pub fn read(state_dir: &Path) -> Result<Vec<Remembered>, ChoicesError> {
    ChoicesFile::new(state_dir).read()
}

// === impl Remembered ===

impl Remembered {
    /// The answer's ids, as the kubelet knows them.
    pub fn chosen(&self) -> Vec<String> {
        match &self.among {
            Among::Devices { chosen, .. } => chosen.iter().map(ToString::to_string).collect(),
            Among::Replicas { pools, .. } => {
                let chosen = pools.iter().flat_map(|pool| pool.replicas(&pool.chosen));
                chosen.map(|replica| replica.to_string()).collect()
            }
        }
    }
}

// === impl Pool ===

impl Pool {
    /// The replicas of this device that have these numbers.
    pub fn replicas<'a>(&'a self, numbers: &'a Numbers) -> impl Iterator<Item = ReplicaId> + 'a {
        numbers.iter().map(|number| ReplicaId { device: self.device.clone(), number })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The file's format: a change of it takes a new version.
    #[test]
    fn a_choice_is_written_in_one_line_and_read_back() {
        for line in [
            r#"{"at":"2026-01-02T03:04:05Z","resource":"nvidia.com/gpu","policy":"numa-strict","size":1,"exact":true,"devices":{"available":["GPU-a","GPU-b"],"chosen":["GPU-b"]}}"#,
            r#"{"at":"2026-01-02T03:04:05Z","resource":"a.com/x","policy":"aligned","size":1,"exact":true,"devices":{"available":["nic-a","nic-b"],"near":["GPU-a"],"chosen":["nic-b"]}}"#,
            r#"{"at":"2026-01-02T03:04:05Z","resource":"a.com/x","policy":"packed","size":3,"exact":false,"replicas":{"span":"anyDevices","pools":[{"device":"GPU-a","inUse":4,"free":"0-2,7","required":"7","chosen":"0-1,7"},{"device":"GPU-b","inUse":8,"free":""}]}}"#,
        ] {
            let choice: Remembered = serde_json::from_str(line).expect("a choice");
            assert_eq!(serde_json::to_string(&choice).expect("JSON"), line);
        }
    }

    #[test]
    fn an_answer_has_the_ids_that_the_kubelet_knows() {
        let numbers = |text: &str| text.parse().expect("numbers");
        let pool = Pool {
            device: "GPU-a".parse().expect("an id"),
            in_use: 0,
            free: numbers("0-3"),
            required: numbers("3"),
            chosen: numbers("0-1,3"),
        };
        let choice = Remembered {
            at: Timestamp::UNIX_EPOCH,
            resource: "a.com/x".parse().expect("a name"),
            policy: Policy::Packed,
            size: 3,
            exact: true,
            among: Among::Replicas { span: Span::AnyDevices, near: Vec::new(), pools: vec![pool] },
        };
        assert_eq!(choice.chosen(), ["GPU-a::0", "GPU-a::1", "GPU-a::3"]);
    }
}
