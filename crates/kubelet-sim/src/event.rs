//! Event log of the embedded kubelet. Tests wait on it; `windlass kubelet` prints it.

use std::{path::PathBuf, sync::Arc, time::Duration};

use tokio::sync::watch;

use crate::{
    admission::Question,
    device::{Device, DeviceIds},
    dra::{ClaimCall, ClaimId, Service},
    manager::Request,
};

/// Number of newest events to keep. The number exceeds the events of any test, and bounds the
/// memory of a kubelet that runs for weeks.
const KEPT: usize = 4096;

/// One observable step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The kubelet serves both sockets.
    Started,
    /// A start ignored the checkpoint; the state is empty.
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
    /// A registration was answered with an error.
    RegistrationRefused {
        /// Resource name as sent.
        resource: String,
        /// Error text for the plugin.
        message: String,
    },
    /// A complete list arrived.
    ListReceived {
        /// Resource name.
        resource: String,
        /// Devices in the plugin's order.
        devices: Vec<Device>,
    },
    /// `ListAndWatch` ended, on either side.
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
    PreferredAsked {
        /// Pod UID.
        pod: String,
        /// Container name.
        container: String,
        /// Resource name.
        resource: String,
        /// Content of the call and its answer.
        question: Question,
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
    /// `PreStartContainer` was answered.
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
        /// Message of the pod's status.
        message: String,
    },
    /// Pods were synced because the health of a held device changed.
    PodsSynced {
        /// Pod UIDs.
        pods: Vec<String>,
    },
    /// The checkpoint was written.
    CheckpointWritten,
    /// The checkpoint could not be written.
    CheckpointFailed {
        /// The system's error.
        message: String,
    },
    /// A DRA driver's endpoint was registered, and notified.
    DriverRegistered {
        /// The driver.
        driver: String,
        /// The driver's DRA socket.
        endpoint: PathBuf,
        /// Version of the DRA service in use.
        service: Service,
    },
    /// A socket in the folder of registrations did not register.
    DriverRefused {
        /// The registration socket.
        socket: PathBuf,
        /// The kubelet's log message.
        message: String,
    },
    /// A DRA driver's endpoint was given up: its registration socket is gone or replaced.
    DriverDeregistered {
        /// The driver.
        driver: String,
        /// The driver's DRA socket.
        endpoint: PathBuf,
    },
    /// The real kubelet deletes `ResourceSlices` of its node now. A start deletes the slices of all
    /// drivers, a long absence of one driver those of that driver.
    SlicesWiped {
        /// The driver; `None` is all of them.
        driver: Option<String>,
    },
    /// A DRA driver is called.
    DriverCalled {
        /// Method of the call.
        call: ClaimCall,
        /// UID of the pod that began or ended.
        pod: String,
        /// The driver.
        driver: String,
        /// The driver's DRA socket.
        endpoint: PathBuf,
        /// All claims of the call.
        claims: Vec<ClaimId>,
    },
    /// A DRA driver answered, or missed the deadline.
    DriverAnswered {
        /// Method of the call.
        call: ClaimCall,
        /// UID of the pod that began or ended.
        pod: String,
        /// The driver.
        driver: String,
        /// The call's error, or that of a claim.
        error: Option<String>,
    },
    /// All claims of a pod are prepared, also in the checkpoint.
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
    /// An ended pod uses no claim any more, also in the checkpoint.
    PodReleased {
        /// Pod UID.
        pod: String,
    },
    /// Claims of an ended pod were not released; the real kubelet logs this.
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
    HealthEnded {
        /// The driver.
        driver: String,
        /// The driver's DRA socket.
        endpoint: PathBuf,
        /// The transport's or the driver's error.
        reason: String,
    },
    /// The DRA manager's checkpoint was written.
    ClaimsWritten,
    /// The kubelet stopped, or was stopped.
    Stopped,
    /// The real kubelet's process would have ended here.
    Panicked {
        /// Origin of the nil pointer.
        message: String,
    },
}

/// Reader of past and future events. The log outlives restarts of the kubelet.
///
/// # Assumptions
///
/// Only the newest 4096 events are kept. A long-lived reader calls [`news`](Self::news), which
/// returns each event once, instead of counting.
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
    /// Up to twice the kept number of events. The contiguous list moves rarely.
    events: Vec<Event>,
    /// Number of events before these.
    forgotten: u64,
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

// === impl Log ===

impl Log {
    fn push(&mut self, event: Event) {
        if self.events.len() == 2 * KEPT {
            self.events.drain(..KEPT);
            self.forgotten += KEPT as u64;
        }
        self.events.push(event);
    }

    /// Sequence number of the next event, and number of all events so far.
    fn next(&self) -> u64 {
        self.forgotten + self.events.len() as u64
    }

    fn newest(&self) -> &[Event] {
        &self.events[self.events.len().saturating_sub(KEPT)..]
    }

    /// Newest events from this number on.
    fn since(&self, sequence: u64) -> &[Event] {
        let newest = self.newest();
        let missed = self.next().saturating_sub(sequence);
        let count = usize::try_from(missed).unwrap_or(usize::MAX).min(newest.len());
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

    pub(crate) fn calls(&self) -> EventReader {
        EventReader { log: self.log.subscribe() }
    }
}

// === impl EventReader ===

impl EventReader {
    /// The newest 4096 events, oldest first.
    pub fn all(&self) -> Vec<Event> {
        self.log.borrow().newest().to_vec()
    }

    /// Number of the newest 4096 events that fulfil the condition.
    pub fn count(&self, condition: impl Fn(&Event) -> bool) -> usize {
        self.log.borrow().newest().iter().filter(|event| condition(event)).count()
    }

    /// Events from a sequence number on, and the number of the next event. The first event has
    /// number 0. Dropped events are missing.
    pub fn since(&self, sequence: u64) -> (Vec<Event>, u64) {
        let log = self.log.borrow();
        (log.since(sequence).to_vec(), log.next())
    }

    /// Sequence number of the next event.
    pub fn now(&self) -> u64 {
        self.log.borrow().next()
    }

    /// Waits for new events, and moves `sequence` behind them. An empty list means that the kubelet
    /// is gone and no event will follow. Cancelling the wait loses no event.
    pub async fn news(&self, sequence: &mut u64) -> Vec<Event> {
        let mut log = self.log.clone();
        // Without a writer the wait ends at once, and the existing events count.
        let _ = log.wait_for(|log| log.next() > *sequence).await;
        let (events, next) = self.since(*sequence);
        *sequence = next;
        events
    }

    /// Waits until the newest 4096 events fulfil the condition. Returns the events at that moment
    /// or at the deadline.
    pub async fn wait_for(
        &self,
        mut condition: impl FnMut(&[Event]) -> bool,
        deadline: Duration,
    ) -> Result<Vec<Event>, Vec<Event>> {
        let mut log = self.log.clone();
        let waiting = log.wait_for(|log| condition(log.newest()));
        match tokio::time::timeout(deadline, waiting).await {
            Ok(Ok(found)) => Ok(found.newest().to_vec()),
            Ok(Err(_)) | Err(_) => Err(self.all()),
        }
    }

    /// Waits for an event that fulfils the condition, from a sequence number on, beyond 4096 events
    /// too. `None` after the deadline, or when the kubelet is gone.
    pub async fn wait_for_one(
        &self,
        mut sequence: u64,
        mut condition: impl FnMut(&Event) -> bool,
        deadline: Duration,
    ) -> Option<Event> {
        let waiting = async {
            loop {
                let news = self.news(&mut sequence).await;
                if news.is_empty() {
                    return None;
                }
                if let Some(found) = news.into_iter().find(&mut condition) {
                    return Some(found);
                }
            }
        };
        tokio::time::timeout(deadline, waiting).await.ok().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(number: usize) -> Event {
        Event::PodAdmitted { pod: number.to_string() }
    }

    fn log(count: usize) -> EventLog {
        let log = EventLog::new();
        (0..count).for_each(|number| log.push(numbered(number)));
        log
    }

    #[tokio::test]
    async fn a_reader_of_a_full_log_gets_the_next_event() {
        let log = log(2 * KEPT);
        let (calls, is_pod) =
            (log.calls(), |event: &Event| matches!(event, Event::PodAdmitted { .. }));
        let (now, moment) = (calls.now(), Duration::from_millis(10));
        assert_eq!(calls.wait_for_one(now, is_pod, moment).await, None);
        log.push(numbered(7));
        assert_eq!(calls.wait_for_one(now, is_pod, moment).await, Some(numbered(7)));
    }

    #[test]
    fn only_the_newest_events_are_kept() {
        for count in [0, 1, KEPT, KEPT + 1, 2 * KEPT, 2 * KEPT + 1, 5 * KEPT + 7] {
            let log = log(count);
            let kept: Vec<Event> = (count.saturating_sub(KEPT)..count).map(numbered).collect();
            assert_eq!(log.calls().all(), kept, "{count}");
            assert_eq!(log.calls().count(|_| true), kept.len());
            assert!(log.log.borrow().events.len() <= 2 * KEPT);
        }
    }

    #[test]
    fn a_reader_gets_the_kept_events_from_a_number_on() {
        let count = 3 * KEPT + 5;
        let calls = log(count).calls();
        let next = count as u64;
        assert_eq!(calls.since(next - 2), (vec![numbered(count - 2), numbered(count - 1)], next));
        assert_eq!(calls.since(next), (Vec::new(), next));
        assert_eq!(calls.since(next + 9), (Vec::new(), next));
        assert_eq!(calls.since(0).0, calls.all());
    }

    #[tokio::test]
    async fn a_reader_of_news_gets_each_event_once_and_ends_with_the_kubelet() {
        let log = log(2);
        let calls = log.calls();
        let mut told = 0;
        assert_eq!(calls.news(&mut told).await, [numbered(0), numbered(1)]);
        let (next, ()) = tokio::join!(calls.news(&mut told), async { log.push(numbered(2)) });
        assert_eq!(next, [numbered(2)]);
        assert_eq!(told, 3);
        drop(log);
        assert_eq!(calls.news(&mut told).await, []);
    }
}
