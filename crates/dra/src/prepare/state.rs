//! Where a claim stands, and what is done next.
//!
//! ```text
//!            Prepare                planned, taken                done              recorded
//!  Resting ──────────> Reading ─┬─────────────────────> Doing ─────────> Settling ───────────> Resting
//!  nothing,      let go ^  │    └──> Making ──made──┘     │                  │                  completed
//!  or started           │  v held        └──────failed────┴──────────────────┘
//!                      Waiting              └─> Resting, started; of nothing if that was not recorded
//!
//!            Prepare               same              done
//!  Resting ──────────> Comparing ────────> Checking ──────> Resting      Resting ─look─> Restoring ─> Resting
//!  completed               │ allocated anew                              completed                    completed
//!                          v
//!  Resting ──────────> Removing ──done──> Forgetting ──recorded──> Resting, nothing
//!  any       Release       └──────────────────┴──failed──> Resting, started
//! ```
//!
//! What fails leads back to rest, where the kubelet finds it when it asks again. Nothing is done at rest: a wish that
//! came meanwhile is looked at then. A claim that is found to be allocated other devices while it is read goes to
//! `Removing` too. Every other input is one that came too late, and changes nothing.

use windlass_host::deadline::Deadline;

use super::waiting::InTheWay;
use crate::{claim::Claim, record::Stage, status::Trouble};

/// The stage of a claim in the record; `None` where the record has no entry.
pub(super) type Recorded = Option<Stage>;

const STARTED: Recorded = Some(Stage::PrepareStarted);
const COMPLETED: Recorded = Some(Stage::PrepareCompleted);

/// Where a claim stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Nothing is done for it.
    Resting(Recorded),
    /// It is completed. Its object is looked at, since it may have been allocated anew.
    Comparing,
    /// Its object is read, to decide what it gets; it has so much patience left if it has waited already.
    Reading(Recorded, Option<Deadline>),
    /// Others have what it is to get, and are expected to let go of it.
    Waiting(Recorded, Deadline),
    /// What it gets is written down, and GPUs are cut or made whole for it; the record said this before.
    Making(Recorded),
    /// What it gets is written down, and what it needs is done; the record said this before.
    Doing(Recorded),
    /// All is done, which is written down before the kubelet is told.
    Settling,
    /// It is completed, and it is made sure that all is there still.
    Checking,
    /// It is completed, and its document is written again if somebody removed it. It is not released meanwhile.
    Restoring,
    /// What there is of it is removed, while the record still has it: nobody else gets what is dirty by now.
    Removing(Recorded),
    /// Nothing is left of it but the record, which forgets it.
    Forgetting,
}

/// An event in the life of a claim.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Input {
    /// The kubelet wants it prepared.
    Prepare,
    /// It is to be released.
    Release,
    /// It is time to look for its document.
    Look,
    /// It is allocated the devices that it has.
    Same,
    /// It is allocated others than it has.
    Another,
    /// Its object was read.
    Read(Box<Claim>),
    /// Its devices are decided, and taken.
    Planned,
    /// It is taken, and has to be cut or made whole first.
    Unmade(Box<Claim>),
    /// Others have it.
    Held(InTheWay, Deadline),
    /// Others may have let go.
    LetGo(Deadline),
    /// Nobody waits for it any more.
    Abandoned,
    /// Its GPUs are cut, or whole.
    Made(Box<Claim>),
    /// The work of the state is done.
    Done,
    /// It cannot be given, or is not done, or only in part.
    Failed(Trouble),
    /// It was not begun, since the disk did not take that it would be.
    Unrecorded(String),
}

/// The work on the way to a state.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Action {
    Nothing,
    Compare,
    Read,
    /// Decides what the claim gets, and takes it.
    Plan(Box<Claim>),
    Wait(InTheWay, Deadline),
    /// Tells those who wait that it is released before it was prepared.
    Abandon,
    Make(Box<Claim>),
    /// Decides anew, now that its instances have names.
    PlanAgain(Box<Claim>),
    Do,
    /// Has it written down where the claim stands now.
    Record,
    /// Tells those who wait what it has.
    Answer,
    /// Tells those who wait why it is not prepared.
    Refuse(Trouble),
    /// Gives back what was taken, and refuses.
    Undo(String),
    Restore,
    /// Says why its document cannot be written, if that is news.
    Note(Option<String>),
    Remove,
    /// Gives back all that it had, and tells those who wait.
    Release,
    /// Tells those who wait why it is not released.
    Keep(String),
}

// === impl State ===

impl State {
    /// What the record says of the claim.
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

    /// Whether nothing is done that could change what the claim has.
    pub(super) fn is_settled(self) -> bool {
        matches!(self, Self::Resting(_) | Self::Restoring)
    }

    /// The next state, and what is done on the way.
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
            // What is not known may have devices all the same that are to be cleaned.
            (Self::Resting(recorded), Input::Release) => (Self::Removing(recorded), Action::Remove),
            (Self::Resting(COMPLETED), Input::Look) => (Self::Restoring, Action::Restore),
            (Self::Restoring, Input::Done) => (Self::Resting(COMPLETED), Action::Note(None)),
            (Self::Restoring, Input::Failed(Trouble { why, .. })) => {
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
            (Self::Reading(..), Input::Held(others, patience)) => {
                (Self::Waiting(before, patience), Action::Wait(others, patience))
            }
            (Self::Reading(..), Input::Failed(why)) => (Self::Resting(before), Action::Refuse(why)),
            (Self::Waiting(..), Input::LetGo(patience)) => {
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
            // Nothing was done of what could not be written down.
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
            // Its document is gone, and more may be.
            (Self::Removing(recorded), Input::Failed(Trouble { why, .. })) => {
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
    /// Whether the disk took it.
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
