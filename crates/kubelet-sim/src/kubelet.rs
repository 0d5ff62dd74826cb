//! Public handle of the kubelet: start, stop, restart, admission, status.
//!
//! ```text
//!            start            stop, panic
//!  (nothing) ────> Running ───────────────> Stopped ─┐
//!                     ^  pods and node status stay    │
//!                     └───────── restart, reboot ─────┘
//! ```
//!
//! A life is the time from a start to a stop. Only the holder of the lock `lives` begins or ends
//! one, and the state changes in one step. So a cancelled call leaves the kubelet running or
//! stopped.

mod claims;
mod faults;
mod life;

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

use self::life::{Life, Pods, Remains, Sockets};
use crate::{
    admission::{self, Admission, Reason, Rejection},
    checkpoint::ClaimsFileError,
    config::Config,
    directory::{self, DirectoryError},
    dra::Turns,
    event::{Event, EventLog, EventReader},
    fault::{Misbehaviour, PodFault},
    grant::Grant,
    manager_task::{Gone, ManagerHandle, TaskContext},
    pod::Pod,
    start::{self, StartError},
    status::{Condition, NodeStatus},
};
pub use claims::SyncError;

/// An embedded kubelet. Dropping it ends it as [`Kubelet::stop`] does, without waiting.
///
/// # Flow
///
/// [`start`](Self::start), let plugins register, [`admit`](Self::admit) pods,
/// [`start_container`](Self::start_container), [`delete`](Self::delete), [`stop`](Self::stop).
///
/// # Guarantees
///
/// [`node`](Self::node) and [`calls`](Self::calls) show the effect of a method when it returns.
/// Pods are admitted one at a time. No task outlives the kubelet.
///
/// # Assumptions
///
/// One kubelet per root; a second one is refused. Pod UIDs are unique.
///
/// # Panics
///
/// A defect of the embedded kubelet itself shows as [`Condition::Panicked`]. The panic continues in
/// the next call that ends the kubelet: [`stop`](Self::stop), [`restart`](Self::restart).
#[derive(Debug)]
pub struct Kubelet {
    config: Arc<Config>,
    events: EventLog,
    faults: watch::Sender<Misbehaviour>,
    status: watch::Sender<Arc<NodeStatus>>,
    state: Mutex<State>,
    /// Serialises starts and stops. Taken before `sync_loop`, and never held during a call to
    /// a plugin, so that a kubelet can always be stopped.
    lives: tokio::sync::Mutex<()>,
    /// Serialises admissions.
    sync_loop: tokio::sync::Mutex<()>,
    /// One worker per pod, for work on its claims.
    workers: Turns,
    /// Lock file of the root, held by a stopped kubelet too.
    _lock: File,
}

#[derive(Debug)]
enum State {
    Running(Life),
    Stopped(Remains),
}

/// A started kubelet, before its pods are admitted again.
struct Begun {
    handle: ManagerHandle,
    ended: CancellationToken,
    pods: Vec<Pod>,
}

/// Reasons why a kubelet does not run.
#[derive(Debug, thiserror::Error)]
pub enum KubeletError {
    /// The folders cannot be used.
    #[error("cannot prepare the embedded kubelet's folders")]
    Directory(#[from] DirectoryError),
    /// The sockets cannot be bound.
    #[error("cannot serve the embedded kubelet's sockets")]
    Socket(#[from] SocketError),
    /// The claims of the previous run are unknown, so no kubelet starts.
    #[error("cannot restore the claims of the embedded kubelet's pods")]
    Claims(#[from] ClaimsFileError),
    /// The previous run has not ended.
    #[error("the embedded kubelet runs already: stop it first")]
    NotStopped,
}

/// A wait that timed out, with the status at the end.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the condition did not hold within {waited:?}: {status:#?}")]
pub struct NotInTime {
    /// Duration of the wait.
    pub waited: Duration,
    /// Status at the end.
    pub status: Arc<NodeStatus>,
}

// === impl State ===

impl State {
    /// Ends the life, if there is one. Ready when the life is over and its remains are in its
    /// place. A caller may give up and poll again.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), JoinError>> {
        let Self::Running(life) = self else { return Poll::Ready(Ok(())) };
        let ended = ready!(life.poll_end(cx));
        let (remains, outcome) = match ended {
            Ok(remains) => (remains, Ok(())),
            Err(error) => (Remains::default(), Err(error)),
        };
        *self = Self::Stopped(remains);
        Poll::Ready(outcome)
    }
}

// === impl Kubelet ===

impl Kubelet {
    /// Makes the folders, locks the root, reads the checkpoint, deletes stale sockets and serves.
    /// Both sockets are bound when this returns. The caller runs within a tokio runtime.
    pub fn start(config: Config) -> Result<Self, KubeletError> {
        let lock = directory::claim(&config)?;
        let kubelet = Self {
            config: Arc::new(config),
            events: EventLog::new(),
            faults: watch::Sender::new(Misbehaviour::default()),
            status: watch::Sender::new(Arc::new(NodeStatus::default())),
            state: Mutex::new(State::Stopped(Remains::default())),
            lives: tokio::sync::Mutex::new(()),
            sync_loop: tokio::sync::Mutex::new(()),
            workers: Turns::default(),
            _lock: lock,
        };
        // A first life has no pods to admit again.
        kubelet.begin()?;
        Ok(kubelet)
    }

    /// Settings of the kubelet.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Current status of the node.
    pub fn node(&self) -> Arc<NodeStatus> {
        self.status.borrow().clone()
    }

    /// Status of the node, as it changes.
    pub fn watch(&self) -> watch::Receiver<Arc<NodeStatus>> {
        self.status.subscribe()
    }

    /// Event log over all lives: the newest events, in order.
    pub fn calls(&self) -> EventReader {
        self.events.calls()
    }

    /// Waits until the node's status fulfils a condition.
    pub async fn wait_for(
        &self,
        mut condition: impl FnMut(&NodeStatus) -> bool,
        deadline: Duration,
    ) -> Result<Arc<NodeStatus>, NotInTime> {
        let mut status = self.status.subscribe();
        let waiting = status.wait_for(|status| condition(status));
        match tokio::time::timeout(deadline, waiting).await {
            Ok(Ok(found)) => Ok(found.clone()),
            Ok(Err(_)) | Err(_) => Err(NotInTime { waited: deadline, status: self.node() }),
        }
    }

    /// Admits a pod, or returns the reason of its rejection. Pods wait for each other, as in the
    /// real kubelet's only sync loop. A plugin without an answer blocks all other admissions.
    pub async fn admit(&self, pod: Pod) -> Result<Admission, Rejection> {
        let _turn = self.sync_loop.lock().await;
        let (handle, ended) = self.handle().ok_or_else(|| self.gone())?;
        let admitted = ended.run_until_cancelled(admission::admit(&handle, pod)).await;
        admitted.unwrap_or_else(|| Err(self.gone()))
    }

    /// Starts a container of an admitted pod, after its claims are prepared. Each resource that
    /// wants it gets `PreStartContainer`. Returns the merged grants of its plugins. A second start
    /// is a container restart.
    pub async fn start_container(
        &self,
        pod_uid: &str,
        container: &str,
    ) -> Result<Grant, StartError> {
        let stopped = || StartError::Stopped(pod_uid.to_owned());
        self.prepare_before_start(pod_uid).await?;
        let (handle, ended) = self.handle().ok_or_else(stopped)?;
        let started = ended.run_until_cancelled(start::start(&handle, pod_uid, container)).await;
        started.unwrap_or_else(|| Err(stopped()))
    }

    /// Ends a container, with any exit code; its pod continues.
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
    /// collection frees the pod's devices. While the release fails, the pod stays unchanged, and
    /// [`sync_pod`](Self::sync_pod) tries again.
    pub async fn finish(&self, pod_uid: &str) {
        let uid = pod_uid.to_owned();
        self.change_pods(move |pods| {
            if let Some(record) = pods.get_mut(&uid) {
                record.containers_ended();
            }
        })
        .await;
        self.release_ended(pod_uid).await;
    }

    /// Deletes the pod's object, on a running or stopped kubelet, and releases the pod's claims.
    /// After a failed release, the next [`reconcile_claims`](Self::reconcile_claims) tries again.
    /// The next garbage collection frees the pod's devices: an admission that asks for devices, or
    /// `List`.
    pub async fn delete(&self, pod_uid: &str) {
        let uid = pod_uid.to_owned();
        let held = self.claims_to_release(pod_uid).await;
        self.change_pods(move |pods| {
            pods.remove(&uid);
        })
        .await;
        if let Some(pod) = held {
            self.release_deleted(&pod).await;
        }
    }

    /// Ends the kubelet as the end of its process does. Connections are cut, sockets and checkpoint
    /// stay as files, containers go on. Running calls return that the kubelet is gone.
    pub async fn stop(&self) {
        let _turn = self.lives.lock().await;
        self.end().await;
    }

    /// Stops for good and unlocks the root.
    pub async fn shutdown(self) {
        self.stop().await;
    }

    /// Ends the process and starts a new one. Every socket directly in the plugin folder is
    /// deleted, and `kubelet.sock` is new. Only the checkpoint survives. All pods are admitted
    /// again before any other work. Running containers keep running.
    ///
    /// # Errors
    ///
    /// The folders or sockets cannot be used. The kubelet and all its pods are stopped then, and
    /// can be restarted once the cause is gone. A cancelled restart leaves the kubelet stopped, or
    /// running with some pods still to be admitted again. Another restart completes it.
    pub async fn restart(&self) -> Result<(), KubeletError> {
        let turn = self.lives.lock().await;
        self.end().await;
        self.begin_again(turn).await
    }

    /// Like [`restart`](Self::restart), after the end of all containers.
    pub async fn reboot(&self) -> Result<(), KubeletError> {
        let turn = self.lives.lock().await;
        self.end().await;
        if let State::Stopped(remains) = &mut *self.state() {
            for record in remains.pods.values_mut() {
                record.running.clear();
                record.has_sandbox = false;
            }
        }
        self.begin_again(turn).await
    }

    /// Ends the life, if there is one. The caller has the turn.
    async fn end(&self) {
        let ended = poll_fn(|cx| self.state().poll_end(cx)).await;
        if let Err(error) = ended
            && let Ok(panic) = error.try_into_panic()
        {
            resume_unwind(panic);
        }
        if self.node().kubelet == Condition::Running {
            self.status.send_modify(|shown| Arc::make_mut(shown).kubelet = Condition::Stopped);
            self.events.push(Event::Stopped);
        }
    }

    /// Starts the kubelet again. A failure keeps the state that the previous run left.
    fn begin(&self) -> Result<Begun, KubeletError> {
        let mut state = self.state();
        let State::Stopped(remains) = &mut *state else { return Err(KubeletError::NotStopped) };
        let sockets = Sockets::bind(&self.config)?;
        let remains = std::mem::take(remains);
        let pods = remains.to_admit_again();
        let life = Life::begin(self.task_context(), sockets, remains);
        let (handle, ended) = (life.handle.clone(), life.ended.clone());
        *state = State::Running(life);
        Ok(Begun { handle, ended, pods })
    }

    async fn begin_again(&self, turn: tokio::sync::MutexGuard<'_, ()>) -> Result<(), KubeletError> {
        let _pods_wait = self.sync_loop.lock().await;
        let Begun { handle, ended, pods } = self.begin()?;
        drop(turn);
        let fault = self.faults.borrow().pods.clone();
        let known = pods.into_iter().filter(|pod| fault.knows(&pod.uid));
        admit_again((&handle, &ended), known).await;
        if fault == PodFault::None {
            set_sources_ready(&handle).await;
        }
        Ok(())
    }

    /// Changes the state of the API server and the runtime, on a running or stopped kubelet.
    async fn change_pods(&self, change: impl FnOnce(&mut Pods) + Clone + Send + 'static) {
        if self.change_pods_in_task(change.clone()).await.is_ok() {
            return;
        }
        let _turn = self.lives.lock().await;
        // A new life may have begun during the wait for the turn.
        if self.change_pods_in_task(change.clone()).await.is_ok() {
            return;
        }
        // The life panicked, or no caller waited for its end.
        self.end().await;
        if let State::Stopped(remains) = &mut *self.state() {
            change(&mut remains.pods);
        }
    }

    async fn change_pods_in_task(
        &self,
        change: impl FnOnce(&mut Pods) + Send + 'static,
    ) -> Result<(), Gone> {
        let (handle, _) = self.handle().ok_or(Gone)?;
        handle.update(move |task| change(&mut task.manager.pods)).await
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle(&self) -> Option<(ManagerHandle, CancellationToken)> {
        match &*self.state() {
            State::Running(life) => Some((life.handle.clone(), life.ended.clone())),
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

    fn gone(&self) -> Rejection {
        let message = match &self.node().kubelet {
            Condition::Panicked(message) => message.clone(),
            Condition::Running | Condition::Stopped => "the kubelet was stopped".to_owned(),
        };
        Rejection { reason: Reason::KubeletGone, message }
    }
}

/// Admits pods that are on the node already.
async fn admit_again(
    (handle, ended): (&ManagerHandle, &CancellationToken),
    pods: impl IntoIterator<Item = Pod>,
) {
    for pod in pods {
        // The outcome is in the pod's status and among the events.
        let _ = ended.run_until_cancelled(admission::admit(handle, pod)).await;
    }
}

/// Tells the device manager that it knows all pods, so that it may free the devices of others.
async fn set_sources_ready(handle: &ManagerHandle) {
    // A kubelet that was stopped meanwhile needs no answer.
    let _ = handle.update(|task| task.manager.sources_ready = true).await;
}

#[cfg(test)]
mod tests {
    use tokio::task::JoinSet;

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(5);

    #[tokio::test]
    async fn a_panic_of_the_manager_task_shows_at_once_and_is_raised_where_the_life_is_ended() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let kubelet = Arc::new(Kubelet::start(Config::new(dir.path())).expect("started"));
        let (handle, _) = kubelet.handle().expect("it runs");
        assert_eq!(handle.update(|_| panic!("a defect")).await, Err::<(), _>(Gone));
        let panicked = |node: &NodeStatus| matches!(node.kubelet, Condition::Panicked(_));
        kubelet.wait_for(panicked, DEADLINE).await.expect("it shows");

        let ending = Arc::clone(&kubelet);
        let mut ended = JoinSet::new();
        ended.spawn(async move { ending.restart().await.is_ok() });
        let ended = ended.join_next().await.expect("one task");
        let panic = ended.expect_err("the panic went on").into_panic();
        assert_eq!(panic.downcast_ref(), Some(&"a defect"));
        kubelet.restart().await.expect("a new life");
        assert_eq!(kubelet.node().kubelet, Condition::Running);
    }
}
