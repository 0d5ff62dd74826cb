//! Placement: the node and device of each replica of each stage.

use crate::{
    capacity::Capacity,
    fleet::{Fleet, FreeDevice},
    pipeline::{Alternative, Pipeline},
};

/// Replicas by stage, in the order of the pipeline's stages. A stage without replicas is not placed yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// `replicas[stage]` lists the replicas of one stage.
    pub replicas: Vec<Vec<Replica>>,
}

/// A replica of a stage, as indices into the fleet and the stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Replica {
    /// Index into [`Fleet::nodes`].
    pub node: usize,
    /// Index into the stage's `alternatives`.
    pub alternative: usize,
    /// Index into the node's `devices`; `None` if the replica runs on CPUs alone.
    pub device: Option<usize>,
}

// === impl Placement ===

impl Placement {
    /// A placement without replicas, for this number of stages.
    pub fn empty(stages: usize) -> Self {
        Self { replicas: vec![Vec::new(); stages] }
    }

    /// Total number of replicas.
    pub fn count(&self) -> usize {
        self.replicas.iter().map(Vec::len).sum()
    }

    /// True if a link connects replicas on different nodes.
    pub fn uses_network(&self, pipeline: &Pipeline) -> bool {
        pipeline.links.iter().any(|link| {
            let (from, to) = (&self.replicas[link.from], &self.replicas[link.to]);
            from.iter().any(|from| to.iter().any(|to| from.node != to.node))
        })
    }

    /// Violated constraints, one message each: a device with two owners, too few CPUs, too little memory, a device of
    /// the wrong kind, a node that does not admit a stage. Empty for a feasible placement.
    pub fn conflicts(&self, pipeline: &Pipeline, fleet: &Fleet) -> Vec<String> {
        let mut conflicts = Vec::new();
        let mut used_devices = Vec::new();
        let mut requested = vec![Capacity::default(); fleet.nodes.len()];
        for (stage, replicas) in pipeline.stages.iter().zip(&self.replicas) {
            for replica in replicas {
                let node = &fleet.nodes[replica.node];
                let alternative = &stage.alternatives[replica.alternative];
                requested[replica.node] += alternative.request;
                if !node.admits(stage) {
                    conflicts.push(format!("{} does not admit {}", node.name, stage.name));
                }
                let Some(position) = replica.device else { continue };
                let device = &node.devices[position];
                if !device.serves(&alternative.device).unwrap_or(false) {
                    conflicts.push(format!(
                        "{} of {} does not match the requirement of {}",
                        device.name, node.name, stage.name
                    ));
                }
                if used_devices.contains(&(replica.node, position)) {
                    conflicts.push(format!("{} of {} has two owners", device.name, node.name));
                }
                used_devices.push((replica.node, position));
            }
        }
        for (node, requested) in fleet.nodes.iter().zip(requested) {
            if !node.free.fits(requested) {
                conflicts.push(format!(
                    "{} has {} CPUs and {} free; replicas request {:.1} CPUs and {}",
                    node.name, node.free.cpus, node.free.memory, requested.cpus, requested.memory
                ));
            }
        }
        conflicts
    }
}

// === impl Replica ===

impl Replica {
    /// The alternative on which the replica runs.
    pub fn alternative<'p>(&self, pipeline: &'p Pipeline, stage: usize) -> &'p Alternative {
        &pipeline.stages[stage].alternatives[self.alternative]
    }

    /// The replica's device; `None` if it runs on CPUs alone.
    pub fn device<'f>(&self, fleet: &'f Fleet) -> Option<&'f FreeDevice> {
        self.device.map(|position| &fleet.nodes[self.node].devices[position])
    }
}
