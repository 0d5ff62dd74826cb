//! The kubelet as others hold it: start, stop, restart, admit, look.
//!
//! ```text
//!            start            stop, panic
//!  (nothing) ────> Running ───────────────> Stopped ─┐
//!                     ^  pods and node status stay    │
//!                     └───────── restart, reboot ─────┘
//! ```

mod faults;
mod life;

use std::{
    fs::File,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use windlass_kubelet_api::socket::SocketError;

use self::life::{Life, Pods, Remains};
use crate::{
    admission::{self, Admission, Reason, Rejection},
    config::Config,
    desk::{Office, Owner},
    directory::{self, DirectoryError},
    event::{Calls, Event, EventLog},
    fault::Misbehaviour,
    grant::Grant,
    pod::Pod,
    start::{self, StartError},
    status::{Condition, NodeStatus, PodPhase},
};

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
#[derive(Debug)]
pub struct Kubelet {
    config: Arc<Config>,
    events: EventLog,
    faults: watch::Sender<Misbehaviour>,
    status: watch::Sender<Arc<NodeStatus>>,
    state: Mutex<State>,
    /// Pods are admitted, and lives begin and end, one at a time.
    sync_loop: tokio::sync::Mutex<()>,
    /// Held as long as the kubelet exists, stopped or not.
    _lock: File,
}

#[derive(Debug)]
enum State {
    Running(Life),
    Stopped(Remains),
    /// Between the two, for a moment.
    Changing,
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
            sync_loop: tokio::sync::Mutex::new(()),
            _lock: lock,
        };
        let life = Life::begin(kubelet.office(), Remains::default())?;
        *kubelet.state() = State::Running(life);
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

    /// Everything that happened, over restarts.
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

    /// Starts a container of an admitted pod: `PreStartContainer` for each resource that wants it,
    /// then everything that its plugins granted, merged. Starting it again is a container restart.
    pub async fn start_container(
        &self,
        pod_uid: &str,
        container: &str,
    ) -> Result<Grant, StartError> {
        let stopped = || StartError::Stopped(pod_uid.to_owned());
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

    /// All containers of the pod ended well. Its devices are freed at the next garbage collection.
    pub async fn finish(&self, pod_uid: &str) {
        let uid = pod_uid.to_owned();
        self.change_pods(move |pods| {
            if let Some(record) = pods.get_mut(&uid) {
                record.running.clear();
                record.phase = PodPhase::Succeeded;
            }
        })
        .await;
    }

    /// The pod's object is deleted, while the kubelet runs or while it does not. Its devices are
    /// freed at the next garbage collection: the next admission that asks for devices, or `List`.
    pub async fn delete(&self, pod_uid: &str) {
        let uid = pod_uid.to_owned();
        self.change_pods(move |pods| {
            pods.remove(&uid);
        })
        .await;
    }

    /// Ends the kubelet as the end of its process does: connections are cut, sockets and checkpoint
    /// stay as files, containers go on.
    pub async fn stop(&self) {
        let life = match self.take_state() {
            State::Running(life) => life,
            other => {
                *self.state() = other;
                return;
            }
        };
        let remains = life.end().await;
        *self.state() = State::Stopped(remains);
        if self.node().kubelet == Condition::Running {
            self.status.send_modify(|shown| Arc::make_mut(shown).kubelet = Condition::Stopped);
            self.events.push(Event::Stopped);
        }
    }

    /// Stops for good and frees the root.
    pub async fn shutdown(self) {
        self.stop().await;
    }

    /// Ends the process and starts a new one: every socket directly in the plugin folder is
    /// deleted, `kubelet.sock` is new, everything but the checkpoint is forgotten, and all pods are
    /// admitted again before anything else happens. Running containers keep running.
    pub async fn restart(&self) -> Result<(), KubeletError> {
        self.stop().await;
        self.begin_again().await
    }

    /// Like [`restart`](Self::restart), after all containers have ended too.
    pub async fn reboot(&self) -> Result<(), KubeletError> {
        self.stop().await;
        if let State::Stopped(remains) = &mut *self.state() {
            remains.pods.values_mut().for_each(|record| record.running.clear());
        }
        self.begin_again().await
    }

    async fn begin_again(&self) -> Result<(), KubeletError> {
        let _turn = self.sync_loop.lock().await;
        let remains = match self.take_state() {
            State::Stopped(remains) => remains,
            other => {
                *self.state() = other;
                return Ok(());
            }
        };
        let pods = remains.to_admit_again();
        let life = Life::begin(self.office(), remains)?;
        let (owner, ended) = (life.owner.clone(), life.ended.clone());
        *self.state() = State::Running(life);
        for pod in pods {
            // The outcome is in the pod's status and among the events.
            let _ = ended.run_until_cancelled(admission::admit(&owner, pod)).await;
        }
        // A kubelet that ended meanwhile has no sources.
        let _ = owner.with(|desk| desk.manager.sources_ready = true).await;
        Ok(())
    }

    /// Changes what the API server and the runtime know, whether the kubelet runs or not.
    async fn change_pods(&self, change: impl FnOnce(&mut Pods) + Clone + Send + 'static) {
        if let Some((owner, _)) = self.owner() {
            let act = change.clone();
            if owner.with(move |desk| act(&mut desk.manager.pods)).await.is_ok() {
                return;
            }
            self.stop().await;
        }
        if let State::Stopped(remains) = &mut *self.state() {
            change(&mut remains.pods);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the state out, so that nobody else begins or ends a life meanwhile.
    fn take_state(&self) -> State {
        std::mem::replace(&mut *self.state(), State::Changing)
    }

    fn owner(&self) -> Option<(Owner, CancellationToken)> {
        match &*self.state() {
            State::Running(life) => Some((life.owner.clone(), life.ended.clone())),
            State::Stopped(_) | State::Changing => None,
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
