//! The kubelet as others hold it: start, stop, restart, admit, look.
//!
//! ```text
//!            start            stop, panic
//!  (nothing) ────> Running ───────────────> Stopped ─┐
//!                     ^  pods and node status stay    │
//!                     └───────── restart, reboot ─────┘
//! ```
//!
//! The state changes in one step, under its lock, and only by who has the turn in `lives`: a future
//! that is dropped on the way leaves one of the two states, never neither.

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
    desk::{Gone, Office, Owner},
    directory::{self, DirectoryError},
    dra::Turns,
    event::{Calls, Event, EventLog},
    fault::{Misbehaviour, PodFault},
    grant::Grant,
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
/// What a method changed shows in [`node`](Self::node) and [`calls`](Self::calls) when it returns.
/// Pods are admitted one at a time. No task outlives the kubelet.
///
/// # Assumptions
///
/// One kubelet per root; a second one is refused. Pod UIDs are unique.
///
/// # Panics
///
/// A defect of the embedded kubelet itself shows as [`Condition::Panicked`], and its panic goes on
/// in the next call that ends this life: [`stop`](Self::stop), [`restart`](Self::restart).
#[derive(Debug)]
pub struct Kubelet {
    config: Arc<Config>,
    events: EventLog,
    faults: watch::Sender<Misbehaviour>,
    status: watch::Sender<Arc<NodeStatus>>,
    state: Mutex<State>,
    /// Lives begin and end one at a time. Taken before `sync_loop`, and never held while a plugin
    /// is waited for, so that a kubelet can always be stopped.
    lives: tokio::sync::Mutex<()>,
    /// Pods are admitted one at a time.
    sync_loop: tokio::sync::Mutex<()>,
    /// One worker per pod, for what happens to its claims.
    workers: Turns,
    /// Held as long as the kubelet exists, stopped or not.
    _lock: File,
}

#[derive(Debug)]
enum State {
    Running(Life),
    Stopped(Remains),
}

/// A new life, before its pods are admitted again.
struct Begun {
    owner: Owner,
    ended: CancellationToken,
    pods: Vec<Pod>,
}

/// Why a kubelet does not run.
#[derive(Debug, thiserror::Error)]
pub enum KubeletError {
    /// Its folders cannot be used.
    #[error("cannot prepare the embedded kubelet's folders")]
    Directory(#[from] DirectoryError),
    /// Its sockets cannot be bound.
    #[error("cannot serve the embedded kubelet's sockets")]
    Socket(#[from] SocketError),
    /// The last life's claims are not known, and no kubelet starts then.
    #[error("cannot restore the claims of the embedded kubelet's pods")]
    Claims(#[from] ClaimsFileError),
    /// A new life was to begin before the last one had ended.
    #[error("the embedded kubelet runs already: stop it first")]
    NotStopped,
}

/// A condition that did not come true in time, and the status as it was then.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the node did not get there within {waited:?}: {status:#?}")]
pub struct NotInTime {
    /// How long was waited.
    pub waited: Duration,
    /// The status at the end.
    pub status: Arc<NodeStatus>,
}

// === impl State ===

impl State {
    /// Ends the life, if there is one: ready when it is over and its remains are in its place. It
    /// may be given up and asked again.
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
    /// Makes the folders, takes the root, reads the checkpoint, deletes stale sockets and serves.
    /// Both sockets are bound when this returns. Call it within a tokio runtime.
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

    /// Its settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The node as it is now.
    pub fn node(&self) -> Arc<NodeStatus> {
        self.status.borrow().clone()
    }

    /// The node as it changes.
    pub fn watch(&self) -> watch::Receiver<Arc<NodeStatus>> {
        self.status.subscribe()
    }

    /// What happened, over restarts: the newest events, in order.
    pub fn calls(&self) -> Calls {
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

    /// Admits a pod, or says why not. Pods wait for each other, as in the real kubelet's only sync
    /// loop: while a plugin does not answer, nothing else is admitted.
    pub async fn admit(&self, pod: Pod) -> Result<Admission, Rejection> {
        let _turn = self.sync_loop.lock().await;
        let (owner, ended) = self.owner().ok_or_else(|| self.gone())?;
        let admitted = ended.run_until_cancelled(admission::admit(&owner, pod)).await;
        admitted.unwrap_or_else(|| Err(self.gone()))
    }

    /// Starts a container of an admitted pod, after its claims are prepared: `PreStartContainer` for each resource that wants it,
    /// then everything that its plugins granted, merged. Starting it again is a container restart.
    pub async fn start_container(
        &self,
        pod_uid: &str,
        container: &str,
    ) -> Result<Grant, StartError> {
        let stopped = || StartError::Stopped(pod_uid.to_owned());
        self.prepare_before_start(pod_uid).await?;
        let (owner, ended) = self.owner().ok_or_else(stopped)?;
        let started = ended.run_until_cancelled(start::start(&owner, pod_uid, container)).await;
        started.unwrap_or_else(|| Err(stopped()))
    }

    /// The container ended, well or not; its pod goes on.
    pub async fn stop_container(&self, pod_uid: &str, container: &str) {
        let (uid, name) = (pod_uid.to_owned(), container.to_owned());
        self.change_pods(move |pods| {
            if let Some(record) = pods.get_mut(&uid) {
                record.running.remove(&name);
            }
        })
        .await;
    }

    /// All containers of the pod ended well. Its devices are freed at the next garbage collection. Its
    /// claims are released first: as long as that fails, the pod stays as it is, and
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

    /// The pod's object is deleted, while the kubelet runs or while it does not. Its devices are
    /// freed at the next garbage collection: the next admission that asks for devices, or `List`. Its
    /// claims are released; if that fails, the next [`reconcile_claims`](Self::reconcile_claims) tries
    /// again.
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

    /// Ends the kubelet as the end of its process does: connections are cut, sockets and checkpoint
    /// stay as files, containers go on. Calls that run then are answered that it is gone.
    pub async fn stop(&self) {
        let _turn = self.lives.lock().await;
        self.end().await;
    }

    /// Stops for good and frees the root.
    pub async fn shutdown(self) {
        self.stop().await;
    }

    /// Ends the process and starts a new one: every socket directly in the plugin folder is
    /// deleted, `kubelet.sock` is new, everything but the checkpoint is forgotten, and all pods are
    /// admitted again before anything else happens. Running containers keep running.
    ///
    /// # Errors
    ///
    /// The folders or sockets cannot be used. The kubelet is stopped then, with all its pods, and
    /// can be restarted once the cause is gone. If this is given up, the kubelet is stopped, or runs
    /// without having admitted all pods again: what it lacks then, another restart brings.
    pub async fn restart(&self) -> Result<(), KubeletError> {
        let turn = self.lives.lock().await;
        self.end().await;
        self.begin_again(turn).await
    }

    /// Like [`restart`](Self::restart), after all containers have ended too.
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

    /// Begins a life after the last one. A failure leaves what the last one left.
    fn begin(&self) -> Result<Begun, KubeletError> {
        let mut state = self.state();
        let State::Stopped(remains) = &mut *state else { return Err(KubeletError::NotStopped) };
        let sockets = Sockets::bind(&self.config)?;
        let remains = std::mem::take(remains);
        let pods = remains.to_admit_again();
        let life = Life::begin(self.office(), sockets, remains);
        let (owner, ended) = (life.owner.clone(), life.ended.clone());
        *state = State::Running(life);
        Ok(Begun { owner, ended, pods })
    }

    async fn begin_again(&self, turn: tokio::sync::MutexGuard<'_, ()>) -> Result<(), KubeletError> {
        let _pods_wait = self.sync_loop.lock().await;
        let Begun { owner, ended, pods } = self.begin()?;
        drop(turn);
        let told = self.faults.borrow().pods.clone();
        let known = pods.into_iter().filter(|pod| told.knows(&pod.uid));
        admit_again((&owner, &ended), known).await;
        if told == PodFault::None {
            are_all_known(&owner).await;
        }
        Ok(())
    }

    /// Changes what the API server and the runtime know, whether the kubelet runs or not.
    async fn change_pods(&self, change: impl FnOnce(&mut Pods) + Clone + Send + 'static) {
        if self.change_at_desk(change.clone()).await.is_ok() {
            return;
        }
        let _turn = self.lives.lock().await;
        // While this waited for its turn, a new life may have begun.
        if self.change_at_desk(change.clone()).await.is_ok() {
            return;
        }
        // It panicked, or nobody stayed to see it end.
        self.end().await;
        if let State::Stopped(remains) = &mut *self.state() {
            change(&mut remains.pods);
        }
    }

    async fn change_at_desk(
        &self,
        change: impl FnOnce(&mut Pods) + Send + 'static,
    ) -> Result<(), Gone> {
        let (owner, _) = self.owner().ok_or(Gone)?;
        owner.with(move |desk| change(&mut desk.manager.pods)).await
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn owner(&self) -> Option<(Owner, CancellationToken)> {
        match &*self.state() {
            State::Running(life) => Some((life.owner.clone(), life.ended.clone())),
            State::Stopped(_) => None,
        }
    }

    fn office(&self) -> Office {
        Office {
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
    (owner, ended): (&Owner, &CancellationToken),
    pods: impl IntoIterator<Item = Pod>,
) {
    for pod in pods {
        // The outcome is in the pod's status and among the events.
        let _ = ended.run_until_cancelled(admission::admit(owner, pod)).await;
    }
}

/// From now on the pods that it knows of are all there are.
async fn are_all_known(owner: &Owner) {
    // A kubelet that ended meanwhile has no sources.
    let _ = owner.with(|desk| desk.manager.sources_ready = true).await;
}

#[cfg(test)]
mod tests {
    use tokio::task::JoinSet;

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(5);

    #[tokio::test]
    async fn a_defect_of_the_desk_shows_at_once_and_goes_on_where_the_life_is_ended() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let kubelet = Arc::new(Kubelet::start(Config::new(dir.path())).expect("started"));
        let (owner, _) = kubelet.owner().expect("it runs");
        assert_eq!(owner.with(|_| panic!("a defect")).await, Err::<(), _>(Gone));
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
