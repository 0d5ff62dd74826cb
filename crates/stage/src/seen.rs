//! Ids that came of late, in bounded memory.

use std::collections::{HashSet, VecDeque};

/// A window of ids. The oldest one is forgotten for a new one.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    ids: HashSet<u64>,
    order: VecDeque<u64>,
}

/// Ids that are remembered, which take 2 MB: a minute at 1,000 items per second. A second end of an item comes within
/// the time in which a lost stream is noticed.
const REMEMBERED: usize = 65_536;

impl Seen {
    /// Notes an id; true if it is new.
    pub(crate) fn is_first(&mut self, id: u64) -> bool {
        if !self.ids.insert(id) {
            return false;
        }
        self.order.push_back(id);
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.ids.remove(&oldest);
        }
        true
    }

    /// True if the id came before; it is not noted.
    pub(crate) fn contains(&self, id: u64) -> bool {
        self.ids.contains(&id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_first_once_and_the_window_is_bounded() {
        let mut seen = Seen::default();
        assert!(seen.is_first(7));
        assert!(!seen.is_first(7));
        for id in 0..REMEMBERED as u64 + 8 {
            seen.is_first(id + 100);
        }
        assert_eq!(seen.ids.len(), REMEMBERED);
        assert!(seen.is_first(7), "forgotten");
    }
}
