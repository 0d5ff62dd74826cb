//! Agent that runs in the process of a test.

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
use windlass_node::{Agent, StartError};
use windlass_resources::NodeState;

use crate::wait::{LIMIT, exists, in_time};

/// Running agent. Dropping it stops it; [`Running::stop`] also waits for its end.
#[derive(Debug)]
pub struct Running {
    /// State of its node.
    pub state: watch::Receiver<Arc<NodeState>>,
    /// Address of its health and metrics endpoints.
    pub admin: Option<SocketAddr>,
    /// Handle for MIG partition orders.
    pub partitions: MigHandle,
    /// Policy in effect.
    policy: watch::Sender<Arc<Policy>>,
    task: JoinSet<()>,
    /// Path of the CDI spec of GPUs.
    document: PathBuf,
    /// Folders that the agent locks for itself.
    locks: [PathBuf; 2],
    stop: DropGuard,
}

// === impl Running ===

impl Running {
    /// Starts an agent.
    pub fn start(config: &Config) -> Result<Self, StartError> {
        let policy = watch::Sender::new(Arc::new(config.policy.clone()));
        let clock = Clock::starting_at(Timestamp::now());
        let agent = Agent::start_under(config, policy.subscribe(), clock)?;
        let (state, admin) = (agent.state(), agent.admin_address());
        let partitions = agent.partitions();
        let (stop, mut task) = (CancellationToken::new(), JoinSet::new());
        let token = stop.clone();
        task.spawn(async move { agent.run(token.cancelled()).await.expect("no part fails") });
        let locks =
            [config.places.kubelet_dir.join("device-plugins"), config.places.state_dir.clone()];
        let document = config.places.cdi_dir.join("windlass.dev-gpu.json");
        let stop = stop.drop_guard();
        Ok(Self { state, admin, partitions, policy, task, document, locks, stop })
    }

    /// Waits until the node's state fulfils a condition.
    pub async fn until(&self, condition: impl FnMut(&Arc<NodeState>) -> bool) -> Arc<NodeState> {
        let mut state = self.state.clone();
        let reached = timeout(LIMIT, state.wait_for(condition)).await;
        let reached = reached.map(|found| found.expect("the agent runs").clone());
        reached.unwrap_or_else(|_| {
            let state = self.state.borrow();
            panic!("not in time; the state is {:#?}, {:#?}", state.inventory, state.offerings())
        })
    }

    /// Waits until the text of a device's health begins with `health`: `Healthy` or `Unhealthy`.
    pub async fn until_health(&self, id: &str, health: &str) -> Arc<NodeState> {
        let says = |device: &Device| device.health.to_string().starts_with(health);
        self.until(|state| state.inventory.get(id).is_some_and(says)).await
    }

    /// Waits for this number of reconciliations. For each, a CDI spec is removed, and the agent writes it again.
    pub async fn looks(&self, times: usize) {
        for _ in 0..times {
            exists(&self.document).await;
            fs::remove_file(&self.document).expect("it was there");
        }
        exists(&self.document).await;
    }

    /// Replaces the policy.
    pub fn follow(&self, policy: Policy) {
        self.policy.send_replace(Arc::new(policy));
    }

    /// Stops the agent as SIGTERM does.
    pub async fn stop(mut self) {
        drop(self.stop);
        let ended = in_time("the agent ends", self.task.join_next()).await;
        ended.expect("there is one").expect("no panic");
        unlocked(self.locks).await;
    }

    /// Ends the agent as SIGKILL does, without cleanup.
    pub async fn kill(mut self) {
        self.task.shutdown().await;
        unlocked(self.locks).await;
    }
}

/// Waits until the next agent may start. A child process that another test is about to execute inherits this
/// process's files, and with them the lock. This function unlocks by name: closing the file would leave the lock with
/// such a child.
async fn unlocked(locks: [PathBuf; 2]) {
    // A folder that the test removed has no lock.
    let locks: Vec<_> = locks.into_iter().filter_map(|path| File::open(path).ok()).collect();
    let (free, is_free) = oneshot::channel();
    // The kernel blocks until the lock is free. A plain thread waits here: a runtime would wait for its own at
    // shutdown.
    std::thread::spawn(move || {
        let taken = locks.iter().try_for_each(|it| {
            flock(it, FlockOperation::LockExclusive)?;
            flock(it, FlockOperation::Unlock)
        });
        free.send(taken)
    });
    let taken = in_time("the locks are let go", is_free).await.expect("the thread ends");
    taken.expect("a folder can be locked");
}
