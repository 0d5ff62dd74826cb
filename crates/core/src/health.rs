//! Health of a device with its failures: a fold over observations, with recovery.
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
//! Only devices that passed a probe are offered, so a new device is *unknown*. The quiet period withholds a flapping
//! device between its failures. The period doubles at each quick relapse.

mod action;
mod quiet;
mod reason;
mod record;
mod xid;

use std::{fmt, time::Duration};

use jiff::Timestamp;
use serde::{Deserialize, Serialize, Serializer, ser::SerializeStruct as _};

pub use action::Action;
use quiet::QuietPeriod;
pub use reason::{Reason, UnknownReason};
pub use record::HealthRecord;
pub use xid::{Verdict, XidRule, classify as judge_xid, rules as xid_rules};

/// Maximum number of distinct failures per device; the oldest failure is dropped.
const MAX_FAILURES: usize = 8;

/// Health of a device at one moment.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Health {
    /// Only healthy devices are allocated.
    pub state: HealthState,
    /// Start of this state.
    pub since: Timestamp,
    /// Current or past failures; newest last.
    #[serde(rename = "evidence", skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<Failure>,
}

/// State of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HealthState {
    /// Not probed yet.
    Unknown,
    /// Passed a probe after the end of the quiet period.
    Healthy,
    /// Failed.
    Unhealthy,
}

/// One kind of failure, with its count.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Failure {
    /// Kind of failure.
    pub reason: Reason,
    /// Observed detail, for people.
    pub detail: String,
    /// First occurrence.
    pub first: Timestamp,
    /// Start of the latest occurrence. A probe that keeps failing is one occurrence.
    pub last: Timestamp,
    /// Number of occurrences.
    pub count: u32,
}

/// An observation about a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observation {
    /// The probe passed.
    Passed,
    /// The probe failed. Reported at each probe until it passes.
    Failed(Reason, String),
    /// The probe exceeded its deadline. This is a failure, except for the first probe, which may have to wake a
    /// sleeping device.
    TimedOut(String),
    /// The driver reported a fault.
    Fault(Reason, String),
    /// The device is present and its probe is pending; nothing new is known.
    Pending,
}

/// Fold of observations: health of a device, and the state of its quiet period.
#[derive(Clone, Debug)]
pub struct HealthTracker {
    health: Health,
    quiet: QuietPeriod,
}

// === impl Health ===

impl Health {
    /// Health of a device that was not probed yet.
    pub fn unknown(now: Timestamp) -> Self {
        Self { state: HealthState::Unknown, since: now, failures: Vec::new() }
    }

    /// True if the device may be allocated.
    pub fn is_healthy(&self) -> bool {
        self.state == HealthState::Healthy
    }

    /// True if the device disappeared.
    pub fn has_vanished(&self) -> bool {
        self.failure().is_some_and(|failure| failure.reason == Reason::Vanished)
    }

    /// The current failure; `None` for a healthy device.
    pub fn failure(&self) -> Option<&Failure> {
        if self.is_healthy() { None } else { self.failures.last() }
    }
}

impl fmt::Display for Health {
    /// `Healthy`, or `Unhealthy: XID 79, GPU has fallen off the bus; restart the machine`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.state)?;
        let Some(failure) = self.failure() else { return Ok(()) };
        write!(f, ": {failure}")?;
        match failure.reason.action().filter(|action| action.concerns_operator()) {
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

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.reason, self.detail)
    }
}

impl Serialize for Failure {
    /// Includes the action for the reason.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut document = serializer.serialize_struct("Failure", 6)?;
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
    /// Starts unknown. After a failure, the device needs a passed probe at least `quiet_period` later.
    pub fn new(quiet_period: Duration, now: Timestamp) -> Self {
        Self { health: Health::unknown(now), quiet: QuietPeriod::new(quiet_period) }
    }

    /// Continues from the record of an earlier agent process. An unhealthy device stays unhealthy until it passes a
    /// probe. A healthy device is unknown until then.
    pub fn resume(record: HealthRecord, quiet_period: Duration, now: Timestamp) -> Self {
        let quiet = QuietPeriod::resume(quiet_period, &record, now);
        let health = match record.state {
            HealthState::Unhealthy => Health {
                state: HealthState::Unhealthy,
                since: record.since.min(now),
                failures: record.failures,
            },
            HealthState::Unknown | HealthState::Healthy => {
                Health { failures: record.failures, ..Health::unknown(now) }
            }
        };
        Self { health, quiet }
    }

    /// Record for the next agent process.
    pub fn record(&self) -> HealthRecord {
        HealthRecord {
            state: self.health.state,
            since: self.health.since,
            failures: self.health.failures.clone(),
            last_failure: self.quiet.last_failure(),
            relapses: self.quiet.relapses(),
        }
    }

    /// Changes the quiet period, including one that has begun.
    pub fn set_quiet_period(&mut self, quiet_period: Duration) {
        self.quiet.set_period(quiet_period);
    }

    /// Health after the last observation.
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// Earliest time at which a passed probe makes the device healthy. `None` if the device is healthy or has no quiet
    /// period.
    pub fn recovers_at(&self) -> Option<Timestamp> {
        self.quiet.ends_at().filter(|_| !self.health.is_healthy())
    }

    /// Applies one observation. Returns the previous state if the state changed.
    pub fn observe(&mut self, observation: &Observation, now: Timestamp) -> Option<HealthState> {
        match observation {
            Observation::Passed => {
                if self.recovers_at().is_some_and(|earliest| now < earliest) {
                    return None;
                }
                self.enter(HealthState::Healthy, now)
            }
            Observation::Pending => None,
            Observation::Failed(reason, detail) => self.fail(*reason, detail, now),
            Observation::TimedOut(detail) if self.health.state == HealthState::Unknown => {
                self.add_failure_once(Reason::Unresponsive, detail, now);
                None
            }
            Observation::TimedOut(detail) => self.fail(Reason::Unresponsive, detail, now),
            Observation::Fault(reason, detail) => {
                self.quiet.record_failure(&self.health, now);
                self.add_failure(*reason, detail, now);
                self.enter(HealthState::Unhealthy, now)
            }
        }
    }

    fn fail(&mut self, reason: Reason, detail: &str, now: Timestamp) -> Option<HealthState> {
        self.quiet.record_failure(&self.health, now);
        self.add_failure_once(reason, detail, now);
        self.enter(HealthState::Unhealthy, now)
    }

    fn enter(&mut self, state: HealthState, now: Timestamp) -> Option<HealthState> {
        if self.health.state == state {
            return None;
        }
        self.health.since = now;
        Some(std::mem::replace(&mut self.health.state, state))
    }

    /// Counts consecutive failed probes with the same reason as one failure, so that an unchanged device causes no
    /// updates.
    fn add_failure_once(&mut self, reason: Reason, detail: &str, now: Timestamp) {
        let is_repeated = self.health.failure().is_some_and(|failure| failure.reason == reason);
        if !is_repeated {
            self.add_failure(reason, detail, now);
        }
    }

    fn add_failure(&mut self, reason: Reason, detail: &str, now: Timestamp) {
        let failures = &mut self.health.failures;
        let existing = failures.iter().position(|entry| entry.reason == reason);
        let mut entry = match existing {
            Some(position) => failures.remove(position),
            None => Failure { reason, detail: String::new(), first: now, last: now, count: 0 },
        };
        detail.clone_into(&mut entry.detail);
        entry.last = now;
        entry.count = entry.count.saturating_add(1);
        if failures.len() == MAX_FAILURES {
            failures.remove(0);
        }
        failures.push(entry);
    }
}

#[cfg(test)]
mod tests;
