//! A bounded set of recent ids, for the detection of duplicates.

use std::collections::{HashSet, VecDeque};

/// Set of the most recent ids. A new id evicts the oldest one.
#[derive(Debug, Default)]
pub(crate) struct RecentIds {
    ids: HashSet<u64>,
    order: VecDeque<u64>,
}

/// Capacity, about 2 MB: a minute at 1,000 items per second. A duplicate end arrives within the time in which a stage
/// detects a lost stream.
const CAPACITY: usize = 65_536;

impl RecentIds {
    /// Inserts an id. True if it is new.
    pub(crate) fn insert(&mut self, id: u64) -> bool {
        if !self.ids.insert(id) {
            return false;
        }
        self.order.push_back(id);
        if self.order.len() > CAPACITY
            && let Some(oldest) = self.order.pop_front()
        {
            self.ids.remove(&oldest);
        }
        true
    }

    /// True if the id is in the set.
    pub(crate) fn contains(&self, id: u64) -> bool {
        self.ids.contains(&id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_new_once_and_the_set_is_bounded() {
        let mut recent = RecentIds::default();
        assert!(recent.insert(7));
        assert!(!recent.insert(7));
        for id in 0..CAPACITY as u64 + 8 {
            recent.insert(id + 100);
        }
        assert_eq!(recent.ids.len(), CAPACITY);
        assert!(recent.insert(7), "evicted");
    }
}
