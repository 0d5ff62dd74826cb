//! How devices move from one resource to another: in steps, since the kubelet may be giving one away at this moment.
//!
//! ```text
//!   ┌────────┐ has to move ┌─────────────┐ published ┌──────────┐ time is up ┌─────────┐ record read ┌────────┐
//!   │ Steady │ ──────────> │ Withholding │ ────────> │ Settling │ ─────────> │ Reading │ ──────────> │ Moving │
//!   └────────┘             └─────────────┘           └──────────┘ <───────── └─────────┘             └────────┘
//!       ^                         ^                       │       unreadable      │                      │
//!       │                         └── something more has to move, from whatever phase ───────────────────┤
//!       └──────────────── nothing waits to move, from whatever phase ────────────────────────────────────┘
//! ```
//!
//! While it is settling, the kubelet writes down every Allocate that was answered before what has to move was withheld.
//! A record that cannot be read leaves nobody to know who holds what: the wait begins anew.

use std::{collections::BTreeSet, mem, time::Duration};

use tokio::time::Instant;
use windlass_core::device::DeviceId;
use windlass_host::deadline::Deadline;
use windlass_resources::offers::Moves;

/// Where a move of devices stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    /// Each device stays with its resource.
    #[default]
    Steady,
    /// The next state gives away nothing that has to move.
    Withholding,
    /// Nothing that has to move is given away.
    Settling {
        /// Once it has passed, the kubelet's record has every Allocate that was answered before.
        until: Deadline,
        /// The devices that could be given away when the wait began.
        there: BTreeSet<DeviceId>,
    },
    /// The kubelet's record has every Allocate that was answered before, and is read anew.
    Reading {
        /// Earlier readings do not count.
        since: Instant,
        /// The devices that could be given away when the wait began.
        there: BTreeSet<DeviceId>,
    },
    /// What no container holds moves.
    Moving,
}

// === impl Phase ===

impl Phase {
    /// What a plan is to do with devices that have to move.
    pub(super) fn moves(&self) -> Moves {
        match self {
            Self::Steady => Moves::Kept,
            Self::Withholding | Self::Settling { .. } | Self::Reading { .. } => Moves::Waiting,
            Self::Moving => Moves::Allowed,
        }
    }

    /// Something has to move.
    pub(super) fn hold(&mut self) {
        *self = Self::Withholding;
    }

    /// A state was published that gives away nothing which has to move: `there` is what may have been given away.
    pub(super) fn published(
        &mut self,
        limit: Duration,
        there: impl FnOnce() -> BTreeSet<DeviceId>,
    ) {
        if *self == Self::Withholding {
            *self = Self::Settling { until: Deadline::after(limit), there: there() };
        }
    }

    /// Waits until the record has to be complete, and is to be read; for ever in another phase.
    pub(super) async fn settle(&mut self) {
        let Self::Settling { until, there } = self else { return std::future::pending().await };
        until.passed().await;
        *self = Self::Reading { since: Instant::now(), there: mem::take(there) };
    }

    /// The record was read at this moment: gives the devices that could be given away when the wait for it began.
    /// `None` where the wait was for another reading, or there is none.
    pub(super) fn complete(&mut self, read: Option<Instant>) -> Option<BTreeSet<DeviceId>> {
        match self {
            Self::Reading { since, there } if read >= Some(*since) => {
                let there = mem::take(there);
                *self = Self::Moving;
                Some(there)
            }
            _ => None,
        }
    }

    /// The record could not be read at this moment.
    pub(super) fn unreadable(&mut self, read: Option<Instant>, limit: Duration) {
        if let Some(there) = self.complete(read) {
            *self = Self::Settling { until: Deadline::after(limit), there };
        }
    }

    /// Nothing waits to move.
    pub(super) fn rest(&mut self) {
        *self = Self::Steady;
    }

    /// The devices that could be given away when a wait began that is not over.
    pub(super) fn there(&self) -> impl Iterator<Item = &DeviceId> {
        let there = match self {
            Self::Settling { there, .. } | Self::Reading { there, .. } => Some(there),
            Self::Steady | Self::Withholding | Self::Moving => None,
        };
        there.into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    /// The wait for a device, that may have been given away when it began.
    fn settling() -> Phase {
        let mut phase = Phase::default();
        phase.hold();
        phase.published(LIMIT, || ["GPU-1".parse().expect("an id")].into());
        phase
    }

    #[tokio::test(start_paused = true)]
    async fn devices_move_once_the_record_is_complete_that_what_moves_was_withheld_from() {
        let mut phase = Phase::default();
        phase.published(LIMIT, || unreachable!("nothing has to move"));
        assert_eq!(phase.moves(), Moves::Kept);
        phase.hold();
        assert_eq!(phase.moves(), Moves::Waiting);
        let mut phase = settling();
        assert_eq!(phase.moves(), Moves::Waiting);
        let begun = Instant::now();
        phase.settle().await;
        assert!(begun.elapsed() >= LIMIT, "{:?}", begun.elapsed());
        assert_eq!(phase.complete(Some(begun)), None, "it was read before");
        assert_eq!(phase.complete(Some(Instant::now())).map(|there| there.len()), Some(1));
        assert_eq!(phase.moves(), Moves::Allowed);
        phase.rest();
        assert_eq!(phase, Phase::Steady);
    }

    #[tokio::test(start_paused = true)]
    async fn a_record_that_cannot_be_read_moves_nothing_and_is_waited_for_again() {
        let mut phase = settling();
        phase.settle().await;
        phase.unreadable(Some(Instant::now()), LIMIT);
        assert_eq!(phase.complete(Some(Instant::now())), None, "another wait has begun");
        phase.settle().await;
        assert_eq!(
            phase.complete(Some(Instant::now())).map(|there| there.len()),
            Some(1),
            "nothing is forgotten"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_to_move_meanwhile_begins_the_wait_anew() {
        let mut phase = settling();
        phase.settle().await;
        phase.hold();
        assert_eq!(phase.complete(Some(Instant::now())), None, "it was read for the wait before");
        assert_eq!(phase.moves(), Moves::Waiting);
        let mut moving = settling();
        moving.settle().await;
        moving.complete(Some(Instant::now())).expect("settled");
        moving.hold();
        assert_eq!(moving, Phase::Withholding);
    }
}
