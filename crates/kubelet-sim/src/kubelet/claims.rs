//! The pods' workers: claims are prepared before containers start, and released after they ended.

use super::Kubelet;
use crate::{
    desk::{Desk, Owner},
    dra::{self, ClaimError},
    event::Event,
    pod::Pod,
    start::StartError,
    status::PodPhase,
};

/// A pod that did not get further.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SyncError {
    /// Its claims were not prepared: the text of its event `FailedPrepareDynamicResources`.
    #[error("{0}")]
    Prepare(String),
    /// Its claims were not released, so it does not end.
    #[error("{0}")]
    Unprepare(String),
    /// There is no such pod, or it is not admitted.
    #[error("pod {0} is not admitted")]
    NotAdmitted(String),
    /// The kubelet was stopped.
    #[error("the kubelet was stopped before pod {0} was synced")]
    Stopped(String),
}

/// What a pod's worker is to do.
enum Work {
    Nothing,
    Prepare(Pod),
    Release(Pod),
}

impl Kubelet {
    /// One turn of a pod's worker: prepares its claims, if its containers are still to start, or
    /// releases them, if they ended. The real kubelet takes such a turn again after a failure; here the
    /// caller does.
    pub async fn sync_pod(&self, pod_uid: &str) -> Result<(), SyncError> {
        let stopped = || SyncError::Stopped(pod_uid.to_owned());
        let turn = self.workers.take(pod_uid).await;
        let (owner, ended) = self.owner().ok_or_else(stopped)?;
        let uid = pod_uid.to_owned();
        let work = owner.look(move |desk| work(desk, &uid)).await.map_err(|_| stopped())?;
        let work = work.ok_or_else(|| SyncError::NotAdmitted(pod_uid.to_owned()))?;
        let done = ended.run_until_cancelled(async {
            match work {
                Work::Nothing => Ok(()),
                Work::Prepare(pod) => {
                    let prepared = turn.run(dra::prepare(&owner, &pod)).await;
                    told(&owner, &pod, prepared.unwrap_or(Err(ClaimError::GivenUp))).await
                }
                Work::Release(pod) => release(&owner, &pod).await,
            }
        });
        done.await.unwrap_or_else(|| Err(stopped()))
    }

    /// Releases claims of pods that are not there any more, as the kubelet does each minute.
    pub async fn reconcile_claims(&self) {
        if let Some((owner, ended)) = self.owner() {
            ended.run_until_cancelled(dra::reconcile(&owner)).await.unwrap_or(());
        }
    }

    pub(super) async fn prepare_before_start(&self, pod_uid: &str) -> Result<(), StartError> {
        match self.sync_pod(pod_uid).await {
            Err(SyncError::Prepare(message)) => Err(StartError::PrepareClaims(message)),
            Err(SyncError::Stopped(pod)) => Err(StartError::Stopped(pod)),
            // The start says it in its own words.
            Ok(()) | Err(SyncError::NotAdmitted(_) | SyncError::Unprepare(_)) => Ok(()),
        }
    }

    /// Gives up what is under way for a pod whose containers ended, and releases its claims.
    pub(super) async fn release_ended(&self, pod_uid: &str) {
        drop(self.workers.take_to_end(pod_uid).await);
        // A failure is among the events, and the pod stays for the next turn.
        let _ = self.sync_pod(pod_uid).await;
    }

    /// The pod, if it is to be deleted with claims.
    pub(super) async fn claims_to_release(&self, pod_uid: &str) -> Option<Pod> {
        let (owner, _) = self.owner()?;
        let uid = pod_uid.to_owned();
        let find = move |desk: &Desk| {
            let record = desk.manager.pods.get(&uid).filter(|record| record.is_active())?;
            (!record.pod.claims.is_empty()).then(|| record.pod.clone())
        };
        owner.look(find).await.ok()?
    }

    /// Gives up what is under way for a pod that is gone, and releases its claims.
    pub(super) async fn release_deleted(&self, pod: &Pod) {
        let _turn = self.workers.take_to_end(&pod.uid).await;
        let Some((owner, ended)) = self.owner() else { return };
        // A failure is among the events, and the reconciliation makes up for it.
        let _ = ended.run_until_cancelled(dra::unprepare(&owner, pod)).await;
    }
}

/// What there is to do for an active pod.
fn work(desk: &Desk, uid: &str) -> Option<Work> {
    let record = desk.manager.pods.get(uid)?;
    match record.phase {
        PodPhase::Admitted if record.pod.claims.is_empty() => Some(Work::Nothing),
        PodPhase::Admitted if record.is_ending => Some(Work::Release(record.pod.clone())),
        PodPhase::Admitted if record.has_sandbox => Some(Work::Nothing),
        PodPhase::Admitted => Some(Work::Prepare(record.pod.clone())),
        PodPhase::Pending | PodPhase::Succeeded | PodPhase::Failed { .. } => None,
    }
}

/// Puts a failure into the pod's event.
async fn told(owner: &Owner, pod: &Pod, prepared: Result<(), ClaimError>) -> Result<(), SyncError> {
    let error = match prepared {
        Ok(()) => return Ok(()),
        Err(ClaimError::Stopped) => return Err(SyncError::Stopped(pod.uid.clone())),
        Err(error) => error,
    };
    let message =
        format!("Failed to prepare dynamic resources: prepare dynamic resources: {error}");
    let (pod, text) = (pod.uid.clone(), message.clone());
    let event = Event::FailedPrepareDynamicResources { pod, message: text };
    // A kubelet that is gone has no log.
    let _ = owner.look(move |desk| desk.events.push(event)).await;
    Err(SyncError::Prepare(message))
}

/// Releases the claims of a pod whose containers ended. Then the pod has ended.
async fn release(owner: &Owner, pod: &Pod) -> Result<(), SyncError> {
    match dra::unprepare(owner, pod).await {
        Ok(()) => {}
        Err(ClaimError::Stopped) => return Err(SyncError::Stopped(pod.uid.clone())),
        Err(error) => return Err(SyncError::Unprepare(dra::in_context(&error))),
    }
    let uid = pod.uid.clone();
    let end = move |desk: &mut Desk| desk.manager.set_phase(&uid, PodPhase::Succeeded);
    owner.with(end).await.map_err(|_| SyncError::Stopped(pod.uid.clone()))
}
