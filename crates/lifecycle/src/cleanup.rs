//! Device cleanup between tenants: runs the configured steps before a container starts, and after the last one
//! released the device.
//!
//! ```text
//!   reconciler ── plans: device -> steps ───────> Cleanup ──> one task per device and set of steps
//!      ^                                           │   ^
//!      └── states: why a device waits <────────────┘   └── PreStartContainer waits for its devices
//! ```
//!
//! [`State`] has the states of a device; its module draws them. Plans name the devices, since the cleanup discovers
//! none. After the preparation of a programmable device it runs the identity check of the device's family.
//!
//! # Guarantees
//!
//! No container starts on a device with data of another pod, as long as the kubelet announces starts
//! (`PreStartContainer`). A restarted kubelet announces none until the resource is registered again; a device that it
//! allocates meanwhile is cleaned before the next pod. Each change of state is on disk before its steps run, so that
//! the next agent finds the device of a killed one and cleans it. Devices do not wait for each other.
//!
//! # Assumptions
//!
//! A release shows in the kubelet's checkpoint. The agent makes the kubelet write the checkpoint.

mod claims;
mod handle;
mod idle;
mod link;
mod memory;
pub mod metrics;
mod overwrite;
mod plan;
mod record;
mod reset;
mod slot;
mod state;
mod steps;
mod verify;

use std::{collections::BTreeMap, sync::Arc};

use tokio::{
    sync::{Notify, mpsc, watch},
    task::JoinSet,
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use windlass_allocations::{
    follow::{Allocations, AllocationsReader, FollowGuard},
    ledger::Ledger,
};
use windlass_config::{CleanupLimits, HostPaths};
use windlass_core::device::DeviceId;
use windlass_discovery::mig::MigHandle;
use windlass_host::{
    Host, blocking,
    clock::{Clock, wait_until},
    keyed::KeyedTasks,
    state_file::{Journal, Writer},
    watch::publish_if_changed,
};

use self::{
    claims::{claims_of, start_input},
    handle::{NewTenant, Reply, Request, Start},
    overwrite::Scrubber,
    record::RecordFile,
    slot::Slot,
    state::{Input, Work},
    steps::{StepContext, run_work},
};
pub use self::{
    handle::{CleanupHandle, NotReadyError},
    plan::{CleanupPlans, is_configured, plans},
    record::{CleanupRecords, FORMAT},
    state::{Failure, State},
};
use crate::cleanup::metrics::CleanupMetrics;

/// State of each device with cleanup steps.
pub type CleanupStates = BTreeMap<DeviceId, State>;

/// Connections of the cleanup to other components.
#[derive(Debug)]
pub struct Deps {
    /// Configured steps by device.
    pub plans: watch::Receiver<Arc<CleanupPlans>>,
    /// Devices of containers, by the kubelet's checkpoint.
    pub allocations: AllocationsReader,
    /// Devices of prepared claims.
    pub ledger: watch::Receiver<Ledger>,
    /// Calls to NVIDIA's driver.
    pub mig: MigHandle,
    /// Notifier for each change of a device's state.
    pub wake: Arc<Notify>,
}

/// Task of the cleanup: takes requests, plans and releases, and runs the steps of each device.
pub struct Cleanup {
    deps: Deps,
    requests: mpsc::Receiver<Request>,
    env: Env,
    slots: BTreeMap<DeviceId, Slot>,
    journal: Journal<CleanupRecords>,
    /// Writer of the journal; `None` once the task runs.
    writer: Option<Writer<CleanupRecords>>,
    states: watch::Sender<Arc<CleanupStates>>,
    /// Running steps by device.
    running_steps: KeyedTasks<DeviceId, Result<(), String>>,
    /// Replies that wait until the journal is on disk.
    replies: JoinSet<()>,
    /// Keeps the allocations current; exists while any device has a slot.
    subscription: Option<FollowGuard>,
    metrics: CleanupMetrics,
}

/// Constants of a run.
struct Env {
    clock: Clock,
    host: Host,
    file: RecordFile,
    scrubber: Scrubber,
    limits: CleanupLimits,
}

/// Devices whose last cleanup failed.
pub fn failed_devices(states: &CleanupStates) -> BTreeMap<DeviceId, Failure> {
    states.iter().filter_map(|(id, state)| Some((id.clone(), state.failure()?.clone()))).collect()
}

/// Devices that are not ready for allocation, with the state in one word.
pub fn unready_devices(
    states: &CleanupStates,
    plans: &CleanupPlans,
) -> BTreeMap<DeviceId, &'static str> {
    let unready_state = |id: &DeviceId| states.get(id).map_or(Some("not-known"), State::unready);
    plans.keys().filter_map(|id| Some((id.clone(), unready_state(id)?))).collect()
}

/// Recorded states of devices, as an agent would resume them. Blocks.
pub fn recorded_states(paths: &HostPaths) -> CleanupStates {
    RecordFile::new(&paths.state_dir, paths.host()).load()
}

// === impl Cleanup ===

impl Cleanup {
    /// Builds the task, its handle and a receiver of its states. Reads nothing yet.
    pub fn new(
        paths: &HostPaths,
        limits: CleanupLimits,
        deps: Deps,
        clock: Clock,
        metrics: CleanupMetrics,
    ) -> (Self, CleanupHandle, watch::Receiver<Arc<CleanupStates>>) {
        let (states, receiver) = watch::channel(Arc::default());
        let host = paths.host();
        let env = Env {
            clock,
            file: RecordFile::new(&paths.state_dir, host.clone()),
            host,
            scrubber: Scrubber::new(paths),
            limits,
        };
        let (handle, requests) =
            CleanupHandle::new(deps.allocations.clone(), limits.start_deadline, receiver.clone());
        let (journal, writer) = env.file.journal();
        let cleanup = Self {
            deps,
            requests,
            env,
            slots: BTreeMap::new(),
            journal,
            writer: Some(writer),
            states,
            running_steps: KeyedTasks::default(),
            replies: JoinSet::new(),
            subscription: None,
            metrics,
        };
        (cleanup, handle, receiver)
    }

    /// Runs until stopped. Running steps are interrupted as in a crash: the next agent finds the device dirty.
    pub async fn run(mut self, stop: CancellationToken) {
        let writer = self.writer.take().expect("`run` consumes the task");
        let until_stopped = async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = self.process_inputs() => {}
            }
        };
        tokio::join!(writer.run(), until_stopped);
    }

    async fn process_inputs(&mut self) {
        self.load().await;
        let mut allocations = self.deps.allocations.watch();
        loop {
            let next_cleaning = self.next_due();
            tokio::select! {
                Ok(()) = self.deps.plans.changed() => self.apply_plans().await,
                Some(request) = self.requests.recv() => {
                    // The request may name a device that only the newest plans have.
                    if self.deps.plans.has_changed().unwrap_or(false) {
                        self.apply_plans().await;
                    }
                    self.handle(request);
                }
                Some((id, outcome)) = self.running_steps.join_next() => self.finish_work(&id, outcome),
                Some(_) = self.replies.join_next() => {}
                () = wait_until(next_cleaning.unwrap_or_else(Instant::now)),
                    if next_cleaning.is_some() => self.clean_due(),
                Ok(()) = allocations.changed() => {
                    let newest_allocations = allocations.borrow_and_update().clone();
                    self.apply_releases(&newest_allocations);
                }
            }
        }
    }

    /// Loads the records of an earlier agent.
    async fn load(&mut self) {
        let file = self.env.file.clone();
        let load = move || {
            let records = file.load();
            file.set_aside();
            records
        };
        let records = blocking(load).await;
        self.slots = records.into_iter().map(|(id, state)| (id, Slot::new(state))).collect();
    }

    /// Applies the newest plans. The state of a new device depends on its holders, by the kubelet's checkpoint and by
    /// claims.
    async fn apply_plans(&mut self) {
        let plans = self.deps.plans.borrow_and_update().clone();
        let has_new = plans.keys().any(|id| !self.slots.contains_key(id));
        let allocations = if has_new { self.deps.allocations.read().await } else { Arc::default() };
        let ledger = self.deps.ledger.borrow().clone();
        for (id, plan) in plans.iter() {
            // Without the checkpoint any pod may hold a new device, so the device gets no slot yet.
            let pods = allocations.pods(id);
            if pods.is_none() && !self.slots.contains_key(id) {
                continue;
            }
            let slot = self.slots.entry(id.clone()).or_insert_with(|| {
                let tenants = pods.into_iter().flatten().chain(claims_of(&ledger, id));
                Slot::new(State::initial(tenants.collect()))
            });
            slot.plan = Some(plan.clone());
        }
        for (_, slot) in self.slots.iter_mut().filter(|(id, _)| !plans.contains_key(*id)) {
            slot.plan = None;
        }
        self.slots.retain(|id, slot| !slot.is_droppable() || self.running_steps.is_busy(id));
        let unreachable = self.slots.iter().filter(|(_, slot)| !slot.is_reachable());
        for id in unreachable.map(|(id, _)| id.clone()).collect::<Vec<_>>() {
            self.apply_input(&id, Input::Unreachable);
        }
        self.save();
        let is_needed = !self.slots.is_empty();
        if is_needed != self.subscription.is_some() {
            self.subscription = is_needed.then(|| self.deps.allocations.follow());
        }
    }

    fn handle(&mut self, request: Request) {
        match request {
            Request::Start(start) => self.handle_start(start),
            Request::ReleaseClaim { claim, reply } => {
                self.release_claim(&claim);
                self.reply_when_recorded(reply);
            }
        }
    }

    /// Takes the request of a container that starts, or of a claim that is prepared.
    fn handle_start(&mut self, request: Start) {
        let slot = self.slots.get_mut(&request.device);
        let is_tenant = slot.as_ref().is_some_and(|slot| slot.is_used_by(&request.tenant));
        let plan = slot.as_ref().and_then(|slot| slot.plan.as_ref());
        let refusal = plan.and_then(|plan| {
            plan.blocked_reason.clone().or_else(|| plan.unverifiable_reason.clone())
        });
        match (slot, refusal.filter(|_| !is_tenant)) {
            (Some(slot), None) if slot.plan.is_some() => {
                let id = request.device.clone();
                slot.waiting_starts.push(request);
                self.serve_starts(&id);
            }
            // The receiver is dropped if the caller was cancelled.
            (_, None) => drop(request.reply.send(Ok(()))),
            (_, Some(reason)) => drop(request.reply.send(Err(reason))),
        }
    }

    /// Replies to the starts that wait for the device, or begins the steps that they wait for.
    fn serve_starts(&mut self, id: &DeviceId) {
        while let Some(slot) = self.slots.get_mut(id)
            && !self.running_steps.is_busy(id)
            && let Some(request) = slot.waiting_starts.pop()
        {
            let input = start_input(&request.tenant, &self.deps.ledger.borrow(), id);
            slot.is_held |= matches!(request.tenant, NewTenant::Pods(_));
            slot.last_change = Instant::now();
            slot.waiting_starts.push(request);
            self.apply_input(id, input);
            if self.running_steps.is_busy(id) {
                return;
            }
            if let Some(request) = self.slots.get_mut(id).and_then(|slot| slot.waiting_starts.pop())
            {
                self.reply_when_recorded(request.reply);
            }
        }
    }

    /// Replies to a request once the journal is on disk.
    fn reply_when_recorded(&mut self, reply: Reply) {
        let on_disk = self.journal.wait_written();
        self.replies.spawn(async move {
            // The receiver is dropped if the kubelet cancelled its request.
            let _ = reply.send(on_disk.await);
        });
    }

    fn apply_input(&mut self, id: &DeviceId, input: Input) {
        let Some(slot) = self.slots.get_mut(id) else { return };
        let next = slot.state.clone().next(input);
        if next == slot.state {
            return;
        }
        log_transition(id, &slot.state, &next);
        slot.enter(next, &self.env.limits);
        let work = slot.state.work();
        self.save();
        if let Some(work) = work {
            self.start_work(id, work);
        }
    }

    fn start_work(&mut self, id: &DeviceId, work: Work) {
        let Some(slot) = self.slots.get_mut(id) else { return };
        let context = StepContext {
            device: id.clone(),
            plan: slot.plan(),
            host: self.env.host.clone(),
            write_permit: slot.write_permit.clone(),
            verify_permit: slot.verify_permit.clone(),
            mig: self.deps.mig.clone(),
            scrubber: self.env.scrubber.clone(),
        };
        let (on_disk, limit) = (self.journal.wait_written(), self.env.limits.prepare_deadline);
        let metrics = self.metrics.clone();
        self.running_steps.submit(id.clone(), async move {
            let timer = metrics.start_timer(work.name());
            let outcome = async {
                on_disk.await?;
                run_work(&context, work, limit).await
            };
            timer.observe(outcome.await)
        });
    }

    fn finish_work(&mut self, id: &DeviceId, outcome: Result<(), String>) {
        let Some(slot) = self.slots.get_mut(id) else { return };
        match outcome {
            Ok(()) => self.apply_input(id, Input::Done),
            Err(reason) => {
                for request in std::mem::take(&mut slot.waiting_starts) {
                    let _ = request.reply.send(Err(reason.clone()));
                }
                self.apply_input(id, Input::Failed { reason, at: self.env.clock.now() });
            }
        }
        self.apply_pending_releases(id);
        self.serve_starts(id);
    }

    /// Time of the next cleaning that no start requested.
    fn next_due(&self) -> Option<Instant> {
        let reachable = self.slots.values().filter(|slot| slot.is_reachable());
        reachable.filter_map(|slot| slot.next_cleaning).min()
    }

    fn clean_due(&mut self) {
        let now = Instant::now();
        let is_due =
            |slot: &Slot| slot.is_reachable() && slot.next_cleaning.is_some_and(|time| time <= now);
        let due_slots = self.slots.iter_mut().filter(|(_, slot)| is_due(slot));
        let due_devices = due_slots.map(|(id, slot)| {
            slot.next_cleaning = None;
            id.clone()
        });
        for id in due_devices.collect::<Vec<_>>() {
            self.apply_input(&id, Input::TimerElapsed);
        }
    }

    /// Applies releases by containers. A reading of the checkpoint from before a device's last change does not count.
    fn apply_releases(&mut self, allocations: &Allocations) {
        let mut released = Vec::new();
        for (id, slot) in &mut self.slots {
            // Claims announce their own release.
            let is_settled = !self.running_steps.is_busy(id)
                && allocations.read_at() > Some(slot.last_change)
                && !slot.state.is_held_by_claims();
            let Some(is_held) = allocations.holds(id) else { continue };
            if is_settled && std::mem::replace(&mut slot.is_held, is_held) && !is_held {
                released.push(id.clone());
            }
        }
        for id in released {
            self.apply_input(&id, Input::Released);
        }
    }

    /// Writes the states to the journal, and publishes those of devices with a plan.
    fn save(&self) {
        let records: CleanupRecords =
            self.slots.iter().map(|(id, slot)| (id.clone(), slot.state.clone())).collect();
        self.journal.write(records.clone());
        let is_planned = |id: &DeviceId| self.slots[id].plan.is_some();
        let states: CleanupStates = records.into_iter().filter(|(id, _)| is_planned(id)).collect();
        self.metrics.set_states(states.values().map(State::name));
        if publish_if_changed(&self.states, Arc::new(states)) {
            self.deps.wake.notify_one();
        }
    }
}

impl std::fmt::Debug for Cleanup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cleanup").finish_non_exhaustive()
    }
}

fn log_transition(device: &DeviceId, from: &State, to: &State) {
    let (from, now) = (from.name(), to.name());
    match to {
        State::Quarantined { failed: Failure { why: error, attempts, .. }, .. } => {
            tracing::warn!(
                %device, from, attempts, error,
                "cleanup failed, device withheld: it is retried unless a pod holds the device"
            );
        }
        State::InUse { .. } => tracing::info!(%device, from, "device prepared for its tenant"),
        State::Clean => tracing::info!(%device, from, "device clean"),
        _ => tracing::debug!(%device, from, now, "cleanup state changed"),
    }
}
