//! A set of NUMA nodes.

/// A set of NUMA nodes from 0 to 63. The real kubelet's bit mask has the same range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NumaMask(u64);

// === impl NumaMask ===

impl NumaMask {
    /// The mask of these nodes. Nodes outside of 0 to 63 are ignored.
    pub fn of(nodes: impl IntoIterator<Item = i64>) -> Self {
        Self(nodes.into_iter().fold(0, |bits, node| bits | bit(node)))
    }

    /// True if the node is in the mask.
    pub fn contains(self, node: i64) -> bool {
        self.0 & bit(node) != 0
    }

    /// True if at least one of the nodes is in the mask.
    pub fn intersects(self, nodes: &[i64]) -> bool {
        nodes.iter().any(|node| self.contains(*node))
    }

    /// Number of nodes in the mask.
    pub fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// The nodes in both masks.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// The mask with fewer nodes. Of equally large ones, the one whose bits are the smaller number.
    #[must_use]
    pub fn narrowest(self, other: Self) -> Self {
        if other.sort_key() < self.sort_key() { other } else { self }
    }

    /// Every non-empty subset of these nodes, sorted by number of nodes, then as a number.
    pub fn subsets(nodes: &[i64]) -> Vec<Self> {
        let all_bits = Self::of(nodes.iter().copied()).0;
        let mut masks = Vec::new();
        let mut subset = all_bits;
        while subset != 0 {
            masks.push(Self(subset));
            subset = (subset - 1) & all_bits;
        }
        masks.sort_by_key(|mask| mask.sort_key());
        masks
    }

    /// Sort key: number of nodes, then the bits as a number.
    fn sort_key(self) -> (u32, u64) {
        (self.count(), self.0)
    }
}

/// Bit of a node; 0 for a node outside of 0 to 63.
fn bit(node: i64) -> u64 {
    u32::try_from(node).ok().and_then(|node| 1_u64.checked_shl(node)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_subsets_come_first() {
        let mask_of = |nodes: &[i64]| NumaMask::of(nodes.iter().copied());
        let expected = [&[0][..], &[1], &[3], &[0, 1], &[0, 3], &[1, 3], &[0, 1, 3]].map(mask_of);
        assert_eq!(NumaMask::subsets(&[0, 1, 3]), expected);
        assert_eq!(NumaMask::subsets(&[]), []);
    }

    #[test]
    fn nodes_outside_of_0_to_63_are_in_no_mask() {
        assert_eq!(NumaMask::of([-1, 64, i64::MAX]).count(), 0);
        assert!(!NumaMask::of([0, 63]).contains(-1));
        assert!(NumaMask::of([0, 63]).intersects(&[-1, 63]));
    }
}
