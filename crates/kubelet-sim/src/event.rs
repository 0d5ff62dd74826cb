//! What an embedded kubelet did, in order: for tests to wait for and for people to read.

use std::{path::PathBuf, sync::Arc, time::Duration};

use tokio::sync::watch;

use crate::{
    admission::Question,
    device::{Device, DeviceIds},
    manager::Request,
};

/// One observable step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The kubelet serves both sockets.
    Started,
    /// The checkpoint was not taken at start, the state is empty.
    CheckpointIgnored {
        /// Why.
        message: String,
    },
    /// A plugin's registration succeeded.
    Registered {
        /// Resource name.
        resource: String,
        /// The plugin's socket.
        endpoint: PathBuf,
    },
    /// A registration was answered with an error.
    RegistrationRefused {
        /// Resource name as sent.
        resource: String,
        /// The text that the plugin got.
        message: String,
    },
    /// A complete list arrived.
    ListReceived {
        /// Resource name.
        resource: String,
        /// The devices in the plugin's order.
        devices: Vec<Device>,
    },
    /// `ListAndWatch` ended, whoever ended it.
    StreamEnded {
        /// Resource name.
        resource: String,
        /// The plugin's socket.
        endpoint: PathBuf,
        /// The transport's or the plugin's words.
        reason: String,
    },
    /// The grace period of a stopped plugin ended.
    ResourceExpired {
        /// Resource name.
        resource: String,
    },
    /// The plugin was asked for its preference.
    PreferredAsked {
        /// Pod UID.
        pod: String,
        /// Container name.
        container: String,
        /// Resource name.
        resource: String,
        /// What was asked and answered.
        question: Question,
    },
    /// The plugin was asked to allocate, and did.
    Allocated {
        /// Pod UID.
        pod: String,
        /// Container name.
        container: String,
        /// Resource name.
        resource: String,
        /// The ids.
        devices: DeviceIds,
    },
    /// `Allocate` failed.
    AllocateFailed {
        /// Pod UID.
        pod: String,
        /// Container name.
        container: String,
        /// Resource name.
        resource: String,
        /// The error as the pod's status shows it.
        message: String,
    },
    /// `PreStartContainer` was answered.
    PreStarted {
        /// Pod UID.
        pod: String,
        /// Container name.
        container: String,
        /// Resource name.
        resource: String,
        /// The ids.
        devices: DeviceIds,
    },
    /// A pod was admitted, at once or again after a restart.
    PodAdmitted {
        /// Pod UID.
        pod: String,
    },
    /// A pod was rejected, at once or after a restart.
    PodRejected {
        /// Pod UID.
        pod: String,
        /// Short reason.
        reason: String,
        /// As in the pod's status.
        message: String,
    },
    /// Pods were synced because the health of a held device changed.
    PodsSynced {
        /// Pod UIDs.
        pods: Vec<String>,
    },
    /// More than 100 pod syncs were waiting.
    PodSyncDropped {
        /// Pod UIDs.
        pods: Vec<String>,
    },
    /// The checkpoint was written.
    CheckpointWritten,
    /// The checkpoint could not be written.
    CheckpointFailed {
        /// The system's words.
        message: String,
    },
    /// The kubelet stopped, or was stopped.
    Stopped,
    /// The real kubelet's process would have ended here.
    Panicked {
        /// What was dereferenced.
        message: String,
    },
}

/// The events so far, and those to come. Outlives restarts of the kubelet.
#[derive(Clone, Debug)]
pub struct Calls {
    events: watch::Receiver<Vec<Event>>,
}

/// Where events are written.
#[derive(Clone, Debug)]
pub(crate) struct EventLog {
    events: Arc<watch::Sender<Vec<Event>>>,
}

// === impl Event ===

impl Event {
    pub(crate) fn preferred_asked(request: &Request, question: Question) -> Self {
        let Request { pod, container, resource, .. } = request.clone();
        Self::PreferredAsked { pod, container, resource, question }
    }

    pub(crate) fn allocated(request: &Request, devices: DeviceIds) -> Self {
        let Request { pod, container, resource, .. } = request.clone();
        Self::Allocated { pod, container, resource, devices }
    }

    pub(crate) fn allocate_failed(request: &Request, message: String) -> Self {
        let Request { pod, container, resource, .. } = request.clone();
        Self::AllocateFailed { pod, container, resource, message }
    }

    pub(crate) fn pre_started(request: &Request, devices: DeviceIds) -> Self {
        let Request { pod, container, resource, .. } = request.clone();
        Self::PreStarted { pod, container, resource, devices }
    }
}

// === impl EventLog ===

impl EventLog {
    pub(crate) fn new() -> Self {
        Self { events: Arc::new(watch::Sender::new(Vec::new())) }
    }

    pub(crate) fn push(&self, event: Event) {
        tracing::debug!(?event, "embedded kubelet");
        self.events.send_modify(|events| events.push(event));
    }

    pub(crate) fn calls(&self) -> Calls {
        Calls { events: self.events.subscribe() }
    }
}

// === impl Calls ===

impl Calls {
    /// All events so far.
    pub fn all(&self) -> Vec<Event> {
        self.events.borrow().clone()
    }

    /// How many events so far fulfil the condition.
    pub fn count(&self, condition: impl Fn(&Event) -> bool) -> usize {
        self.events.borrow().iter().filter(|event| condition(event)).count()
    }

    /// Waits until the events fulfil the condition. Returns them, as they are when it does or when
    /// the deadline is over.
    pub async fn wait_for(
        &self,
        mut condition: impl FnMut(&[Event]) -> bool,
        deadline: Duration,
    ) -> Result<Vec<Event>, Vec<Event>> {
        let mut events = self.events.clone();
        let waiting = events.wait_for(|events| condition(events));
        match tokio::time::timeout(deadline, waiting).await {
            Ok(Ok(found)) => Ok(found.clone()),
            Ok(Err(_)) | Err(_) => Err(self.all()),
        }
    }
}
