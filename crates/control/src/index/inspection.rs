//! Read access to nodes for the page and commands: state, pods and claims.

use windlass_sched::{
    node::{Node, Part},
    view::NodeIndex,
};

use super::{
    Index, PodEntry,
    gangs::by_age,
    occupancy::{ClaimPart, Conflict},
};
use crate::facts::{NodeFacts, PodFacts};

/// A node with its state, its pods and its claims.
#[derive(Debug)]
pub struct NodeSnapshot<'a> {
    /// Facts of the node.
    pub facts: &'a NodeFacts,
    /// Free and held resources.
    pub state: &'a Node,
    /// Expected number of the node's idle GPUs that a typical pod cannot use.
    pub fragmentation: f64,
    /// Pods of the node with the GPUs that they hold.
    pub holders: Vec<Holder<'a>>,
    /// Claims with the GPUs of the node that they hold.
    pub claims: &'a [ClaimPart],
    /// Pods and claims that hold more than the node has free.
    pub conflicts: &'a [Conflict],
}

/// A pod and the part of its node that it holds.
#[derive(Debug)]
pub struct Holder<'a> {
    /// The pod.
    pub pod: &'a PodFacts,
    /// The part that the pod holds.
    pub part: Part,
}

/// A holder of one GPU, or of a share of it.
#[derive(Clone, Copy, Debug)]
pub enum GpuHolder<'a> {
    /// A pod, by extended resources.
    Pod(&'a PodFacts),
    /// A claim.
    Claim(&'a ClaimPart),
}

/// Nodes that have changed.
#[derive(Debug)]
pub struct Changes<'a> {
    /// Changed nodes whose object exists.
    pub nodes: Vec<NodeSnapshot<'a>>,
    /// Names of deleted nodes.
    pub deleted: Vec<String>,
    /// Number of the newest of these changes: the `after` of the next call.
    pub last_change: u64,
}

// === impl NodeSnapshot ===

impl NodeSnapshot<'_> {
    /// Holders of the GPU at a position, each with its share: compute in thousandths and memory in MiB. `None` instead
    /// of a share stands for the whole GPU.
    pub fn holders_of(
        &self,
        position: usize,
    ) -> impl Iterator<Item = (GpuHolder<'_>, Option<(u16, u32)>)> {
        let gpu_mib = self.facts.gpus[position].memory_mib;
        let pods = self.holders.iter().filter(move |holder| holder.part.gpus.contains(position));
        let pods = pods.map(move |holder| {
            let request = holder.pod.resources.gpus.as_ref().ok();
            (GpuHolder::Pod(holder.pod), request.and_then(|request| request.share_of(gpu_mib)))
        });
        let claims = self.claims.iter().filter(move |claim| claim.part.gpus.contains(position));
        let claims =
            claims.map(move |claim| (GpuHolder::Claim(claim), claim.gpus.share_of(gpu_mib)));
        pods.chain(claims)
    }
}

// === impl Index ===

impl Index {
    /// Every node whose object exists, sorted by name.
    pub fn node_snapshots(&mut self) -> Vec<NodeSnapshot<'_>> {
        self.rebuild_changed();
        let nodes = self.existing_nodes().into_iter().map(|(_, node)| node).collect();
        self.snapshots_of(nodes)
    }

    /// Up to `limit` nodes that changed after the change number `after`, oldest change first. 0 stands for all nodes.
    pub fn changes_since(&mut self, after: u64, limit: usize) -> Changes<'_> {
        self.rebuild_changed();
        let versions = (0..).map(NodeIndex).zip(self.versions.iter().copied());
        let changed = versions.filter(|(node, version)| {
            // A position without a name is free.
            *version > after && !self.entries[node.0 as usize].object.name.is_empty()
        });
        let deleted = self.deleted_nodes.after(after).map(|(version, name)| (version, Err(name)));
        let mut changed: Vec<_> =
            changed.map(|(node, version)| (version, Ok(node))).chain(deleted).collect();
        changed.sort_unstable();
        changed.truncate(limit);
        let last_change = changed.last().map_or(after, |(version, _)| *version);
        let (mut nodes, mut deleted) = (Vec::new(), Vec::new());
        for (_, node) in changed {
            match node {
                Ok(node) if self.entries[node.0 as usize].has_object => nodes.push(node),
                Ok(node) => deleted.push(self.name_of(node).to_owned()),
                Err(name) => deleted.push(name.to_owned()),
            }
        }
        Changes { nodes: self.snapshots_of(nodes), deleted, last_change }
    }

    /// Pods without a node or an assumed placement that request GPUs or have claims, oldest first.
    pub fn pending(&self) -> Vec<PodFacts> {
        let mut pending: Vec<_> = self.pods.values().filter_map(PodEntry::pending).collect();
        pending.sort_by(|a, b| by_age(a, b));
        pending.into_iter().cloned().collect()
    }

    /// The pod with this UID, if it is [pending](Self::pending).
    pub(crate) fn pending_pod(&self, uid: &str) -> Option<PodFacts> {
        self.pods.get(uid)?.pending().cloned()
    }

    fn snapshots_of(&mut self, nodes: Vec<NodeIndex>) -> Vec<NodeSnapshot<'_>> {
        let fragmentation: Vec<_> =
            nodes.iter().map(|node| self.scheduler.node_fragmentation(&self.view, *node)).collect();
        let snapshot = |(node, fragmentation): (NodeIndex, f64)| {
            let entry = &self.entries[node.0 as usize];
            let holders = entry.occupancy.parts();
            let holder = |(uid, part): (&String, Part)| {
                Some(Holder { pod: &self.pods.get(uid)?.facts, part })
            };
            NodeSnapshot {
                facts: &entry.facts,
                state: self.view.node(node),
                fragmentation,
                holders: holders.filter_map(holder).collect(),
                claims: entry.occupancy.claims(),
                conflicts: entry.occupancy.conflicts(),
            }
        };
        nodes.into_iter().zip(fragmentation).map(snapshot).collect()
    }
}
