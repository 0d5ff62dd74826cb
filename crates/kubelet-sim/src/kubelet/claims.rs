//! Workers of pods: they prepare claims before containers start, and release claims after containers ended.

use super::Kubelet;
use crate::{
    dra::{self, ClaimError},
    event::Event,
    manager_task::{ManagerHandle, ManagerTask},
    pod::Pod,
    start::StartError,
    status::PodPhase,
};

/// Reasons why the sync of a pod stopped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SyncError {
    /// The preparation of the claims failed: the text of the event `FailedPrepareDynamicResources`.
    #[error("{0}")]
    Prepare(String),
    /// The release of the claims failed, so the pod does not end.
    #[error("{0}")]
    Unprepare(String),
    /// The pod is missing or not admitted.
    #[error("pod {0} is not admitted")]
    NotAdmitted(String),
    /// The kubelet was stopped.
    #[error("the kubelet was stopped before pod {0} was synced")]
    Stopped(String),
}

/// Work of a pod's worker.
enum Work {
    Nothing,
    Prepare(Pod),
    Release(Pod),
}

impl Kubelet {
    /// Runs one turn of a pod's worker. The turn prepares the claims of a pod whose containers are
    /// to start, or releases those of ended containers. The real kubelet repeats such a turn after
    /// a failure; here the caller does.
    pub async fn sync_pod(&self, pod_uid: &str) -> Result<(), SyncError> {
        let stopped = || SyncError::Stopped(pod_uid.to_owned());
        let turn = self.workers.take(pod_uid).await;
        let (handle, ended) = self.handle().ok_or_else(stopped)?;
        let uid = pod_uid.to_owned();
        let work = handle.read(move |task| work(task, &uid)).await.map_err(|_| stopped())?;
        let work = work.ok_or_else(|| SyncError::NotAdmitted(pod_uid.to_owned()))?;
        let done = ended.run_until_cancelled(async {
            match work {
                Work::Nothing => Ok(()),
                Work::Prepare(pod) => {
                    let prepared = turn.run(dra::prepare(&handle, &pod)).await;
                    told(&handle, &pod, prepared.unwrap_or(Err(ClaimError::GivenUp))).await
                }
                Work::Release(pod) => release(&handle, &pod).await,
            }
        });
        done.await.unwrap_or_else(|| Err(stopped()))
    }

    /// Releases claims of gone pods, as the kubelet does each minute.
    pub async fn reconcile_claims(&self) {
        if let Some((handle, ended)) = self.handle() {
            ended.run_until_cancelled(dra::reconcile(&handle)).await.unwrap_or(());
        }
    }

    pub(super) async fn prepare_before_start(&self, pod_uid: &str) -> Result<(), StartError> {
        match self.sync_pod(pod_uid).await {
            Err(SyncError::Prepare(message)) => Err(StartError::PrepareClaims(message)),
            Err(SyncError::Stopped(pod)) => Err(StartError::Stopped(pod)),
            // The start reports these errors itself.
            Ok(()) | Err(SyncError::NotAdmitted(_) | SyncError::Unprepare(_)) => Ok(()),
        }
    }

    /// Cancels work under way for a pod whose containers ended, and releases its claims.
    pub(super) async fn release_ended(&self, pod_uid: &str) {
        drop(self.workers.take_to_end(pod_uid).await);
        // A failure is among the events, and the pod stays for the next turn.
        let _ = self.sync_pod(pod_uid).await;
    }

    /// The pod, if it has claims to release at its deletion.
    pub(super) async fn claims_to_release(&self, pod_uid: &str) -> Option<Pod> {
        let (handle, _) = self.handle()?;
        let uid = pod_uid.to_owned();
        let find = move |task: &ManagerTask| {
            let record = task.manager.pods.get(&uid).filter(|record| record.is_active())?;
            (!record.pod.claims.is_empty()).then(|| record.pod.clone())
        };
        handle.read(find).await.ok()?
    }

    /// Cancels work under way for a gone pod, and releases its claims.
    pub(super) async fn release_deleted(&self, pod: &Pod) {
        let _turn = self.workers.take_to_end(&pod.uid).await;
        let Some((handle, ended)) = self.handle() else { return };
        // A failure is among the events; the reconciliation tries again.
        let _ = ended.run_until_cancelled(dra::unprepare(&handle, pod)).await;
    }
}

/// Remaining work for an active pod.
fn work(task: &ManagerTask, uid: &str) -> Option<Work> {
    let record = task.manager.pods.get(uid)?;
    match record.phase {
        PodPhase::Admitted if record.pod.claims.is_empty() => Some(Work::Nothing),
        PodPhase::Admitted if record.is_ending => Some(Work::Release(record.pod.clone())),
        PodPhase::Admitted if record.has_sandbox => Some(Work::Nothing),
        PodPhase::Admitted => Some(Work::Prepare(record.pod.clone())),
        PodPhase::Pending | PodPhase::Succeeded | PodPhase::Failed { .. } => None,
    }
}

/// Records a failure as the pod's event.
async fn told(
    handle: &ManagerHandle,
    pod: &Pod,
    prepared: Result<(), ClaimError>,
) -> Result<(), SyncError> {
    let error = match prepared {
        Ok(()) => return Ok(()),
        Err(ClaimError::Stopped) => return Err(SyncError::Stopped(pod.uid.clone())),
        Err(error) => error,
    };
    let message =
        format!("Failed to prepare dynamic resources: prepare dynamic resources: {error}");
    let (pod, text) = (pod.uid.clone(), message.clone());
    let event = Event::FailedPrepareDynamicResources { pod, message: text };
    // A stopped kubelet has no log.
    let _ = handle.read(move |task| task.events.push(event)).await;
    Err(SyncError::Prepare(message))
}

/// Releases the claims of a pod whose containers ended. The pod has ended then.
async fn release(handle: &ManagerHandle, pod: &Pod) -> Result<(), SyncError> {
    match dra::unprepare(handle, pod).await {
        Ok(()) => {}
        Err(ClaimError::Stopped) => return Err(SyncError::Stopped(pod.uid.clone())),
        Err(error) => return Err(SyncError::Unprepare(dra::in_context(&error))),
    }
    let uid = pod.uid.clone();
    let end = move |task: &mut ManagerTask| task.manager.set_phase(&uid, PodPhase::Succeeded);
    handle.update(end).await.map_err(|_| SyncError::Stopped(pod.uid.clone()))
}
