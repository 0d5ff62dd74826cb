//! State of one lease, and the next action.
//!
//! ```text
//!   unknown ──absent, released or expired: taken──> ours ──not renewed in time──> late
//!      │                                            ^  ^                           │
//!      └──held by another──> theirs ──expired───────┘  └──────────renewed──────────┘
//! ```
//!
//! From every state, a lease that another node has taken is `theirs`.
//!
//! Another node's lease expires by this node's clock, from the time at which this node saw its last change: clocks
//! of nodes differ.

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
    seen: Option<Observed>,
    /// Time of our last write.
    renewed: Option<Instant>,
}

/// The lease in the API server.
#[derive(Debug)]
struct Observed {
    /// `None` if it does not exist.
    lease: Option<Lease>,
    /// Time of its last change.
    since: Instant,
}

/// Request to the API server for a lease.
#[derive(Debug, PartialEq)]
pub(super) enum Action {
    /// Nothing: another node holds the lease.
    Leave,
    /// Create the missing lease.
    Create(Box<Lease>),
    /// Take or renew the lease. The write fails if the lease has changed since it was read.
    Replace(Box<Lease>),
}

// === impl TrackedLease ===

impl TrackedLease {
    pub(super) fn new(node: &str, duration: Duration) -> Self {
        Self { node: node.to_owned(), duration, seen: None, renewed: None }
    }

    /// Records the lease as read from the API server.
    pub(super) fn record_read(&mut self, lease: Option<Lease>, now: Instant) {
        let is_known = self.seen.as_ref().is_some_and(|seen| seen.lease == lease);
        if !is_known {
            self.seen = Some(Observed { lease, since: now });
        }
    }

    /// Records a successful write; `sent` is the time of the request.
    pub(super) fn record_write(&mut self, lease: Lease, sent: Instant) {
        self.record_read(Some(lease), sent);
        self.renewed = Some(sent);
    }

    pub(super) fn action(&self, name: &str, now: Instant, wall: Timestamp) -> Action {
        match self.seen.as_ref().and_then(|seen| seen.lease.as_ref()) {
            None => {
                let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
                Action::Create(Box::new(Lease { metadata, spec: Some(self.spec(None, wall)) }))
            }
            Some(lease) if self.holder() == Some(&self.node) || self.is_over(now) => {
                let (metadata, spec) = (lease.metadata.clone(), lease.spec.as_ref());
                Action::Replace(Box::new(Lease { metadata, spec: Some(self.spec(spec, wall)) }))
            }
            Some(_) => Action::Leave,
        }
    }

    /// State of the lease. After a renewal it counts as ours for two thirds of its duration: this node stops offering
    /// the device well before another node may take it.
    pub(super) fn state(&self, now: Instant) -> LeaseState {
        match (self.holder(), self.renewed) {
            (Some(holder), _) if *holder != self.node && !self.is_over(now) => {
                LeaseState::Theirs(holder.clone())
            }
            (_, Some(renewed)) if now < renewed + self.duration * 2 / 3 => LeaseState::Ours,
            (_, Some(_)) => LeaseState::Late,
            (_, None) => LeaseState::Unknown,
        }
    }

    fn holder(&self) -> Option<&String> {
        let lease = self.seen.as_ref()?.lease.as_ref()?;
        lease.spec.as_ref()?.holder_identity.as_ref().filter(|holder| !holder.is_empty())
    }

    /// True if the lease has expired or was released.
    fn is_over(&self, now: Instant) -> bool {
        let Some(seen) = &self.seen else { return false };
        let spec = seen.lease.as_ref().and_then(|lease| lease.spec.as_ref());
        let seconds = spec.and_then(|spec| spec.lease_duration_seconds);
        let duration = seconds.and_then(|seconds| u64::try_from(seconds).ok());
        let duration = duration.map_or(self.duration, Duration::from_secs);
        self.holder().is_none() || now >= seen.since + duration
    }

    fn spec(&self, before: Option<&LeaseSpec>, wall: Timestamp) -> LeaseSpec {
        let before = before.cloned().unwrap_or_default();
        let was_ours = before.holder_identity.as_ref() == Some(&self.node);
        let transitions = before.lease_transitions.unwrap_or_default();
        LeaseSpec {
            holder_identity: Some(self.node.clone()),
            lease_duration_seconds: Some(self.duration.as_secs().try_into().unwrap_or(i32::MAX)),
            renew_time: Some(MicroTime(wall)),
            acquire_time: before.acquire_time.filter(|_| was_ours).or(Some(MicroTime(wall))),
            lease_transitions: Some(transitions.saturating_add(i32::from(!was_ours))),
            ..LeaseSpec::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: Duration = Duration::from_secs(120);

    fn wall() -> Timestamp {
        Timestamp::UNIX_EPOCH
    }

    fn lease_of(holder: &str, version: &str) -> Lease {
        let spec = TrackedLease::new(holder, LENGTH).spec(None, wall());
        let metadata =
            ObjectMeta { resource_version: Some(version.to_owned()), ..ObjectMeta::default() };
        Lease { metadata, spec: Some(spec) }
    }

    fn is_replaced(term: &TrackedLease, now: Instant) -> bool {
        matches!(term.action("x", now, wall()), Action::Replace(_))
    }

    #[test]
    fn a_missing_lease_is_created_and_renewed() {
        let (mut term, start) = (TrackedLease::new("n1", LENGTH), Instant::now());
        assert_eq!(term.state(start), LeaseState::Unknown);
        term.record_read(None, start);
        let Action::Create(lease) = term.action("x", start, wall()) else { panic!("it is made") };
        assert_eq!(lease.metadata.name.as_deref(), Some("x"));
        term.record_write(*lease, start);
        assert_eq!(term.state(start), LeaseState::Ours);
        assert!(is_replaced(&term, start));
    }

    #[test]
    fn a_lease_without_renewal_is_late_before_another_node_may_take_it() {
        let (mut term, start) = (TrackedLease::new("n1", LENGTH), Instant::now());
        term.record_write(lease_of("n1", "1"), start);
        assert_eq!(term.state(start + LENGTH * 2 / 3 - Duration::from_secs(1)), LeaseState::Ours);
        assert_eq!(term.state(start + LENGTH * 2 / 3), LeaseState::Late);
    }

    #[test]
    fn another_nodes_lease_is_taken_once_unchanged_for_its_duration() {
        let (mut term, start) = (TrackedLease::new("n1", LENGTH), Instant::now());
        term.record_read(Some(lease_of("n2", "1")), start);
        assert_eq!(term.state(start), LeaseState::Theirs("n2".to_owned()));
        assert_eq!(term.action("x", start + LENGTH / 2, wall()), Action::Leave);
        term.record_read(Some(lease_of("n2", "2")), start + LENGTH / 2);
        assert_eq!(term.action("x", start + LENGTH, wall()), Action::Leave, "it was renewed");
        assert!(is_replaced(&term, start + LENGTH * 3 / 2));
        assert_eq!(
            term.state(start + LENGTH * 3 / 2),
            LeaseState::Unknown,
            "not before it is ours"
        );
    }

    #[test]
    fn a_released_lease_is_taken_at_once_and_counted_as_a_transition() {
        let (mut term, start) = (TrackedLease::new("n1", LENGTH), Instant::now());
        let mut lease = lease_of("n2", "1");
        lease.spec.as_mut().expect("one").holder_identity = Some(String::new());
        term.record_read(Some(lease), start);
        let Action::Replace(taken) = term.action("x", start, wall()) else { panic!("it is taken") };
        assert_eq!(taken.metadata.resource_version.as_deref(), Some("1"), "over what was seen");
        assert_eq!(taken.spec.expect("one").lease_transitions, Some(2));
    }
}
