//! Release of claims when their last pod ends, and the periodic reconciliation that repeats failed releases.

use std::{collections::BTreeMap, time::Duration};

use super::{ClaimCall, ClaimError, ClaimId, claims::ClaimRelease, prepare::Batch};
use crate::{
    event::Event,
    fault::ClaimFault,
    manager_task::{ManagerHandle, ManagerTask},
    pod::Pod,
};

/// Claims to release, by driver name.
type ClaimsByDriver = BTreeMap<String, Vec<ClaimId>>;

/// Releases the claims of an ended pod. After a failure, a repeated call releases the remaining claims.
pub(crate) async fn unprepare(handle: &ManagerHandle, pod: &Pod) -> Result<(), ClaimError> {
    let names = pod.claims.iter().map(|claim| claim.id.name.clone()).collect();
    let (pod, namespace) = (pod.uid.clone(), pod.namespace.clone());
    release(handle, ClaimRelease { pod, namespace, names }).await
}

/// Releases the claims of inactive pods, once all pods are known. The next reconciliation repeats a failed
/// release.
pub(crate) async fn reconcile(handle: &ManagerHandle) {
    let find_stale = |task: &ManagerTask| {
        let active = task.manager.sources_ready.then(|| task.manager.active_pods());
        active.map(|active| task.dra.claims.stale(&active)).unwrap_or_default()
    };
    for stale_claims in handle.read(find_stale).await.unwrap_or_default() {
        // The event log has a failure.
        let _ = release(handle, stale_claims).await;
    }
}

/// Reconciles periodically. Never returns.
pub(crate) async fn reconcile_periodically(handle: ManagerHandle, period: Duration) {
    loop {
        tokio::time::sleep(period).await;
        reconcile(&handle).await;
    }
}

/// Releases claims, and logs the outcome as an event.
async fn release(handle: &ManagerHandle, release: ClaimRelease) -> Result<(), ClaimError> {
    let pod = release.pod.clone();
    let outcome = try_release(handle, release).await;
    let event = match &outcome {
        Ok(()) => Event::PodReleased { pod },
        Err(error) => Event::UnprepareFailed { pod, message: with_worker_prefix(error) },
    };
    // A stopped kubelet logs nothing.
    let _ = handle.read(move |task| task.events.push(event)).await;
    outcome
}

async fn try_release(handle: &ManagerHandle, release: ClaimRelease) -> Result<(), ClaimError> {
    let pod = release.pod.clone();
    let (claims, by_driver) = handle.update(move |task| task.plan_unprepare(&release)).await?;
    for (name, claims) in by_driver {
        let driver = handle.read(move |task| task.dra.drivers.find(&name)).await??;
        let batch = Batch { call: ClaimCall::Unprepare, pod: pod.clone(), driver, claims };
        let results = batch.run(handle).await?;
        batch.check_answer(results, |_, _| Ok(()))?;
    }
    handle.update(move |task| task.claims_released(&claims)).await?
}

/// Text of the error with the prefix of the pod worker.
pub(crate) fn with_worker_prefix(error: &ClaimError) -> String {
    format!("unprepare dynamic resources: {error}")
}

// === impl ManagerTask, for releasing claims ===

impl ManagerTask {
    /// Removes the pod from the users of its claims. Returns the claims without another user, also by
    /// driver.
    fn plan_unprepare(&mut self, release: &ClaimRelease) -> (Vec<ClaimId>, ClaimsByDriver) {
        let mut released = Vec::new();
        let mut by_driver = ClaimsByDriver::new();
        for name in &release.names {
            let claims = &mut self.dra.claims;
            let Some(claim) = claims.remove_user(&release.pod, &release.namespace, name) else {
                continue;
            };
            released.push(claim.id());
            for driver in claim.state.drivers.keys() {
                by_driver.entry(driver.clone()).or_default().push(claim.id());
            }
        }
        (released, by_driver)
    }

    /// Removes released claims, and writes the checkpoint.
    fn claims_released(&mut self, claims: &[ClaimId]) -> Result<(), ClaimError> {
        self.crash_if_injected(ClaimFault::CrashBeforeRemove)?;
        for claim in claims {
            self.dra.claims.remove(claim);
        }
        self.write_claims_checkpoint("state")
    }
}
