//! Visits: the times of an item at each stage.

use std::time::Duration;

use crate::wire;

/// The times of an item at one stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visit {
    /// Name of the stage.
    pub stage: String,
    /// Name of the process among the stage's replicas.
    pub replica: String,
    /// Estimated time on the link to the stage. The clocks of nodes differ, so it cannot be measured directly.
    pub link: Duration,
    /// Wait in the queue; at a join, from the arrival of the first part.
    pub queueing: Duration,
    /// Processing time of the whole batch; zero if the item skipped the work function.
    pub processing: Duration,
    /// From the end of processing until the item was sent to the next stage; zero at the last stage.
    pub sending: Duration,
}

impl Visit {
    pub(crate) fn from_wire(visit: wire::Visit) -> Self {
        let wire::Visit { stage, replica, link_us, waited_us, worked_us, sending_us } = visit;
        Self {
            stage,
            replica,
            link: Duration::from_micros(link_us),
            queueing: Duration::from_micros(waited_us),
            processing: Duration::from_micros(worked_us),
            sending: Duration::from_micros(sending_us),
        }
    }

    pub(crate) fn to_wire(&self) -> wire::Visit {
        wire::Visit {
            stage: self.stage.clone(),
            replica: self.replica.clone(),
            link_us: micros(self.link),
            waited_us: micros(self.queueing),
            worked_us: micros(self.processing),
            sending_us: micros(self.sending),
        }
    }
}

/// Whole microseconds, saturating.
pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Whole nanoseconds, saturating after 584 years.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
