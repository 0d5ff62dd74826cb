//! Fence of binds: a Lease, so that of two replicas one binds at a time.
//!
//! ```text
//!            bind: created, taken over when expired, or renewed
//!   idle ──────────────────────────────────────────────────────> held ──> idle, after the Lease's duration
//!     └──another replica holds it──> refused: kube-scheduler tries again
//! ```
//!
//! The Lease is written by binds alone: an idle cluster costs nothing. A replica that takes it over reads all pods
//! first, since the other one may have bound some that the watch has not brought yet.

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

use crate::watches::Refresh;

/// Time after which another replica may bind, counted from the last renewal.
const DURATION: Duration = Duration::from_secs(15);
/// A bind renews the Lease when less than this is left: a bind takes at most 5 s.
const RENEWED_WITHIN: Duration = Duration::from_secs(10);
/// Deadline of a request to the API server.
const ANSWER_LIMIT: Duration = Duration::from_secs(4);

/// The Lease that binds need.
pub(crate) struct Fence {
    leases: Api<Lease>,
    name: String,
    identity: String,
    clock: Clock,
    refresh: Arc<Refresh>,
    /// One bind at a time looks after the Lease.
    turn: Semaphore,
    state: Shared<State>,
}

#[derive(Clone, Debug, Default)]
struct State {
    /// The Lease is ours until then.
    held_until: Option<Instant>,
    /// The Lease as last seen, and the time of its last change.
    seen: Option<(Lease, Instant)>,
}

/// Reason why this replica may not bind.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FenceError {
    /// Another replica holds the Lease.
    #[error("replica {0} binds at present: try again")]
    Held(String),
    /// The Lease cannot be read or written.
    #[error("the Lease {lease} cannot be had")]
    Unavailable {
        /// Its name.
        lease: String,
        /// The reason.
        source: Box<kube::Error>,
    },
    /// The API server did not answer.
    #[error("the API server did not answer for the Lease {0} within {ANSWER_LIMIT:?}")]
    Late(String),
    /// The pods could not be read after a take-over.
    #[error("the pods cannot be read again after taking the Lease over")]
    Stale(#[source] Box<kube::Error>),
}

// === impl Fence ===

impl Fence {
    pub(crate) fn new(
        leases: Api<Lease>,
        name: &str,
        identity: &str,
        clock: Clock,
        refresh: Arc<Refresh>,
    ) -> Self {
        let (name, identity) = (name.to_owned(), identity.to_owned());
        let (turn, state) = (Semaphore::new(1), Shared::default());
        Self { leases, name, identity, clock, refresh, turn, state }
    }

    /// Makes sure that the Lease is ours for the time of a bind.
    pub(crate) async fn hold(&self) -> Result<(), FenceError> {
        let _turn = self.turn.acquire().await.expect("never closed");
        let (mut state, now) = (self.state.step(|state| state.clone()), Instant::now());
        if state.held_until.is_some_and(|until| now + RENEWED_WITHIN < until) {
            return Ok(());
        }
        let was_ours = state.held_until.is_some_and(|until| now < until);
        let found = self.call(self.leases.get_opt(&self.name)).await?;
        let written = match found {
            None => self.create().await?,
            Some(lease) => {
                let holder = holder(&lease).to_owned();
                let is_known = state.seen.as_ref().is_some_and(|(seen, _)| *seen == lease);
                if !is_known {
                    state.seen = Some((lease.clone(), now));
                    self.state.step(|known| known.seen.clone_from(&state.seen));
                }
                // Clocks of machines differ: the other one's Lease expires by ours, from its last change seen.
                let since = state.seen.as_ref().map_or(now, |(_, since)| *since);
                let is_free = holder.is_empty() || now >= since + duration(&lease);
                if holder != self.identity && !is_free {
                    return Err(FenceError::Held(holder));
                }
                self.replace(lease).await?
            }
        };
        if !was_ours {
            self.refresh.pods().await.map_err(|error| FenceError::Stale(Box::new(error)))?;
            tracing::info!(
                lease = self.name,
                identity = self.identity,
                "this replica binds from now on"
            );
        }
        let held_until = Some(now + DURATION);
        self.state.step(|state| *state = State { held_until, seen: Some((written, now)) });
        Ok(())
    }

    /// Gives the Lease up, so that another replica need not wait.
    pub(crate) async fn give_up(&self) {
        let State { held_until, seen } = self.state.step(std::mem::take);
        let (Some(_), Some((mut lease, _))) = (held_until, seen) else { return };
        if let Some(spec) = &mut lease.spec {
            spec.holder_identity = None;
        }
        let how = PostParams::default();
        let replaced = self.leases.replace(&self.name, &how, &lease);
        if let Err(error) = self.call(replaced).await {
            tracing::debug!(
                error = windlass_host::causes(&error),
                "the Lease could not be given up"
            );
        }
    }

    async fn create(&self) -> Result<Lease, FenceError> {
        let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
        let lease = Lease { metadata, spec: Some(self.spec(LeaseSpec::default())) };
        self.call(self.leases.create(&PostParams::default(), &lease)).await
    }

    /// Writes over the version that was seen: of two replicas one succeeds.
    async fn replace(&self, lease: Lease) -> Result<Lease, FenceError> {
        let spec = self.spec(lease.spec.unwrap_or_default());
        let lease = Lease { metadata: lease.metadata, spec: Some(spec) };
        self.call(self.leases.replace(&self.name, &PostParams::default(), &lease)).await
    }

    fn spec(&self, before: LeaseSpec) -> LeaseSpec {
        let now = MicroTime(self.now());
        let is_new = before.holder_identity.as_deref() != Some(&self.identity);
        let transitions = before.lease_transitions.unwrap_or(0) + i32::from(is_new);
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
            acquire_time: if is_new { Some(now.clone()) } else { before.acquire_time },
            renew_time: Some(now),
            lease_transitions: Some(transitions),
            ..LeaseSpec::default()
        }
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    async fn call<T>(
        &self,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, FenceError> {
        match timeout(ANSWER_LIMIT, request).await {
            Ok(answer) => answer.map_err(|source| FenceError::Unavailable {
                lease: self.name.clone(),
                source: Box::new(source),
            }),
            Err(_) => Err(FenceError::Late(self.name.clone())),
        }
    }
}

fn holder(lease: &Lease) -> &str {
    let spec = lease.spec.as_ref();
    spec.and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default()
}

fn duration(lease: &Lease) -> Duration {
    let seconds = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds);
    seconds.and_then(|it| u64::try_from(it).ok()).map_or(DURATION, Duration::from_secs)
}
