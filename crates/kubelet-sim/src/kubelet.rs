//! Public handle of the kubelet: start, stop, restart, admission, status.
//!
//! ```text
//!            start            stop, panic
//!  (nothing) ────> Running ───────────────> Stopped ─┐
//!                     ^  pods and node status stay    │
//!                     └───────── restart, reboot ─────┘
//! ```
//!
//! A run is the time from a start to a stop. Only the holder of `run_lock` begins or ends a run,
//! and the state changes in one step. So a cancelled call leaves the kubelet either running or
//! stopped.

mod claims;
mod faults;
mod run;

use std::{
    fs::File,
    future::poll_fn,
    panic::resume_unwind,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{sync::watch, task::JoinError};
use tokio_util::sync::CancellationToken;
use windlass_kubelet_api::socket::SocketError;

use self::run::{Pods, Run, Sockets, SurvivingState};
use crate::{
    admission::{self, Admission, Rejection, RejectionReason},
    checkpoint::ClaimsFileError,
    config::Config,
    directory::{self, DirectoryError},
    dra::PodWorkers,
    event::{Event, EventLog, EventReader},
    fault::{Faults, PodSourceFault},
    grant::RunContainerOptions,
    manager_task::{KubeletEnded, ManagerHandle, TaskContext},
    pod::Pod,
    start::{self, StartError},
    status::{KubeletState, NodeStatus},
};
pub use claims::SyncError;

/// An embedded kubelet. Dropping it stops it as [`Kubelet::stop`] does, without waiting for the end.
///
/// # Flow
///
/// [`start`](Self::start), wait for plugins to register, [`admit`](Self::admit) pods,
/// [`start_container`](Self::start_container), [`delete_pod`](Self::delete_pod), [`stop`](Self::stop).
///
/// # Guarantees
///
/// When a method returns, [`status`](Self::status) and [`events`](Self::events) show its effect. Pods are
/// admitted one at a time. No task outlives the kubelet.
///
/// # Assumptions
///
/// One kubelet runs per root folder; the start of a second one fails. Pod UIDs are unique.
///
/// # Panics
///
/// A panic of the embedded kubelet itself shows as [`KubeletState::Panicked`]. The next call that ends
/// the run, such as [`stop`](Self::stop) or [`restart`](Self::restart), resumes the panic.
#[derive(Debug)]
pub struct Kubelet {
    config: Arc<Config>,
    events: EventLog,
    faults: watch::Sender<Faults>,
    status: watch::Sender<Arc<NodeStatus>>,
    state: Mutex<State>,
    /// Serialises starts and stops. Locked before `sync_loop`. No caller holds it during a call to a
    /// plugin, so a kubelet can always be stopped.
    run_lock: tokio::sync::Mutex<()>,
    /// Serialises admissions.
    sync_loop: tokio::sync::Mutex<()>,
    /// Serialises the work on each pod's claims.
    workers: PodWorkers,
    /// Lock file of the root folder. A stopped kubelet holds the lock too.
    _lock: File,
}

#[derive(Debug)]
enum State {
    Running(Run),
    Stopped(SurvivingState),
}

/// A run that just began, and the pods to admit again.
struct StartedRun {
    handle: ManagerHandle,
    ended: CancellationToken,
    pods: Vec<Pod>,
}

/// Reasons of a failed start.
#[derive(Debug, thiserror::Error)]
pub enum KubeletError {
    /// The folders cannot be used.
    #[error("cannot prepare the embedded kubelet's folders")]
    Directory(#[from] DirectoryError),
    /// The sockets cannot be bound.
    #[error("cannot serve the embedded kubelet's sockets")]
    Socket(#[from] SocketError),
    /// The checkpoint of the claims cannot be read or created, so the kubelet does not start.
    #[error("cannot restore the claims of the embedded kubelet's pods")]
    Claims(#[from] ClaimsFileError),
    /// The previous run has not ended.
    #[error("the embedded kubelet runs already: stop it first")]
    NotStopped,
}

/// A wait that timed out, with the status at the end.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the condition did not hold within {waited:?}: {status:#?}")]
pub struct WaitTimeout {
    /// Duration of the wait.
    pub waited: Duration,
    /// Status at the end.
    pub status: Arc<NodeStatus>,
}

// === impl State ===

impl State {
    /// Ends the run, if there is one. Ready once the run has ended and the state is `Stopped`. A
    /// caller may stop polling and start again later.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), JoinError>> {
        let Self::Running(run) = self else { return Poll::Ready(Ok(())) };
        let result = ready!(run.poll_end(cx));
        let (surviving, outcome) = match result {
            Ok(surviving) => (surviving, Ok(())),
            Err(error) => (SurvivingState::default(), Err(error)),
        };
        *self = Self::Stopped(surviving);
        Poll::Ready(outcome)
    }
}

// === impl Kubelet ===

impl Kubelet {
    /// Creates the folders, locks the root, reads the checkpoints, deletes stale sockets and serves.
    /// When this returns, both sockets are bound.
    ///
    /// # Panics
    ///
    /// The caller does not run within a tokio runtime.
    pub fn start(config: Config) -> Result<Self, KubeletError> {
        let lock = directory::create_and_lock(&config)?;
        let kubelet = Self {
            config: Arc::new(config),
            events: EventLog::new(),
            faults: watch::Sender::new(Faults::default()),
            status: watch::Sender::new(Arc::new(NodeStatus::default())),
            state: Mutex::new(State::Stopped(SurvivingState::default())),
            run_lock: tokio::sync::Mutex::new(()),
            sync_loop: tokio::sync::Mutex::new(()),
            workers: PodWorkers::default(),
            _lock: lock,
        };
        // The first run has no pods to admit again.
        kubelet.begin_run()?;
        Ok(kubelet)
    }

    /// Configuration of the kubelet.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Current status of the node.
    pub fn status(&self) -> Arc<NodeStatus> {
        self.status.borrow().clone()
    }

    /// Receiver of the node's status, notified at each change.
    pub fn watch_status(&self) -> watch::Receiver<Arc<NodeStatus>> {
        self.status.subscribe()
    }

    /// Reader of the event log, which spans all runs.
    pub fn events(&self) -> EventReader {
        self.events.subscribe()
    }

    /// Waits until the node's status fulfils a condition, and returns that status. Fails after
    /// `deadline`.
    pub async fn wait_for(
        &self,
        mut condition: impl FnMut(&NodeStatus) -> bool,
        deadline: Duration,
    ) -> Result<Arc<NodeStatus>, WaitTimeout> {
        let mut status = self.status.subscribe();
        let wait = status.wait_for(|status| condition(status));
        match tokio::time::timeout(deadline, wait).await {
            Ok(Ok(status)) => Ok(status.clone()),
            Ok(Err(_)) | Err(_) => Err(WaitTimeout { waited: deadline, status: self.status() }),
        }
    }

    /// Admits a pod, or returns the reason of its rejection. As in the real kubelet's single sync
    /// loop, a plugin that does not answer blocks all other admissions.
    pub async fn admit(&self, pod: Pod) -> Result<Admission, Rejection> {
        let _sync_loop = self.sync_loop.lock().await;
        let (handle, ended) = self.handle().ok_or_else(|| self.ended_rejection())?;
        let outcome = ended.run_until_cancelled(admission::admit(&handle, pod)).await;
        outcome.unwrap_or_else(|| Err(self.ended_rejection()))
    }

    /// Starts a container of an admitted pod. Prepares the pod's claims first, then calls
    /// `PreStartContainer` of each plugin that requires the call. Returns the merged run options of
    /// the plugins and claims. A second start of the container is a restart.
    pub async fn start_container(
        &self,
        pod_uid: &str,
        container: &str,
    ) -> Result<RunContainerOptions, StartError> {
        let stopped = || StartError::Stopped(pod_uid.to_owned());
        self.prepare_before_start(pod_uid).await?;
        let (handle, ended) = self.handle().ok_or_else(stopped)?;
        let outcome = ended.run_until_cancelled(start::start(&handle, pod_uid, container)).await;
        outcome.unwrap_or_else(|| Err(stopped()))
    }

    /// Ends a container, with any exit code. The pod continues.
    pub async fn stop_container(&self, pod_uid: &str, container: &str) {
        let (uid, name) = (pod_uid.to_owned(), container.to_owned());
        self.change_pods(move |pods| {
            if let Some(record) = pods.get_mut(&uid) {
                record.running.remove(&name);
            }
        })
        .await;
    }

    /// Ends all containers of the pod with success, and releases the pod's claims. The next garbage
    /// collection frees the pod's devices. If the release fails, the pod stays in its phase, and
    /// [`sync_pod`](Self::sync_pod) retries.
    pub async fn finish_pod(&self, pod_uid: &str) {
        let uid = pod_uid.to_owned();
        self.change_pods(move |pods| {
            if let Some(record) = pods.get_mut(&uid) {
                record.finish_containers();
            }
        })
        .await;
        self.release_ended(pod_uid).await;
    }

    /// Deletes the pod, on a running or stopped kubelet, and releases the pod's claims. If the
    /// release fails, the next [`reconcile_claims`](Self::reconcile_claims) retries. The next garbage
    /// collection frees the pod's devices. An admission that requests devices and `List` collect.
    pub async fn delete_pod(&self, pod_uid: &str) {
        let uid = pod_uid.to_owned();
        let pod_with_claims = self.pod_with_claims(pod_uid).await;
        self.change_pods(move |pods| {
            pods.remove(&uid);
        })
        .await;
        if let Some(pod) = pod_with_claims {
            self.release_deleted(&pod).await;
        }
    }

    /// Stops the kubelet as the end of its process does. Connections close, the sockets and
    /// checkpoints stay as files, containers continue. Calls in progress fail with
    /// [`RejectionReason::KubeletEnded`] or `Stopped`.
    pub async fn stop(&self) {
        let _run_lock = self.run_lock.lock().await;
        self.end_run().await;
    }

    /// Stops the kubelet and unlocks the root folder.
    pub async fn shutdown(self) {
        self.stop().await;
    }

    /// Stops the kubelet and starts it again, as a new process. The start deletes the files that
    /// [`Config::plugin_dir_cleanup`] selects, and binds `kubelet.sock` again. Of the managers' state, only the
    /// checkpoints survive. All pods are admitted again before any other pod. Running containers
    /// continue.
    ///
    /// # Errors
    ///
    /// The folders, the sockets or the checkpoint of the claims cannot be used. The kubelet is
    /// stopped then; a later restart can succeed.
    ///
    /// # Cancellation
    ///
    /// A cancelled restart leaves the kubelet stopped, or running with some pods still to be admitted
    /// again. Another restart completes it.
    pub async fn restart(&self) -> Result<(), KubeletError> {
        let run_lock = self.run_lock.lock().await;
        self.end_run().await;
        self.begin_run_and_readmit(run_lock).await
    }

    /// Restarts the kubelet as [`restart`](Self::restart) does, and ends all containers in between.
    pub async fn reboot(&self) -> Result<(), KubeletError> {
        let run_lock = self.run_lock.lock().await;
        self.end_run().await;
        if let State::Stopped(surviving) = &mut *self.state() {
            for record in surviving.pods.values_mut() {
                record.running.clear();
                record.has_sandbox = false;
            }
        }
        self.begin_run_and_readmit(run_lock).await
    }

    /// Ends the run, if there is one. The caller holds `run_lock`.
    async fn end_run(&self) {
        let result = poll_fn(|cx| self.state().poll_end(cx)).await;
        if let Err(error) = result
            && let Ok(panic) = error.try_into_panic()
        {
            resume_unwind(panic);
        }
        if self.status().kubelet == KubeletState::Running {
            self.status.send_modify(|status| Arc::make_mut(status).kubelet = KubeletState::Stopped);
            self.events.push(Event::Stopped);
        }
    }

    /// Begins a run. A failure keeps the surviving state of the previous run.
    fn begin_run(&self) -> Result<StartedRun, KubeletError> {
        let mut state = self.state();
        let State::Stopped(surviving) = &mut *state else { return Err(KubeletError::NotStopped) };
        let sockets = Sockets::bind(&self.config)?;
        let surviving = std::mem::take(surviving);
        let pods = surviving.pods_to_readmit();
        let run = Run::begin(self.task_context(), sockets, surviving);
        let (handle, ended) = (run.handle.clone(), run.ended.clone());
        *state = State::Running(run);
        Ok(StartedRun { handle, ended, pods })
    }

    /// Begins a run, releases `run_lock`, and admits the pods again.
    async fn begin_run_and_readmit(
        &self,
        run_lock: tokio::sync::MutexGuard<'_, ()>,
    ) -> Result<(), KubeletError> {
        // New pods wait until the former ones are admitted again.
        let _sync_loop = self.sync_loop.lock().await;
        let StartedRun { handle, ended, pods } = self.begin_run()?;
        drop(run_lock);
        let fault = self.faults.borrow().pods.clone();
        let known_pods = pods.into_iter().filter(|pod| fault.knows_pod(&pod.uid));
        readmit_pods((&handle, &ended), known_pods).await;
        if fault == PodSourceFault::None {
            set_sources_ready(&handle).await;
        }
        Ok(())
    }

    /// Changes pods and their running containers, on a running or stopped kubelet.
    async fn change_pods(&self, change: impl FnOnce(&mut Pods) + Clone + Send + 'static) {
        if self.change_pods_in_task(change.clone()).await.is_ok() {
            return;
        }
        let _run_lock = self.run_lock.lock().await;
        // Another caller may have begun a run during the wait for the lock.
        if self.change_pods_in_task(change.clone()).await.is_ok() {
            return;
        }
        // The run panicked, or the caller that ended it was cancelled.
        self.end_run().await;
        if let State::Stopped(surviving) = &mut *self.state() {
            change(&mut surviving.pods);
        }
    }

    async fn change_pods_in_task(
        &self,
        change: impl FnOnce(&mut Pods) + Send + 'static,
    ) -> Result<(), KubeletEnded> {
        let (handle, _) = self.handle().ok_or(KubeletEnded)?;
        handle.update(move |task| change(&mut task.manager.pods)).await
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle(&self) -> Option<(ManagerHandle, CancellationToken)> {
        match &*self.state() {
            State::Running(run) => Some((run.handle.clone(), run.ended.clone())),
            State::Stopped(_) => None,
        }
    }

    fn task_context(&self) -> TaskContext {
        TaskContext {
            config: Arc::clone(&self.config),
            events: self.events.clone(),
            faults: self.faults.subscribe(),
            status: self.status.clone(),
            ended: CancellationToken::new(),
        }
    }

    /// Rejection of a pod after the kubelet stopped or panicked.
    fn ended_rejection(&self) -> Rejection {
        let message = match &self.status().kubelet {
            KubeletState::Panicked(message) => message.clone(),
            KubeletState::Running | KubeletState::Stopped => "the kubelet was stopped".to_owned(),
        };
        Rejection { reason: RejectionReason::KubeletEnded, message }
    }
}

/// Admits pods that were bound to the node before this run.
async fn readmit_pods(
    (handle, ended): (&ManagerHandle, &CancellationToken),
    pods: impl IntoIterator<Item = Pod>,
) {
    for pod in pods {
        // The pod's status and the event log have the outcome.
        let _ = ended.run_until_cancelled(admission::admit(handle, pod)).await;
    }
}

/// Tells the device manager that the list of pods is complete. From now on it frees devices of
/// unknown pods.
async fn set_sources_ready(handle: &ManagerHandle) {
    // A stopped kubelet does not need the change.
    let _ = handle.update(|task| task.manager.sources_ready = true).await;
}

#[cfg(test)]
mod tests {
    use tokio::task::JoinSet;

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(5);

    #[tokio::test]
    async fn a_panic_of_the_manager_task_shows_at_once_and_resumes_where_the_run_is_ended() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let kubelet = Arc::new(Kubelet::start(Config::new(dir.path())).expect("started"));
        let (handle, _) = kubelet.handle().expect("it runs");
        assert_eq!(handle.update(|_| panic!("a defect")).await, Err::<(), _>(KubeletEnded));
        let is_panicked = |node: &NodeStatus| matches!(node.kubelet, KubeletState::Panicked(_));
        kubelet.wait_for(is_panicked, DEADLINE).await.expect("the status shows the panic");

        let task_kubelet = Arc::clone(&kubelet);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { task_kubelet.restart().await.is_ok() });
        let restart = tasks.join_next().await.expect("one task");
        let panic = restart.expect_err("the restart resumes the panic").into_panic();
        assert_eq!(panic.downcast_ref(), Some(&"a defect"));
        kubelet.restart().await.expect("a new run");
        assert_eq!(kubelet.status().kubelet, KubeletState::Running);
    }
}
