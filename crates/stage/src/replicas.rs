//! The replicas behind an address: found by name, dialed, and dialed again.
//!
//! ```text
//!            ┌────────(failed: pause)────────┐
//!            v                               │
//!  found ─> due ─────────(dial)─────────> dialing ──(opened)──> open ──(ended)──> due
//! ```
//!
//! The name is resolved every few seconds, more often after a change, and each second while none is open: replicas of a
//! Deployment come and go one after another. A replica that
//! the name no longer has is forgotten, unless it is open: a draining pod leaves the DNS first.

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
    address::{Addresses, Target},
    dial::{self, DialError},
};

/// Replicas of one stage, each with at most one open stream of type `L`.
pub(crate) struct Replicas<L> {
    /// The stage, for the log.
    stage: String,
    addresses: Addresses,
    /// Longest pause between two looks at the name.
    resolve_every: Duration,
    /// The next pause.
    resolve_after: Duration,
    known: BTreeMap<Target, Replica>,
    dial: Box<dyn Fn(Target) -> Dialing<L> + Send + Sync>,
    dialing: JoinSet<(Target, Result<L, DialError>)>,
    resolving: JoinSet<Result<BTreeSet<Target>, io::Error>>,
    /// Text of the newest failure to resolve.
    unresolved: Option<String>,
    resolve_at: Instant,
    /// Wakes for the next thing that is due.
    alarm: Pin<Box<Sleep>>,
}

type Dialing<L> = Pin<Box<dyn Future<Output = Result<L, DialError>> + Send>>;

#[derive(Debug)]
struct Replica {
    life: Life,
    /// Pause after the next failure.
    back_off: Duration,
    /// Text of the newest failure: a new text is news, the same one is not.
    failure: Option<String>,
}

#[derive(Debug, PartialEq, Eq)]
enum Life {
    Due(Instant),
    Dialing,
    Open,
}

/// Shortest and longest pause between two dials of a replica.
const BACK_OFF: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(2)];

/// Pause after a change; each further one is twice as long.
const AFTER_CHANGE: Duration = Duration::from_millis(500);

/// Pause between two looks at a name of which no replica is open.
const NONE_OPEN: Duration = Duration::from_secs(1);

// === impl Replicas ===

impl<L: Send + 'static> Replicas<L> {
    pub(crate) fn new<F>(
        stage: String,
        addresses: Addresses,
        resolve_every: Duration,
        dial: impl Fn(Target) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<L, DialError>> + Send + 'static,
    {
        let now = Instant::now();
        Self {
            stage,
            addresses,
            resolve_every,
            resolve_after: AFTER_CHANGE,
            known: BTreeMap::new(),
            dial: Box::new(move |target| Box::pin(dial(target))),
            dialing: JoinSet::new(),
            resolving: JoinSet::new(),
            unresolved: None,
            resolve_at: now,
            alarm: Box::pin(sleep_until(now)),
        }
    }

    /// The next stream that opens. May be dropped and called again at any time.
    pub(crate) async fn opened(&mut self) -> (Target, L) {
        loop {
            tokio::select! {
                Some(Ok((target, dialed))) = self.dialing.join_next() => {
                    if let Some(opened) = self.dialed(target, dialed) {
                        return opened;
                    }
                }
                Some(Ok(resolved)) = self.resolving.join_next() => self.resolved(resolved),
                () = self.alarm.as_mut() => self.act(Instant::now()),
            }
        }
    }

    /// The stream to a replica has ended.
    pub(crate) fn ended(&mut self, target: &Target) {
        let now = Instant::now();
        if let Some(replica) = self.known.get_mut(target) {
            replica.life = Life::Due(now + replica.back_off);
        }
        self.resolve_at = now;
        self.resolve_after = AFTER_CHANGE;
        self.alarm.as_mut().reset(now);
    }

    /// Starts everything that is due, and sets the alarm for the rest.
    fn act(&mut self, now: Instant) {
        if self.resolve_at <= now && self.resolving.is_empty() {
            let is_open = self.known.values().any(|replica| replica.life == Life::Open);
            self.resolve_at = now + if is_open { self.resolve_after } else { NONE_OPEN };
            self.resolve_after = (2 * self.resolve_after).min(self.resolve_every);
            self.resolving.spawn(resolve(self.addresses.clone()));
        }
        let mut next = if self.resolving.is_empty() { self.resolve_at } else { now + NONE_OPEN };
        for (target, replica) in &mut self.known {
            match replica.life {
                Life::Due(at) if at <= now => {
                    replica.life = Life::Dialing;
                    let dialing = within(dial::LIMIT, (self.dial)(target.clone()));
                    let target = target.clone();
                    self.dialing.spawn(async { (target, dialing.await) });
                }
                Life::Due(at) => next = next.min(at),
                Life::Dialing | Life::Open => {}
            }
        }
        self.alarm.as_mut().reset(next);
    }

    fn resolved(&mut self, resolved: Result<BTreeSet<Target>, io::Error>) {
        let now = Instant::now();
        match resolved {
            Ok(found) => {
                self.unresolved = None;
                self.known
                    .retain(|target, replica| replica.life == Life::Open || found.contains(target));
                for target in found {
                    self.known.entry(target).or_insert_with(|| {
                        self.resolve_after = AFTER_CHANGE;
                        Replica::found(now)
                    });
                }
            }
            Err(error) => {
                let text = error.to_string();
                if self.unresolved.as_ref() != Some(&text) {
                    let (stage, addresses) = (&self.stage, &self.addresses);
                    warn!(%stage, %addresses, %error, "cannot find the next stage");
                    self.unresolved = Some(text);
                }
            }
        }
        self.alarm.as_mut().reset(now);
    }

    fn dialed(&mut self, target: Target, dialed: Result<L, DialError>) -> Option<(Target, L)> {
        let now = Instant::now();
        // A replica that left the name while it was dialed.
        let replica = self.known.get_mut(&target)?;
        match dialed {
            Ok(opened) => {
                info!(stage = %self.stage, replica = %target, "stream opened");
                *replica = Replica { life: Life::Open, ..Replica::found(now) };
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
                replica.life = Life::Due(now + replica.back_off);
                replica.back_off = (replica.back_off * 2).min(BACK_OFF[1]);
            }
        }
        self.alarm.as_mut().reset(now);
        None
    }
}

// === impl Replica ===

impl Replica {
    fn found(now: Instant) -> Self {
        Self { life: Life::Due(now), back_off: BACK_OFF[0], failure: None }
    }
}

/// All replicas. One address that fails hides no other.
async fn resolve(addresses: Addresses) -> Result<BTreeSet<Target>, io::Error> {
    let (mut found, mut failure) = (BTreeSet::new(), None);
    for address in addresses.iter() {
        match address.resolve().await {
            Ok(targets) => found.extend(targets),
            Err(error) => failure = Some(error),
        }
    }
    match failure {
        Some(error) if found.is_empty() => Err(error),
        _ => Ok(found),
    }
}

async fn within<L>(limit: Duration, dialing: Dialing<L>) -> Result<L, DialError> {
    tokio::select! {
        dialed = dialing => dialed,
        () = sleep(limit) => Err(DialError::Silent),
    }
}
