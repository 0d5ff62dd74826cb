//! An agent that runs in a test.

use std::{fs::File, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use jiff::Timestamp;
use rustix::fs::{FlockOperation, flock};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::sync::{CancellationToken, DropGuard};
use windlass_node::{
    Agent, Config, StartError, clock::Clock, config::Policy, partitions::PartitionDesk,
    state::NodeState,
};

/// How long anything may take before a test has failed.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// An agent that runs; it is stopped when dropped, and waited for by [`Running::stop`].
pub(crate) struct Running {
    pub(crate) state: watch::Receiver<Arc<NodeState>>,
    /// What it follows.
    pub(crate) policy: watch::Sender<Arc<Policy>>,
    /// Where it serves health and metrics.
    #[allow(dead_code, reason = "the tests of devices have no question to it")]
    pub(crate) admin: Option<SocketAddr>,
    /// Where it takes orders for MIG partitions.
    #[allow(dead_code, reason = "the tests of devices order none")]
    pub(crate) partitions: PartitionDesk,
    task: JoinSet<()>,
    /// What one agent at a time has.
    locks: [PathBuf; 2],
    stop: DropGuard,
}

// === impl Running ===

impl Running {
    pub(crate) fn start(config: &Config) -> Result<Self, StartError> {
        let policy = watch::Sender::new(Arc::new(config.policy.clone()));
        let clock = Clock::starting_at(Timestamp::now());
        let agent = Agent::start_under(config, policy.subscribe(), clock)?;
        let (state, admin) = (agent.state(), agent.admin_address());
        let partitions = agent.partitions();
        let (stop, mut task) = (CancellationToken::new(), JoinSet::new());
        let token = stop.clone();
        task.spawn(async move { agent.run(token.cancelled()).await.expect("no part fails") });
        let locks = [config.kubelet_dir.join("device-plugins"), config.state_dir.clone()];
        Ok(Self { state, policy, admin, partitions, task, locks, stop: stop.drop_guard() })
    }

    /// Waits for the node's state to fulfil a condition.
    pub(crate) async fn until(
        &self,
        condition: impl FnMut(&Arc<NodeState>) -> bool,
    ) -> Arc<NodeState> {
        let mut state = self.state.clone();
        let reached = timeout(LIMIT, state.wait_for(condition)).await;
        let reached = reached.map(|found| found.expect("the agent runs").clone());
        reached.unwrap_or_else(|_| {
            let state = self.state.borrow();
            panic!("not in time; the state is {:#?}, {:#?}", state.inventory, state.offerings())
        })
    }

    /// Stops the agent as SIGTERM does.
    pub(crate) async fn stop(mut self) {
        drop(self.stop);
        let ended = timeout(LIMIT, self.task.join_next()).await.expect("it stops in time");
        ended.expect("there is one").expect("no panic");
        unlocked(self.locks).await;
    }

    /// Ends the agent as SIGKILL does: nothing of it gets another word.
    #[allow(dead_code, reason = "not every test kills its agents")]
    pub(crate) async fn kill(mut self) {
        self.task.shutdown().await;
        unlocked(self.locks).await;
    }
}

/// Waits until the next agent may start: a program that another test is about to execute has the files of this
/// process open until then, and with them the lock.
async fn unlocked(locks: [PathBuf; 2]) {
    // What a test took away nobody has.
    for folder in locks.into_iter().filter_map(|path| File::open(path).ok()) {
        let free = async {
            while flock(&folder, FlockOperation::NonBlockingLockExclusive).is_err() {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(LIMIT, free).await.expect("the lock is let go");
    }
}
