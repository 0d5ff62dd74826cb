//! The nodes on which a pipeline is to run: CPUs, devices, and their link to each other.

mod board;
mod entry;

use std::{collections::BTreeMap, path::Path};

use windlass_config::Mistakes;
use windlass_core::selector::{EvaluationError, PreparedDevice};

pub use board::BoardProfile;

use crate::{
    capacity::Capacity,
    pipeline::{Stage, Wanted},
    quantity::{BitRate, Seconds},
    taint::Taint,
};

/// Nodes with what is free of them.
#[derive(Clone, Debug, Default)]
pub struct Fleet {
    /// The nodes.
    pub nodes: Vec<Node>,
    /// True for boards that are described, and not there.
    pub is_simulated: bool,
    /// Times of the stages' programs.
    pub overhead: Overhead,
}

/// Times that the stages' programs take besides the work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Overhead {
    /// Latency of an item from stage to stage, without network.
    pub hop: Seconds,
    /// Time of a replica between two batches.
    pub step: Seconds,
}

/// A node that can have pods.
#[derive(Clone, Debug)]
pub struct Node {
    /// Name of the node.
    pub name: String,
    /// The kind of board, for people; empty where it is not known.
    pub board: String,
    /// CPUs and memory that no pod requests.
    pub free: Capacity,
    /// Labels, for node selectors.
    pub labels: BTreeMap<String, String>,
    /// Taints that keep pods away that do not tolerate them.
    pub taints: Vec<Taint>,
    /// Link between the node and the others' switch.
    pub link: NodeLink,
    /// Devices that no pod has.
    pub devices: Vec<FreeDevice>,
}

/// A link in both directions at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NodeLink {
    /// Rate in each direction.
    pub rate: BitRate,
    /// Time that a bit takes from the node to the switch, or back.
    pub delay: Seconds,
}

/// A device that no pod has.
#[derive(Clone, Debug)]
pub struct FreeDevice {
    /// Name of the device on its node, for people.
    pub name: String,
    /// Extended resource that counts it.
    pub resource: Option<String>,
    /// DeviceClasses that select it.
    pub classes: Vec<String>,
    /// Attributes for CEL; `None` for a device that is not published.
    pub published: Option<PreparedDevice>,
}

// === impl Fleet ===

impl Fleet {
    /// Reads a file of boards; `path` is for the messages.
    ///
    /// # Errors
    ///
    /// All mistakes of the file, each with its line.
    pub fn parse(path: &Path, text: &str) -> Result<Self, Mistakes> {
        entry::read(text).map_err(|found| Mistakes::new(path, found))
    }

    /// The JSON schema of a file of boards.
    pub fn schema() -> serde_json::Value {
        entry::schema()
    }
}

// === impl Node ===

impl Node {
    /// True if the stage's pods may run here, as far as labels and taints go.
    pub(crate) fn admits(&self, stage: &Stage) -> bool {
        let has = |(key, value)| self.labels.get(key) == Some(value);
        let is_tolerated = |taint| stage.tolerations.iter().any(|one| one.tolerates(taint));
        stage.node_selector.iter().all(has) && self.taints.iter().all(is_tolerated)
    }

    /// The positions of the devices that serve a wish, one after the other; `None` once for no device.
    pub(crate) fn serving<'a>(
        &'a self,
        wanted: &'a Wanted,
    ) -> impl Iterator<Item = Option<usize>> + 'a {
        let alone = (*wanted == Wanted::Cpu).then_some(None);
        let devices = self.devices.iter().enumerate();
        // A device for which the expression has no answer is not selected, as in DRA.
        let serving = devices.filter(|(_, device)| device.serves(wanted).unwrap_or(false));
        alone.into_iter().chain(serving.map(|(position, _)| Some(position)))
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
    /// Those of the stage kit, which its benchmark measures.
    fn default() -> Self {
        Self { hop: Seconds(0.000_15), step: Seconds(0.000_1) }
    }
}

// === impl FreeDevice ===

impl FreeDevice {
    /// True if the device serves the wish.
    ///
    /// # Errors
    ///
    /// The expression cannot be evaluated for the device.
    pub fn serves(&self, wanted: &Wanted) -> Result<bool, EvaluationError> {
        match wanted {
            Wanted::Cpu => Ok(false),
            Wanted::Resource(name) => Ok(self.resource.as_ref() == Some(name)),
            Wanted::Claim { class, expression, .. } => {
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
