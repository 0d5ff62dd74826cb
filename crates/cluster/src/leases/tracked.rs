//! State of one lease, and the next action.
//!
//! ```text
//!   Unknown ──absent, released or expired: taken──> Held ──not renewed in time──> Overdue
//!      │                                            ^  ^                           │
//!      └──held by another──> HeldBy ──expired───────┘  └──────────renewed──────────┘
//! ```
//!
//! From every state, a lease that another node has taken is `HeldBy` that node.
//!
//! Another node's lease expires by this node's clock, counted from this node's first read of the lease's last change:
//! clocks of nodes differ.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use tokio::time::Instant;

use super::LeaseState;

/// A lease, as last read and written by this node.
#[derive(Debug)]
pub(super) struct TrackedLease {
    node: String,
    /// Duration after which an unrenewed lease is lost.
    duration: Duration,
    observed: Option<ObservedLease>,
    /// Time of this node's last write.
    last_renewal: Option<Instant>,
}

/// The lease in the API server.
#[derive(Debug)]
struct ObservedLease {
    /// `None` if the lease does not exist.
    lease: Option<Lease>,
    /// Time at which this version was first read.
    since: Instant,
}

/// Request to the API server for a lease.
#[derive(Debug, PartialEq)]
pub(super) enum Action {
    /// Nothing: another node holds the lease.
    Wait,
    /// Create the missing lease.
    Create(Box<Lease>),
    /// Take or renew the lease. The write fails if the lease has changed since it was read.
    Replace(Box<Lease>),
}

// === impl TrackedLease ===

impl TrackedLease {
    pub(super) fn new(node: &str, duration: Duration) -> Self {
        Self { node: node.to_owned(), duration, observed: None, last_renewal: None }
    }

    /// Records the lease as read from the API server.
    pub(super) fn record_read(&mut self, lease: Option<Lease>, now: Instant) {
        let is_unchanged = self.observed.as_ref().is_some_and(|observed| observed.lease == lease);
        if !is_unchanged {
            self.observed = Some(ObservedLease { lease, since: now });
        }
    }

    /// Records a successful write; `sent_at` is the time of the request.
    pub(super) fn record_write(&mut self, lease: Lease, sent_at: Instant) {
        self.record_read(Some(lease), sent_at);
        self.last_renewal = Some(sent_at);
    }

    pub(super) fn action(&self, name: &str, now: Instant, timestamp: Timestamp) -> Action {
        match self.observed.as_ref().and_then(|observed| observed.lease.as_ref()) {
            None => {
                let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
                Action::Create(Box::new(Lease { metadata, spec: Some(self.spec(None, timestamp)) }))
            }
            Some(lease) if self.holder() == Some(&self.node) || self.is_expired(now) => {
                let (metadata, spec) = (lease.metadata.clone(), lease.spec.as_ref());
                Action::Replace(Box::new(Lease {
                    metadata,
                    spec: Some(self.spec(spec, timestamp)),
                }))
            }
            Some(_) => Action::Wait,
        }
    }

    /// State of the lease. After a renewal the lease counts as held for two thirds of its duration: this node stops
    /// offering the device well before another node may take the lease.
    pub(super) fn state(&self, now: Instant) -> LeaseState {
        match (self.holder(), self.last_renewal) {
            (Some(holder), _) if *holder != self.node && !self.is_expired(now) => {
                LeaseState::HeldBy(holder.clone())
            }
            (_, Some(last_renewal)) if now < last_renewal + self.duration * 2 / 3 => {
                LeaseState::Held
            }
            (_, Some(_)) => LeaseState::Overdue,
            (_, None) => LeaseState::Unknown,
        }
    }

    fn holder(&self) -> Option<&String> {
        let lease = self.observed.as_ref()?.lease.as_ref()?;
        lease.spec.as_ref()?.holder_identity.as_ref().filter(|holder| !holder.is_empty())
    }

    /// True if the lease has expired or was released.
    fn is_expired(&self, now: Instant) -> bool {
        let Some(observed) = &self.observed else { return false };
        let spec = observed.lease.as_ref().and_then(|lease| lease.spec.as_ref());
        let seconds = spec.and_then(|spec| spec.lease_duration_seconds);
        let duration = seconds.and_then(|seconds| u64::try_from(seconds).ok());
        let duration = duration.map_or(self.duration, Duration::from_secs);
        self.holder().is_none() || now >= observed.since + duration
    }

    fn spec(&self, previous: Option<&LeaseSpec>, timestamp: Timestamp) -> LeaseSpec {
        let previous = previous.cloned().unwrap_or_default();
        let was_held = previous.holder_identity.as_ref() == Some(&self.node);
        let transitions = previous.lease_transitions.unwrap_or_default();
        LeaseSpec {
            holder_identity: Some(self.node.clone()),
            lease_duration_seconds: Some(self.duration.as_secs().try_into().unwrap_or(i32::MAX)),
            renew_time: Some(MicroTime(timestamp)),
            acquire_time: previous.acquire_time.filter(|_| was_held).or(Some(MicroTime(timestamp))),
            lease_transitions: Some(transitions.saturating_add(i32::from(!was_held))),
            ..LeaseSpec::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DURATION: Duration = Duration::from_secs(120);

    fn timestamp() -> Timestamp {
        Timestamp::UNIX_EPOCH
    }

    fn lease_of(holder: &str, version: &str) -> Lease {
        let spec = TrackedLease::new(holder, DURATION).spec(None, timestamp());
        let metadata =
            ObjectMeta { resource_version: Some(version.to_owned()), ..ObjectMeta::default() };
        Lease { metadata, spec: Some(spec) }
    }

    fn is_replaced(tracked: &TrackedLease, now: Instant) -> bool {
        matches!(tracked.action("x", now, timestamp()), Action::Replace(_))
    }

    #[test]
    fn a_missing_lease_is_created_and_renewed() {
        let (mut tracked, start) = (TrackedLease::new("n1", DURATION), Instant::now());
        assert_eq!(tracked.state(start), LeaseState::Unknown);
        tracked.record_read(None, start);
        let Action::Create(lease) = tracked.action("x", start, timestamp()) else {
            panic!("not created")
        };
        assert_eq!(lease.metadata.name.as_deref(), Some("x"));
        tracked.record_write(*lease, start);
        assert_eq!(tracked.state(start), LeaseState::Held);
        assert!(is_replaced(&tracked, start));
    }

    #[test]
    fn a_lease_without_renewal_is_overdue_before_another_node_may_take_it() {
        let (mut tracked, start) = (TrackedLease::new("n1", DURATION), Instant::now());
        tracked.record_write(lease_of("n1", "1"), start);
        assert_eq!(
            tracked.state(start + DURATION * 2 / 3 - Duration::from_secs(1)),
            LeaseState::Held
        );
        assert_eq!(tracked.state(start + DURATION * 2 / 3), LeaseState::Overdue);
    }

    #[test]
    fn another_nodes_lease_is_taken_once_unchanged_for_its_duration() {
        let (mut tracked, start) = (TrackedLease::new("n1", DURATION), Instant::now());
        tracked.record_read(Some(lease_of("n2", "1")), start);
        assert_eq!(tracked.state(start), LeaseState::HeldBy("n2".to_owned()));
        assert_eq!(tracked.action("x", start + DURATION / 2, timestamp()), Action::Wait);
        tracked.record_read(Some(lease_of("n2", "2")), start + DURATION / 2);
        assert_eq!(
            tracked.action("x", start + DURATION, timestamp()),
            Action::Wait,
            "it was renewed"
        );
        assert!(is_replaced(&tracked, start + DURATION * 3 / 2));
        assert_eq!(
            tracked.state(start + DURATION * 3 / 2),
            LeaseState::Unknown,
            "not before this node holds it"
        );
    }

    #[test]
    fn a_released_lease_is_taken_at_once_and_counted_as_a_transition() {
        let (mut tracked, start) = (TrackedLease::new("n1", DURATION), Instant::now());
        let mut lease = lease_of("n2", "1");
        lease.spec.as_mut().expect("a spec").holder_identity = Some(String::new());
        tracked.record_read(Some(lease), start);
        let Action::Replace(replacement) = tracked.action("x", start, timestamp()) else {
            panic!("not replaced")
        };
        assert_eq!(
            replacement.metadata.resource_version.as_deref(),
            Some("1"),
            "only the observed version is replaced"
        );
        assert_eq!(replacement.spec.expect("a spec").lease_transitions, Some(2));
    }
}
