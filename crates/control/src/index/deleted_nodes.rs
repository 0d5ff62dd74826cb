//! Deleted nodes. New nodes reuse their positions, so memory is bounded by the largest size of the cluster.

use std::collections::VecDeque;

use windlass_sched::view::NodeIndex;

use super::Index;

/// Maximum number of stored names of deleted nodes. Readers poll for changes every few seconds, so few are needed.
const MAX_NAMES: usize = 4096;

/// Free positions of deleted nodes, and the names of these nodes.
#[derive(Debug, Default)]
pub(super) struct DeletedNodes {
    free: Vec<NodeIndex>,
    /// Names of deleted nodes, each with the number of the change that freed the position, oldest first.
    names: VecDeque<(u64, String)>,
}

// === impl DeletedNodes ===

impl DeletedNodes {
    /// A free position for a new node, if there is one.
    pub(super) fn take_position(&mut self) -> Option<NodeIndex> {
        self.free.pop()
    }

    /// Names of the nodes deleted after this change, newest first, each with the number of its own change.
    pub(super) fn after(&self, change: u64) -> impl Iterator<Item = (u64, &str)> {
        let later = self.names.iter().rev().take_while(move |(deleted_at, _)| *deleted_at > change);
        later.map(|(deleted_at, name)| (*deleted_at, name.as_str()))
    }
}

// === impl Index ===

impl Index {
    /// Frees the position of a node that was just rebuilt, if it has neither an object, nor pods, nor slices.
    pub(super) fn free_if_deleted(&mut self, node: NodeIndex) {
        let entry = &mut self.entries[node.0 as usize];
        let is_empty = !entry.has_object && entry.pods.is_empty();
        if !is_empty || !self.claims.remove_node(&entry.object.name) {
            return;
        }
        let name = std::mem::take(entry).object.name;
        self.nodes.remove(&name);
        let DeletedNodes { free, names } = &mut self.deleted_nodes;
        free.push(node);
        names.push_back((self.rebuild_count, name));
        if names.len() > MAX_NAMES {
            names.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use windlass_sched::gpu::Gpu;

    use super::*;
    use crate::facts::{GpuFacts, NodeFacts};

    fn node(name: String) -> NodeFacts {
        let gpu = GpuFacts {
            id: Some(format!("GPU-{name}").parse().expect("an id")),
            model: "A10".to_owned(),
            memory_mib: 24_576,
            has_failed: false,
            restricted_to: None,
            obstacle: None,
        };
        NodeFacts { name, pods: 110, gpus: vec![gpu], ..NodeFacts::default() }
    }

    #[test]
    fn positions_of_deleted_nodes_are_reused() {
        let mut index = Index::default();
        let name = |n: usize| format!("node-{n}");
        let mut last_change = 0;
        for n in 0..1000 {
            index.set_node(node(name(n)));
            if n >= 3 {
                index.remove_node(&name(n - 3));
            }
            let changes = index.changes_since(last_change, usize::MAX);
            let (updated, deleted) = (&changes.nodes, &changes.deleted);
            assert_eq!(updated.iter().map(|it| &it.facts.name).collect::<Vec<_>>(), [&name(n)]);
            assert_eq!(*deleted, n.checked_sub(3).map(name).into_iter().collect::<Vec<_>>());
            last_change = changes.last_change;
        }
        assert!(index.entries.len() <= 5, "{} positions", index.entries.len());
        assert_eq!((index.nodes.len(), index.node_names().len()), (3, 3));
        let gpus: Vec<&Gpu> = index.view.nodes().iter().flat_map(|node| &node.gpus).collect();
        assert_eq!(gpus.len(), 3, "a deleted node has no GPUs");
        // A reader that saw only the first change gets the existing nodes and the deleted ones.
        let changes = index.changes_since(1, usize::MAX);
        assert_eq!((changes.nodes.len(), changes.deleted.len()), (3, 997));
    }
}
