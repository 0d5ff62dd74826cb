//! Owner of each device according to the agent's answers, and the latest events for failures.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Instant,
};

/// Owners by device. A device with a second owner fails the test.
pub(super) struct Owners {
    by_device: BTreeMap<String, String>,
    recent: VecDeque<String>,
    start: Instant,
}

/// Number of events that a failure shows.
const RECENT: usize = 150;

// === impl Owners ===

impl Owners {
    pub(super) fn new() -> Self {
        let (by_device, recent) = Default::default();
        Self { by_device, recent, start: Instant::now() }
    }

    pub(super) fn log(&mut self, event: &str) {
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(format!("{:.3} {event}", self.start.elapsed().as_secs_f64()));
    }

    /// Records that the agent has given a device to an owner, possibly again.
    pub(super) fn add(&mut self, device: &str, owner: &str) {
        self.log(&format!("{owner} has {device}"));
        let previous = self.by_device.insert(device.to_owned(), owner.to_owned());
        if let Some(other) = previous.filter(|other| other != owner) {
            panic!("{device} has the owners {other} and {owner}: {:#?}", self.recent);
        }
    }

    /// Releases all devices of an owner that has ended.
    pub(super) fn release_all(&mut self, owner: &str) {
        self.log(&format!("{owner} ends"));
        self.by_device.retain(|_, current| current != owner);
    }

    pub(super) fn has(&self, owner: &str) -> bool {
        self.by_device.values().any(|current| current == owner)
    }

    /// Owners that have a device.
    pub(super) fn names(&self) -> BTreeSet<String> {
        self.by_device.values().cloned().collect()
    }
}

#[test]
#[should_panic(expected = "GPU-a has the owners p1 and c1")]
fn a_device_with_two_owners_is_noticed() {
    let mut owners = Owners::new();
    owners.add("GPU-a", "p1");
    owners.add("GPU-a", "p1");
    owners.release_all("p1");
    owners.add("GPU-a", "p1");
    owners.add("GPU-a", "c1");
}
