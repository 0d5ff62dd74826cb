//! State machine of a claim.
//!
//! ```text
//!         Prepare                   planned, taken                 done              recorded
//!  Idle ─────────────> Reading ─┬──────────────────────> Executing ─────> Completing ─────────> Idle
//!  no record,  released ^  │    └─> ChangingMig ─changed─┘   │                 │                completed
//!  or started           │  v blocked     └──────failed───────┴─────────────────┘
//!                      Waiting              └─> Idle, started; or no record, if it was not written
//!
//!         Prepare                unchanged           done
//!  Idle ─────────────> Comparing ─────────> Checking ─────> Idle         Idle ──check──> Restoring ──> Idle
//!  completed               │ reallocated                    completed    completed                     completed
//!                          v
//!  Idle ─────────────> UndoingSteps ──done──> DroppingRecord ──recorded──> Idle, no record
//!  any     Release         └────────────────────────┴──failed──> Idle, started
//! ```
//!
//! A failure leads back to `Idle`, and is the answer to the kubelet, which retries. A request during work is served
//! once the claim is `Idle`. If a read shows another allocation, the claim goes to `UndoingSteps` too. Any other input
//! is late, and changes nothing.

use windlass_host::deadline::Deadline;

use super::waiting::Blocker;
use crate::{claim::Claim, record::Stage, status::Failure};

/// Stage of the claim in the record; `None` without a record.
pub(super) type RecordedStage = Option<Stage>;

const STARTED: RecordedStage = Some(Stage::PrepareStarted);
const COMPLETED: RecordedStage = Some(Stage::PrepareCompleted);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// No task works on the claim.
    Idle(RecordedStage),
    /// The claim is completed. Its ResourceClaim is compared, because it may have a new allocation.
    Comparing,
    /// The ResourceClaim is read for the plan. A claim that waited before has the deadline of that wait.
    Reading(RecordedStage, Option<Deadline>),
    /// Other claims hold the devices, and are expected to release them before the deadline.
    Waiting(RecordedStage, Deadline),
    /// The plan is recorded, and GPUs change for it: an instance is made, or MIG mode is turned off.
    ChangingMig(RecordedStage),
    /// The plan is recorded, and its steps are carried out.
    Executing(RecordedStage),
    /// All steps are done. The completion is recorded before the kubelet is answered.
    Completing,
    /// The claim is completed, and its steps are checked.
    Checking,
    /// The claim is completed, and its missing document is rewritten. A release waits for that.
    Restoring,
    /// The steps are undone while the claim is still recorded, so that its unclean devices are not allocated meanwhile.
    UndoingSteps(RecordedStage),
    /// All steps are undone, and the record is removed.
    DroppingRecord,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Input {
    /// The kubelet asks to prepare the claim.
    Prepare,
    Release,
    /// The claim's CDI document is due for a check.
    Check,
    /// The ResourceClaim still has the same allocation.
    Unchanged,
    /// The ResourceClaim has another allocation.
    Reallocated,
    /// The ResourceClaim was read.
    ClaimRead(Box<Claim>),
    /// The devices are planned and taken in the ledger.
    Planned,
    /// The devices are planned and taken in the ledger, and GPUs have to change first.
    NeedsMigChange(Box<Claim>),
    /// Other claims hold the devices.
    Blocked(Blocker, Deadline),
    /// Other claims may have released the devices.
    Released(Deadline),
    /// No caller waits for the claim any more.
    Abandoned,
    /// The GPUs have changed as needed.
    MigChanged(Box<Claim>),
    Done,
    /// The claim is refused, or a step failed. Earlier steps may be done.
    Failed(Failure),
    /// The work was not begun: the record could not be written.
    RecordFailed(String),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Action {
    None,
    Compare,
    Read,
    /// Plan the claim's devices, and take them in the ledger.
    Plan(Box<Claim>),
    Wait(Blocker, Deadline),
    /// Answer the callers that the claim is released before it was prepared.
    Abandon,
    ChangeMig(Box<Claim>),
    /// Plan again, with the ids of the new instances.
    Replan(Box<Claim>),
    Execute,
    /// Record the claim's stage.
    Record,
    /// Answer the callers with the prepared devices.
    Reply,
    /// Answer the callers with an error.
    Refuse(Failure),
    /// Release the taken devices in the ledger, and refuse.
    RollBack(String),
    Restore,
    /// Log why the document cannot be written, once.
    LogDocumentError(Option<String>),
    UndoSteps,
    /// Release all devices in the ledger, and answer the callers.
    Release,
    /// Answer the callers of the release with an error.
    RefuseRelease(String),
}

// === impl State ===

impl State {
    /// Stage of the claim in the record.
    pub(super) fn recorded_stage(self) -> RecordedStage {
        match self {
            Self::Idle(stage)
            | Self::Reading(stage, _)
            | Self::Waiting(stage, _)
            | Self::UndoingSteps(stage) => stage,
            Self::ChangingMig(_) | Self::Executing(_) => STARTED,
            Self::Comparing | Self::Completing | Self::Checking | Self::Restoring => COMPLETED,
            Self::DroppingRecord => None,
        }
    }

    /// True if no running work can change the claim's devices.
    pub(super) fn is_settled(self) -> bool {
        matches!(self, Self::Idle(_) | Self::Restoring)
    }

    pub(super) fn transition(self, input: Input) -> (Self, Action) {
        match self {
            Self::Idle(_) | Self::Restoring => self.idle(input),
            Self::UndoingSteps(_) | Self::DroppingRecord => self.releasing(input),
            Self::Comparing | Self::Reading(..) | Self::Waiting(..) => self.reading(input),
            Self::Checking | Self::ChangingMig(_) | Self::Executing(_) | Self::Completing => {
                self.executing(input)
            }
        }
    }

    fn idle(self, input: Input) -> (Self, Action) {
        match (self, input) {
            (Self::Idle(COMPLETED), Input::Prepare) => (Self::Comparing, Action::Compare),
            (Self::Idle(stage), Input::Prepare) => (Self::Reading(stage, None), Action::Read),
            // A claim without a record may still have devices to clean.
            (Self::Idle(stage), Input::Release) => (Self::UndoingSteps(stage), Action::UndoSteps),
            (Self::Idle(COMPLETED), Input::Check) => (Self::Restoring, Action::Restore),
            (Self::Restoring, Input::Done) => {
                (Self::Idle(COMPLETED), Action::LogDocumentError(None))
            }
            (Self::Restoring, Input::Failed(Failure { reason, .. })) => {
                (Self::Idle(COMPLETED), Action::LogDocumentError(Some(reason)))
            }
            _ => (self, Action::None),
        }
    }

    fn reading(self, input: Input) -> (Self, Action) {
        let stage = self.recorded_stage();
        match (self, input) {
            (Self::Comparing, Input::Unchanged) => (Self::Checking, Action::Execute),
            (Self::Comparing | Self::Reading(..), Input::Reallocated) => {
                (Self::UndoingSteps(stage), Action::UndoSteps)
            }
            (Self::Reading(..), Input::ClaimRead(claim)) => (self, Action::Plan(claim)),
            (Self::Reading(..), Input::Planned) => (Self::Executing(stage), Action::Execute),
            (Self::Reading(..), Input::NeedsMigChange(claim)) => {
                (Self::ChangingMig(stage), Action::ChangeMig(claim))
            }
            (Self::Reading(..), Input::Blocked(blocker, deadline)) => {
                (Self::Waiting(stage, deadline), Action::Wait(blocker, deadline))
            }
            (Self::Reading(..), Input::Failed(failure)) => {
                (Self::Idle(stage), Action::Refuse(failure))
            }
            (Self::Waiting(..), Input::Released(deadline)) => {
                (Self::Reading(stage, Some(deadline)), Action::Read)
            }
            (Self::Waiting(..), Input::Release | Input::Abandoned) => {
                (Self::Idle(stage), Action::Abandon)
            }
            _ => (self, Action::None),
        }
    }

    fn executing(self, input: Input) -> (Self, Action) {
        match (self, input) {
            (Self::ChangingMig(_), Input::MigChanged(claim)) => {
                (Self::ChangingMig(STARTED), Action::Replan(claim))
            }
            (Self::ChangingMig(stage), Input::Planned) => (Self::Executing(stage), Action::Execute),
            (Self::Executing(_), Input::Done) => (Self::Completing, Action::Record),
            (Self::Completing | Self::Checking, Input::Done) => {
                (Self::Idle(COMPLETED), Action::Reply)
            }
            (Self::Checking, Input::Failed(failure)) => {
                (Self::Idle(COMPLETED), Action::Refuse(failure))
            }
            (Self::ChangingMig(_) | Self::Executing(_), Input::Failed(failure)) => {
                (Self::Idle(STARTED), Action::Refuse(failure))
            }
            // Without a record no step was done.
            (Self::ChangingMig(None) | Self::Executing(None), Input::RecordFailed(error)) => {
                (Self::Idle(None), Action::RollBack(error))
            }
            (
                Self::ChangingMig(_) | Self::Executing(_) | Self::Completing,
                Input::RecordFailed(error),
            ) => (Self::Idle(STARTED), Action::Refuse(error.into())),
            _ => (self, Action::None),
        }
    }

    fn releasing(self, input: Input) -> (Self, Action) {
        match (self, input) {
            (Self::UndoingSteps(None) | Self::DroppingRecord, Input::Done) => {
                (Self::Idle(None), Action::Release)
            }
            (Self::UndoingSteps(Some(_)), Input::Done) => (Self::DroppingRecord, Action::Record),
            // The document may be removed, and other steps undone, so the claim is no longer completed.
            (Self::UndoingSteps(stage), Input::Failed(Failure { reason, .. })) => {
                (Self::Idle(stage.and(STARTED)), Action::RefuseRelease(reason))
            }
            (Self::DroppingRecord, Input::RecordFailed(error)) => {
                (Self::Idle(STARTED), Action::RefuseRelease(error))
            }
            _ => (self, Action::None),
        }
    }
}

// === impl Input ===

impl Input {
    /// `Done` if the record was written.
    pub(super) fn from_record(result: Result<(), String>) -> Self {
        result.map_or_else(Self::RecordFailed, |()| Self::Done)
    }
}

impl From<Result<(), String>> for Input {
    fn from(result: Result<(), String>) -> Self {
        result.map_or_else(|error| Self::Failed(error.into()), |()| Self::Done)
    }
}

#[cfg(test)]
mod tests;
