//! The parsed pipeline: stages in topological order, and the links between them.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use windlass_core::selector::PublishedExpression;

use crate::{
    capacity::Capacity,
    quantity::{Bytes, Seconds},
    taint::Toleration,
};

/// A pipeline: an acyclic graph in which every stage is reachable from the first one.
#[derive(Clone, Debug)]
pub struct Pipeline {
    /// Name of the pipeline, a DNS label.
    pub name: String,
    /// Objective that a plan optimises.
    pub goal: Goal,
    /// Arrival rate in items per second; `None` if the file has none.
    pub rate: Option<f64>,
    /// Size of an item at the first stage.
    pub input: Bytes,
    /// Stages in topological order: each link leads from an earlier stage to a later one.
    pub stages: Vec<Stage>,
    /// Links between stages, sorted by the position of the sending stage, then of the receiving stage.
    pub links: Vec<Link>,
}

/// Objective that a plan optimises.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// Maximum items per second.
    Throughput,
    /// Minimum latency at [`Pipeline::rate`].
    Latency,
    /// Maximum items per second while the latency is at most this value.
    ThroughputUnder(Seconds),
}

/// A processing step with its own program and container.
#[derive(Clone, Debug)]
pub struct Stage {
    /// Name of the stage, a DNS label.
    pub name: String,
    /// Image of its container.
    pub image: String,
    /// Command of its container; empty for the image's entrypoint.
    pub command: Vec<String>,
    /// Port of its gRPC service.
    pub port: u16,
    /// Maximum number of replicas.
    pub max_replicas: u32,
    /// Maximum number of items that one replica processes in one batch.
    pub batch: u32,
    /// Size of a result; `None` if the file has none, which is valid only for a stage without outgoing links.
    pub output: Option<Bytes>,
    /// Devices that the stage can run on, the preferred one first; never empty.
    pub alternatives: Vec<Alternative>,
    /// Labels that its node must have.
    pub node_selector: BTreeMap<String, String>,
    /// Tolerations of its pods.
    pub tolerations: Vec<Toleration>,
    /// Further fields of its pod's specification, including `nodeSelector` and `tolerations`.
    pub pod: Map<String, Value>,
    /// Further fields of its container.
    pub container: Map<String, Value>,
}

/// A device, or CPUs alone, that a stage can run on, with the processing time there.
#[derive(Clone, Debug)]
pub struct Alternative {
    /// The required device.
    pub device: DeviceRequirement,
    /// Command of the container on this device; empty for the stage's command.
    pub command: Vec<String>,
    /// CPUs and memory that a replica requests.
    pub request: Capacity,
    /// Processing time of one item.
    pub time: Seconds,
    /// Fixed time per batch, in addition to the time of its items.
    pub batch_time: Seconds,
    /// Standard deviation of the processing time divided by its mean.
    pub variation: f64,
}

/// Device that a replica needs exclusively, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceRequirement {
    /// No device.
    CpuOnly,
    /// One device of an extended resource.
    Resource(String),
    /// One device of a `DeviceClass`, through a `ResourceClaim`.
    Claim {
        /// Name of the DeviceClass.
        class: String,
        /// CEL expression over the device; `None` selects any device of the class.
        expression: Option<PublishedExpression>,
        /// Source text of the expression; empty if there is none.
        text: String,
    },
}

/// An edge of the graph: one stage sends items to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Position of the sending stage.
    pub from: usize,
    /// Position of the receiving stage.
    pub to: usize,
    /// Size of an item.
    pub bytes: Bytes,
}

// === impl Pipeline ===

impl Pipeline {
    /// Incoming links of a stage; more than one at a join.
    pub fn links_to(&self, stage: usize) -> impl Iterator<Item = &Link> {
        self.links.iter().filter(move |link| link.to == stage)
    }

    /// Outgoing links of a stage. The stage sends each item on all of them.
    pub fn links_from(&self, stage: usize) -> impl Iterator<Item = &Link> {
        let first = self.links.partition_point(|link| link.from < stage);
        self.links[first..].iter().take_while(move |link| link.from == stage)
    }

    /// Port of a stage in manifests. Stages can share a pod, and so its port numbers: a stage whose number is taken by
    /// an earlier stage gets the next free one.
    pub fn port(&self, stage: usize) -> u16 {
        let mut ports: Vec<u16> = Vec::new();
        for spec in &self.stages[..=stage] {
            let mut port = spec.port;
            while ports.contains(&port) {
                port = port.checked_add(1).unwrap_or(1024);
            }
            ports.push(port);
        }
        *ports.last().expect("the range includes the stage itself")
    }

    /// Positions of the stages without outgoing links.
    pub fn final_stages(&self) -> impl Iterator<Item = usize> {
        (0..self.stages.len()).filter(|stage| self.links_from(*stage).next().is_none())
    }
}

// === impl Alternative ===

impl Alternative {
    /// Items per second of one saturated replica with full batches. `batch_gap` is the replica's idle time between two
    /// batches.
    pub fn rate(&self, batch: u32, batch_gap: Seconds) -> f64 {
        let batch = f64::from(batch);
        batch / (batch_gap.0 + self.batch_time.0 + batch * self.time.0)
    }
}

// === impl DeviceRequirement ===

impl std::fmt::Display for DeviceRequirement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::CpuOnly => f.write_str("CPU"),
            Self::Resource(name) => f.write_str(name),
            Self::Claim { class, expression: None, .. } => write!(f, "a device of {class}"),
            Self::Claim { class, text, .. } => write!(f, "a device of {class} with {text}"),
        }
    }
}
