//! Owner of each device by the agent's answers, and the latest events.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Instant,
};

/// Owners by device. A second owner ends the walk.
pub(super) struct Hands {
    holders: BTreeMap<String, String>,
    recent: VecDeque<String>,
    begun: Instant,
}

/// Number of events that a failure shows.
const RECENT: usize = 150;

// === impl Hands ===

impl Hands {
    pub(super) fn new() -> Self {
        let (holders, recent) = Default::default();
        Self { holders, recent, begun: Instant::now() }
    }

    pub(super) fn log(&mut self, what: &str) {
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(format!("{:.3} {what}", self.begun.elapsed().as_secs_f64()));
    }

    /// Records that the agent has given a device to an owner, perhaps again.
    pub(super) fn take(&mut self, device: &str, who: &str) {
        self.log(&format!("{who} has {device}"));
        let before = self.holders.insert(device.to_owned(), who.to_owned());
        if let Some(other) = before.filter(|other| other != who) {
            panic!("{device} is in the hands of {other} and of {who}: {:#?}", self.recent);
        }
    }

    /// Releases all devices of an owner that has ended.
    pub(super) fn let_go(&mut self, who: &str) {
        self.log(&format!("{who} ends"));
        self.holders.retain(|_, holder| holder != who);
    }

    pub(super) fn has(&self, who: &str) -> bool {
        self.holders.values().any(|holder| holder == who)
    }

    pub(super) fn holders(&self) -> BTreeSet<String> {
        self.holders.values().cloned().collect()
    }
}

#[test]
#[should_panic(expected = "GPU-a is in the hands of p1 and of c1")]
fn a_device_with_two_owners_is_noticed() {
    let mut hands = Hands::new();
    hands.take("GPU-a", "p1");
    hands.take("GPU-a", "p1");
    hands.let_go("p1");
    hands.take("GPU-a", "p1");
    hands.take("GPU-a", "c1");
}
