//! Where each replica of each stage runs.

use crate::{
    capacity::Capacity,
    fleet::{Fleet, FreeDevice},
    pipeline::{Alternative, Pipeline},
};

/// Replicas of each stage, in the order of the pipeline's stages. A stage without a replica is not placed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// Replicas by stage.
    pub replicas: Vec<Vec<Replica>>,
}

/// A replica of a stage: positions in the fleet and in the stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Replica {
    /// Position of the node.
    pub node: usize,
    /// Position of the stage's alternative.
    pub alternative: usize,
    /// Position of the node's device; `None` on CPUs alone.
    pub device: Option<usize>,
}

// === impl Placement ===

impl Placement {
    /// A placement of no stage yet.
    pub fn empty(stages: usize) -> Self {
        Self { replicas: vec![Vec::new(); stages] }
    }

    /// Number of all replicas.
    pub fn count(&self) -> usize {
        self.replicas.iter().map(Vec::len).sum()
    }

    /// True if stages on different nodes hand items to each other.
    pub fn uses_network(&self, pipeline: &Pipeline) -> bool {
        pipeline.links.iter().any(|link| {
            let (from, to) = (&self.replicas[link.from], &self.replicas[link.to]);
            from.iter().any(|from| to.iter().any(|to| from.node != to.node))
        })
    }

    /// Conflicts of a placement: a device with two owners, too few CPUs or too little memory, a device that does not
    /// serve, a node that does not admit a stage. Empty for one that the nodes can hold.
    pub fn conflicts(&self, pipeline: &Pipeline, fleet: &Fleet) -> Vec<String> {
        let mut found = Vec::new();
        let mut taken = Vec::new();
        let mut requested = vec![Capacity::default(); fleet.nodes.len()];
        for (stage, replicas) in pipeline.stages.iter().zip(&self.replicas) {
            for replica in replicas {
                let node = &fleet.nodes[replica.node];
                let alternative = &stage.alternatives[replica.alternative];
                requested[replica.node] += alternative.request;
                if !node.admits(stage) {
                    found.push(format!("{} does not admit {}", node.name, stage.name));
                }
                let Some(position) = replica.device else { continue };
                let device = &node.devices[position];
                if !device.serves(&alternative.device).unwrap_or(false) {
                    found.push(format!(
                        "{} of {} does not serve {}",
                        device.name, node.name, stage.name
                    ));
                }
                if taken.contains(&(replica.node, position)) {
                    found.push(format!("{} of {} has two owners", device.name, node.name));
                }
                taken.push((replica.node, position));
            }
        }
        for (node, requested) in fleet.nodes.iter().zip(requested) {
            if !node.free.holds(requested) {
                found.push(format!(
                    "{} has {} CPUs and {}, and {:.1} and {} are requested",
                    node.name, node.free.cpus, node.free.memory, requested.cpus, requested.memory
                ));
            }
        }
        found
    }
}

// === impl Replica ===

impl Replica {
    /// The stage's alternative on which the replica runs.
    pub fn alternative<'p>(&self, pipeline: &'p Pipeline, stage: usize) -> &'p Alternative {
        &pipeline.stages[stage].alternatives[self.alternative]
    }

    /// Its device.
    pub fn device<'f>(&self, fleet: &'f Fleet) -> Option<&'f FreeDevice> {
        self.device.map(|position| &fleet.nodes[self.node].devices[position])
    }
}
