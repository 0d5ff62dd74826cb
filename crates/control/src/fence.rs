//! Leader election for binds: only the replica that holds the Lease may bind.
//!
//! ```text
//!            bind: create, take over if expired, or renew
//!   idle ──────────────────────────────────────────────────────> held ──> idle, after the Lease's duration
//!     └──another replica holds it──> refused: kube-scheduler retries
//! ```
//!
//! Only binds write the Lease, so an idle cluster causes no writes. A replica that takes the Lease over first lists all
//! pods: the former holder may have bound pods that the watch has not delivered yet.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{Api, api::PostParams};
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout},
};
use windlass_host::{clock::Clock, shared::Shared};

use crate::{access::REQUEST_TIMEOUT, watches::Relister};

/// `leaseDurationSeconds`: time after the last renewal at which another replica may take the Lease over.
const LEASE_DURATION: Duration = Duration::from_secs(15);
/// Remaining validity of the Lease that a write requires: more than `REQUEST_TIMEOUT` (4 s), the write's deadline. A
/// bind renews the Lease if less remains.
const MIN_VALIDITY: Duration = Duration::from_secs(6);
/// Deadline of the list of all pods after a take-over.
const RELIST_TIMEOUT: Duration = Duration::from_secs(30);

/// The Lease that binds need.
pub(crate) struct Fence {
    leases: Api<Lease>,
    name: String,
    identity: String,
    clock: Clock,
    relister: Arc<Relister>,
    /// Serializes renewals: one bind at a time reads or renews the Lease.
    renewal: Semaphore,
    state: Shared<State>,
}

#[derive(Clone, Debug, Default)]
struct State {
    /// End of this replica's Lease, by this machine's clock.
    held_until: Option<Instant>,
    /// Number of times that this replica took the Lease over.
    term: u64,
    /// The Lease as last read or written, and the time at which that version was first read.
    last_read: Option<(Lease, Instant)>,
}

/// Reason why this replica may not bind.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FenceError {
    /// Another replica holds the Lease.
    #[error("replica {0} binds at present: try again")]
    HeldByOther(String),
    /// The Lease cannot be read or written.
    #[error("cannot read or write the Lease {lease}")]
    Unavailable {
        /// Name of the Lease.
        lease: String,
        /// The reason.
        source: Box<kube::Error>,
    },
    /// The API server did not answer.
    #[error("the API server did not answer for the Lease {0} within {REQUEST_TIMEOUT:?}")]
    RequestTimedOut(String),
    /// The Lease is lost, or expires before a write would end.
    #[error("the Lease {0} is lost, or expires too soon for a write: try again")]
    LeaseLost(String),
    /// The pods could not be listed after this replica took over the Lease.
    #[error("cannot list the pods after taking over the Lease")]
    RelistFailed(#[source] Box<kube::Error>),
}

// === impl State ===

impl State {
    /// Stores the Lease, and returns the time at which this version was first read. Expiry is counted from that time by
    /// this machine's clock, because the other replica's clock may differ.
    fn record(&mut self, lease: &Lease, now: Instant) -> Instant {
        match &self.last_read {
            Some((last, first_read)) if last == lease => *first_read,
            _ => {
                self.last_read = Some((lease.clone(), now));
                now
            }
        }
    }
}

// === impl Fence ===

impl Fence {
    pub(crate) fn new(
        leases: Api<Lease>,
        name: &str,
        identity: &str,
        clock: Clock,
        relister: Arc<Relister>,
    ) -> Self {
        let (name, identity) = (name.to_owned(), identity.to_owned());
        let (renewal, state) = (Semaphore::new(1), Shared::default());
        Self { leases, name, identity, clock, relister, renewal, state }
    }

    /// Acquires or renews the Lease if needed, so that it is valid for a bind. Returns the current term.
    pub(crate) async fn acquire(&self) -> Result<u64, FenceError> {
        let _permit = self.renewal.acquire().await.expect("the semaphore is never closed");
        if self.check_validity().is_ok() {
            return Ok(self.term());
        }
        let was_held = self.is_held();
        self.renew().await?;
        if !was_held {
            let result = timeout(RELIST_TIMEOUT, self.relister.relist_pods()).await;
            let result = result.map_err(|_| self.lost_error()).and_then(|result| {
                result.map_err(|error| FenceError::RelistFailed(Box::new(error)))
            });
            if let Err(error) = result {
                self.state.with_lock(|state| state.held_until = None);
                return Err(error);
            }
            // The Lease may have expired during the list.
            self.renew().await?;
            self.state.with_lock(|state| state.term += 1);
            let (lease, identity) = (&self.name, &self.identity);
            tracing::info!(lease, identity, "this replica binds from now on");
        }
        self.check_validity().map(|()| self.term())
    }

    fn term(&self) -> u64 {
        self.state.with_lock(|state| state.term)
    }

    /// Renews the Lease if needed. Fails if the term has ended: between two terms another replica may have bound pods.
    pub(crate) async fn renew_in_term(&self, term: u64) -> Result<(), FenceError> {
        let _permit = self.renewal.acquire().await.expect("the semaphore is never closed");
        if self.term() != term || !self.is_held() {
            return Err(self.lost_error());
        }
        if self.check_validity().is_err() {
            self.renew().await?;
        }
        self.check_validity()
    }

    fn is_held(&self) -> bool {
        let held_until = self.state.with_lock(|state| state.held_until);
        held_until.is_some_and(|until| Instant::now() < until)
    }

    /// Fails unless the Lease is valid for at least `MIN_VALIDITY`.
    pub(crate) fn check_validity(&self) -> Result<(), FenceError> {
        let held_until = self.state.with_lock(|state| state.held_until);
        match held_until {
            Some(until) if Instant::now() + MIN_VALIDITY < until => Ok(()),
            _ => Err(self.lost_error()),
        }
    }

    /// Acquires or renews the Lease.
    async fn renew(&self) -> Result<(), FenceError> {
        let existing = self.with_timeout(self.leases.get_opt(&self.name)).await?;
        let now = Instant::now();
        let stored = match existing {
            None => self.create().await?,
            Some(lease) => {
                let first_read = self.state.with_lock(|state| state.record(&lease, now));
                let holder = holder(&lease).to_owned();
                let is_free = holder.is_empty() || now >= first_read + duration(&lease);
                if holder != self.identity && !is_free {
                    return Err(FenceError::HeldByOther(holder));
                }
                self.replace(lease).await?
            }
        };
        // Counted from before the write: the API server may have stored the Lease right after that.
        let held_until = Some(now + LEASE_DURATION);
        self.state.with_lock(|state| {
            (state.held_until, state.last_read) = (held_until, Some((stored, now)));
        });
        Ok(())
    }

    fn lost_error(&self) -> FenceError {
        FenceError::LeaseLost(self.name.clone())
    }

    /// Releases the Lease, so that another replica can take it over before it expires.
    pub(crate) async fn release(&self) {
        let State { held_until, last_read, .. } = self.state.with_lock(std::mem::take);
        let (Some(_), Some((mut lease, _))) = (held_until, last_read) else { return };
        if let Some(spec) = &mut lease.spec {
            spec.holder_identity = None;
        }
        let parameters = PostParams::default();
        let request = self.leases.replace(&self.name, &parameters, &lease);
        if let Err(error) = self.with_timeout(request).await {
            tracing::debug!(error = windlass_host::causes(&error), "Lease not released");
        }
    }

    async fn create(&self) -> Result<Lease, FenceError> {
        let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
        let lease = Lease { metadata, spec: Some(self.spec(LeaseSpec::default())) };
        self.with_timeout(self.leases.create(&PostParams::default(), &lease)).await
    }

    /// Replaces the Lease at the version that was read: of two concurrent replicas one succeeds.
    async fn replace(&self, lease: Lease) -> Result<Lease, FenceError> {
        let spec = self.spec(lease.spec.unwrap_or_default());
        let lease = Lease { metadata: lease.metadata, spec: Some(spec) };
        self.with_timeout(self.leases.replace(&self.name, &PostParams::default(), &lease)).await
    }

    fn spec(&self, previous: LeaseSpec) -> LeaseSpec {
        let now = MicroTime(self.now());
        let is_new_holder = previous.holder_identity.as_deref() != Some(&self.identity);
        let transitions = previous.lease_transitions.unwrap_or(0) + i32::from(is_new_holder);
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(LEASE_DURATION.as_secs()).ok(),
            acquire_time: if is_new_holder { Some(now.clone()) } else { previous.acquire_time },
            renew_time: Some(now),
            lease_transitions: Some(transitions),
            ..LeaseSpec::default()
        }
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    async fn with_timeout<T>(
        &self,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, FenceError> {
        match timeout(REQUEST_TIMEOUT, request).await {
            Ok(answer) => answer.map_err(|source| FenceError::Unavailable {
                lease: self.name.clone(),
                source: Box::new(source),
            }),
            Err(_) => Err(FenceError::RequestTimedOut(self.name.clone())),
        }
    }
}

fn holder(lease: &Lease) -> &str {
    let spec = lease.spec.as_ref();
    spec.and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default()
}

fn duration(lease: &Lease) -> Duration {
    let seconds = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds);
    seconds.and_then(|it| u64::try_from(it).ok()).map_or(LEASE_DURATION, Duration::from_secs)
}
