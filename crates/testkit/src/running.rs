//! Agent that runs in the test's process.

use std::{
    fs::{self, File},
    net::SocketAddr,
    path::PathBuf,
    sync::Arc,
};

use jiff::Timestamp;
use rustix::fs::{FlockOperation, flock};
use tokio::{
    sync::{oneshot, watch},
    task::JoinSet,
    time::timeout,
};
use tokio_util::sync::{CancellationToken, DropGuard};
use windlass_config::{Config, Policy};
use windlass_core::device::Device;
use windlass_discovery::mig::MigHandle;
use windlass_host::clock::Clock;
use windlass_node::{Agent, Reservation, StartError};
use windlass_resources::NodeState;

use crate::wait::{TIMEOUT, until_exists, within_timeout};

/// Running agent. Dropping it stops it; [`RunningAgent::stop`] also waits for its end.
#[derive(Debug)]
pub struct RunningAgent {
    /// State of the agent's node.
    pub state: watch::Receiver<Arc<NodeState>>,
    /// Address of the agent's health and metrics endpoints.
    pub admin: Option<SocketAddr>,
    /// Handle for MIG partition orders.
    pub partitions: MigHandle,
    /// Policy in effect.
    policy: watch::Sender<Arc<Policy>>,
    task: JoinSet<()>,
    /// Path of the CDI spec of GPUs.
    cdi_spec: PathBuf,
    /// Folders that the agent locks exclusively.
    locks: [PathBuf; 2],
    stop: DropGuard,
}

// === impl RunningAgent ===

impl RunningAgent {
    /// Starts an agent.
    pub fn start(config: &Config) -> Result<Self, StartError> {
        Self::start_reserved(config, Reservation::new(config)?)
    }

    /// Starts an agent that has reserved its node.
    pub fn start_reserved(config: &Config, reservation: Reservation) -> Result<Self, StartError> {
        let policy = watch::Sender::new(Arc::new(config.policy.clone()));
        let clock = Clock::starting_at(Timestamp::now());
        let agent = Agent::start_with_policy(config, reservation, policy.subscribe(), clock)?;
        let (state, admin) = (agent.state(), agent.admin_address());
        let partitions = agent.partitions();
        let (stop, mut task) = (CancellationToken::new(), JoinSet::new());
        let token = stop.clone();
        task.spawn(async move { agent.run(token.cancelled()).await.expect("no failure") });
        let locks =
            [config.places.kubelet_dir.join("device-plugins"), config.places.state_dir.clone()];
        let cdi_spec = config.places.cdi_dir.join("windlass.dev-gpu.json");
        let stop = stop.drop_guard();
        Ok(Self { state, admin, partitions, policy, task, cdi_spec, locks, stop })
    }

    /// Waits until the node's state meets a condition.
    pub async fn until(&self, condition: impl FnMut(&Arc<NodeState>) -> bool) -> Arc<NodeState> {
        let mut state = self.state.clone();
        let result = timeout(TIMEOUT, state.wait_for(condition)).await;
        let result = result.map(|state| state.expect("a running agent").clone());
        result.unwrap_or_else(|_| {
            let state = self.state.borrow();
            let (inventory, offers) = (&state.inventory, state.device_offers());
            panic!("not within {TIMEOUT:?}; the state is {inventory:#?}, {offers:#?}")
        })
    }

    /// Waits until the text of a device's health begins with `health`: `Healthy` or `Unhealthy`.
    pub async fn until_health(&self, id: &str, health: &str) -> Arc<NodeState> {
        let has_health = |device: &Device| device.health.to_string().starts_with(health);
        self.until(|state| state.inventory.get(id).is_some_and(has_health)).await
    }

    /// Waits for this number of reconciliations. Removes a CDI spec for each, and waits until the agent writes it
    /// again.
    pub async fn until_reconciled(&self, times: usize) {
        for _ in 0..times {
            until_exists(&self.cdi_spec).await;
            fs::remove_file(&self.cdi_spec).expect("an existing file");
        }
        until_exists(&self.cdi_spec).await;
    }

    /// Replaces the agent's policy.
    pub fn set_policy(&self, policy: Policy) {
        self.policy.send_replace(Arc::new(policy));
    }

    /// Stops the agent as SIGTERM does.
    pub async fn stop(mut self) {
        drop(self.stop);
        let result = within_timeout("the agent ends", self.task.join_next()).await;
        result.expect("one task").expect("no panic");
        until_unlocked(self.locks).await;
    }

    /// Ends the agent as SIGKILL does, without cleanup.
    pub async fn kill(mut self) {
        self.task.shutdown().await;
        until_unlocked(self.locks).await;
    }
}

/// Waits until the next agent can lock the folders: a check of the locks may still run on a blocking thread. Closing the
/// file would leave the lock with a child process that another test forked, until the child executes its program.
async fn until_unlocked(locks: [PathBuf; 2]) {
    // A folder that the test removed needs no wait.
    let locks: Vec<_> = locks.into_iter().filter_map(|path| File::open(path).ok()).collect();
    let (sender, receiver) = oneshot::channel();
    // `flock` blocks until the lock is free. A runtime waits for its blocking tasks at shutdown, but not for this
    // thread.
    std::thread::spawn(move || {
        let result = locks.iter().try_for_each(|it| {
            flock(it, FlockOperation::LockExclusive)?;
            flock(it, FlockOperation::Unlock)
        });
        sender.send(result)
    });
    let result = within_timeout("the agent's locks are free", receiver).await.expect("a result");
    result.expect("locked and unlocked");
}
