//! Connection to NVML, from initialisation to shutdown: probes of its GPUs and events.

mod answers;
mod calls;
mod fault;
mod slot;

use std::{sync::Arc, time::Duration};

use tokio::{task::JoinSet, time::Instant};
use windlass_host::{Roots, clock::wait_until, deadline, pending_call::PendingCall};
use windlass_nvml::{Event, EventSet, Nvml, NvmlError};

pub(super) use self::slot::NumberedEventSet;
use self::slot::Slot;
use super::{
    ConnectError, ConnectionEnd,
    baseline::Baselines,
    events::EventWatch,
    facts::DriverFacts,
    probe::ProbeReport,
    procfs::{Fingerprint, ListedGpu},
    samples::TelemetryReader,
    tracked::TrackedDevices,
};
use crate::policy::DriverPolicy;

pub(super) struct Connection {
    nvml: Nvml,
    driver: Arc<DriverFacts>,
    roots: Roots,
    policy: DriverPolicy,
    fingerprint: Fingerprint,
    event_set: NumberedEventSet,
    events: EventWatch,
    /// Events that match no GPU yet, while some GPU's first probe is pending.
    unmatched: Vec<Event>,
    running_calls: JoinSet<CallResult>,
    driver_check: DriverCheck,
    slots: Vec<Slot>,
    /// Baselines of earlier initialisations.
    earlier_baselines: Arc<Baselines>,
    telemetry: TelemetryReader,
    /// Call that reads the kernel module's list of GPUs, once a GPU does not report its id.
    listing: PendingCall,
    listed_gpus: Option<Vec<ListedGpu>>,
    /// Start of the time in which a GPU is lost or the GPU count unknown. Only a new initialisation may end that state.
    lost_since: Option<Instant>,
    /// Time in that state after which the connection ends.
    lost_gpu_delay: Duration,
}

/// NVML with the facts that were read when it was loaded.
pub(super) struct Driver {
    pub(super) nvml: Nvml,
    pub(super) facts: DriverFacts,
    pub(super) listener: EventListener,
    pub(super) fingerprint: Fingerprint,
}

/// Event set with its waiting thread.
pub(super) struct EventListener {
    pub(super) set: Arc<EventSet>,
    pub(super) watch: EventWatch,
}

/// Periodic check of GPU count and driver fingerprint, started together with a probe of every GPU.
struct DriverCheck {
    call: PendingCall,
    error: Option<String>,
    next_start: Instant,
    /// The event wait failed: every GPU is to be probed, once a new count confirms the indices.
    probe_all: bool,
    /// The event wait failed while a count was pending. That count may be outdated, so another follows.
    is_outdated: bool,
    /// The event wait failed: another event set is needed.
    needs_event_set: bool,
    /// Creation time of the event set; limits retries with a driver that refuses every wait.
    event_set_created_at: Instant,
}

/// Result of a blocking thread.
enum CallResult {
    DriverCheck(Fingerprint, Result<u32, NvmlError>),
    Probe(usize, Box<Result<ProbeReport, NvmlError>>),
    Listing(Vec<ListedGpu>),
    EventSet(Result<EventListener, ConnectError>),
}

// === impl Connection ===

impl Connection {
    /// Creates a connection to a loaded driver. The first step counts the GPUs. A GPU that stays lost for longer than
    /// `lost_gpu_delay` ends the connection.
    pub(super) fn new(
        driver: Driver,
        roots: &Roots,
        policy: &DriverPolicy,
        lost_gpu_delay: Duration,
        earlier_baselines: Baselines,
        telemetry: TelemetryReader,
    ) -> Self {
        let (call, error, probe_all, is_outdated, needs_event_set) = Default::default();
        let now = Instant::now();
        Self {
            events: driver.listener.watch,
            event_set: NumberedEventSet { number: 0, set: driver.listener.set },
            fingerprint: driver.fingerprint,
            roots: roots.clone(),
            policy: policy.clone(),
            nvml: driver.nvml,
            driver: Arc::new(driver.facts),
            unmatched: Vec::new(),
            running_calls: JoinSet::new(),
            driver_check: DriverCheck {
                call,
                error,
                next_start: now,
                probe_all,
                is_outdated,
                needs_event_set,
                event_set_created_at: now,
            },
            slots: Vec::new(),
            earlier_baselines: Arc::new(earlier_baselines),
            telemetry,
            listing: PendingCall::default(),
            listed_gpus: None,
            lost_since: None,
            lost_gpu_delay,
        }
    }

    /// Applies a policy. The next driver check comes no later than its interval, and at once for the possible MIG
    /// instances that claims may have from now on.
    pub(super) fn apply_policy(&mut self, policy: &DriverPolicy) {
        let needs_partitions = policy.switches_mig && !self.policy.switches_mig;
        let delay = if needs_partitions { Duration::ZERO } else { policy.health.probe_interval };
        self.policy = policy.clone();
        self.driver_check.next_start = self.driver_check.next_start.min(Instant::now() + delay);
    }

    /// True once every GPU answered or missed a deadline. A snapshot before that would be incomplete.
    pub(super) fn has_seen_every_gpu(&self) -> bool {
        self.driver_check.call.is_settled() && self.slots.iter().all(Slot::is_settled)
    }

    /// Baselines for the next initialisation, including those of absent and unresponsive GPUs.
    pub(super) fn baselines(&self) -> Baselines {
        let mut baselines = (*self.earlier_baselines).clone();
        baselines.extend(self.slots.iter().filter_map(Slot::baseline));
        baselines
    }

    pub(super) fn nvml(&self) -> Nvml {
        self.nvml.clone()
    }

    pub(super) fn driver(&self) -> &DriverFacts {
        &self.driver
    }

    /// Sets the delay, unless a GPU is lost or has not answered yet. Returns true if the delay was set.
    pub(super) fn reset_lost_gpu_delay(&mut self, delay: Duration) -> bool {
        let is_complete = self.has_seen_every_gpu() && self.lost_since.is_none();
        if is_complete {
            self.lost_gpu_delay = delay;
        }
        is_complete
    }

    /// Reason why the GPU count is unknown.
    pub(super) fn error(&self) -> Option<&str> {
        self.driver_check.error.as_deref()
    }

    /// Waits for the next event and handles it. Returns the reason if the connection ends.
    pub(super) async fn step(&mut self, tracked: &mut TrackedDevices) -> Option<ConnectionEnd> {
        let next_deadline = self.next_deadline(tracked);
        let end = tokio::select! {
            Some(answer) = self.running_calls.join_next() => self.handle_answer(answer, tracked),
            messages = self.events.next() => {
                for message in messages {
                    self.handle_message(message, tracked);
                }
                None
            }
            reading = self.telemetry.next() => {
                self.telemetry.apply(reading, tracked.now());
                None
            }
            () = wait_until(next_deadline) => self.handle_deadlines(tracked),
        };
        self.check_lost_gpus();
        end
    }

    /// Drops NVML on a thread that may hang, without waiting.
    pub(super) fn abandon(self) {
        tokio::task::spawn_blocking(move || drop(self));
    }

    /// Shuts NVML down, which may take one event wait.
    pub(super) async fn shut_down(self) {
        let limit = self.policy.health.event_wait + self.policy.health.call_deadline;
        let shutdown = tokio::task::spawn_blocking(move || {
            let Self {
                events, event_set, unmatched, slots, telemetry, running_calls, nvml, ..
            } = self;
            drop((event_set, unmatched, slots, telemetry, running_calls, nvml));
            events.join();
        });
        if deadline::timeout(limit, shutdown).await.is_err() {
            tracing::warn!(
                ?limit,
                "NVML shutdown timed out, a call hangs: check the kernel log for XIDs"
            );
        }
    }

    /// Earliest time of the next driver check, a deadline, a possible recovery, or the end of the connection for a
    /// lost GPU.
    fn next_deadline(&self, tracked: &TrackedDevices) -> Instant {
        let calls = self.slots.iter().map(|slot| &slot.call);
        let pending = calls.chain([&self.driver_check.call, &self.listing]);
        let overdue = pending.filter_map(PendingCall::next_check).min();
        let idle = self.slots.iter().filter(|slot| slot.call.is_idle());
        let recovery = tracked.next_recovery(idle.flat_map(|slot| &slot.ids));
        let recovery = recovery.map(|time| tracked.clock().instant_of(time));
        let lost_gpu = self.lost_since.map(|since| since + self.lost_gpu_delay);
        [overdue, recovery, lost_gpu]
            .into_iter()
            .flatten()
            .fold(self.driver_check.next_start, Instant::min)
    }

    fn handle_deadlines(&mut self, tracked: &mut TrackedDevices) -> Option<ConnectionEnd> {
        let now = Instant::now();
        if self.lost_since.is_some_and(|since| now >= since + self.lost_gpu_delay) {
            return Some(ConnectionEnd::GpuLost);
        }
        self.mark_overdue(now, tracked);
        if now >= self.driver_check.next_start {
            self.driver_check.next_start = now + self.policy.health.probe_interval;
            self.start_driver_check(now);
            self.probe_every_gpu(now, tracked);
            self.renew_event_set(now);
        } else {
            self.probe_recovering(now, tracked);
        }
        None
    }
}

fn nvml_index(index: usize) -> u32 {
    u32::try_from(index).expect("NVML counts GPUs in 32 bits")
}
