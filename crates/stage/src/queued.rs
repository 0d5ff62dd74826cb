//! An item that has arrived at a stage, with all that is known of its way here.

use tokio::{
    sync::OwnedSemaphorePermit,
    time::{Duration, Instant},
};

use crate::{custody::Custody, failure::Failure, visit::Visit, work::Parts};

/// An item between its arrival and the end of its work.
#[derive(Debug)]
pub(crate) struct Queued {
    pub(crate) id: u64,
    pub(crate) parts: Result<Parts, Failure>,
    pub(crate) visits: Vec<Visit>,
    pub(crate) deadline: Option<Instant>,
    pub(crate) custodies: Vec<Custody>,
    pub(crate) arrived: Instant,
    pub(crate) link: Duration,
    /// Its place. None once its work has begun.
    pub(crate) place: Option<OwnedSemaphorePermit>,
}
