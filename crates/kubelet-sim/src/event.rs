//! Event log of the embedded kubelet. Tests wait on it; `windlass kubelet` prints it.

use std::{path::PathBuf, sync::Arc, time::Duration};

use tokio::sync::watch;

use crate::{
    admission::PreferredAllocationCall,
    device::{Device, DeviceIds},
    dra::{ClaimCall, ClaimId, DraService},
    manager::Request,
};

/// Number of events that readers can get; older ones are dropped. The number exceeds the events of
/// any test, and bounds the memory of a kubelet that runs for weeks.
const CAPACITY: usize = 4096;

/// One observable step of the kubelet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The kubelet started; both sockets are bound.
    Started,
    /// The device manager ignored its checkpoint at start; its state is empty.
    CheckpointIgnored {
        /// Defect of the checkpoint.
        message: String,
    },
    /// A plugin's registration succeeded.
    Registered {
        /// Resource name.
        resource: String,
        /// The plugin's socket.
        endpoint: PathBuf,
    },
    /// A registration failed.
    RegistrationRefused {
        /// Resource name as sent.
        resource: String,
        /// Error text for the plugin.
        message: String,
    },
    /// A plugin sent a list of its devices.
    ListReceived {
        /// Resource name.
        resource: String,
        /// Devices in the plugin's order.
        devices: Vec<Device>,
    },
    /// A `ListAndWatch` stream ended. The plugin or the kubelet closed it.
    StreamEnded {
        /// Resource name.
        resource: String,
        /// The plugin's socket.
        endpoint: PathBuf,
        /// The transport's or the plugin's error.
        reason: String,
    },
    /// The grace period of a stopped plugin ended.
    ResourceExpired {
        /// Resource name.
        resource: String,
    },
    /// The plugin answered `GetPreferredAllocation`.
    PreferredAllocationReceived {
        /// Pod UID.
        pod: String,
        /// Container name.
        container: String,
        /// Resource name.
        resource: String,
        /// Content of the call and its answer.
        call: PreferredAllocationCall,
    },
    /// The plugin answered `Allocate`.
    Allocated {
        /// Pod UID.
        pod: String,
        /// Container name.
        container: String,
        /// Resource name.
        resource: String,
        /// Allocated device ids.
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
    /// The plugin answered `PreStartContainer`.
    PreStarted {
        /// Pod UID.
        pod: String,
        /// Container name.
        container: String,
        /// Resource name.
        resource: String,
        /// Ids of the container's devices.
        devices: DeviceIds,
    },
    /// A pod was admitted, for the first time or again after a restart.
    PodAdmitted {
        /// Pod UID.
        pod: String,
    },
    /// A pod was rejected, at its first admission or after a restart.
    PodRejected {
        /// Pod UID.
        pod: String,
        /// Short reason.
        reason: String,
        /// Message of the pod's status.
        message: String,
    },
    /// Pods were synced because the health of an allocated device changed.
    PodsSynced {
        /// Pod UIDs.
        pods: Vec<String>,
    },
    /// The device manager wrote its checkpoint.
    CheckpointWritten,
    /// The device manager could not write its checkpoint.
    CheckpointFailed {
        /// The system's error.
        message: String,
    },
    /// A DRA driver's endpoint was registered, and the driver notified.
    DriverRegistered {
        /// The driver.
        driver: String,
        /// The driver's DRA socket.
        endpoint: PathBuf,
        /// Version of the DRA service in use.
        service: DraService,
    },
    /// The registration of a socket in `plugins_registry` failed.
    DriverRefused {
        /// The registration socket.
        socket: PathBuf,
        /// The kubelet's log message.
        message: String,
    },
    /// A DRA driver's endpoint was deregistered. Its registration socket was removed or replaced, or
    /// the notification of the driver failed.
    DriverDeregistered {
        /// The driver.
        driver: String,
        /// The driver's DRA socket.
        endpoint: PathBuf,
    },
    /// The real kubelet deletes `ResourceSlices` of its node at this point. A start deletes the slices
    /// of all drivers. A long absence of a driver deletes the slices of that driver.
    SlicesWiped {
        /// The driver; `None` means all drivers.
        driver: Option<String>,
    },
    /// The kubelet calls a DRA driver.
    DriverCalled {
        /// Method of the call.
        call: ClaimCall,
        /// UID of the pod that starts or ends.
        pod: String,
        /// The driver.
        driver: String,
        /// The driver's DRA socket.
        endpoint: PathBuf,
        /// All claims of the call.
        claims: Vec<ClaimId>,
    },
    /// A DRA driver answered, or the call failed.
    DriverAnswered {
        /// Method of the call.
        call: ClaimCall,
        /// UID of the pod that starts or ends.
        pod: String,
        /// The driver.
        driver: String,
        /// Error of the call, or the first error of a claim in the answer.
        error: Option<String>,
    },
    /// All claims of a pod are prepared, and the checkpoint contains them.
    PodPrepared {
        /// Pod UID.
        pod: String,
    },
    /// The pod's event `FailedPrepareDynamicResources`.
    FailedPrepareDynamicResources {
        /// Pod UID.
        pod: String,
        /// The event's text.
        message: String,
    },
    /// All claims of an ended pod are released, in the checkpoint too.
    PodReleased {
        /// Pod UID.
        pod: String,
    },
    /// The release of an ended pod's claims failed. The real kubelet logs this.
    UnprepareFailed {
        /// Pod UID.
        pod: String,
        /// Text of the error.
        message: String,
    },
    /// A DRA driver reported the health of its devices.
    HealthReceived {
        /// The driver.
        driver: String,
    },
    /// A health stream ended, or could not be opened.
    HealthStreamEnded {
        /// The driver.
        driver: String,
        /// The driver's DRA socket.
        endpoint: PathBuf,
        /// The transport's or the driver's error.
        reason: String,
    },
    /// The DRA manager wrote its checkpoint.
    ClaimsCheckpointWritten,
    /// The kubelet was stopped.
    Stopped,
    /// The kubelet panicked: a nil dereference of the real kubelet, an injected crash, or a defect of
    /// the embedded kubelet.
    Panicked {
        /// Cause of the panic.
        message: String,
    },
}

/// Reader of past and future events. The log outlives restarts of the kubelet.
///
/// # Assumptions
///
/// The log has the newest 4096 events only. A long-lived reader calls [`next_events`](Self::next_events), which
/// returns each event once, instead of [`count`](Self::count).
#[derive(Clone, Debug)]
pub struct EventReader {
    log: watch::Receiver<Log>,
}

/// Writer of events.
#[derive(Clone, Debug)]
pub(crate) struct EventLog {
    log: Arc<watch::Sender<Log>>,
}

/// The newest events and their numbers.
#[derive(Debug, Default)]
struct Log {
    /// Up to `2 * CAPACITY` events, contiguous. Half of them are dropped at once, so the others
    /// rarely move.
    events: Vec<Event>,
    /// Number of dropped events.
    dropped: u64,
}

// === impl Event ===

impl Event {
    pub(crate) fn preferred_allocation_received(
        request: &Request,
        call: PreferredAllocationCall,
    ) -> Self {
        let Request { pod, container, resource, .. } = request.clone();
        Self::PreferredAllocationReceived { pod, container, resource, call }
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

// === impl Log ===

impl Log {
    fn push(&mut self, event: Event) {
        if self.events.len() == 2 * CAPACITY {
            self.events.drain(..CAPACITY);
            self.dropped += CAPACITY as u64;
        }
        self.events.push(event);
    }

    /// Sequence number of the next event. Equals the number of all events so far.
    fn next_sequence(&self) -> u64 {
        self.dropped + self.events.len() as u64
    }

    fn newest(&self) -> &[Event] {
        &self.events[self.events.len().saturating_sub(CAPACITY)..]
    }

    /// Events from a sequence number on, at most the newest `CAPACITY`.
    fn since(&self, sequence: u64) -> &[Event] {
        let newest = self.newest();
        let unread = self.next_sequence().saturating_sub(sequence);
        let count = usize::try_from(unread).unwrap_or(usize::MAX).min(newest.len());
        &newest[newest.len() - count..]
    }
}

// === impl EventLog ===

impl EventLog {
    pub(crate) fn new() -> Self {
        Self { log: Arc::new(watch::Sender::new(Log::default())) }
    }

    pub(crate) fn push(&self, event: Event) {
        tracing::debug!(?event, "embedded kubelet");
        self.log.send_modify(|log| log.push(event));
    }

    pub(crate) fn subscribe(&self) -> EventReader {
        EventReader { log: self.log.subscribe() }
    }
}

// === impl EventReader ===

impl EventReader {
    /// The newest 4096 events, in order.
    pub fn newest(&self) -> Vec<Event> {
        self.log.borrow().newest().to_vec()
    }

    /// Number of the newest 4096 events that fulfil the condition.
    pub fn count(&self, condition: impl Fn(&Event) -> bool) -> usize {
        self.log.borrow().newest().iter().filter(|event| condition(event)).count()
    }

    /// Events from a sequence number on, and the sequence number of the next event. The first event
    /// has number 0. Dropped events are missing.
    pub fn since(&self, sequence: u64) -> (Vec<Event>, u64) {
        let log = self.log.borrow();
        (log.since(sequence).to_vec(), log.next_sequence())
    }

    /// Sequence number of the next event.
    pub fn next_sequence(&self) -> u64 {
        self.log.borrow().next_sequence()
    }

    /// Waits for events from `sequence` on, returns them, and advances `sequence` past them. An empty
    /// list means that the kubelet was dropped, so no event will follow. A cancelled wait loses no
    /// event.
    pub async fn next_events(&self, sequence: &mut u64) -> Vec<Event> {
        let mut log = self.log.clone();
        // Without a writer the wait fails at once; events that are already there are still returned.
        let _ = log.wait_for(|log| log.next_sequence() > *sequence).await;
        let (events, next) = self.since(*sequence);
        *sequence = next;
        events
    }

    /// Waits until the newest 4096 events fulfil the condition. Returns those events. The error has
    /// the events at the deadline, or at the end of the kubelet.
    pub async fn wait_for(
        &self,
        mut condition: impl FnMut(&[Event]) -> bool,
        deadline: Duration,
    ) -> Result<Vec<Event>, Vec<Event>> {
        let mut log = self.log.clone();
        let wait = log.wait_for(|log| condition(log.newest()));
        match tokio::time::timeout(deadline, wait).await {
            Ok(Ok(log)) => Ok(log.newest().to_vec()),
            Ok(Err(_)) | Err(_) => Err(self.newest()),
        }
    }

    /// Waits for an event that fulfils the condition, from a sequence number on. The wait may span
    /// more than 4096 events. `None` after the deadline, or when the kubelet was dropped.
    pub async fn wait_for_event(
        &self,
        mut sequence: u64,
        mut condition: impl FnMut(&Event) -> bool,
        deadline: Duration,
    ) -> Option<Event> {
        let search = async {
            loop {
                let events = self.next_events(&mut sequence).await;
                if events.is_empty() {
                    return None;
                }
                if let Some(event) = events.into_iter().find(&mut condition) {
                    return Some(event);
                }
            }
        };
        tokio::time::timeout(deadline, search).await.ok().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered_event(number: usize) -> Event {
        Event::PodAdmitted { pod: number.to_string() }
    }

    /// A log after `count` numbered events.
    fn log(count: usize) -> EventLog {
        let log = EventLog::new();
        (0..count).for_each(|number| log.push(numbered_event(number)));
        log
    }

    #[tokio::test]
    async fn a_reader_of_a_full_log_gets_the_next_event() {
        let log = log(2 * CAPACITY);
        let (reader, is_pod) =
            (log.subscribe(), |event: &Event| matches!(event, Event::PodAdmitted { .. }));
        let (next, deadline) = (reader.next_sequence(), Duration::from_millis(10));
        assert_eq!(reader.wait_for_event(next, is_pod, deadline).await, None);
        log.push(numbered_event(7));
        assert_eq!(reader.wait_for_event(next, is_pod, deadline).await, Some(numbered_event(7)));
    }

    #[test]
    fn a_log_returns_its_newest_4096_events() {
        let full = CAPACITY;
        for count in [0, 1, full, full + 1, 2 * full, 2 * full + 1, 5 * full + 7] {
            let log = log(count);
            let newest: Vec<Event> =
                (count.saturating_sub(full)..count).map(numbered_event).collect();
            assert_eq!(log.subscribe().newest(), newest, "{count}");
            assert_eq!(log.subscribe().count(|_| true), newest.len());
            assert!(log.log.borrow().events.len() <= 2 * full);
        }
    }

    #[test]
    fn since_returns_the_events_from_a_sequence_number_on() {
        let count = 3 * CAPACITY + 5;
        let reader = log(count).subscribe();
        let next = count as u64;
        assert_eq!(
            reader.since(next - 2),
            (vec![numbered_event(count - 2), numbered_event(count - 1)], next)
        );
        assert_eq!(reader.since(next), (Vec::new(), next));
        assert_eq!(reader.since(next + 9), (Vec::new(), next));
        assert_eq!(reader.since(0).0, reader.newest());
    }

    #[tokio::test]
    async fn each_event_is_returned_once_and_none_after_the_kubelet_ends() {
        let log = log(2);
        let reader = log.subscribe();
        let mut sequence = 0;
        assert_eq!(reader.next_events(&mut sequence).await, [numbered_event(0), numbered_event(1)]);
        let (next, ()) =
            tokio::join!(reader.next_events(&mut sequence), async { log.push(numbered_event(2)) });
        assert_eq!(next, [numbered_event(2)]);
        assert_eq!(sequence, 3);
        drop(log);
        assert_eq!(reader.next_events(&mut sequence).await, []);
    }
}
