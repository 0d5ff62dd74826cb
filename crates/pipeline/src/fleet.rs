//! The nodes on which a pipeline can run: their free CPUs, memory and devices, and their network links.

mod board;
mod entry;

use std::{collections::BTreeMap, path::Path};

use windlass_config::InvalidConfig;
use windlass_core::selector::{EvaluationError, PreparedDevice};

pub use board::BoardProfile;

use crate::{
    capacity::Capacity,
    pipeline::{DeviceRequirement, Stage},
    quantity::{BitRate, Seconds},
    taint::Taint,
};

/// Nodes with their free capacity.
#[derive(Clone, Debug, Default)]
pub struct Fleet {
    /// The nodes.
    pub nodes: Vec<Node>,
    /// True for simulated boards, which a file describes; false for the nodes of a cluster.
    pub is_simulated: bool,
    /// Fixed times of the stage kit.
    pub overhead: Overhead,
}

/// Fixed times that the stage kit adds to the processing time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Overhead {
    /// Latency of an item from one stage to the next, without the network.
    pub hop: Seconds,
    /// Idle time of a replica between two batches.
    pub batch_gap: Seconds,
}

/// A schedulable node.
#[derive(Clone, Debug)]
pub struct Node {
    /// Name of the node.
    pub name: String,
    /// Kind of the board, for display; empty if unknown.
    pub board: String,
    /// Allocatable CPUs and memory that no pod has requested.
    pub free: Capacity,
    /// Labels, for node selectors.
    pub labels: BTreeMap<String, String>,
    /// Taints with the effect `NoSchedule` or `NoExecute`.
    pub taints: Vec<Taint>,
    /// Link between the node and the switch.
    pub link: NodeLink,
    /// Devices that are allocated to no pod.
    pub devices: Vec<FreeDevice>,
}

/// A full-duplex link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NodeLink {
    /// Rate in each direction.
    pub rate: BitRate,
    /// One-way delay between the node and the switch.
    pub delay: Seconds,
}

/// A device that is allocated to no pod.
#[derive(Clone, Debug)]
pub struct FreeDevice {
    /// Name of the device on its node, for display.
    pub name: String,
    /// Extended resource that the device belongs to.
    pub resource: Option<String>,
    /// Names of the `DeviceClass` objects that select the device.
    pub classes: Vec<String>,
    /// Attributes for CEL; `None` for a device that is in no `ResourceSlice`.
    pub published: Option<PreparedDevice>,
}

// === impl Fleet ===

impl Fleet {
    /// Parses the text of a boards file. Error messages name `path`.
    ///
    /// # Errors
    ///
    /// All errors of the file, each with its line.
    pub fn parse(path: &Path, text: &str) -> Result<Self, InvalidConfig> {
        entry::read(text).map_err(|errors| InvalidConfig::new(path, errors))
    }

    /// JSON schema of a boards file.
    pub fn schema() -> serde_json::Value {
        entry::schema()
    }
}

// === impl Node ===

impl Node {
    /// True if the node's labels and taints allow the stage's pods.
    pub(crate) fn admits(&self, stage: &Stage) -> bool {
        let has_label = |(key, value)| self.labels.get(key) == Some(value);
        let is_tolerated =
            |taint| stage.tolerations.iter().any(|toleration| toleration.tolerates(taint));
        stage.node_selector.iter().all(has_label) && self.taints.iter().all(is_tolerated)
    }

    /// Positions of the devices that satisfy the requirement; a single `None` if it is CPUs alone.
    pub(crate) fn candidate_devices<'a>(
        &'a self,
        requirement: &'a DeviceRequirement,
    ) -> impl Iterator<Item = Option<usize>> + 'a {
        let without_device = (*requirement == DeviceRequirement::CpuOnly).then_some(None);
        let devices = self.devices.iter().enumerate();
        // A device whose expression cannot be evaluated is not selected, as in DRA.
        let candidates = devices.filter(|(_, device)| device.serves(requirement).unwrap_or(false));
        without_device.into_iter().chain(candidates.map(|(position, _)| Some(position)))
    }
}

// === impl NodeLink ===

impl Default for NodeLink {
    /// Gigabit Ethernet through one switch.
    fn default() -> Self {
        Self { rate: BitRate(1e9), delay: Seconds(0.000_1) }
    }
}

// === impl Overhead ===

impl Default for Overhead {
    /// Values that the benchmark of the stage kit measures.
    fn default() -> Self {
        Self { hop: Seconds(0.000_15), batch_gap: Seconds(0.000_1) }
    }
}

// === impl FreeDevice ===

impl FreeDevice {
    /// True if the device satisfies the requirement; false for CPUs alone.
    ///
    /// # Errors
    ///
    /// The expression cannot be evaluated for the device.
    pub fn serves(&self, requirement: &DeviceRequirement) -> Result<bool, EvaluationError> {
        match requirement {
            DeviceRequirement::CpuOnly => Ok(false),
            DeviceRequirement::Resource(name) => Ok(self.resource.as_ref() == Some(name)),
            DeviceRequirement::Claim { class, expression, .. } => {
                if !self.classes.contains(class) {
                    return Ok(false);
                }
                let Some(expression) = expression else { return Ok(true) };
                match &self.published {
                    Some(device) => expression.selects(device),
                    None => Ok(false),
                }
            }
        }
    }
}
