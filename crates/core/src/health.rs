//! Health with evidence: a fold over what was observed, with a way back.
//!
//! ```text
//!              passed                    passed, quiet period over
//!   Unknown ───────────> Healthy <──────────────────────────────┐
//!      │                    │                                   │
//!      │ failed, fault      │ failed, fault                     │
//!      └────────────────────┴──────────────────────> Unhealthy ─┘
//!                                                      │   ^ failed, fault:
//!                                                      └───┘ the quiet period starts anew
//! ```
//!
//! *Unknown* exists so that nothing is offered before it was seen working. The quiet period keeps a
//! device that fails now and then from being handed out between its failures; it doubles each time
//! that the device fails again soon after it recovered.

mod action;
mod quiet;
mod reason;
mod record;
mod xid;

use std::{fmt, time::Duration};

use jiff::Timestamp;
use serde::{Deserialize, Serialize, Serializer, ser::SerializeStruct as _};

pub use action::Action;
use quiet::Quiet;
pub use reason::{Reason, UnknownReason};
pub use record::HealthRecord;
pub use xid::{Verdict, XidRule, judge as judge_xid, rules as xid_rules};

/// How many different troubles are remembered per device; the oldest makes room.
const MAX_EVIDENCE: usize = 8;

/// What is known about a device at one moment.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Health {
    /// Whether the device may be handed out.
    pub state: HealthState,
    /// When it came into this state.
    pub since: Timestamp,
    /// Why it is, or last was, not healthy; newest last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub evidence: Vec<Evidence>,
}

/// The three states of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HealthState {
    /// Not probed yet.
    Unknown,
    /// It passed its probe, and has been quiet since its last trouble.
    Healthy,
    /// It failed.
    Unhealthy,
}

/// One kind of trouble a device had.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Evidence {
    /// What sort of trouble.
    pub reason: Reason,
    /// What was seen, for a person.
    pub detail: String,
    /// When it was seen first.
    pub first: Timestamp,
    /// When it began last; a probe that goes on failing is one trouble that lasts.
    pub last: Timestamp,
    /// How often it began.
    pub count: u32,
}

/// Something seen about a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observation {
    /// The probe passed.
    Passed,
    /// The probe failed; seen again at each probe until it passes.
    Failed(Reason, String),
    /// The probe takes longer than it should. Of a device that was seen healthy that is a failure;
    /// the first probe may wake a sleeping device, and costs it no quiet period.
    Overdue(String),
    /// The driver reported a fault of its own accord.
    Fault(Reason, String),
    /// It is there, and the answer of its probe is waited for: nothing is known that was not before.
    Awaited,
}

/// The fold: a device's health, and what is needed to judge its next observation.
#[derive(Clone, Debug)]
pub struct HealthTracker {
    health: Health,
    quiet: Quiet,
}

// === impl Health ===

impl Health {
    /// The health of a device that nothing was seen of yet.
    pub fn unknown(now: Timestamp) -> Self {
        Self { state: HealthState::Unknown, since: now, evidence: Vec::new() }
    }

    /// Whether the device may be handed out.
    pub fn is_healthy(&self) -> bool {
        self.state == HealthState::Healthy
    }

    /// Whether the device was there, and is no longer.
    pub fn has_vanished(&self) -> bool {
        self.trouble().is_some_and(|trouble| trouble.reason == Reason::Vanished)
    }

    /// The trouble that counts now; `None` for a healthy device.
    pub fn trouble(&self) -> Option<&Evidence> {
        if self.is_healthy() { None } else { self.evidence.last() }
    }
}

impl fmt::Display for Health {
    /// `Healthy`, or `Unhealthy: XID 79, GPU has fallen off the bus; restart the machine`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.state)?;
        let Some(trouble) = self.trouble() else { return Ok(()) };
        write!(f, ": {trouble}")?;
        match trouble.reason.action().filter(|action| action.concerns_operator()) {
            Some(action) => write!(f, "; {action}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for HealthState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Unknown => "Unknown",
            Self::Healthy => "Healthy",
            Self::Unhealthy => "Unhealthy",
        })
    }
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.reason, self.detail)
    }
}

impl Serialize for Evidence {
    /// With the action that the reason asks for.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut document = serializer.serialize_struct("Evidence", 6)?;
        document.serialize_field("reason", &self.reason)?;
        document.serialize_field("detail", &self.detail)?;
        match self.reason.action() {
            Some(action) => document.serialize_field("action", &action)?,
            None => document.skip_field("action")?,
        }
        document.serialize_field("first", &self.first)?;
        document.serialize_field("last", &self.last)?;
        document.serialize_field("count", &self.count)?;
        document.end()
    }
}

// === impl HealthTracker ===

impl HealthTracker {
    /// Starts in the unknown state. A device that had trouble must pass its probe when at least
    /// `quiet_period` has gone by since the last of it.
    pub fn new(quiet_period: Duration, now: Timestamp) -> Self {
        Self { health: Health::unknown(now), quiet: Quiet::new(quiet_period) }
    }

    /// Goes on from what an earlier life wrote down. A device that was unhealthy is so until it
    /// passes; what was healthy then is not known to be now.
    pub fn resume(record: HealthRecord, quiet_period: Duration, now: Timestamp) -> Self {
        let quiet = Quiet::resume(quiet_period, &record, now);
        let health = match record.state {
            HealthState::Unhealthy => Health {
                state: HealthState::Unhealthy,
                since: record.since.min(now),
                evidence: record.evidence,
            },
            HealthState::Unknown | HealthState::Healthy => {
                Health { evidence: record.evidence, ..Health::unknown(now) }
            }
        };
        Self { health, quiet }
    }

    /// What another life needs to go on.
    pub fn record(&self) -> HealthRecord {
        HealthRecord {
            state: self.health.state,
            since: self.health.since,
            evidence: self.health.evidence.clone(),
            last_trouble: self.quiet.last_trouble(),
            relapses: self.quiet.relapses(),
        }
    }

    /// Goes by another quiet period from now on, the one that runs included.
    pub fn set_quiet_period(&mut self, quiet_period: Duration) {
        self.quiet.set_period(quiet_period);
    }

    /// The health as of the last observation.
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// When a passed probe would make the device healthy again; `None` when it is.
    pub fn recovers_at(&self) -> Option<Timestamp> {
        self.quiet.ends_at().filter(|_| !self.health.is_healthy())
    }

    /// Takes one observation in. Gives the state before it when the state changed.
    pub fn observe(&mut self, observation: &Observation, now: Timestamp) -> Option<HealthState> {
        match observation {
            Observation::Passed => {
                if self.recovers_at().is_some_and(|earliest| now < earliest) {
                    return None;
                }
                self.enter(HealthState::Healthy, now)
            }
            Observation::Awaited => None,
            Observation::Failed(reason, detail) => self.fail(*reason, detail, now),
            Observation::Overdue(detail) if self.health.state == HealthState::Unknown => {
                self.remember_once(Reason::Unresponsive, detail, now);
                None
            }
            Observation::Overdue(detail) => self.fail(Reason::Unresponsive, detail, now),
            Observation::Fault(reason, detail) => {
                self.quiet.disturb(&self.health, now);
                self.remember(*reason, detail, now);
                self.enter(HealthState::Unhealthy, now)
            }
        }
    }

    fn fail(&mut self, reason: Reason, detail: &str, now: Timestamp) -> Option<HealthState> {
        self.quiet.disturb(&self.health, now);
        self.remember_once(reason, detail, now);
        self.enter(HealthState::Unhealthy, now)
    }

    fn enter(&mut self, state: HealthState, now: Timestamp) -> Option<HealthState> {
        if self.health.state == state {
            return None;
        }
        self.health.since = now;
        Some(std::mem::replace(&mut self.health.state, state))
    }

    /// A probe that goes on failing for the same reason is one trouble, not one more at each probe:
    /// an unchanged world makes no noise.
    fn remember_once(&mut self, reason: Reason, detail: &str, now: Timestamp) {
        let known = self.health.trouble().is_some_and(|trouble| trouble.reason == reason);
        if !known {
            self.remember(reason, detail, now);
        }
    }

    fn remember(&mut self, reason: Reason, detail: &str, now: Timestamp) {
        let evidence = &mut self.health.evidence;
        let known = evidence.iter().position(|entry| entry.reason == reason);
        let mut entry = match known {
            Some(position) => evidence.remove(position),
            None => Evidence { reason, detail: String::new(), first: now, last: now, count: 0 },
        };
        detail.clone_into(&mut entry.detail);
        entry.last = now;
        entry.count = entry.count.saturating_add(1);
        if evidence.len() == MAX_EVIDENCE {
            evidence.remove(0);
        }
        evidence.push(entry);
    }
}

#[cfg(test)]
mod tests;
