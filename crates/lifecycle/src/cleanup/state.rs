//! State machine of a device between tenants.
//!
//! ```text
//!            a container starts          steps done             released
//!   Clean ───────────────────> Preparing ──────────> InUse ──────────────> Dirty
//!    ^ ^                         ^  │ ^                │ another pod's       │ at once
//!    │ │                         │  │ └────────────────┘ container starts    v
//!    │ └─────── steps done ──────│──│────────────────────────────────── Cleaning
//!    │                           │  │ failed                             │    ^
//!    │          a container      │  v                              failed│    │ after a while,
//!  Unsure ──────── starts ───────┴ Quarantined <───────────────────────┘    │ without a tenant
//!                                       └───────────────────────────────────┘
//! ```
//!
//! The history of an *unsure* device is unknown: the device is new to the agent, the node rebooted, or the device could
//! not be reached. It is offered, and cleaned before the first container starts with it. Any device that is not clean
//! at a start is cleaned then: a kubelet may reallocate a device before its release shows in the checkpoint.
//!
//! A container that restarts is no new tenant: no steps run while a pod of the last preparation still has the device.
//! The kubelet's checkpoint names the pods by UID.
//!
//! A claim counts as a tenant from its preparation to its release, both of which the DRA driver announces. All pods of
//! a claim are one tenant.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// UIDs of the pods or claims with a device: several if it is shared, none if they are unknown.
pub(crate) type Tenants = BTreeSet<String>;

/// Prefix of a claim among tenants.
const CLAIM_PREFIX: &str = "claim:";

/// A claim as a tenant, on behalf of its pods.
pub(super) fn claim_tenant(uid: &str) -> String {
    format!("{CLAIM_PREFIX}{uid}")
}

/// State of a device between tenants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "camelCase")]
pub enum State {
    /// The history of the device is unknown.
    Unsure,
    /// The release steps are done.
    Clean,
    /// The preparation steps run, after the release steps if those were missed.
    Preparing {
        /// Tenants for which the device is prepared.
        tenants: Tenants,
        /// True if the release steps come first.
        clean_first: bool,
        /// Failure of the last attempt.
        failed: Option<Failure>,
    },
    /// Containers of its tenants use the device.
    InUse {
        /// The tenants.
        tenants: Tenants,
    },
    /// The device was released, or its preparation was interrupted.
    Dirty {
        /// Tenants that still have the device and will start again.
        tenants: Tenants,
    },
    /// The release steps run.
    Cleaning {
        /// Failure of the last attempt.
        failed: Option<Failure>,
    },
    /// A step failed.
    Quarantined {
        /// Tenants that still have the device and will start again. Without any, the device is cleaned: at once after
        /// its last tenant, otherwise after a delay.
        tenants: Tenants,
        /// The failure.
        failed: Failure,
    },
}

/// A failed attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Failures in a row.
    pub(crate) attempts: u32,
    /// The failed step and its error.
    pub why: String,
    /// Time of the first failure with this error.
    pub since: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Input {
    /// A container of these pods is about to start.
    Start(Tenants),
    /// A claim is prepared.
    StartClaim {
        claim: String,
        /// All claims that have the device, or are to have it.
        claims: Tenants,
    },
    /// This claim released the device.
    ReleaseClaim(String),
    /// No tenant is left.
    Released,
    /// All steps succeeded.
    Done,
    Failed {
        /// Step and error.
        reason: String,
        /// Time of the failure.
        at: Timestamp,
    },
    /// The time of a cleaning or of a retry has passed.
    TimerElapsed,
    /// No steps can run on the device.
    Unreachable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Preparation steps, after the release steps if `clean_first`.
    Prepare { clean_first: bool },
    /// Release steps. With `is_retry`, after a failure, a device without release steps runs its preparation steps
    /// instead.
    Clean { is_retry: bool },
}

// === impl State ===

impl State {
    /// State of a device that is new to the agent, with these tenants.
    pub(super) fn initial(tenants: Tenants) -> Self {
        // A tenant may be computing already, so no steps may run.
        if tenants.is_empty() { Self::Unsure } else { Self::InUse { tenants } }
    }

    /// State at the start of an agent.
    pub(super) fn after_restart(self, rebooted: bool) -> Self {
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
            (state, Input::Start(tenants)) => state.after_start(tenants),
            (state, Input::StartClaim { claim, claims }) => state.after_claim_start(claim, &claims),
            (state, Input::ReleaseClaim(claim)) => state.after_release(&claim),
            (Self::InUse { .. } | Self::Dirty { .. }, Input::Released) => {
                Self::Dirty { tenants: Tenants::new() }
            }
            (Self::Quarantined { failed, .. }, Input::Released) => {
                Self::Quarantined { tenants: Tenants::new(), failed }
            }
            // The device was allocated without an announced start, as a restarted kubelet does.
            (Self::Clean, Input::Released | Input::Unreachable) => Self::Unsure,
            (Self::Dirty { tenants }, Input::TimerElapsed) if tenants.is_empty() => {
                Self::Cleaning { failed: None }
            }
            (Self::Quarantined { tenants, failed }, Input::TimerElapsed) if tenants.is_empty() => {
                Self::Cleaning { failed: Some(failed) }
            }
            (Self::Preparing { tenants, .. }, Input::Done) => Self::InUse { tenants },
            (Self::Preparing { tenants, failed, .. }, Input::Failed { reason, at }) => {
                Self::Quarantined { tenants, failed: Failure::repeated(failed, reason, at) }
            }
            (Self::Cleaning { .. }, Input::Done) => Self::Clean,
            (Self::Cleaning { failed }, Input::Failed { reason, at }) => {
                let failure = Failure::repeated(failed, reason, at);
                Self::Quarantined { tenants: Tenants::new(), failed: failure }
            }
            (state, _) => state,
        }
    }

    /// A container of these pods is about to start.
    fn after_start(self, new_tenants: Tenants) -> Self {
        let prepare = |clean_first, failed| {
            let tenants = new_tenants.clone();
            Self::Preparing { tenants, clean_first, failed }
        };
        match self {
            Self::InUse { tenants: current } if !current.is_disjoint(&new_tenants) => {
                Self::InUse { tenants: new_tenants }
            }
            // A shared device is not reset under tenants that may be computing.
            Self::Unsure if new_tenants.len() > 1 => Self::InUse { tenants: new_tenants },
            Self::Clean => prepare(false, None),
            Self::Unsure | Self::InUse { .. } | Self::Dirty { .. } => prepare(true, None),
            Self::Quarantined { failed, .. } => prepare(true, Some(failed)),
            // The start waits, and is an input again when the steps are done.
            Self::Preparing { .. } | Self::Cleaning { .. } => self,
        }
    }

    /// A claim is prepared. A claim that shares the device joins its tenants.
    fn after_claim_start(self, claim: String, claims: &Tenants) -> Self {
        match self {
            Self::InUse { mut tenants } if !tenants.is_disjoint(claims) => {
                tenants.retain(|tenant| claims.contains(tenant));
                tenants.insert(claim);
                Self::InUse { tenants }
            }
            Self::Unsure if claims.len() > 1 => Self::InUse { tenants: claims.clone() },
            state => state.after_start([claim].into()),
        }
    }

    /// A claim released the device; other tenants keep it.
    fn after_release(self, claim: &str) -> Self {
        let remove_claim = |mut tenants: Tenants| {
            let was_tenant = tenants.remove(claim);
            (was_tenant, tenants)
        };
        match self {
            Self::InUse { tenants } => match remove_claim(tenants) {
                (true, tenants) if tenants.is_empty() => Self::Dirty { tenants },
                (_, tenants) => Self::InUse { tenants },
            },
            Self::Dirty { tenants } => Self::Dirty { tenants: remove_claim(tenants).1 },
            Self::Quarantined { tenants, failed } => {
                Self::Quarantined { tenants: remove_claim(tenants).1, failed }
            }
            state => state,
        }
    }

    /// Tenants that have the device, or will start again.
    pub(super) fn tenants(&self) -> Option<&Tenants> {
        match self {
            Self::InUse { tenants }
            | Self::Preparing { tenants, .. }
            | Self::Dirty { tenants }
            | Self::Quarantined { tenants, .. } => Some(tenants),
            Self::Unsure | Self::Clean | Self::Cleaning { .. } => None,
        }
    }

    /// True if the tenants are claims, which announce their release.
    pub(super) fn is_held_by_claims(&self) -> bool {
        self.tenants()
            .is_some_and(|tenants| tenants.iter().any(|tenant| tenant.starts_with(CLAIM_PREFIX)))
    }

    pub(super) fn work(&self) -> Option<Work> {
        match self {
            Self::Preparing { clean_first, .. } => {
                Some(Work::Prepare { clean_first: *clean_first })
            }
            Self::Cleaning { failed } => Some(Work::Clean { is_retry: failed.is_some() }),
            _ => None,
        }
    }

    /// True if a tenant may have the device.
    pub(super) fn has_tenants(&self) -> bool {
        match self {
            Self::InUse { .. } | Self::Preparing { .. } => true,
            Self::Dirty { tenants } | Self::Quarantined { tenants, .. } => !tenants.is_empty(),
            Self::Unsure | Self::Clean | Self::Cleaning { .. } => false,
        }
    }

    /// True if the state need not be recorded.
    pub(super) fn is_droppable(&self) -> bool {
        matches!(self, Self::Unsure | Self::Clean)
    }

    /// The last failure, until an attempt succeeds.
    pub(crate) fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Preparing { failed, .. } | Self::Cleaning { failed } => failed.as_ref(),
            Self::Quarantined { failed, .. } => Some(failed),
            Self::Unsure | Self::Clean | Self::InUse { .. } | Self::Dirty { .. } => None,
        }
    }

    /// Reason why the device cannot be allocated now. A device in use has none and stays healthy for the kubelet, which
    /// marks the pods of unhealthy devices.
    pub fn obstacle(&self) -> Option<String> {
        if let Some(Failure { why, .. }) = self.failure() {
            return Some(format!("cleanup failed: {why}"));
        }
        match self {
            Self::Dirty { .. } => Some("cleanup: not clean yet".to_owned()),
            Self::Cleaning { .. } => Some("cleanup: being cleaned".to_owned()),
            _ => None,
        }
    }

    /// Reason why the device cannot be allocated now, in one word.
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

    pub(crate) const NAMES: &[&str] =
        &["unsure", "clean", "preparing", "in_use", "dirty", "cleaning", "quarantined"];
}

// === impl Failure ===

impl Failure {
    fn repeated(previous: Option<Self>, reason: String, at: Timestamp) -> Self {
        match previous {
            Some(Self { attempts, why: last_reason, since }) => {
                let since = if last_reason == reason { since } else { at };
                Self { attempts: attempts.saturating_add(1), why: reason, since }
            }
            None => Self { attempts: 1, why: reason, since: at },
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
