//! An item that has arrived at a stage, with the times and custodies of its transfer.

use tokio::{
    sync::OwnedSemaphorePermit,
    time::{Duration, Instant},
};

use crate::{custody::Custody, failure::Failure, visit::Visit, work::Parts};

/// An item between its arrival and the end of its processing.
#[derive(Debug)]
pub(crate) struct Queued {
    pub(crate) id: u64,
    /// Payloads to process, or the failure of the item.
    pub(crate) parts: Result<Parts, Failure>,
    pub(crate) visits: Vec<Visit>,
    pub(crate) deadline: Option<Instant>,
    pub(crate) custodies: Vec<Custody>,
    pub(crate) arrived: Instant,
    /// Estimated time on the link.
    pub(crate) link: Duration,
    /// Queue slot; `None` before admission and once processing has started.
    pub(crate) slot: Option<OwnedSemaphorePermit>,
}
