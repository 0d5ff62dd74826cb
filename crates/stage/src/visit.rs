//! Visits: the times of an item at one stage of its way.

use std::time::Duration;

use crate::wire;

/// The times of an item at one stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visit {
    /// Name of the stage.
    pub stage: String,
    /// The process among the stage's replicas.
    pub replica: String,
    /// On the link that led here, as far as it is known without common clocks.
    pub link: Duration,
    /// In the queue, and for a join until the last part came.
    pub waited: Duration,
    /// In the work; the whole time of the batch.
    pub worked: Duration,
    /// From the end of the work until the next stage had room.
    pub sending: Duration,
}

impl Visit {
    pub(crate) fn from_wire(visit: wire::Visit) -> Self {
        let wire::Visit { stage, replica, link_us, waited_us, worked_us, sending_us } = visit;
        Self {
            stage,
            replica,
            link: Duration::from_micros(link_us),
            waited: Duration::from_micros(waited_us),
            worked: Duration::from_micros(worked_us),
            sending: Duration::from_micros(sending_us),
        }
    }

    pub(crate) fn to_wire(&self) -> wire::Visit {
        wire::Visit {
            stage: self.stage.clone(),
            replica: self.replica.clone(),
            link_us: micros(self.link),
            waited_us: micros(self.waited),
            worked_us: micros(self.worked),
            sending_us: micros(self.sending),
        }
    }
}

/// Whole microseconds.
pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Whole nanoseconds, which last for 584 years.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
