//! Leases: which node may hand out a device that several nodes reach.
//!
//! A board on the network can be in the configuration of several gateways. Of those the one that holds
//! the board's lease offers it, and the others say who does. When a gateway dies, another takes over
//! once the lease's time is up. A lease says nothing of containers: it is long enough for an agent to be
//! replaced while its containers go on, and no longer than a board may be idle for a gateway that died.

mod term;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, api::PostParams, core::Status};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;
use windlass_core::device::{Device, DeviceId};
use windlass_host::{clock::Clock, watch::changed};
use windlass_resources::NodeState;

use self::term::{Step, Term};
use super::{Client, ClusterError, MANAGER, attempts::Attempts, client::Connection};

/// Whose each device's lease is.
pub type LeaseStates = BTreeMap<DeviceId, LeaseState>;

/// Whose a device's lease is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseState {
    /// Nobody knows yet.
    Unknown,
    /// This node's.
    Ours,
    /// That of the node with this name.
    Theirs(String),
    /// It was this node's, and could not be renewed in time.
    Late,
}

/// Keeps leases of the devices whose source asks for it. Gives whose they are, and the task to run, which
/// ends when stopped; `news` is notified of each change.
///
/// # Guarantees
///
/// A lease is written only over the version that was seen, so of two nodes one gets it. With no source
/// that asks for leases nobody is connected to. Leases are not given up at the end: the agent may come
/// back while containers go on.
pub fn keep(
    client: Client,
    state: watch::Receiver<Arc<NodeState>>,
    clock: Clock,
    news: Arc<Notify>,
    stop: CancellationToken,
) -> (watch::Receiver<Arc<LeaseStates>>, impl Future<Output = ()> + Send) {
    let (states, receiver) = watch::channel(Arc::default());
    let attempts = Attempts::new("leases", &client);
    let (terms, connection) = Default::default();
    let leases = Leases { state, client, clock, attempts, terms, connection, states, news };
    let run = async move {
        tokio::select! {
            () = stop.cancelled() => {}
            () = leases.run() => {}
        }
    };
    (receiver, run)
}

struct Leases {
    state: watch::Receiver<Arc<NodeState>>,
    client: Client,
    clock: Clock,
    attempts: Attempts,
    terms: BTreeMap<DeviceId, Term>,
    connection: Option<Connection>,
    states: watch::Sender<Arc<LeaseStates>>,
    news: Arc<Notify>,
}

/// A lease is renewed as often within its time: a few answers may fail to come.
const RENEWALS: u32 = 6;

// === impl LeaseState ===

impl LeaseState {
    /// Why the device cannot be handed out; `None` when it can.
    pub fn trouble(&self) -> Option<String> {
        match self {
            Self::Ours => None,
            Self::Unknown => Some("lease: not held yet".to_owned()),
            Self::Theirs(node) => Some(format!("leased by node {node}")),
            Self::Late => Some("lease: the API server could not renew it in time".to_owned()),
        }
    }
}

// === impl Leases ===

impl Leases {
    async fn run(mut self) {
        loop {
            self.follow();
            // What is gone is nobody's, lest it come back as ours.
            self.publish();
            if self.terms.is_empty() {
                self.connection = None;
                changed(&mut self.state).await;
                continue;
            }
            let interval = self.client.limits().lease / RENEWALS;
            let pause = match self.round().await {
                Ok(()) => interval,
                Err(error) => {
                    self.connection = None;
                    self.attempts.failed(&error).min(interval)
                }
            };
            self.publish();
            tokio::select! {
                () = sleep(pause) => {}
                () = other_wishes(&mut self.state, &self.terms) => {}
            }
            // What ran out while the agent was stopped is lost, before the API server is asked.
            self.publish();
        }
    }

    /// Takes up the devices that want a lease now. Of one that does not any more the lease runs out.
    fn follow(&mut self) {
        let state = self.state.borrow_and_update().clone();
        let wanted: Vec<_> = wanted(&state).cloned().collect();
        self.terms.retain(|device, _| wanted.contains(device));
        let (node, length) = (self.client.node(), self.client.limits().lease);
        for device in wanted {
            self.terms.entry(device).or_insert_with(|| Term::new(node, length));
        }
    }

    /// Asks for every lease once. One that is refused keeps no other from being renewed.
    async fn round(&mut self) -> Result<(), ClusterError> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(self.client.connect().await?),
        };
        let namespace = self.client.namespace(connection);
        let leases: Api<Lease> = Api::namespaced(connection.kube.clone(), &namespace);
        let office = Office { leases, connection, clock: self.clock };
        let mut outcome = Ok(());
        for (device, term) in &mut self.terms {
            match office.keep(&lease_name(device), term).await {
                Ok(()) => {}
                Err(refused @ ClusterError::Refused { .. }) => outcome = Err(refused),
                Err(error) => return Err(error),
            }
        }
        if outcome.is_ok() {
            self.attempts.worked();
        }
        outcome
    }

    fn publish(&self) {
        let now = Instant::now();
        let terms = self.terms.iter();
        let states: LeaseStates =
            terms.map(|(device, term)| (device.clone(), term.state(now))).collect();
        let news = self.states.send_if_modified(|known| {
            let news = **known != states;
            for (device, state) in states.iter().filter(|(id, to)| known.get(*id) != Some(to)) {
                tracing::info!(%device, ?state, "lease changed");
            }
            *known = Arc::new(states);
            news
        });
        if news {
            self.news.notify_one();
        }
    }
}

/// Where leases are kept.
struct Office<'a> {
    leases: Api<Lease>,
    connection: &'a Connection,
    clock: Clock,
}

// === impl Office ===

impl Office<'_> {
    /// Looks at a lease, and takes or renews it if that may be.
    async fn keep(&self, name: &str, term: &mut Term) -> Result<(), ClusterError> {
        let doing = || format!("cannot read Lease {name}");
        let found = match self.connection.ask(doing, self.leases.get(name)).await {
            Err(error) if error.is_not_found() => None,
            found => Some(found?),
        };
        let now = Instant::now();
        term.see(found, now);
        let how = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
        let doing = || format!("cannot write Lease {name}");
        let written = match term.step(name, (now, self.clock.now())) {
            Step::Leave => return Ok(()),
            Step::Create(lease) => {
                self.connection.ask(doing, self.leases.create(&how, &lease)).await
            }
            Step::Replace(lease) => {
                self.connection.ask(doing, self.leases.replace(name, &how, &lease)).await
            }
        };
        match written {
            // Another was quicker; the next look tells who.
            Err(error) if error.status().is_some_and(is_overtaken) => Ok(()),
            written => written.map(|lease| term.wrote(lease, now)),
        }
    }
}

fn is_overtaken(status: &Status) -> bool {
    status.is_conflict() || status.is_already_exists()
}

/// The name of a device's lease, the same on every node. Ids that differ only in what a name cannot
/// hold share a lease, which is then held by one node for both.
fn lease_name(device: &DeviceId) -> String {
    let allowed = |letter: char| letter.is_ascii_alphanumeric() || letter == '.';
    let spelled = device.as_str().to_ascii_lowercase().replace(|letter| !allowed(letter), "-");
    format!("windlass-{}", spelled.trim_matches(['-', '.']).replace("..", ".-"))
}

/// The devices that are handed out only with a lease. One that is no longer on this node may be on
/// another, which waits for it.
fn wanted(state: &NodeState) -> impl Iterator<Item = &DeviceId> {
    let is_wanted =
        |device: &&Device| state.policy.is_leased(device) && !device.health.has_vanished();
    state.inventory.devices.iter().filter(is_wanted).map(|device| &device.id)
}

/// Waits until other devices want a lease.
async fn other_wishes(
    state: &mut watch::Receiver<Arc<NodeState>>,
    terms: &BTreeMap<DeviceId, Term>,
) {
    loop {
        changed(state).await;
        let state = state.borrow_and_update().clone();
        if !wanted(&state).collect::<BTreeSet<_>>().into_iter().eq(terms.keys()) {
            return;
        }
    }
}
