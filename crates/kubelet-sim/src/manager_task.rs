//! The manager task, sole owner of the state of the device manager and the DRA manager. Other tasks
//! send functions to it and receive the results.

use std::{path::PathBuf, sync::Arc};

use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use crate::{
    checkpoint::{CheckpointFile, ClaimsFile},
    config::Config,
    device::Device,
    dra::{ClaimError, Claims, Dra},
    event::{Event, EventLog},
    fault::{ClaimFault, Faults},
    manager::{Client, Manager, ManagerError, UnlistedDevice},
    status::{KubeletState, NodeStatus},
};

type Command = Box<dyn FnOnce(&mut ManagerTask) + Send>;

/// Handle that runs functions in the manager task.
#[derive(Clone, Debug)]
pub(crate) struct ManagerHandle {
    commands: mpsc::UnboundedSender<Command>,
}

/// The kubelet ended before it ran the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KubeletEnded;

/// State of the device manager and the DRA manager, their checkpoint files, and the tasks of their connections.
#[derive(Debug)]
pub(crate) struct ManagerTask {
    /// The device manager's state.
    pub(crate) manager: Manager,
    /// The DRA manager's state.
    pub(crate) dra: Dra,
    /// Tasks of the connections to plugins and drivers. They end with the manager task.
    pub(crate) connections: JoinSet<()>,
    pub(crate) config: Arc<Config>,
    /// Log of events.
    pub(crate) events: EventLog,
    checkpoint: CheckpointFile,
    claims: ClaimsFile,
    faults: watch::Receiver<Faults>,
    status: watch::Sender<Arc<NodeStatus>>,
    ended: CancellationToken,
}

/// Publishes a panic of the manager task in the status and the event log. Without it, callers that
/// wait for a status change would never return. The call that ends the run resumes the panic.
struct PanicReporter {
    status: watch::Sender<Arc<NodeStatus>>,
    events: EventLog,
    ended: CancellationToken,
}

/// Configuration, logs and channels of a manager task.
#[derive(Clone, Debug)]
pub(crate) struct TaskContext {
    pub(crate) config: Arc<Config>,
    pub(crate) events: EventLog,
    pub(crate) faults: watch::Receiver<Faults>,
    pub(crate) status: watch::Sender<Arc<NodeStatus>>,
    pub(crate) ended: CancellationToken,
}

// === impl ManagerHandle ===

impl ManagerHandle {
    /// Creates a handle, and the queue of commands for [`ManagerTask::run`].
    pub(crate) fn new() -> (Self, mpsc::UnboundedReceiver<Command>) {
        let (commands, queue) = mpsc::unbounded_channel();
        (Self { commands }, queue)
    }

    /// Runs a function that changes the state. Publishes the new status before this returns.
    pub(crate) async fn update<R: Send + 'static>(
        &self,
        update: impl FnOnce(&mut ManagerTask) -> R + Send + 'static,
    ) -> Result<R, KubeletEnded> {
        self.send(move |task| {
            let outcome = update(task);
            task.publish_status();
            outcome
        })
        .await
    }

    /// Runs a function that only reads the state, or writes to the event log. Publishes no status.
    pub(crate) async fn read<R: Send + 'static>(
        &self,
        read: impl FnOnce(&ManagerTask) -> R + Send + 'static,
    ) -> Result<R, KubeletEnded> {
        self.send(|task| read(task)).await
    }

    async fn send<R: Send + 'static>(
        &self,
        run: impl FnOnce(&mut ManagerTask) -> R + Send + 'static,
    ) -> Result<R, KubeletEnded> {
        let (reply, result) = oneshot::channel();
        let command: Command = Box::new(move |task| {
            // Sending fails if the caller was cancelled. The effect on the state stays.
            let _ = reply.send(run(task));
        });
        self.commands.send(command).map_err(|_| KubeletEnded)?;
        result.await.map_err(|_| KubeletEnded)
    }
}

impl From<KubeletEnded> for ManagerError {
    fn from(KubeletEnded: KubeletEnded) -> Self {
        Self::Stopped
    }
}

// === impl ManagerTask ===

impl ManagerTask {
    /// Restores the device manager's state from its checkpoint. The caller reads the claims, because
    /// a failure to read them prevents the start.
    pub(crate) fn restore(context: TaskContext, mut manager: Manager, claims: Claims) -> Self {
        let TaskContext { config, events, faults, status, ended } = context;
        let checkpoint = CheckpointFile::in_dir(&config.plugin_dir());
        match checkpoint.read() {
            Ok(Some(content)) => manager.restore(content, Instant::now()),
            Ok(None) => {}
            Err(error) => events.push(Event::CheckpointIgnored { message: error.to_string() }),
        }
        let mut task = Self {
            manager,
            dra: Dra { claims, ..Dra::default() },
            connections: JoinSet::new(),
            claims: ClaimsFile::in_dir(&config.dir),
            config,
            events,
            checkpoint,
            faults,
            status,
            ended,
        };
        task.publish_status();
        task
    }

    /// Runs commands until the kubelet ends. Returns the device manager's state for the next run.
    pub(crate) async fn run(mut self, mut commands: mpsc::UnboundedReceiver<Command>) -> Manager {
        let _reporter = self.panic_reporter();
        loop {
            let expiry = self.manager.next_expiry(self.config.grace_period);
            let health_expiry = self.dra.health.next_expiry();
            let wipe_time = self.dra.wipes.next_due();
            tokio::select! {
                biased;
                () = self.ended.cancelled() => break,
                Some(command) = commands.recv() => command(&mut self),
                Some(result) = self.connections.join_next(), if !self.connections.is_empty() => {
                    if let Err(error) = result {
                        self.publish_status();
                        let message = format!("a connection's task failed: {error}");
                        self.panic_reporter().report(&message);
                    }
                }
                () = maybe_sleep_until(expiry) => self.remove_expired_plugins(),
                () = maybe_sleep_until(health_expiry) => self.publish_status(),
                () = maybe_sleep_until(wipe_time) => self.announce_wipes(),
            }
        }
        self.connections.shutdown().await;
        self.manager
    }

    /// Handles a list that a plugin sent on its `ListAndWatch` stream.
    pub(crate) fn set_devices(&mut self, resource: &str, devices: Vec<Device>) {
        let event = Event::ListReceived { resource: resource.to_owned(), devices: devices.clone() };
        let pods = self.manager.set_devices(resource, devices);
        if !pods.is_empty() {
            self.events.push(Event::PodsSynced { pods });
        }
        // The event log has a failed write. The real kubelet continues too.
        let _ = self.write_checkpoint();
        self.events.push(event);
    }

    /// Handles the end of a plugin's `ListAndWatch` stream.
    pub(crate) fn stream_ended(&mut self, client: &Client, endpoint: PathBuf, reason: String) {
        self.manager.stream_ended(client, Instant::now());
        let resource = client.resource().to_owned();
        self.events.push(Event::StreamEnded { resource, endpoint, reason });
    }

    /// Writes the device manager's checkpoint.
    pub(crate) fn write_checkpoint(&mut self) -> Result<(), ManagerError> {
        match self.checkpoint.write(&self.manager.to_checkpoint()) {
            Ok(()) => {
                self.events.push(Event::CheckpointWritten);
                Ok(())
            }
            Err(error) => {
                let message = error.to_string();
                self.events.push(Event::CheckpointFailed { message: message.clone() });
                Err(ManagerError::Checkpoint(message))
            }
        }
    }

    /// True if the kubelet knows the pod of the node with this UID.
    pub(crate) fn knows_pod(&self, pod: &str) -> bool {
        self.faults.borrow().pods.knows_pod(pod)
    }

    /// Writes the DRA manager's checkpoint. `what` is a word of the error text.
    pub(crate) fn write_claims_checkpoint(&self, what: &'static str) -> Result<(), ClaimError> {
        let outcome = self.claims.write(&self.dra.claims.to_checkpoint());
        outcome.map_err(|error| ClaimError::Checkpoint { what, message: error.to_string() })?;
        self.events.push(Event::ClaimsCheckpointWritten);
        Ok(())
    }

    /// Ends the kubelet as a panic does, if a crash is injected at this point.
    pub(crate) fn crash_if_injected(&self, point: ClaimFault) -> Result<(), ClaimError> {
        if self.faults.borrow().claims != point {
            return Ok(());
        }
        self.panic_reporter().report("killed in the middle of its work on claims");
        Err(ClaimError::Stopped)
    }

    /// Ends the kubelet, as a nil dereference ends the real one.
    pub(crate) fn crash(&mut self, unlisted: &UnlistedDevice) {
        self.publish_status();
        self.panic_reporter().report(&unlisted.to_string());
    }

    /// Publishes the node's status if it changed. An ended kubelet publishes nothing.
    pub(crate) fn publish_status(&mut self) {
        if self.ended.is_cancelled() {
            return;
        }
        self.dra.update_wipe_times(self.config.dra.wipe_delay);
        let current = NodeStatus::of(&self.manager, &self.dra);
        self.status.send_if_modified(|published| {
            let changed = **published != current;
            if changed {
                *published = Arc::new(current);
            }
            changed
        });
    }

    /// Announces the deletion of slices for each driver whose wipe delay is over.
    fn announce_wipes(&mut self) {
        for driver in self.dra.wipes.take_due() {
            self.events.push(Event::SlicesWiped { driver: Some(driver) });
        }
    }

    fn panic_reporter(&self) -> PanicReporter {
        let (status, events) = (self.status.clone(), self.events.clone());
        PanicReporter { status, events, ended: self.ended.clone() }
    }

    /// Removes the resources of plugins whose grace period is over.
    fn remove_expired_plugins(&mut self) {
        let expired = self.manager.remove_expired(Instant::now(), self.config.grace_period);
        if !expired.is_empty() {
            // The event log has a failed write. The real kubelet continues too.
            let _ = self.write_checkpoint();
        }
        for resource in expired {
            self.events.push(Event::ResourceExpired { resource });
        }
        self.publish_status();
    }
}

// === impl PanicReporter ===

impl PanicReporter {
    /// Ends the kubelet, and publishes the panic.
    fn report(&self, message: &str) {
        self.ended.cancel();
        self.status.send_modify(|status| {
            Arc::make_mut(status).kubelet = KubeletState::Panicked(message.to_owned());
        });
        self.events.push(Event::Panicked { message: message.to_owned() });
    }
}

impl Drop for PanicReporter {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.report("the embedded kubelet itself panicked: a defect of Windlass");
        }
    }
}

/// Waits until a time. Never returns without one.
async fn maybe_sleep_until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}
