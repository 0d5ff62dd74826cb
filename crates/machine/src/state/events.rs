//! Newest events of a machine, numbered without gaps so that readers can detect missed events.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// Event for NVML clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Sequence number of the event in the machine, from 1.
    pub sequence: u64,
    /// [`super::Gpu::number`] of the affected GPU.
    pub gpu: u32,
    /// Kind of event.
    pub kind: EventKind,
    /// GPU instance and compute instance of an event confined to an instance.
    pub instance: Option<(u32, u32)>,
}

/// Kind of event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// The driver logged an XID.
    Xid(u64),
    /// ECC failed to correct memory.
    DoubleBitEcc,
}

/// Log of the newest events.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventLog {
    last: u64,
    newest: VecDeque<Event>,
}

// === impl EventLog ===

impl EventLog {
    /// Number of kept events: more than a reader usually falls behind, and few enough to parse at each call.
    pub const CAPACITY: usize = 4096;

    /// Number of the newest event; 0 before the first.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Events after a sequence number, oldest first.
    pub fn after(&self, sequence: u64) -> impl Iterator<Item = &Event> {
        self.newest.iter().filter(move |event| event.sequence > sequence)
    }

    /// Appends an event of a whole GPU.
    pub(crate) fn push(&mut self, gpu: u32, kind: EventKind) {
        self.push_for_instance(gpu, None, kind);
    }

    /// Appends an event.
    pub(crate) fn push_for_instance(
        &mut self,
        gpu: u32,
        instance: Option<(u32, u32)>,
        kind: EventKind,
    ) {
        self.last += 1;
        if self.newest.len() == Self::CAPACITY {
            self.newest.pop_front();
        }
        self.newest.push_back(Event { sequence: self.last, gpu, kind, instance });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_log_drops_the_oldest_event_and_continues_the_sequence() {
        let mut log = EventLog::default();
        (0..=EventLog::CAPACITY).for_each(|_| log.push(0, EventKind::DoubleBitEcc));
        assert_eq!(log.last(), EventLog::CAPACITY as u64 + 1);
        assert_eq!(log.after(0).next().map(|event| event.sequence), Some(2));
        assert_eq!(log.after(log.last()).count(), 0);
    }
}
