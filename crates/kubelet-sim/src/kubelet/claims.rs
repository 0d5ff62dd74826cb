//! Pod workers: prepare claims before the containers start, and release claims after the containers end.

use super::Kubelet;
use crate::{
    dra::{self, ClaimError},
    event::Event,
    manager_task::{ManagerHandle, ManagerTask},
    pod::Pod,
    start::StartError,
    status::PodPhase,
};

/// Reasons of a failed pod sync.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SyncError {
    /// The preparation of the claims failed. Text of the event `FailedPrepareDynamicResources`.
    #[error("{0}")]
    Prepare(String),
    /// The release of the claims failed, so the pod is not terminated.
    #[error("{0}")]
    Unprepare(String),
    /// The pod is unknown, or not admitted.
    #[error("pod {0} is not admitted")]
    NotAdmitted(String),
    /// The kubelet was stopped.
    #[error("the kubelet was stopped before pod {0} was synced")]
    Stopped(String),
}

/// Next work of a pod worker.
enum PodWork {
    Idle,
    Prepare(Pod),
    Release(Pod),
}

impl Kubelet {
    /// Syncs a pod once: prepares the claims of a pod that has yet to start, or releases the claims
    /// of a pod whose containers ended. After a failure the real kubelet syncs again by itself; here
    /// the caller calls again.
    pub async fn sync_pod(&self, pod_uid: &str) -> Result<(), SyncError> {
        let stopped = || SyncError::Stopped(pod_uid.to_owned());
        let worker = self.workers.lock(pod_uid).await;
        let (handle, ended) = self.handle().ok_or_else(stopped)?;
        let uid = pod_uid.to_owned();
        let work = handle.read(move |task| next_work(task, &uid)).await.map_err(|_| stopped())?;
        let work = work.ok_or_else(|| SyncError::NotAdmitted(pod_uid.to_owned()))?;
        let sync = ended.run_until_cancelled(async {
            match work {
                PodWork::Idle => Ok(()),
                PodWork::Prepare(pod) => {
                    let outcome = worker.run(dra::prepare(&handle, &pod)).await;
                    let outcome = outcome.unwrap_or(Err(ClaimError::Cancelled));
                    report_failed_prepare(&handle, &pod, outcome).await
                }
                PodWork::Release(pod) => release(&handle, &pod).await,
            }
        });
        sync.await.unwrap_or_else(|| Err(stopped()))
    }

    /// Releases the claims of terminated and deleted pods once. The kubelet also does so periodically
    /// (`DraLimits::reconcile_period`).
    pub async fn reconcile_claims(&self) {
        if let Some((handle, ended)) = self.handle() {
            ended.run_until_cancelled(dra::reconcile(&handle)).await.unwrap_or(());
        }
    }

    pub(super) async fn prepare_before_start(&self, pod_uid: &str) -> Result<(), StartError> {
        match self.sync_pod(pod_uid).await {
            Err(SyncError::Prepare(message)) => Err(StartError::PrepareClaims(message)),
            Err(SyncError::Stopped(pod)) => Err(StartError::Stopped(pod)),
            // The start itself fails for a pod that is not admitted. The event log has a failed release.
            Ok(()) | Err(SyncError::NotAdmitted(_) | SyncError::Unprepare(_)) => Ok(()),
        }
    }

    /// Cancels the current work on a pod whose containers ended, and releases the pod's claims.
    pub(super) async fn release_ended(&self, pod_uid: &str) {
        drop(self.workers.cancel_and_lock(pod_uid).await);
        // The event log has a failure. The pod keeps its phase, so the next sync retries.
        let _ = self.sync_pod(pod_uid).await;
    }

    /// Finds an active pod with claims.
    pub(super) async fn pod_with_claims(&self, pod_uid: &str) -> Option<Pod> {
        let (handle, _) = self.handle()?;
        let uid = pod_uid.to_owned();
        let find = move |task: &ManagerTask| {
            let record = task.manager.pods.get(&uid).filter(|record| record.is_active())?;
            (!record.pod.claims.is_empty()).then(|| record.pod.clone())
        };
        handle.read(find).await.ok()?
    }

    /// Cancels the current work on a deleted pod, and releases the pod's claims.
    pub(super) async fn release_deleted(&self, pod: &Pod) {
        let _worker = self.workers.cancel_and_lock(&pod.uid).await;
        let Some((handle, ended)) = self.handle() else { return };
        // The event log has a failure. The next reconciliation retries.
        let _ = ended.run_until_cancelled(dra::unprepare(&handle, pod)).await;
    }
}

/// Next work for an admitted pod; `None` for an unknown pod or in any other phase.
fn next_work(task: &ManagerTask, uid: &str) -> Option<PodWork> {
    let record = task.manager.pods.get(uid)?;
    match record.phase {
        PodPhase::Admitted if record.pod.claims.is_empty() => Some(PodWork::Idle),
        PodPhase::Admitted if record.is_ending => Some(PodWork::Release(record.pod.clone())),
        PodPhase::Admitted if record.has_sandbox => Some(PodWork::Idle),
        PodPhase::Admitted => Some(PodWork::Prepare(record.pod.clone())),
        PodPhase::Pending | PodPhase::Succeeded | PodPhase::Failed { .. } => None,
    }
}

/// Turns a failed preparation into the pod's event and a [`SyncError`].
async fn report_failed_prepare(
    handle: &ManagerHandle,
    pod: &Pod,
    outcome: Result<(), ClaimError>,
) -> Result<(), SyncError> {
    let error = match outcome {
        Ok(()) => return Ok(()),
        Err(ClaimError::Stopped) => return Err(SyncError::Stopped(pod.uid.clone())),
        Err(error) => error,
    };
    let message =
        format!("Failed to prepare dynamic resources: prepare dynamic resources: {error}");
    let event =
        Event::FailedPrepareDynamicResources { pod: pod.uid.clone(), message: message.clone() };
    // A stopped kubelet logs nothing.
    let _ = handle.read(move |task| task.events.push(event)).await;
    Err(SyncError::Prepare(message))
}

/// Releases the claims of a pod whose containers ended, and sets the pod's phase to `Succeeded`.
async fn release(handle: &ManagerHandle, pod: &Pod) -> Result<(), SyncError> {
    match dra::unprepare(handle, pod).await {
        Ok(()) => {}
        Err(ClaimError::Stopped) => return Err(SyncError::Stopped(pod.uid.clone())),
        Err(error) => return Err(SyncError::Unprepare(dra::with_worker_prefix(&error))),
    }
    let uid = pod.uid.clone();
    let succeed = move |task: &mut ManagerTask| task.manager.set_phase(&uid, PodPhase::Succeeded);
    handle.update(succeed).await.map_err(|_| SyncError::Stopped(pod.uid.clone()))
}
