//! The one task that owns the state of the device manager and the DRA manager. Other tasks send it
//! functions and get their results.

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
    fault::{ClaimFault, Misbehaviour},
    manager::{Client, Manager, Refusal, Vanished},
    status::{Condition, NodeStatus},
};

type Command = Box<dyn FnOnce(&mut ManagerTask) + Send>;

/// Handle of other tasks: runs their functions in the manager task.
#[derive(Clone, Debug)]
pub(crate) struct ManagerHandle {
    commands: mpsc::UnboundedSender<Command>,
}

/// The kubelet ended before it ran the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gone;

/// State of both managers, with its files and watchers and the tasks of its connections.
#[derive(Debug)]
pub(crate) struct ManagerTask {
    /// The device manager's state.
    pub(crate) manager: Manager,
    /// The DRA manager's state.
    pub(crate) dra: Dra,
    /// Connections to plugins and drivers. They end with this task.
    pub(crate) connections: JoinSet<()>,
    pub(crate) config: Arc<Config>,
    /// Log of events.
    pub(crate) events: EventLog,
    checkpoint: CheckpointFile,
    claims: ClaimsFile,
    faults: watch::Receiver<Misbehaviour>,
    status: watch::Sender<Arc<NodeStatus>>,
    ended: CancellationToken,
}

/// Reports a panic of the manager task. Without the report, waiters for the status would wait for
/// ever. The caller that stops the kubelet gets the panic itself.
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
    pub(crate) faults: watch::Receiver<Misbehaviour>,
    pub(crate) status: watch::Sender<Arc<NodeStatus>>,
    pub(crate) ended: CancellationToken,
}

// === impl ManagerHandle ===

impl ManagerHandle {
    /// A handle, and the queue of commands for its manager task.
    pub(crate) fn new() -> (Self, mpsc::UnboundedReceiver<Command>) {
        let (commands, received) = mpsc::unbounded_channel();
        (Self { commands }, received)
    }

    /// Runs a function on the state. The status shows the function's changes before this returns.
    pub(crate) async fn update<R: Send + 'static>(
        &self,
        act: impl FnOnce(&mut ManagerTask) -> R + Send + 'static,
    ) -> Result<R, Gone> {
        self.send(move |task| {
            let outcome = act(task);
            task.publish();
            outcome
        })
        .await
    }

    /// Runs a function that only reads the state, or writes to the log. The status needs no update
    /// afterwards.
    pub(crate) async fn read<R: Send + 'static>(
        &self,
        read: impl FnOnce(&ManagerTask) -> R + Send + 'static,
    ) -> Result<R, Gone> {
        self.send(|task| read(task)).await
    }

    async fn send<R: Send + 'static>(
        &self,
        act: impl FnOnce(&mut ManagerTask) -> R + Send + 'static,
    ) -> Result<R, Gone> {
        let (reply, result) = oneshot::channel();
        let command: Command = Box::new(move |task| {
            // The caller has gone: the effect on the state stays.
            let _ = reply.send(act(task));
        });
        self.commands.send(command).map_err(|_| Gone)?;
        result.await.map_err(|_| Gone)
    }
}

impl From<Gone> for Refusal {
    fn from(Gone: Gone) -> Self {
        Self::Stopped
    }
}

// === impl ManagerTask ===

impl ManagerTask {
    /// Reads the checkpoint and restores its content. The claims were read before, because a
    /// kubelet does not start without them.
    pub(crate) fn restore(context: TaskContext, mut manager: Manager, claims: Claims) -> Self {
        let TaskContext { config, events, faults, status, ended } = context;
        let checkpoint = CheckpointFile::in_dir(&config.plugin_dir());
        match checkpoint.read() {
            Ok(Some(found)) => manager.restore(found, Instant::now()),
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
        task.publish();
        task
    }

    /// Works through commands until the kubelet ends. Returns the state for the next life.
    pub(crate) async fn run(mut self, mut commands: mpsc::UnboundedReceiver<Command>) -> Manager {
        let _reporter = self.panic_reporter();
        loop {
            let expiry = self.manager.next_expiry(self.config.grace_period);
            let staleness = self.dra.health.next_change();
            let wipe = self.dra.wipes.next();
            tokio::select! {
                biased;
                () = self.ended.cancelled() => break,
                Some(command) = commands.recv() => command(&mut self),
                Some(ended) = self.connections.join_next(), if !self.connections.is_empty() => {
                    if let Err(error) = ended {
                        self.publish();
                        let message = format!("a connection's task failed: {error}");
                        self.panic_reporter().report(&message);
                    }
                }
                () = until(expiry) => self.expire(),
                () = until(staleness) => self.publish(),
                () = until(wipe) => self.wipe(),
            }
        }
        self.connections.shutdown().await;
        self.manager
    }

    /// Takes a list, from a message of a stream.
    pub(crate) fn list(&mut self, resource: &str, devices: Vec<Device>) {
        let event = Event::ListReceived { resource: resource.to_owned(), devices: devices.clone() };
        let pods = self.manager.list(resource, devices);
        if !pods.is_empty() {
            self.events.push(Event::PodsSynced { pods });
        }
        // The log has a failed write; the real kubelet continues too.
        let _ = self.save();
        self.events.push(event);
    }

    /// Records the end of a stream.
    pub(crate) fn stream_ended(&mut self, client: &Client, endpoint: PathBuf, reason: String) {
        self.manager.stream_ended(client, Instant::now());
        let resource = client.resource().to_owned();
        self.events.push(Event::StreamEnded { resource, endpoint, reason });
    }

    /// Writes the checkpoint.
    pub(crate) fn save(&mut self) -> Result<(), Refusal> {
        match self.checkpoint.write(&self.manager.to_checkpoint()) {
            Ok(()) => {
                self.events.push(Event::CheckpointWritten);
                Ok(())
            }
            Err(error) => {
                let message = error.to_string();
                self.events.push(Event::CheckpointFailed { message: message.clone() });
                Err(Refusal::Checkpoint(message))
            }
        }
    }

    /// True if the kubelet knows of a pod of the node.
    pub(crate) fn knows(&self, pod: &str) -> bool {
        self.faults.borrow().pods.knows(pod)
    }

    /// Writes the checkpoint of the claims.
    pub(crate) fn save_claims(&self, what: &'static str) -> Result<(), ClaimError> {
        let written = self.claims.write(&self.dra.claims.to_checkpoint());
        written.map_err(|error| ClaimError::Checkpoint { what, message: error.to_string() })?;
        self.events.push(Event::ClaimsWritten);
        Ok(())
    }

    /// Ends the kubelet at this point, if the fault says so.
    pub(crate) fn dies(&self, here: ClaimFault) -> Result<(), ClaimError> {
        if self.faults.borrow().claims != here {
            return Ok(());
        }
        self.panic_reporter().report("killed in the middle of its work on claims");
        Err(ClaimError::Stopped)
    }

    /// Ends the kubelet, as a nil dereference ends the real one.
    pub(crate) fn crash(&mut self, vanished: &Vanished) {
        self.publish();
        self.panic_reporter().report(&vanished.to_string());
    }

    /// Publishes a changed state to all watchers. The state of a dead kubelet is not published.
    pub(crate) fn publish(&mut self) {
        if self.ended.is_cancelled() {
            return;
        }
        self.dra.look_at_connections(self.config.dra.wipe_delay);
        let current = NodeStatus::of(&self.manager, &self.dra);
        self.status.send_if_modified(|shown| {
            let changed = **shown != current;
            if changed {
                *shown = Arc::new(current);
            }
            changed
        });
    }

    fn wipe(&mut self) {
        for driver in self.dra.wipes.due() {
            self.events.push(Event::SlicesWiped { driver: Some(driver) });
        }
    }

    fn panic_reporter(&self) -> PanicReporter {
        let (status, events) = (self.status.clone(), self.events.clone());
        PanicReporter { status, events, ended: self.ended.clone() }
    }

    fn expire(&mut self) {
        let gone = self.manager.expire(Instant::now(), self.config.grace_period);
        if !gone.is_empty() {
            // The log has a failed write; the real kubelet continues too.
            let _ = self.save();
        }
        for resource in gone {
            self.events.push(Event::ResourceExpired { resource });
        }
        self.publish();
    }
}

// === impl PanicReporter ===

impl PanicReporter {
    /// Ends the kubelet as a panic does.
    fn report(&self, message: &str) {
        self.ended.cancel();
        self.status.send_modify(|shown| {
            Arc::make_mut(shown).kubelet = Condition::Panicked(message.to_owned());
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

async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
