//! Phases of moving devices between resources, while the kubelet may allocate one at any moment.
//!
//! ```text
//!   ┌────────┐ has to move ┌─────────────┐ published ┌──────────┐ time is up ┌─────────┐ checkpoint  ┌────────┐
//!   │ Steady │ ──────────> │ Withholding │ ────────> │ Settling │ ─────────> │ Reading │ ──────────> │ Moving │
//!   └────────┘             └─────────────┘           └──────────┘ <───────── └─────────┘ read        └────────┘
//!       ^                         ^                       │       unreadable      │                      │
//!       │                         └── another device has to move, from any phase ─────────────────────────┤
//!       └──────────────── no device waits to move, from any phase ───────────────────────────────────────┘
//! ```
//!
//! While settling, the kubelet writes every Allocate that was answered before the devices were withheld. An
//! unreadable checkpoint starts the wait again.

use std::{collections::BTreeSet, mem, time::Duration};

use tokio::time::Instant;
use windlass_core::device::DeviceId;
use windlass_host::deadline::Deadline;
use windlass_resources::offers::MovePermission;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    /// Devices stay with their resources.
    #[default]
    Steady,
    /// The next published state withholds the devices that have to move.
    Withholding,
    /// Devices that have to move are withheld.
    Settling {
        /// After this deadline the checkpoint contains every earlier Allocate.
        until: Deadline,
        /// Devices that were allocatable when the wait began.
        allocatable: BTreeSet<DeviceId>,
    },
    /// The checkpoint contains every earlier Allocate and is read again.
    Reading {
        /// Earlier reads do not count.
        since: Instant,
        /// Devices that were allocatable when the wait began.
        allocatable: BTreeSet<DeviceId>,
    },
    /// Devices without holders move.
    Moving,
}

// === impl Phase ===

impl Phase {
    /// Instruction for the planner.
    pub(super) fn moves(&self) -> MovePermission {
        match self {
            Self::Steady => MovePermission::Denied,
            Self::Withholding | Self::Settling { .. } | Self::Reading { .. } => {
                MovePermission::Pending
            }
            Self::Moving => MovePermission::Allowed,
        }
    }

    /// Starts a migration.
    pub(super) fn start(&mut self) {
        *self = Self::Withholding;
    }

    /// Starts the wait after a state that withholds the devices was published.
    pub(super) fn start_wait(
        &mut self,
        checkpoint_delay: Duration,
        allocatable: impl FnOnce() -> BTreeSet<DeviceId>,
    ) {
        if *self == Self::Withholding {
            *self = Self::Settling {
                until: Deadline::after(checkpoint_delay),
                allocatable: allocatable(),
            };
        }
    }

    /// Waits for the deadline of `Settling`, then enters `Reading`; pending in other phases.
    pub(super) async fn settle(&mut self) {
        let Self::Settling { until, allocatable } = self else {
            return std::future::pending().await;
        };
        until.passed().await;
        *self = Self::Reading { since: Instant::now(), allocatable: mem::take(allocatable) };
    }

    /// Ends the wait with a checkpoint read at `read_at`. Returns the devices that were allocatable when the wait
    /// began, or `None` without a matching wait.
    pub(super) fn complete(&mut self, read_at: Option<Instant>) -> Option<BTreeSet<DeviceId>> {
        match self {
            Self::Reading { since, allocatable } if read_at >= Some(*since) => {
                let allocatable = mem::take(allocatable);
                *self = Self::Moving;
                Some(allocatable)
            }
            _ => None,
        }
    }

    /// Starts the wait again after a failed read.
    pub(super) fn restart_wait(&mut self, read_at: Option<Instant>, checkpoint_delay: Duration) {
        if let Some(allocatable) = self.complete(read_at) {
            *self = Self::Settling { until: Deadline::after(checkpoint_delay), allocatable };
        }
    }

    /// Ends the migration.
    pub(super) fn finish(&mut self) {
        *self = Self::Steady;
    }

    /// Devices that were allocatable when the current wait began.
    pub(super) fn allocatable(&self) -> impl Iterator<Item = &DeviceId> {
        let allocatable = match self {
            Self::Settling { allocatable, .. } | Self::Reading { allocatable, .. } => {
                Some(allocatable)
            }
            Self::Steady | Self::Withholding | Self::Moving => None,
        };
        allocatable.into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHECKPOINT_DELAY: Duration = Duration::from_secs(10);

    /// A wait for one device.
    fn settling() -> Phase {
        let mut phase = Phase::default();
        phase.start();
        phase.start_wait(CHECKPOINT_DELAY, || ["GPU-1".parse().expect("an id")].into());
        phase
    }

    #[tokio::test(start_paused = true)]
    async fn devices_move_once_a_checkpoint_is_read_after_the_wait() {
        let mut phase = Phase::default();
        phase.start_wait(CHECKPOINT_DELAY, || unreachable!("no device has to move"));
        assert_eq!(phase.moves(), MovePermission::Denied);
        phase.start();
        assert_eq!(phase.moves(), MovePermission::Pending);
        let mut phase = settling();
        assert_eq!(phase.moves(), MovePermission::Pending);
        let start = Instant::now();
        phase.settle().await;
        assert!(start.elapsed() >= CHECKPOINT_DELAY, "{:?}", start.elapsed());
        assert_eq!(phase.complete(Some(start)), None, "it was read before");
        assert_eq!(
            phase.complete(Some(Instant::now())).map(|allocatable| allocatable.len()),
            Some(1)
        );
        assert_eq!(phase.moves(), MovePermission::Allowed);
        phase.finish();
        assert_eq!(phase, Phase::Steady);
    }

    #[tokio::test(start_paused = true)]
    async fn an_unreadable_checkpoint_moves_nothing_and_starts_the_wait_again() {
        let mut phase = settling();
        phase.settle().await;
        phase.restart_wait(Some(Instant::now()), CHECKPOINT_DELAY);
        assert_eq!(phase.complete(Some(Instant::now())), None, "another wait has begun");
        phase.settle().await;
        assert_eq!(
            phase.complete(Some(Instant::now())).map(|allocatable| allocatable.len()),
            Some(1),
            "nothing is forgotten"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_further_device_that_has_to_move_starts_the_wait_again() {
        let mut phase = settling();
        phase.settle().await;
        phase.start();
        assert_eq!(phase.complete(Some(Instant::now())), None, "it was read for the earlier wait");
        assert_eq!(phase.moves(), MovePermission::Pending);
        let mut moving = settling();
        moving.settle().await;
        moving.complete(Some(Instant::now())).expect("settled");
        moving.start();
        assert_eq!(moving, Phase::Withholding);
    }
}
