//! State machine of a claim.
//!
//! ```text
//!            Prepare                planned, taken                done              recorded
//!  Resting ──────────> Reading ─┬─────────────────────> Doing ─────────> Settling ───────────> Resting
//!  nothing,      let go ^  │    └──> Making ──made──┘     │                  │                  completed
//!  or started           │  v held        └──────failed────┴──────────────────┘
//!                      Waiting              └─> Resting, started; of nothing if that was not recorded
//!
//!            Prepare               same              done
//!  Resting ──────────> Comparing ────────> Checking ──────> Resting      Resting ─check─> Restoring ─> Resting
//!  completed               │ allocated anew                              completed                    completed
//!                          v
//!  Resting ──────────> Removing ──done──> Forgetting ──recorded──> Resting, nothing
//!  any       Release       └──────────────────┴──failed──> Resting, started
//! ```
//!
//! A failure leads back to `Resting`; the kubelet gets it as the answer to its retry. A request during work is
//! served once the claim is `Resting`. If a read shows another allocation, the claim goes to `Removing` too. Any
//! other input is late, and changes nothing.

use windlass_host::deadline::Deadline;

use super::waiting::Blocker;
use crate::{claim::Claim, record::Stage, status::Failure};

/// Stage of the claim in the record; `None` without a record.
pub(super) type Recorded = Option<Stage>;

const STARTED: Recorded = Some(Stage::PrepareStarted);
const COMPLETED: Recorded = Some(Stage::PrepareCompleted);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// No work is under way.
    Resting(Recorded),
    /// It is completed. Its object is compared, since it may have been allocated anew.
    Comparing,
    /// Its object is read for the plan. It may have waited before, and has this much patience left.
    Reading(Recorded, Option<Deadline>),
    /// Other claims have its devices, and are expected to release them.
    Waiting(Recorded, Deadline),
    /// Its plan is recorded, and GPUs are cut or made whole for it.
    Making(Recorded),
    /// Its plan is recorded, and its steps are done.
    Doing(Recorded),
    /// All steps are done, and this is recorded before the kubelet is answered.
    Settling,
    /// It is completed, and its steps are checked.
    Checking,
    /// It is completed, and its missing document is rewritten. A release waits for that.
    Restoring,
    /// Its steps are undone while the record still has it: its unclean devices are not allocated meanwhile.
    Removing(Recorded),
    /// Only its record is left and is removed.
    Forgetting,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Input {
    /// The kubelet asks to prepare the claim.
    Prepare,
    Release,
    /// Its document is due for a check.
    Check,
    /// The object still has the same allocation.
    Same,
    /// The object has another allocation.
    Another,
    /// The object was read.
    Read(Box<Claim>),
    /// Its devices are planned and taken.
    Planned,
    /// They are taken, and GPUs have to be cut or made whole first.
    Unmade(Box<Claim>),
    /// Other claims have them.
    Blocked(Blocker, Deadline),
    /// Other claims may have released them.
    Released(Deadline),
    /// No caller waits for it any more.
    Abandoned,
    /// Its GPUs are cut or whole.
    Made(Box<Claim>),
    Done,
    /// It is refused, or its work failed, perhaps in part.
    Failed(Failure),
    /// It was not begun: the disk refused the record.
    Unrecorded(String),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Action {
    Nothing,
    Compare,
    Read,
    /// Plan the claim's devices, and take them.
    Plan(Box<Claim>),
    Wait(Blocker, Deadline),
    /// Tell the callers that it is released before it was prepared.
    Abandon,
    Make(Box<Claim>),
    /// Plan again, with the names of its instances.
    PlanAgain(Box<Claim>),
    Do,
    /// Record the claim's stage.
    Record,
    /// Answer the callers with its devices.
    Answer,
    /// Answer the callers with an error.
    Refuse(Failure),
    /// Return the taken devices, and refuse.
    Undo(String),
    Restore,
    /// Log why its document cannot be written, once.
    Note(Option<String>),
    Remove,
    /// Return all its devices, and answer the callers.
    Release,
    /// Answer the callers of the release with an error.
    Keep(String),
}

// === impl State ===

impl State {
    /// Stage of the claim in the record.
    pub(super) fn recorded(self) -> Recorded {
        match self {
            Self::Resting(recorded)
            | Self::Reading(recorded, _)
            | Self::Waiting(recorded, _)
            | Self::Removing(recorded) => recorded,
            Self::Making(_) | Self::Doing(_) => STARTED,
            Self::Comparing | Self::Settling | Self::Checking | Self::Restoring => COMPLETED,
            Self::Forgetting => None,
        }
    }

    /// True if no work is under way that could change the claim's devices.
    pub(super) fn is_settled(self) -> bool {
        matches!(self, Self::Resting(_) | Self::Restoring)
    }

    pub(super) fn next(self, input: Input) -> (Self, Action) {
        match self {
            Self::Resting(_) | Self::Restoring => self.resting(input),
            Self::Removing(_) | Self::Forgetting => self.releasing(input),
            Self::Comparing | Self::Reading(..) | Self::Waiting(..) => self.reading(input),
            Self::Checking | Self::Making(_) | Self::Doing(_) | Self::Settling => self.doing(input),
        }
    }

    fn resting(self, input: Input) -> (Self, Action) {
        match (self, input) {
            (Self::Resting(COMPLETED), Input::Prepare) => (Self::Comparing, Action::Compare),
            (Self::Resting(before), Input::Prepare) => (Self::Reading(before, None), Action::Read),
            // An unrecorded claim may still have devices to be cleaned.
            (Self::Resting(recorded), Input::Release) => (Self::Removing(recorded), Action::Remove),
            (Self::Resting(COMPLETED), Input::Check) => (Self::Restoring, Action::Restore),
            (Self::Restoring, Input::Done) => (Self::Resting(COMPLETED), Action::Note(None)),
            (Self::Restoring, Input::Failed(Failure { why, .. })) => {
                (Self::Resting(COMPLETED), Action::Note(Some(why)))
            }
            _ => (self, Action::Nothing),
        }
    }

    fn reading(self, input: Input) -> (Self, Action) {
        let before = self.recorded();
        match (self, input) {
            (Self::Comparing, Input::Same) => (Self::Checking, Action::Do),
            (Self::Comparing | Self::Reading(..), Input::Another) => {
                (Self::Removing(before), Action::Remove)
            }
            (Self::Reading(..), Input::Read(claim)) => (self, Action::Plan(claim)),
            (Self::Reading(..), Input::Planned) => (Self::Doing(before), Action::Do),
            (Self::Reading(..), Input::Unmade(claim)) => {
                (Self::Making(before), Action::Make(claim))
            }
            (Self::Reading(..), Input::Blocked(others, patience)) => {
                (Self::Waiting(before, patience), Action::Wait(others, patience))
            }
            (Self::Reading(..), Input::Failed(why)) => (Self::Resting(before), Action::Refuse(why)),
            (Self::Waiting(..), Input::Released(patience)) => {
                (Self::Reading(before, Some(patience)), Action::Read)
            }
            (Self::Waiting(..), Input::Release | Input::Abandoned) => {
                (Self::Resting(before), Action::Abandon)
            }
            _ => (self, Action::Nothing),
        }
    }

    fn doing(self, input: Input) -> (Self, Action) {
        match (self, input) {
            (Self::Making(_), Input::Made(claim)) => {
                (Self::Making(STARTED), Action::PlanAgain(claim))
            }
            (Self::Making(before), Input::Planned) => (Self::Doing(before), Action::Do),
            (Self::Doing(_), Input::Done) => (Self::Settling, Action::Record),
            (Self::Settling | Self::Checking, Input::Done) => {
                (Self::Resting(COMPLETED), Action::Answer)
            }
            (Self::Checking, Input::Failed(why)) => (Self::Resting(COMPLETED), Action::Refuse(why)),
            (Self::Making(_) | Self::Doing(_), Input::Failed(why)) => {
                (Self::Resting(STARTED), Action::Refuse(why))
            }
            // Without a record no step was done.
            (Self::Making(None) | Self::Doing(None), Input::Unrecorded(why)) => {
                (Self::Resting(None), Action::Undo(why))
            }
            (Self::Making(_) | Self::Doing(_) | Self::Settling, Input::Unrecorded(why)) => {
                (Self::Resting(STARTED), Action::Refuse(why.into()))
            }
            _ => (self, Action::Nothing),
        }
    }

    fn releasing(self, input: Input) -> (Self, Action) {
        match (self, input) {
            (Self::Removing(None) | Self::Forgetting, Input::Done) => {
                (Self::Resting(None), Action::Release)
            }
            (Self::Removing(Some(_)), Input::Done) => (Self::Forgetting, Action::Record),
            // Its document is missing, and other steps may be undone too.
            (Self::Removing(recorded), Input::Failed(Failure { why, .. })) => {
                (Self::Resting(recorded.and(STARTED)), Action::Keep(why))
            }
            (Self::Forgetting, Input::Unrecorded(why)) => {
                (Self::Resting(STARTED), Action::Keep(why))
            }
            _ => (self, Action::Nothing),
        }
    }
}

// === impl Input ===

impl Input {
    /// True if the disk took the record.
    pub(super) fn of_record(recorded: Result<(), String>) -> Self {
        recorded.map_or_else(Self::Unrecorded, |()| Self::Done)
    }
}

impl From<Result<(), String>> for Input {
    fn from(done: Result<(), String>) -> Self {
        done.map_or_else(|why| Self::Failed(why.into()), |()| Self::Done)
    }
}

#[cfg(test)]
mod tests;
