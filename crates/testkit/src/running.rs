//! An agent that runs in a test.

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
use windlass_discovery::mig::PartitionDesk;
use windlass_host::clock::Clock;
use windlass_node::{Agent, StartError};
use windlass_resources::NodeState;

use crate::wait::{LIMIT, exists, in_time};

/// An agent that runs; it is stopped when dropped, and waited for by [`Running::stop`].
#[derive(Debug)]
pub struct Running {
    /// The state of its node.
    pub state: watch::Receiver<Arc<NodeState>>,
    /// The address at which it serves health and metrics.
    pub admin: Option<SocketAddr>,
    /// The desk that takes orders for MIG partitions.
    pub partitions: PartitionDesk,
    /// The policy that it follows.
    policy: watch::Sender<Arc<Policy>>,
    task: JoinSet<()>,
    /// The CDI document of GPUs.
    document: PathBuf,
    /// The folders that one agent at a time has locked.
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

    /// Waits for the node's state to fulfil a condition.
    pub async fn until(&self, condition: impl FnMut(&Arc<NodeState>) -> bool) -> Arc<NodeState> {
        let mut state = self.state.clone();
        let reached = timeout(LIMIT, state.wait_for(condition)).await;
        let reached = reached.map(|found| found.expect("the agent runs").clone());
        reached.unwrap_or_else(|_| {
            let state = self.state.borrow();
            panic!("not in time; the state is {:#?}, {:#?}", state.inventory, state.offerings())
        })
    }

    /// Waits until a device says this of its health, beginning with `Healthy` or `Unhealthy`.
    pub async fn until_health(&self, id: &str, health: &str) -> Arc<NodeState> {
        let says = |device: &Device| device.health.to_string().starts_with(health);
        self.until(|state| state.inventory.get(id).is_some_and(says)).await
    }

    /// Waits until the agent has looked at what there is so often: each time a document is missing, and written again.
    pub async fn looks(&self, times: usize) {
        for _ in 0..times {
            exists(&self.document).await;
            fs::remove_file(&self.document).expect("it was there");
        }
        exists(&self.document).await;
    }

    /// Puts another policy into effect.
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

    /// Ends the agent as SIGKILL does: nothing of it gets another word.
    pub async fn kill(mut self) {
        self.task.shutdown().await;
        unlocked(self.locks).await;
    }
}

/// Waits until the next agent may start: a program that another test is about to execute has the files of this
/// process open until then, and with them the lock. For the same reason a lock that was taken is let go here by name:
/// closing its file would leave it to such a program.
async fn unlocked(locks: [PathBuf; 2]) {
    // What a test took away nobody has.
    let locks: Vec<_> = locks.into_iter().filter_map(|path| File::open(path).ok()).collect();
    let (free, is_free) = oneshot::channel();
    // The kernel says when it is free. A runtime waits for its own threads, so one that waits in vain is none of them.
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
