//! The replicas behind an address: resolution of the name, and one open stream per replica.
//!
//! ```text
//!               ┌───────(failed: back-off)──────┐
//!               v                               │
//!  resolved ─> due ─────────(dial)─────────> dialing ──(opened)──> open ──(ended)──> due
//! ```
//!
//! The name is resolved as soon as a stream ends, then at intervals that double from half a second up to
//! `resolve_interval`. A new replica resets the interval, since a Deployment replaces its replicas one after another.
//! While no stream is open, the interval is one second. A replica that is missing from the result is removed, unless
//! its stream is open: a draining pod leaves the DNS first.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    pin::Pin,
};

use tokio::{
    task::JoinSet,
    time::{Duration, Instant, Sleep, sleep, sleep_until},
};
use tracing::{info, warn};

use crate::{
    address::{Addresses, ResolvedAddress},
    dial::{self, DialError},
};

/// Replicas of one stage, each with at most one open stream of type `L`.
pub(crate) struct Replicas<L> {
    /// Name of the stage, for the log.
    stage: String,
    addresses: Addresses,
    /// Maximum interval between two resolutions.
    resolve_interval: Duration,
    /// Next interval.
    next_resolve_interval: Duration,
    members: BTreeMap<ResolvedAddress, Replica>,
    dial: Box<dyn Fn(ResolvedAddress) -> Dialing<L> + Send + Sync>,
    dialing: JoinSet<(ResolvedAddress, Result<L, DialError>)>,
    resolving: JoinSet<Result<BTreeSet<ResolvedAddress>, io::Error>>,
    /// Text of the last resolution error, to log each text once.
    resolve_error: Option<String>,
    resolve_at: Instant,
    /// Timer of the next resolution or dial.
    timer: Pin<Box<Sleep>>,
}

type Dialing<L> = Pin<Box<dyn Future<Output = Result<L, DialError>> + Send>>;

#[derive(Debug)]
struct Replica {
    state: State,
    /// Wait after the next failure.
    back_off: Duration,
    /// Text of the last dial error, to log each text once.
    failure: Option<String>,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    Due(Instant),
    Dialing,
    Open,
}

/// Minimum and maximum wait between two dials of a replica.
const BACK_OFF: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(2)];

/// Interval to the next resolution after a change; each further one is twice as long.
const RESOLVE_AFTER_CHANGE: Duration = Duration::from_millis(500);

/// Interval between resolutions while no stream is open.
const RESOLVE_DISCONNECTED: Duration = Duration::from_secs(1);

// === impl Replicas ===

impl<L: Send + 'static> Replicas<L> {
    pub(crate) fn new<F>(
        stage: String,
        addresses: Addresses,
        resolve_interval: Duration,
        dial: impl Fn(ResolvedAddress) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<L, DialError>> + Send + 'static,
    {
        let now = Instant::now();
        Self {
            stage,
            addresses,
            resolve_interval,
            next_resolve_interval: RESOLVE_AFTER_CHANGE,
            members: BTreeMap::new(),
            dial: Box::new(move |target| Box::pin(dial(target))),
            dialing: JoinSet::new(),
            resolving: JoinSet::new(),
            resolve_error: None,
            resolve_at: now,
            timer: Box::pin(sleep_until(now)),
        }
    }

    /// Waits for the next stream that opens. Cancel safe.
    pub(crate) async fn next_opened(&mut self) -> (ResolvedAddress, L) {
        loop {
            tokio::select! {
                Some(Ok((target, dialed))) = self.dialing.join_next() => {
                    if let Some(opened) = self.on_dialed(target, dialed) {
                        return opened;
                    }
                }
                Some(Ok(resolved)) = self.resolving.join_next() => self.on_resolved(resolved),
                () = self.timer.as_mut() => self.start_due(Instant::now()),
            }
        }
    }

    /// Handles the end of the stream to a replica: dials it again after the back-off.
    pub(crate) fn on_ended(&mut self, target: &ResolvedAddress) {
        let now = Instant::now();
        if let Some(replica) = self.members.get_mut(target) {
            replica.state = State::Due(now + replica.back_off);
        }
        self.resolve_at = now;
        self.next_resolve_interval = RESOLVE_AFTER_CHANGE;
        self.timer.as_mut().reset(now);
    }

    /// Starts the resolution and the dials that are due, and sets the timer for the next ones.
    fn start_due(&mut self, now: Instant) {
        if self.resolve_at <= now && self.resolving.is_empty() {
            let is_open = self.members.values().any(|replica| replica.state == State::Open);
            self.resolve_at =
                now + if is_open { self.next_resolve_interval } else { RESOLVE_DISCONNECTED };
            self.next_resolve_interval =
                (2 * self.next_resolve_interval).min(self.resolve_interval);
            self.resolving.spawn(resolve(self.addresses.clone()));
        }
        let mut next =
            if self.resolving.is_empty() { self.resolve_at } else { now + RESOLVE_DISCONNECTED };
        for (target, replica) in &mut self.members {
            match replica.state {
                State::Due(at) if at <= now => {
                    replica.state = State::Dialing;
                    let dialing = with_deadline(dial::DIAL_TIMEOUT, (self.dial)(target.clone()));
                    let target = target.clone();
                    self.dialing.spawn(async { (target, dialing.await) });
                }
                State::Due(at) => next = next.min(at),
                State::Dialing | State::Open => {}
            }
        }
        self.timer.as_mut().reset(next);
    }

    fn on_resolved(&mut self, resolved: Result<BTreeSet<ResolvedAddress>, io::Error>) {
        let now = Instant::now();
        match resolved {
            Ok(targets) => {
                self.resolve_error = None;
                self.members.retain(|target, replica| {
                    replica.state == State::Open || targets.contains(target)
                });
                for target in targets {
                    self.members.entry(target).or_insert_with(|| {
                        self.next_resolve_interval = RESOLVE_AFTER_CHANGE;
                        Replica::due(now)
                    });
                }
            }
            Err(error) => {
                let text = error.to_string();
                if self.resolve_error.as_ref() != Some(&text) {
                    let (stage, addresses) = (&self.stage, &self.addresses);
                    warn!(%stage, %addresses, %error, "cannot find the next stage");
                    self.resolve_error = Some(text);
                }
            }
        }
        self.timer.as_mut().reset(now);
    }

    fn on_dialed(
        &mut self,
        target: ResolvedAddress,
        dialed: Result<L, DialError>,
    ) -> Option<(ResolvedAddress, L)> {
        let now = Instant::now();
        // `None` if the replica was removed while it was dialed.
        let replica = self.members.get_mut(&target)?;
        match dialed {
            Ok(opened) => {
                info!(stage = %self.stage, replica = %target, "stream opened");
                *replica = Replica { state: State::Open, ..Replica::due(now) };
                return Some((target, opened));
            }
            Err(error) => {
                let text = match std::error::Error::source(&error) {
                    Some(source) => format!("{error}: {source}"),
                    None => error.to_string(),
                };
                if replica.failure.as_ref() != Some(&text) {
                    warn!(stage = %self.stage, replica = %target, error = %text,
                          "cannot use a replica of the next stage, trying again");
                }
                replica.failure = Some(text);
                replica.state = State::Due(now + replica.back_off);
                replica.back_off = (replica.back_off * 2).min(BACK_OFF[1]);
            }
        }
        self.timer.as_mut().reset(now);
        None
    }
}

// === impl Replica ===

impl Replica {
    fn due(now: Instant) -> Self {
        Self { state: State::Due(now), back_off: BACK_OFF[0], failure: None }
    }
}

/// Resolves all addresses. An error counts only if no address has a replica.
async fn resolve(addresses: Addresses) -> Result<BTreeSet<ResolvedAddress>, io::Error> {
    let (mut targets, mut failure) = (BTreeSet::new(), None);
    for address in addresses.iter() {
        match address.resolve().await {
            Ok(replicas) => targets.extend(replicas),
            Err(error) => failure = Some(error),
        }
    }
    match failure {
        Some(error) if targets.is_empty() => Err(error),
        _ => Ok(targets),
    }
}

async fn with_deadline<L>(limit: Duration, dialing: Dialing<L>) -> Result<L, DialError> {
    tokio::select! {
        dialed = dialing => dialed,
        () = sleep(limit) => Err(DialError::Timeout),
    }
}
