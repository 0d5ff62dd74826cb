//! Release of claims when the last pod that uses them ends, and the reconciliation of missed releases.

use std::{collections::BTreeMap, time::Duration};

use super::{ClaimCall, ClaimError, ClaimId, claims::ClaimRelease, prepare::Batch};
use crate::{
    event::Event,
    fault::ClaimFault,
    manager_task::{ManagerHandle, ManagerTask},
    pod::Pod,
};

/// Claims to release, by driver. Each driver is looked up just before its call.
type ByDriver = BTreeMap<String, Vec<ClaimId>>;

/// Releases the claims of an ended pod. A repeated call does the remaining work.
pub(crate) async fn unprepare(handle: &ManagerHandle, pod: &Pod) -> Result<(), ClaimError> {
    let names = pod.claims.iter().map(|claim| claim.id.name.clone()).collect();
    let (pod, namespace) = (pod.uid.clone(), pod.namespace.clone());
    release(handle, ClaimRelease { pod, namespace, names }).await
}

/// Releases claims of gone pods, once all pods are known. A failure is among the events; the next
/// reconciliation tries again.
pub(crate) async fn reconcile(handle: &ManagerHandle) {
    let stale = |task: &ManagerTask| {
        let ready = task.manager.sources_ready.then(|| task.manager.active_pods());
        ready.map(|active| task.dra.claims.stale(&active)).unwrap_or_default()
    };
    for stale in handle.read(stale).await.unwrap_or_default() {
        // The event log has the failure.
        let _ = release(handle, stale).await;
    }
}

/// Reconciles periodically while the kubelet lives.
pub(crate) async fn reconcile_now_and_then(handle: ManagerHandle, period: Duration) {
    loop {
        tokio::time::sleep(period).await;
        reconcile(&handle).await;
    }
}

async fn release(handle: &ManagerHandle, release: ClaimRelease) -> Result<(), ClaimError> {
    let pod = release.pod.clone();
    let outcome = try_release(handle, release).await;
    let event = match &outcome {
        Ok(()) => Event::PodReleased { pod },
        Err(error) => Event::UnprepareFailed { pod, message: in_context(error) },
    };
    // A stopped kubelet has no log.
    let _ = handle.read(move |task| task.events.push(event)).await;
    outcome
}

async fn try_release(handle: &ManagerHandle, release: ClaimRelease) -> Result<(), ClaimError> {
    let pod = release.pod.clone();
    let (claims, by_driver) = handle.update(move |task| task.plan_unprepare(&release)).await?;
    for (name, claims) in by_driver {
        let driver = handle.read(move |task| task.dra.drivers.find(&name)).await??;
        let batch = Batch { call: ClaimCall::Unprepare, pod: pod.clone(), driver, claims };
        let answer = batch.run(handle).await?;
        batch.check_answer(answer, |_, _| Ok(()))?;
    }
    handle.update(move |task| task.claims_released(&claims)).await?
}

/// Text of the error in the context of the pod's worker.
pub(crate) fn in_context(error: &ClaimError) -> String {
    format!("unprepare dynamic resources: {error}")
}

// === impl ManagerTask, for releasing claims ===

impl ManagerTask {
    fn plan_unprepare(&mut self, release: &ClaimRelease) -> (Vec<ClaimId>, ByDriver) {
        let mut last = Vec::new();
        let mut by_driver = ByDriver::new();
        for name in &release.names {
            let claims = &mut self.dra.claims;
            let Some(claim) = claims.leave(&release.pod, &release.namespace, name) else {
                continue;
            };
            last.push(claim.id());
            for driver in claim.state.drivers.keys() {
                by_driver.entry(driver.clone()).or_default().push(claim.id());
            }
        }
        (last, by_driver)
    }

    fn claims_released(&mut self, claims: &[ClaimId]) -> Result<(), ClaimError> {
        self.dies(ClaimFault::DieBeforeForget)?;
        for claim in claims {
            self.dra.claims.forget(claim);
        }
        self.save_claims("state")
    }
}
