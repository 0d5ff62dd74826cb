//! MPS clients of terminating pods: the MPS daemons terminate them shortly before the kubelet kills the pod's
//! containers. Killing a client while it uses the GPU can end the programs of the daemon's other clients.
//!
//! ```text
//!  API server ── terminating pods ────────────┐
//!  driver, /proc ── programs and their pods ──┴─> terminate_client, shortly before the end of the grace period
//! ```
//!
//! Other ends of a container are not announced: its own failure, an out-of-memory kill, a forced deletion, and the end
//! of a static pod.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use jiff::Timestamp;
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;
use windlass_cluster::{
    Client,
    terminating_pods::{self, TerminatingPods},
};
use windlass_core::device::DeviceId;
use windlass_discovery::live_driver::LiveDriver;
use windlass_host::{
    causes,
    clock::Clock,
    deadline, or_pending,
    watch::{changed, until},
};
use windlass_lifecycle::{
    gpu_use::{DriverCache, GpuUse, ProcessError},
    mps::{MpsClients, MpsState, MpsStates},
};

/// Dependencies.
#[derive(Clone)]
pub(crate) struct Deps {
    pub(crate) daemons: watch::Receiver<Arc<MpsStates>>,
    pub(crate) clients: MpsClients,
    pub(crate) driver: LiveDriver,
    pub(crate) cluster: Client,
    pub(crate) clock: Clock,
}

/// Time from the termination of a client to the time at which the kubelet kills the pod's containers. Before the
/// termination, a program can end by itself on SIGTERM.
const TERMINATION_LEAD: Duration = Duration::from_secs(2);

/// Timeout of the driver's process list.
const PROCESS_LIST_TIMEOUT: Duration = Duration::from_secs(1);

/// Terminates the MPS clients of terminating pods while an MPS daemon is ready, until stopped.
pub(crate) async fn run(mut deps: Deps, stop: CancellationToken) {
    let running = async {
        loop {
            until(&mut deps.daemons, |it| !gpus_with_ready_daemon(it).is_empty()).await;
            let (pods, pod_watch) = terminating_pods::watch(deps.cluster.clone());
            let mut daemons = deps.daemons.clone();
            tokio::select! {
                () = pod_watch => {}
                () = deps.handle_pods(pods) => {}
                () = until(&mut daemons, |it| gpus_with_ready_daemon(it).is_empty()) => {}
            }
        }
    };
    // On the heap: requests make it large.
    stop.run_until_cancelled(Box::pin(running)).await;
}

fn gpus_with_ready_daemon(daemons: &MpsStates) -> Vec<DeviceId> {
    let ready_daemons = daemons.iter().filter(|(_, state)| **state == MpsState::Ready);
    ready_daemons.map(|(device, _)| device.clone()).collect()
}

// === impl Deps ===

impl Deps {
    async fn handle_pods(&self, mut pods: watch::Receiver<Arc<TerminatingPods>>) {
        let mut terminated = BTreeSet::new();
        loop {
            let terminating = pods.borrow_and_update().clone();
            terminated.retain(|uid| terminating.contains_key(uid));
            let waiting = || terminating.iter().filter(|(uid, _)| !terminated.contains(*uid));
            let next_termination = waiting().map(|(_, end)| self.termination_time(*end)).min();
            tokio::select! {
                () = changed(&mut pods) => continue,
                () = or_pending(next_termination.map(sleep_until)) => {}
            }
            let now = Instant::now();
            let due = waiting().filter(|(_, end)| self.termination_time(**end) <= now);
            let due: BTreeSet<_> = due.map(|(uid, _)| uid.clone()).collect();
            self.terminate(&due).await;
            terminated.extend(due);
        }
    }

    /// Time to terminate the clients of a pod that is killed at `end`.
    fn termination_time(&self, end: Timestamp) -> Instant {
        self.clock.instant_of(end - TERMINATION_LEAD)
    }

    /// Terminates the clients of these pods, at all daemons at once.
    async fn terminate(&self, pods: &BTreeSet<String>) {
        let mut tasks = JoinSet::new();
        for device in gpus_with_ready_daemon(&self.daemons.borrow()) {
            let (deps, pods) = (self.clone(), pods.clone());
            tasks.spawn(async move { deps.terminate_on(&device, &pods).await });
        }
        tasks.join_all().await;
    }

    async fn terminate_on(&self, device: &DeviceId, pods: &BTreeSet<String>) {
        let measurement = GpuUse::measure(&self.driver, device, DriverCache::default());
        let result = deadline::timeout(PROCESS_LIST_TIMEOUT, measurement).await;
        let processes = match result.unwrap_or(Err(ProcessError::Unresponsive)) {
            Ok(GpuUse { processes, .. }) => processes,
            Err(error) => {
                let error = causes(&error);
                tracing::debug!(%device, error, "MPS clients of terminating pods unknown");
                return;
            }
        };
        let of_these_pods =
            processes.iter().filter(|process| pods.contains(&process.container.pod));
        let clients: Vec<_> = of_these_pods.collect();
        let ended =
            self.clients.terminate(device, self.driver.host(), &clients, TERMINATION_LEAD).await;
        match ended {
            Ok(()) if clients.is_empty() => {}
            Ok(()) => {
                let count = clients.len();
                tracing::info!(%device, count, "MPS clients of terminating pods terminated");
            }
            Err(error) => {
                tracing::debug!(%device, error, "MPS clients of terminating pods not terminated");
            }
        }
    }
}
