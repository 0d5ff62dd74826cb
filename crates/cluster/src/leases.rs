//! Leases of devices that several nodes can reach: only the holder of a device's Lease offers the device.
//!
//! A network-attached board can be configured on several nodes, its gateways. The gateway that holds the board's lease
//! offers the board; the other gateways report the holder. When a gateway dies, another takes over after the lease's
//! duration. A restarted agent keeps its leases, since they last longer than a restart.

mod tracked;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;
use windlass_core::device::{Device, DeviceId};
use windlass_host::{clock::Clock, watch::changed};
use windlass_resources::NodeState;

use self::tracked::{Action, TrackedLease};
use super::{
    Client, ClusterError, client::Connection, create_params, error::is_write_conflict,
    request_backoff::RequestBackoff, shared_connection::SharedConnection,
};

/// State of each device's lease.
pub type LeaseStates = BTreeMap<DeviceId, LeaseState>;

/// State of a device's lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseState {
    /// Not known yet.
    Unknown,
    /// Held by this node.
    Held,
    /// Held by the node of this name.
    HeldBy(String),
    /// Held by this node, but not renewed in time: another node may take it.
    Overdue,
}

/// Acquires and renews the leases of devices whose source is configured for leases. Returns the states of the leases,
/// and the task, which ends at `stop`. `wake` is notified of each change of a state.
///
/// # Guarantees
///
/// A lease is replaced only at the version that was read, so only one of two competing nodes gets it. Without devices
/// that need a lease, no connection is opened. Leases are not released when the agent stops: the agent may be restarted
/// while containers run.
pub fn maintain(
    client: Client,
    state: watch::Receiver<Arc<NodeState>>,
    clock: Clock,
    wake: Arc<Notify>,
    stop: CancellationToken,
) -> (watch::Receiver<Arc<LeaseStates>>, impl Future<Output = ()> + Send) {
    let (states, receiver) = watch::channel(Arc::default());
    let backoff = RequestBackoff::new("leases", &client);
    let leases = LeaseRenewer {
        state,
        connection: SharedConnection::new(client),
        clock,
        backoff,
        tracked: BTreeMap::new(),
        states,
        wake,
    };
    let task = async move {
        stop.run_until_cancelled(Box::pin(leases.run())).await;
    };
    (receiver, task)
}

struct LeaseRenewer {
    state: watch::Receiver<Arc<NodeState>>,
    connection: SharedConnection,
    clock: Clock,
    backoff: RequestBackoff,
    tracked: BTreeMap<DeviceId, TrackedLease>,
    states: watch::Sender<Arc<LeaseStates>>,
    wake: Arc<Notify>,
}

/// Renewals per duration of a lease: a few renewals may fail without losing the lease.
const RENEWALS_PER_DURATION: u32 = 6;

// === impl LeaseState ===

impl LeaseState {
    /// Reason why the device cannot be allocated; `None` if this node holds the lease.
    pub fn obstacle(&self) -> Option<String> {
        match self {
            Self::Held => None,
            Self::Unknown => Some("lease: not held yet".to_owned()),
            Self::HeldBy(node) => Some(format!("leased by node {node}")),
            Self::Overdue => Some("lease: the API server could not renew it in time".to_owned()),
        }
    }
}

// === impl LeaseRenewer ===

impl LeaseRenewer {
    async fn run(mut self) {
        loop {
            self.track_devices();
            // The state of a vanished device is removed at once: when the device returns, this node may not hold it.
            self.publish();
            if self.tracked.is_empty() {
                self.connection.reset();
                changed(&mut self.state).await;
                continue;
            }
            let interval =
                self.connection.client().timeouts().lease_duration / RENEWALS_PER_DURATION;
            let delay = match self.renew_all().await {
                Ok(()) => interval,
                Err(error) => {
                    self.connection.reset();
                    self.backoff.record_failure(&error).min(interval)
                }
            };
            self.publish();
            tokio::select! {
                () = sleep(delay) => {}
                () = devices_changed(&mut self.state, &self.tracked) => {}
            }
            // A lease that expired while the agent was suspended is lost before any request to the API server.
            self.publish();
        }
    }

    /// Tracks the leases of the present devices. Leases of other devices expire.
    fn track_devices(&mut self) {
        let state = self.state.borrow_and_update().clone();
        let leased_devices: Vec<_> = leased_devices(&state).cloned().collect();
        self.tracked.retain(|device, _| leased_devices.contains(device));
        let client = self.connection.client();
        let (node, duration) = (client.node(), client.timeouts().lease_duration);
        for device in leased_devices {
            self.tracked.entry(device).or_insert_with(|| TrackedLease::new(node, duration));
        }
    }

    /// Takes or renews each lease once. A refused lease does not affect others.
    async fn renew_all(&mut self) -> Result<(), ClusterError> {
        let connection = self.connection.connect().await?;
        let namespace = self.connection.client().namespace(&connection);
        let leases: Api<Lease> = Api::namespaced(connection.kube.clone(), &namespace);
        let api = LeaseApi { leases, connection: &connection, clock: self.clock };
        let mut outcome = Ok(());
        for (device, lease) in &mut self.tracked {
            match api.renew(&lease_name(device), lease).await {
                Ok(()) => {}
                Err(refused @ ClusterError::Refused(..)) => outcome = Err(refused),
                Err(error) => return Err(error),
            }
        }
        if outcome.is_ok() {
            self.backoff.record_success();
        }
        outcome
    }

    fn publish(&self) {
        let now = Instant::now();
        let tracked = self.tracked.iter();
        let states: LeaseStates =
            tracked.map(|(device, lease)| (device.clone(), lease.state(now))).collect();
        let is_changed = self.states.send_if_modified(|previous| {
            let is_changed = **previous != states;
            for (device, state) in
                states.iter().filter(|(device, state)| previous.get(*device) != Some(state))
            {
                tracing::info!(%device, ?state, "lease changed");
            }
            *previous = Arc::new(states);
            is_changed
        });
        if is_changed {
            self.wake.notify_one();
        }
    }
}

/// The cluster's leases.
struct LeaseApi<'a> {
    leases: Api<Lease>,
    connection: &'a Connection,
    clock: Clock,
}

// === impl LeaseApi ===

impl LeaseApi<'_> {
    /// Reads a lease, and takes or renews it if allowed.
    async fn renew(&self, name: &str, tracked: &mut TrackedLease) -> Result<(), ClusterError> {
        let context = || format!("cannot read Lease {name}");
        let lease = match self.connection.call(context, self.leases.get(name)).await {
            Err(error) if error.is_not_found() => None,
            lease => Some(lease?),
        };
        let now = Instant::now();
        tracked.record_read(lease, now);
        let params = create_params();
        let context = || format!("cannot write Lease {name}");
        let written = match tracked.action(name, now, self.clock.now()) {
            Action::Wait => return Ok(()),
            Action::Create(lease) => {
                self.connection.call(context, self.leases.create(&params, &lease)).await
            }
            Action::Replace(lease) => {
                self.connection.call(context, self.leases.replace(name, &params, &lease)).await
            }
        };
        match written {
            // Another node wrote first. The next read returns its name.
            Err(error) if error.status().is_some_and(is_write_conflict) => Ok(()),
            written => written.map(|lease| tracked.record_write(lease, now)),
        }
    }
}

/// Name of a device's lease, equal on all nodes. Ids that differ only in characters that names cannot contain share a
/// lease; one node then holds it for both.
fn lease_name(device: &DeviceId) -> String {
    let is_allowed = |letter: char| letter.is_ascii_alphanumeric() || letter == '.';
    let name = device.as_str().to_ascii_lowercase().replace(|letter| !is_allowed(letter), "-");
    format!("windlass-{}", name.trim_matches(['-', '.']).replace("..", ".-"))
}

/// Devices that need a lease. A vanished device may have moved to another node, which waits for its lease.
fn leased_devices(state: &NodeState) -> impl Iterator<Item = &DeviceId> {
    let is_leased =
        |device: &&Device| state.policy.is_leased(device) && !device.health.has_vanished();
    state.inventory.devices.iter().filter(is_leased).map(|device| &device.id)
}

/// Waits until the set of devices that need a lease changes.
async fn devices_changed(
    state: &mut watch::Receiver<Arc<NodeState>>,
    tracked: &BTreeMap<DeviceId, TrackedLease>,
) {
    loop {
        changed(state).await;
        let state = state.borrow_and_update().clone();
        if !leased_devices(&state).collect::<BTreeSet<_>>().into_iter().eq(tracked.keys()) {
            return;
        }
    }
}
