//! A set of nodes as a bit set. Every waiting gang has one.

use windlass_sched::view::NodeIx;

/// Nodes of a view.
#[derive(Clone, Debug, Default)]
pub(super) struct NodeSet(Vec<u64>);

// === impl NodeSet ===

impl NodeSet {
    pub(super) fn contains(&self, node: NodeIx) -> bool {
        let (word, bit) = place(node);
        self.0.get(word).is_some_and(|word| word & bit != 0)
    }
}

impl Extend<NodeIx> for NodeSet {
    fn extend<I: IntoIterator<Item = NodeIx>>(&mut self, nodes: I) {
        for (word, bit) in nodes.into_iter().map(place) {
            if self.0.len() <= word {
                self.0.resize(word + 1, 0);
            }
            self.0[word] |= bit;
        }
    }
}

impl FromIterator<NodeIx> for NodeSet {
    fn from_iter<I: IntoIterator<Item = NodeIx>>(nodes: I) -> Self {
        let mut set = Self::default();
        set.extend(nodes);
        set
    }
}

/// The word of a node, and its bit there.
fn place(node: NodeIx) -> (usize, u64) {
    ((node.0 / u64::BITS) as usize, 1 << (node.0 % u64::BITS))
}
