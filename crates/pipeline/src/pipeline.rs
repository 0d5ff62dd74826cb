//! A pipeline as values: stages in the order of the items, and the links between them.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use windlass_core::selector::PublishedExpression;

use crate::{
    capacity::Capacity,
    quantity::{Bytes, Seconds},
    taint::Toleration,
};

/// A pipeline. Every stage is reached from the first one, and no item comes to a stage twice.
#[derive(Clone, Debug)]
pub struct Pipeline {
    /// Name of the pipeline, a DNS label.
    pub name: String,
    /// The aim of a plan.
    pub goal: Goal,
    /// Items per second that come; left out, as many as the pipeline takes.
    pub rate: Option<f64>,
    /// Size of an item as it comes to the first stage.
    pub input: Bytes,
    /// Stages; a link leads from an earlier to a later one.
    pub stages: Vec<Stage>,
    /// Links between stages, ordered by the position of the stage that sends, then of the stage that receives.
    pub links: Vec<Link>,
}

/// The aim of a plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// The most items per second.
    Throughput,
    /// The least latency at the rate of the file.
    Latency,
    /// The most items per second with a latency of at most this.
    ThroughputUnder(Seconds),
}

/// A step of the work, which has a program of its own.
#[derive(Clone, Debug)]
pub struct Stage {
    /// Name of the stage, a DNS label.
    pub name: String,
    /// Image of its container.
    pub image: String,
    /// Command of its container; empty, the image's own.
    pub command: Vec<String>,
    /// Port of its gRPC service.
    pub port: u16,
    /// Most replicas.
    pub max_replicas: u32,
    /// Most items that are worked on at once by one replica.
    pub batch: u32,
    /// Size of a result; `None` for a stage whose results leave the pipeline.
    pub output: Option<Bytes>,
    /// Devices that it can run on, the preferred one first. At least one.
    pub alternatives: Vec<Alternative>,
    /// Labels that its node has.
    pub node_selector: BTreeMap<String, String>,
    /// Taints that its node may have.
    pub tolerations: Vec<Toleration>,
    /// Further fields of its pod's specification, the two above among them.
    pub pod: Map<String, Value>,
    /// Further fields of its container.
    pub container: Map<String, Value>,
}

/// Something that a stage can run on, with the time that it then takes.
#[derive(Clone, Debug)]
pub struct Alternative {
    /// The device.
    pub device: Wanted,
    /// Command of the container on this device; empty, the stage's.
    pub command: Vec<String>,
    /// CPUs and memory that a replica requests.
    pub request: Capacity,
    /// Time of one item.
    pub time: Seconds,
    /// Time that each batch takes besides.
    pub batch_time: Seconds,
    /// Standard deviation of the time over its mean.
    pub variation: f64,
}

/// A device, or none, that a replica needs for itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// No device.
    Cpu,
    /// One of an extended resource.
    Resource(String),
    /// One of a device class, by a claim.
    Claim {
        /// Name of the DeviceClass.
        class: String,
        /// CEL expression over the device; left out, any of the class.
        expression: Option<PublishedExpression>,
        /// The expression as it was written.
        text: String,
    },
}

/// Items go from one stage to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Position of the stage that sends.
    pub from: usize,
    /// Position of the stage that receives.
    pub to: usize,
    /// Size of an item.
    pub bytes: Bytes,
}

// === impl Pipeline ===

impl Pipeline {
    /// The stage from which an item comes to this one; several at a join.
    pub fn links_to(&self, stage: usize) -> impl Iterator<Item = &Link> {
        self.links.iter().filter(move |link| link.to == stage)
    }

    /// The links on which a stage sends each item.
    pub fn links_from(&self, stage: usize) -> impl Iterator<Item = &Link> {
        let first = self.links.partition_point(|link| link.from < stage);
        self.links[first..].iter().take_while(move |link| link.from == stage)
    }

    /// Port of a stage in manifests. Stages may share a pod, and thus its ports: the second one of a port number gets
    /// the next free one.
    pub fn port(&self, stage: usize) -> u16 {
        let mut ports: Vec<u16> = Vec::new();
        for of in &self.stages[..=stage] {
            let mut port = of.port;
            while ports.contains(&port) {
                port = port.checked_add(1).unwrap_or(1024);
            }
            ports.push(port);
        }
        *ports.last().expect("the stage itself has one")
    }

    /// The stages at which items leave.
    pub fn ends(&self) -> impl Iterator<Item = usize> {
        (0..self.stages.len()).filter(|stage| self.links_from(*stage).next().is_none())
    }
}

// === impl Alternative ===

impl Alternative {
    /// Items per second of one replica that always has enough to do. `step` is its time between two batches.
    pub fn rate(&self, batch: u32, step: Seconds) -> f64 {
        let batch = f64::from(batch);
        batch / (step.0 + self.batch_time.0 + batch * self.time.0)
    }
}

// === impl Wanted ===

impl std::fmt::Display for Wanted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Cpu => f.write_str("CPU"),
            Self::Resource(name) => f.write_str(name),
            Self::Claim { class, expression: None, .. } => write!(f, "a device of {class}"),
            Self::Claim { class, text, .. } => write!(f, "a device of {class} with {text}"),
        }
    }
}
