//! State machine of a claim.
//!
//! ```text
//!            Prepare                planned, taken                done              recorded
//!  Resting ──────────> Reading ─┬─────────────────────> Doing ─────────> Settling ───────────> Resting
//!  no record,  released ^  │    └──> Making ──made──┘     │                  │                  completed
//!  or started           │  v held        └──────failed────┴──────────────────┘
//!                      Waiting              └─> Resting, started; or no record, if it was not written
//!
//!            Prepare               same              done
//!  Resting ──────────> Comparing ────────> Checking ──────> Resting      Resting ─check─> Restoring ─> Resting
//!  completed               │ new allocation                              completed                    completed
//!                          v
//!  Resting ──────────> Removing ──done──> Forgetting ──recorded──> Resting, no record
//!  any       Release       └──────────────────┴──failed──> Resting, started
//! ```
//!
//! A failure leads back to `Resting`, and is the answer to the kubelet, which retries. A request during work is served
//! once the claim is `Resting`. If a read shows another allocation, the claim goes to `Removing` too. Any other input
//! is late, and changes nothing.

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
    /// The claim is completed. Its ResourceClaim is compared, because it may have a new allocation.
    Comparing,
    /// The ResourceClaim is read for the plan. A claim that waited before has the deadline of that wait.
    Reading(Recorded, Option<Deadline>),
    /// Other claims hold the devices, and are expected to release them before the deadline.
    Waiting(Recorded, Deadline),
    /// The plan is recorded, and GPUs change for it: an instance is made, or MIG mode is turned off.
    Making(Recorded),
    /// The plan is recorded, and its steps are carried out.
    Doing(Recorded),
    /// All steps are done. The completion is recorded before the kubelet is answered.
    Settling,
    /// The claim is completed, and its steps are checked.
    Checking,
    /// The claim is completed, and its missing document is rewritten. A release waits for that.
    Restoring,
    /// The steps are undone while the claim is still recorded, so that its unclean devices are not allocated meanwhile.
    Removing(Recorded),
    /// Only the record is left, and is removed.
    Forgetting,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Input {
    /// The kubelet asks to prepare the claim.
    Prepare,
    Release,
    /// The claim's CDI document is due for a check.
    Check,
    /// The ResourceClaim still has the same allocation.
    Same,
    /// The ResourceClaim has another allocation.
    Another,
    /// The ResourceClaim was read.
    Read(Box<Claim>),
    /// The devices are planned and taken in the ledger.
    Planned,
    /// The devices are planned and taken in the ledger, and GPUs have to change first.
    Unmade(Box<Claim>),
    /// Other claims hold the devices.
    Blocked(Blocker, Deadline),
    /// Other claims may have released the devices.
    Released(Deadline),
    /// No caller waits for the claim any more.
    Abandoned,
    /// The GPUs have changed as needed.
    Made(Box<Claim>),
    Done,
    /// The claim is refused, or its work failed, perhaps in part.
    Failed(Failure),
    /// The work was not begun: the record could not be written.
    Unrecorded(String),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Action {
    Nothing,
    Compare,
    Read,
    /// Plan the claim's devices, and take them in the ledger.
    Plan(Box<Claim>),
    Wait(Blocker, Deadline),
    /// Answer the callers that the claim is released before it was prepared.
    Abandon,
    Make(Box<Claim>),
    /// Plan again, with the ids of the new instances.
    PlanAgain(Box<Claim>),
    Do,
    /// Record the claim's stage.
    Record,
    /// Answer the callers with the prepared devices.
    Answer,
    /// Answer the callers with an error.
    Refuse(Failure),
    /// Release the taken devices in the ledger, and refuse.
    Undo(String),
    Restore,
    /// Log why the document cannot be written, once.
    Note(Option<String>),
    Remove,
    /// Release all devices in the ledger, and answer the callers.
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

    /// True if no running work can change the claim's devices.
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
            // A claim without a record may still have devices to clean.
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
            // The document may be removed, and other steps undone, so the claim is no longer completed.
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
    /// `Done` if the record was written.
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
