//! MPS clients of pods that end: shortly before the kubelet kills a pod's containers, the MPS daemons terminate them.
//! A client that is killed at work can end the programs of the daemon's other clients.
//!
//! ```text
//!  API server ── pods that are being deleted ─┐
//!  driver, /proc ── programs and their pods ──┴─> terminate_client, shortly before the end of the grace period
//! ```
//!
//! Containers that end otherwise are not known before: by their own failure, by an out-of-memory kill, by a forced deletion, or
//! as static pods.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tokio::{sync::watch, time::sleep_until};
use tokio_util::sync::CancellationToken;
use windlass_cluster::{
    Client,
    ending_pods::{self, EndingPods},
};
use windlass_core::device::DeviceId;
use windlass_discovery::live_driver::LiveDriver;
use windlass_host::{causes, clock::Clock, optional, watch::changed};
use windlass_lifecycle::mps::{MpsClients, MpsState, MpsStates};

/// Dependencies.
pub(crate) struct Deps {
    pub(crate) daemons: watch::Receiver<Arc<MpsStates>>,
    pub(crate) clients: MpsClients,
    pub(crate) driver: LiveDriver,
    pub(crate) cluster: Client,
    pub(crate) clock: Clock,
}

/// Time before the kill of a pod's containers at which its clients are ended. Programs that end by themselves when they are asked
/// to have the rest of the grace period for it.
const BEFORE_KILL: Duration = Duration::from_secs(2);

/// Ends clients while a daemon serves, until stopped.
pub(crate) async fn keep(mut deps: Deps, stop: CancellationToken) {
    let life = async {
        loop {
            while serving(&deps.daemons.borrow_and_update()).is_empty() {
                changed(&mut deps.daemons).await;
            }
            let (pods, watching) = ending_pods::watch(deps.cluster.clone());
            let mut daemons = deps.daemons.clone();
            let is_idle = async {
                while !serving(&daemons.borrow_and_update()).is_empty() {
                    changed(&mut daemons).await;
                }
            };
            tokio::select! {
                () = watching => {}
                () = deps.follow(pods) => {}
                () = is_idle => {}
            }
        }
    };
    // On the heap: requests make it large.
    stop.run_until_cancelled(Box::pin(life)).await;
}

fn serving(daemons: &MpsStates) -> Vec<DeviceId> {
    let ready = daemons.iter().filter(|(_, state)| **state == MpsState::Ready);
    ready.map(|(device, _)| device.clone()).collect()
}

// === impl Deps ===

impl Deps {
    async fn follow(&self, mut pods: watch::Receiver<Arc<EndingPods>>) {
        let mut terminated = BTreeSet::new();
        loop {
            let all = pods.borrow_and_update().clone();
            terminated.retain(|uid| all.contains_key(uid));
            let waiting = all.iter().filter(|(uid, _)| !terminated.contains(*uid));
            let next = waiting.min_by_key(|(_, end)| **end);
            let next = next.map(|(uid, end)| (uid.clone(), *end - BEFORE_KILL));
            let due = next.as_ref().map(|(_, at)| sleep_until(self.clock.instant_of(*at)));
            tokio::select! {
                () = changed(&mut pods) => continue,
                () = optional(due) => {}
            }
            if let Some((uid, _)) = next {
                self.terminate(&uid).await;
                terminated.insert(uid);
            }
        }
    }

    /// Has every daemon terminate the pod's clients.
    async fn terminate(&self, pod: &str) {
        let devices = serving(&self.daemons.borrow());
        for device in devices {
            let processes = match self.driver.processes(&device).await {
                Ok(processes) => processes,
                Err(error) => {
                    let error = causes(&error);
                    tracing::debug!(%device, pod, error, "MPS clients of an ending pod unknown");
                    continue;
                }
            };
            for process in processes.into_iter().filter(|process| process.container.pod == pod) {
                let pid = process.pid;
                match self.clients.terminate(&device, pid).await {
                    Ok(()) => {
                        tracing::info!(%device, pod, pid, "MPS client of an ending pod ended");
                    }
                    Err(error) => {
                        tracing::debug!(%device, pod, pid, error, "MPS client of an ending pod not ended");
                    }
                }
            }
        }
    }
}
