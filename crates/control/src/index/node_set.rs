//! A set of nodes as a bit set. Gangs store the nodes that kube-scheduler offered in such sets.

use windlass_sched::view::NodeIndex;

/// Nodes of a view: bit `n % 64` of word `n / 64` stands for node `n`.
#[derive(Clone, Debug, Default)]
pub(super) struct NodeSet(Vec<u64>);

// === impl NodeSet ===

impl NodeSet {
    pub(super) fn contains(&self, node: NodeIndex) -> bool {
        let (word, bit) = word_and_bit(node);
        self.0.get(word).is_some_and(|word| word & bit != 0)
    }
}

impl Extend<NodeIndex> for NodeSet {
    fn extend<I: IntoIterator<Item = NodeIndex>>(&mut self, nodes: I) {
        for (word, bit) in nodes.into_iter().map(word_and_bit) {
            if self.0.len() <= word {
                self.0.resize(word + 1, 0);
            }
            self.0[word] |= bit;
        }
    }
}

impl FromIterator<NodeIndex> for NodeSet {
    fn from_iter<I: IntoIterator<Item = NodeIndex>>(nodes: I) -> Self {
        let mut set = Self::default();
        set.extend(nodes);
        set
    }
}

/// Position of a node's word, and the word with only the node's bit set.
fn word_and_bit(node: NodeIndex) -> (usize, u64) {
    ((node.0 / u64::BITS) as usize, 1 << (node.0 % u64::BITS))
}
