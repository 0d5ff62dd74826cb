//! What lies between two containers of one device, as one state machine.
//!
//! ```text
//!            a container starts          steps done              let go
//!   Clean ───────────────────> Preparing ──────────> InUse ──────────────> Dirty
//!    ^ ^                         ^  │ ^                │ another pod's       │ at once
//!    │ │                         │  │ └────────────────┘ container starts    v
//!    │ └─────── steps done ──────│──│────────────────────────────────── Cleaning
//!    │                           │  │ failed                             │    ^
//!    │          a container      │  v                              failed│    │ after a while,
//!  Unsure ──────── starts ───────┴ Quarantined <───────────────────────┘    │ once nobody has it
//!                                       └───────────────────────────────────┘
//! ```
//!
//! Unsure is a device of which nobody knows what it went through: one that is seen for the first time, after
//! a reboot, or after it was out of reach. It is offered, and cleaned before the first container starts with it. So is whatever
//! else is not clean when a container starts: a kubelet gives a device away again before anyone can know
//! that it was let go.
//!
//! A container that starts again is no new tenant: while one of the pods that the hand-over was for still
//! has the device, it is left alone. Who has it is said by the kubelet, in whose record a pod goes by its
//! UID.
//!
//! A claim that is prepared is a start, and one that is released lets go: the kubelet says so, and nobody has
//! to look. All pods of a claim are one tenant.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The pods that have a device, by UID, or the claims; several where it is shared, none where nobody could
/// be told.
pub(crate) type Tenants = BTreeSet<String>;

/// What the UID of a claim has before it among tenants.
const CLAIM: &str = "claim:";

/// A claim as a tenant: whoever has the claim is of one household.
pub(super) fn claim_tenant(uid: &str) -> String {
    format!("{CLAIM}{uid}")
}

/// Where a device stands between two containers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "camelCase")]
pub enum State {
    /// Nobody knows what it went through.
    Unsure,
    /// It is as the steps leave it.
    Clean,
    /// It is made ready for a container, and cleaned before that if need be.
    Preparing {
        /// Whom it is for.
        tenants: Tenants,
        /// Whether the release is made up for first.
        clean_first: bool,
        /// How it failed before.
        failed: Option<Failure>,
    },
    /// It was handed over, or was found in these hands.
    InUse {
        /// Whom to.
        tenants: Tenants,
    },
    /// It was let go, or its preparation was cut short.
    Dirty {
        /// Who still has it, and will try to start again.
        tenants: Tenants,
    },
    /// It is being cleaned, with nobody waiting for it.
    Cleaning {
        /// How it failed before.
        failed: Option<Failure>,
    },
    /// A step failed.
    Quarantined {
        /// Who still has it, and will try to start again; while somebody has it, nobody else cleans it.
        tenants: Tenants,
        /// How.
        failed: Failure,
    },
}

/// Steps that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// How often in a row.
    pub(crate) attempts: u32,
    /// Which step the last time, and how.
    pub why: String,
    /// When it failed like that for the first time.
    pub since: Timestamp,
}

/// What moves a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Input {
    /// A container is about to start with it, and these pods have it.
    Start(Tenants),
    /// A claim is prepared with it, of these that have it or are to have it.
    Join {
        /// The claim.
        claim: String,
        /// All of them.
        claims: Tenants,
    },
    /// A claim has let go of it.
    Leave(String),
    /// Nobody has it any more.
    LetGo,
    /// The steps under way were done.
    Done,
    /// A step under way failed.
    Failed {
        /// Which, and how.
        why: String,
        /// When.
        at: Timestamp,
    },
    /// What the state waits for has come.
    Due,
    /// It is out of reach, and whatever may happen to it there.
    Lost,
}

/// What is done in a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// The steps before a container starts, after those that a release was to make if `clean_first`.
    Prepare { clean_first: bool },
    /// The steps after a release; after a failure the device is to prove itself also where it has none.
    Clean { again: bool },
}

// === impl State ===

impl State {
    /// A device that is seen for the first time, with the pods that have it.
    pub(super) fn first(tenants: Tenants) -> Self {
        // Whether it was prepared nobody knows, but whoever has it may be at work.
        if tenants.is_empty() { Self::Unsure } else { Self::InUse { tenants } }
    }

    /// What an agent makes of a state that an earlier one wrote down.
    pub(super) fn taken_up(self, rebooted: bool) -> Self {
        match self {
            Self::Cleaning { failed: Some(failed) } => {
                Self::Quarantined { tenants: Tenants::new(), failed }
            }
            Self::Preparing { tenants, failed: Some(failed), .. } => {
                Self::Quarantined { tenants, failed }
            }
            Self::Quarantined { .. } => self,
            _ if rebooted => Self::Unsure,
            Self::Preparing { tenants, failed: None, .. } => Self::Dirty { tenants },
            Self::Cleaning { failed: None } => Self::Dirty { tenants: Tenants::new() },
            Self::Unsure | Self::Clean | Self::InUse { .. } | Self::Dirty { .. } => self,
        }
    }

    /// The transition function.
    pub(super) fn next(self, input: Input) -> Self {
        match (self, input) {
            (state, Input::Start(tenants)) => state.started(tenants),
            (state, Input::Join { claim, claims }) => state.joined(claim, &claims),
            (state, Input::Leave(claim)) => state.left(&claim),
            (Self::InUse { .. } | Self::Dirty { .. }, Input::LetGo) => {
                Self::Dirty { tenants: Tenants::new() }
            }
            (Self::Quarantined { failed, .. }, Input::LetGo) => {
                Self::Quarantined { tenants: Tenants::new(), failed }
            }
            // It was given away and its start was never announced: a kubelet that has just restarted
            // does not ask.
            (Self::Clean, Input::LetGo | Input::Lost) => Self::Unsure,
            (Self::Dirty { tenants }, Input::Due) if tenants.is_empty() => {
                Self::Cleaning { failed: None }
            }
            (Self::Quarantined { tenants, failed }, Input::Due) if tenants.is_empty() => {
                Self::Cleaning { failed: Some(failed) }
            }
            (Self::Preparing { tenants, .. }, Input::Done) => Self::InUse { tenants },
            (Self::Preparing { tenants, failed, .. }, Input::Failed { why, at }) => {
                Self::Quarantined { tenants, failed: Failure::again(failed, why, at) }
            }
            (Self::Cleaning { .. }, Input::Done) => Self::Clean,
            (Self::Cleaning { failed }, Input::Failed { why, at }) => {
                let failed = Failure::again(failed, why, at);
                Self::Quarantined { tenants: Tenants::new(), failed }
            }
            (state, _) => state,
        }
    }

    /// A container of these pods is about to start.
    fn started(self, now: Tenants) -> Self {
        let prepare = |clean_first, failed| {
            let tenants = now.clone();
            Self::Preparing { tenants, clean_first, failed }
        };
        match self {
            Self::InUse { tenants: open } if !open.is_disjoint(&now) => {
                Self::InUse { tenants: now }
            }
            // Shared, and nobody knows whether the others are at work: it is not reset under them.
            Self::Unsure if now.len() > 1 => Self::InUse { tenants: now },
            Self::Clean => prepare(false, None),
            Self::Unsure | Self::InUse { .. } | Self::Dirty { .. } => prepare(true, None),
            Self::Quarantined { failed, .. } => prepare(true, Some(failed)),
            // Whoever asks does so again when what is under way is done.
            Self::Preparing { .. } | Self::Cleaning { .. } => self,
        }
    }

    /// A claim is prepared. One that shares the device comes to those who are at work.
    fn joined(self, claim: String, claims: &Tenants) -> Self {
        match self {
            Self::InUse { mut tenants } if !tenants.is_disjoint(claims) => {
                tenants.retain(|tenant| claims.contains(tenant));
                tenants.insert(claim);
                Self::InUse { tenants }
            }
            Self::Unsure if claims.len() > 1 => Self::InUse { tenants: claims.clone() },
            state => state.started([claim].into()),
        }
    }

    /// A claim has let go; whoever else has the device has it still.
    fn left(self, claim: &str) -> Self {
        let without = |mut tenants: Tenants| {
            let was_there = tenants.remove(claim);
            (was_there, tenants)
        };
        match self {
            Self::InUse { tenants } => match without(tenants) {
                (true, tenants) if tenants.is_empty() => Self::Dirty { tenants },
                (_, tenants) => Self::InUse { tenants },
            },
            Self::Dirty { tenants } => Self::Dirty { tenants: without(tenants).1 },
            Self::Quarantined { tenants, failed } => {
                Self::Quarantined { tenants: without(tenants).1, failed }
            }
            state => state,
        }
    }

    /// Who has it, or will try to start again with it.
    pub(super) fn tenants(&self) -> Option<&Tenants> {
        match self {
            Self::InUse { tenants }
            | Self::Preparing { tenants, .. }
            | Self::Dirty { tenants }
            | Self::Quarantined { tenants, .. } => Some(tenants),
            Self::Unsure | Self::Clean | Self::Cleaning { .. } => None,
        }
    }

    /// Whether claims have it, who say when they let go.
    pub(super) fn is_of_claims(&self) -> bool {
        self.tenants().is_some_and(|all| all.iter().any(|tenant| tenant.starts_with(CLAIM)))
    }

    /// What is to be done in this state.
    pub(super) fn work(&self) -> Option<Work> {
        match self {
            Self::Preparing { clean_first, .. } => {
                Some(Work::Prepare { clean_first: *clean_first })
            }
            Self::Cleaning { failed } => Some(Work::Clean { again: failed.is_some() }),
            _ => None,
        }
    }

    /// Whether somebody may have it by what is known.
    pub(super) fn has_tenants(&self) -> bool {
        match self {
            Self::InUse { .. } | Self::Preparing { .. } => true,
            Self::Dirty { tenants } | Self::Quarantined { tenants, .. } => !tenants.is_empty(),
            Self::Unsure | Self::Clean | Self::Cleaning { .. } => false,
        }
    }

    /// Whether nothing is lost if it is forgotten.
    pub(super) fn is_forgettable(&self) -> bool {
        matches!(self, Self::Unsure | Self::Clean)
    }

    /// How it failed, until it succeeded: one that is tried again has not.
    pub(crate) fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Preparing { failed, .. } | Self::Cleaning { failed } => failed.as_ref(),
            Self::Quarantined { failed, .. } => Some(failed),
            Self::Unsure | Self::Clean | Self::InUse { .. } | Self::Dirty { .. } => None,
        }
    }

    /// Why the device is not to be given to anyone for now. One in use is listed as before: a kubelet
    /// shows pods whose device is unhealthy, and it is its business to know what is free.
    pub fn trouble(&self) -> Option<String> {
        if let Some(Failure { why, .. }) = self.failure() {
            return Some(format!("hand-over failed: {why}"));
        }
        match self {
            Self::Dirty { .. } => Some("hand-over: not clean yet".to_owned()),
            Self::Cleaning { .. } => Some("hand-over: being cleaned".to_owned()),
            _ => None,
        }
    }

    /// Why nobody is to choose the device for now, in one word.
    pub fn unready(&self) -> Option<&'static str> {
        match self {
            _ if self.failure().is_some() => Some("quarantined"),
            Self::Dirty { .. } | Self::Cleaning { .. } => Some(self.name()),
            _ => None,
        }
    }

    /// The state in one word, for logs and metrics.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Unsure => "unsure",
            Self::Clean => "clean",
            Self::Preparing { .. } => "preparing",
            Self::InUse { .. } => "in_use",
            Self::Dirty { .. } => "dirty",
            Self::Cleaning { .. } => "cleaning",
            Self::Quarantined { .. } => "quarantined",
        }
    }

    /// Every word.
    pub(crate) const NAMES: [&'static str; 7] =
        ["unsure", "clean", "preparing", "in_use", "dirty", "cleaning", "quarantined"];
}

// === impl Failure ===

impl Failure {
    fn again(before: Option<Self>, why: String, at: Timestamp) -> Self {
        match before {
            Some(Self { attempts, why: known, since }) => {
                let since = if known == why { since } else { at };
                Self { attempts: attempts.saturating_add(1), why, since }
            }
            None => Self { attempts: 1, why, since: at },
        }
    }
}

// === impl Work ===

impl Work {
    /// The work in one word, for metrics.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Prepare { .. } => "prepare",
            Self::Clean { .. } => "release",
        }
    }
}

#[cfg(test)]
mod tests;
