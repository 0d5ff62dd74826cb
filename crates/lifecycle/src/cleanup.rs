//! Hand-overs: what is done to a device before a container starts with it, and after the last one let go.
//!
//! ```text
//!   reconciler ── demand: device -> steps ──────> Handovers ──> one task per device and set of steps
//!      ^                                           │   ^
//!      └── states: why a device waits <────────────┘   └── PreStartContainer waits for its devices
//! ```
//!
//! [`State`] has the way of a device drawn. The part knows devices, steps and the kubelet's word on who
//! has what; where devices come from it does not know, and whether one is what it is to be after its steps it asks
//! of those who know.
//!
//! # Guarantees
//!
//! No container of a pod starts with what another pod left on the device, as long as the kubelet announces
//! starts; one that has just restarted does not until the resource is registered again, and a device that
//! was given away so is cleaned before the next pod. What was begun is on disk before it is done, so that
//! an agent that is killed at any moment leaves the next one a device that it cleans. One device waits for
//! no other.
//!
//! # Assumptions
//!
//! A release is seen in the kubelet's record, which it is made to write: it tells nobody.

mod care;
mod claims;
mod desk;
mod idle;
mod link;
mod memory;
pub mod metrics;
mod overwrite;
mod proof;
mod record;
mod reset;
mod slot;
mod state;
mod steps;

use std::{collections::BTreeMap, sync::Arc};

use tokio::{
    sync::{Notify, mpsc, watch},
    task::{JoinSet, spawn_blocking},
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use windlass_allocations::{
    follow::{Allocations, AllocationsDesk, Following},
    ledger::Ledger,
};
use windlass_config::{HandoverLimits, Places};
use windlass_core::device::DeviceId;
use windlass_discovery::mig::PartitionDesk;
use windlass_host::{
    Host,
    clock::{Clock, until},
    keyed::Tasks,
    state_file::{Journal, Writer},
    watch::publish,
};

pub use self::{
    care::{Demand, demand, is_cared_for},
    desk::{HandoverDesk, NotReady},
    record::{FORMAT as HAND_OVERS, Records},
    state::{Failure, State},
};
use self::{
    claims::{claims_of, starting},
    desk::{Newcomer, Reply, Request, Start},
    overwrite::Scrubber,
    record::RecordFile,
    slot::Slot,
    state::{Input, Work},
    steps::{Bench, do_work},
};
use crate::cleanup::metrics::HandoverMetrics;

/// Where each device that is cared for stands.
pub type HandoverStates = BTreeMap<DeviceId, State>;

/// What the part is told by others.
#[derive(Debug)]
pub struct Tidings {
    /// What is to be done to which devices.
    pub demand: watch::Receiver<Arc<Demand>>,
    /// The devices that containers have.
    pub allocations: AllocationsDesk,
    /// Which claims have which devices.
    pub ledger: watch::Receiver<Ledger>,
    /// Where NVIDIA's driver is asked about GPUs.
    pub gpus: PartitionDesk,
    /// Notified of each change of a state.
    pub news: Arc<Notify>,
}

/// Carries hand-overs out.
pub struct Handovers {
    tidings: Tidings,
    requests: mpsc::Receiver<Request>,
    ground: Ground,
    slots: BTreeMap<DeviceId, Slot>,
    journal: Journal<Records>,
    /// Taken by the one run.
    writer: Option<Writer<Records>>,
    states: watch::Sender<Arc<HandoverStates>>,
    /// The steps that run, by device.
    work: Tasks<DeviceId, Result<(), String>>,
    /// Answers that wait for the disk.
    answering: JoinSet<()>,
    /// Lives while a device is cared for.
    following: Option<Following>,
    metrics: HandoverMetrics,
}

/// What does not change while the part runs.
struct Ground {
    clock: Clock,
    host: Host,
    file: RecordFile,
    scrubber: Scrubber,
    limits: HandoverLimits,
}

/// The devices whose hand-over failed and has not succeeded since.
pub fn failed(states: &HandoverStates) -> BTreeMap<DeviceId, Failure> {
    states.iter().filter_map(|(id, state)| Some((id.clone(), state.failure()?.clone()))).collect()
}

/// The devices that nobody is to choose for now, and where each stands.
pub fn unready(states: &HandoverStates, demand: &Demand) -> BTreeMap<DeviceId, &'static str> {
    let word = |id: &DeviceId| states.get(id).map_or(Some("not-known"), State::unready);
    demand.keys().filter_map(|id| Some((id.clone(), word(id)?))).collect()
}

/// Where an earlier agent left each device, for whoever only wants to know. Blocks.
pub fn left(places: &Places) -> HandoverStates {
    let host = places.host();
    RecordFile::new(&places.state_dir, host).load()
}

// === impl Handovers ===

impl Handovers {
    /// Builds the part with the way to ask it and its states; nothing is read yet.
    pub fn new(
        places: &Places,
        limits: HandoverLimits,
        tidings: Tidings,
        clock: Clock,
        metrics: HandoverMetrics,
    ) -> (Self, HandoverDesk, watch::Receiver<Arc<HandoverStates>>) {
        let (states, receiver) = watch::channel(Arc::default());
        let host = places.host();
        let ground = Ground {
            clock,
            file: RecordFile::new(&places.state_dir, host.clone()),
            host,
            scrubber: Scrubber::new(places),
            limits,
        };
        let patience = limits.start_deadline;
        let (desk, requests) =
            HandoverDesk::new(tidings.allocations.clone(), patience, receiver.clone());
        let (journal, writer) = ground.file.journal();
        let part = Self {
            tidings,
            requests,
            ground,
            slots: BTreeMap::new(),
            journal,
            writer: Some(writer),
            states,
            work: Tasks::default(),
            answering: JoinSet::new(),
            following: None,
            metrics,
        };
        (part, desk, receiver)
    }

    /// Carries hand-overs out until stopped. Steps under way are ended then, as a crash would end them:
    /// the next agent finds the device dirty.
    pub async fn run(mut self, stop: CancellationToken) {
        let writer = self.writer.take().expect("it runs once");
        let living = async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = self.live() => {}
            }
        };
        tokio::join!(writer.run(), living);
    }

    async fn live(&mut self) {
        self.load().await;
        let mut allocations = self.tidings.allocations.watch();
        loop {
            let due = self.due();
            tokio::select! {
                Ok(()) = self.tidings.demand.changed() => self.follow().await,
                Some(request) = self.requests.recv() => {
                    // Who asks knows the devices of the newest demand.
                    if self.tidings.demand.has_changed().unwrap_or(false) {
                        self.follow().await;
                    }
                    self.ask(request);
                }
                Some((id, outcome)) = self.work.next() => self.worked(&id, outcome),
                Some(_) = self.answering.join_next() => {}
                () = until(due.unwrap_or_else(Instant::now)), if due.is_some() => self.clean_due(),
                Ok(()) = allocations.changed() => {
                    let newest = allocations.borrow_and_update().clone();
                    self.release(&newest);
                }
            }
        }
    }

    /// Takes up what an earlier agent left.
    async fn load(&mut self) {
        let file = self.ground.file.clone();
        let load = move || {
            let records = file.load();
            file.set_aside();
            records
        };
        let records = spawn_blocking(load).await.expect("loading neither panics nor is cancelled");
        self.slots = records.into_iter().map(|(id, state)| (id, Slot::new(state))).collect();
    }

    /// Takes up what is wanted now. Who has a device that is seen for the first time is asked of the
    /// kubelet's record.
    async fn follow(&mut self) {
        let demand = self.tidings.demand.borrow_and_update().clone();
        let unknown = demand.keys().any(|id| !self.slots.contains_key(id));
        let allocations =
            if unknown { self.tidings.allocations.read().await } else { Arc::default() };
        let ledger = self.tidings.ledger.borrow().clone();
        let claims = |id| claims_of(&ledger, id);
        for (id, care) in demand.iter() {
            // Without the record the device may be anybody's.
            let pods = allocations.pods(id);
            if pods.is_none() && !self.slots.contains_key(id) {
                continue;
            }
            let tenants = || pods.into_iter().flatten().chain(claims(id)).collect();
            let first = || Slot::new(State::first(tenants()));
            self.slots.entry(id.clone()).or_insert_with(first).care = Some(care.clone());
        }
        for (_, slot) in self.slots.iter_mut().filter(|(id, _)| !demand.contains_key(*id)) {
            slot.care = None;
        }
        self.slots.retain(|id, slot| !slot.is_forgettable() || self.work.is_busy(id));
        let lost = self.slots.iter().filter(|(_, slot)| !slot.is_in_reach());
        for id in lost.map(|(id, _)| id.clone()).collect::<Vec<_>>() {
            self.advance(&id, Input::Lost);
        }
        self.save();
        let is_wanted = !self.slots.is_empty();
        if is_wanted != self.following.is_some() {
            self.following = is_wanted.then(|| self.tidings.allocations.follow());
        }
    }

    fn ask(&mut self, request: Request) {
        match request {
            Request::Start(start) => self.begin_start(start),
            Request::Leave { claim, reply } => {
                self.leave(&claim);
                self.let_start(reply);
            }
        }
    }

    /// A container is about to start, or a claim to be prepared.
    fn begin_start(&mut self, request: Start) {
        let slot = self.slots.get_mut(&request.device);
        let is_there = slot.as_ref().is_some_and(|slot| slot.is_with(&request.newcomer));
        let care = slot.as_ref().and_then(|slot| slot.care.as_ref());
        let refused = care.and_then(|care| care.barred.clone().or_else(|| care.unproven.clone()));
        match (slot, refused.filter(|_| !is_there)) {
            (Some(slot), None) if slot.care.is_some() => {
                let id = request.device.clone();
                slot.waiting.push(request);
                self.serve(&id);
            }
            // The kubelet may have given up; nobody waits then.
            (_, None) => drop(request.reply.send(Ok(()))),
            (_, Some(why)) => drop(request.reply.send(Err(why))),
        }
    }

    /// Lets containers start that wait for the device, or does what they wait for.
    fn serve(&mut self, id: &DeviceId) {
        while let Some(slot) = self.slots.get_mut(id)
            && !self.work.is_busy(id)
            && let Some(request) = slot.waiting.pop()
        {
            let input = starting(&request.newcomer, &self.tidings.ledger.borrow(), id);
            slot.is_held |= matches!(request.newcomer, Newcomer::Pods(_));
            slot.changed = Instant::now();
            slot.waiting.push(request);
            self.advance(id, input);
            if self.work.is_busy(id) {
                return;
            }
            if let Some(request) = self.slots.get_mut(id).and_then(|slot| slot.waiting.pop()) {
                self.let_start(request.reply);
            }
        }
    }

    /// What it relies on is on the disk before the kubelet is told.
    fn let_start(&mut self, reply: Reply) {
        let recorded = self.journal.recorded();
        self.answering.spawn(async move {
            // The kubelet may have given up.
            let _ = reply.send(recorded.await);
        });
    }

    fn advance(&mut self, id: &DeviceId, input: Input) {
        let Some(slot) = self.slots.get_mut(id) else { return };
        let next = slot.state.clone().next(input);
        if next == slot.state {
            return;
        }
        log(id, &slot.state, &next);
        slot.enter(next, &self.ground.limits);
        let work = slot.state.work();
        self.save();
        if let Some(work) = work {
            self.begin(id, work);
        }
    }

    fn begin(&mut self, id: &DeviceId, work: Work) {
        let Some(slot) = self.slots.get_mut(id) else { return };
        let bench = Bench {
            device: id.clone(),
            care: slot.care(),
            host: self.ground.host.clone(),
            writing: slot.writing.clone(),
            asking: slot.asking.clone(),
            gpus: self.tidings.gpus.clone(),
            scrubber: self.ground.scrubber.clone(),
        };
        let (on_disk, limit) = (self.journal.recorded(), self.ground.limits.prepare_deadline);
        let metrics = self.metrics.clone();
        self.work.begin(id.clone(), async move {
            let timer = metrics.begin(work.name());
            let done = async {
                on_disk.await?;
                do_work(&bench, work, limit).await
            };
            timer.end(done.await)
        });
    }

    fn worked(&mut self, id: &DeviceId, outcome: Result<(), String>) {
        let Some(slot) = self.slots.get_mut(id) else { return };
        match outcome {
            Ok(()) => self.advance(id, Input::Done),
            Err(why) => {
                for request in std::mem::take(&mut slot.waiting) {
                    let _ = request.reply.send(Err(why.clone()));
                }
                self.advance(id, Input::Failed { why, at: self.ground.clock.now() });
            }
        }
        self.leave_late(id);
        self.serve(id);
    }

    /// When the next device is cleaned without anybody asking.
    fn due(&self) -> Option<Instant> {
        let in_reach = self.slots.values().filter(|slot| slot.is_in_reach());
        in_reach.filter_map(|slot| slot.due).min()
    }

    fn clean_due(&mut self) {
        let now = Instant::now();
        let is_due = |slot: &Slot| slot.is_in_reach() && slot.due.is_some_and(|due| due <= now);
        let due = self.slots.iter_mut().filter(|(_, slot)| is_due(slot));
        let due = due.map(|(id, slot)| {
            slot.due = None;
            id.clone()
        });
        for id in due.collect::<Vec<_>>() {
            self.advance(&id, Input::Due);
        }
    }

    /// Notes which containers let go. What was read before a device changed is not true of it.
    fn release(&mut self, allocations: &Allocations) {
        let mut let_go = Vec::new();
        for (id, slot) in &mut self.slots {
            let is_settled = !self.work.is_busy(id) && allocations.read() > Some(slot.changed);
            // Claims say so themselves.
            let is_settled = is_settled && !slot.state.is_of_claims();
            let Some(is_held) = allocations.holds(id) else { continue };
            if is_settled && std::mem::replace(&mut slot.is_held, is_held) && !is_held {
                let_go.push(id.clone());
            }
        }
        for id in let_go {
            self.advance(&id, Input::LetGo);
        }
    }

    /// Has the states written down, and tells them.
    fn save(&self) {
        let records: Records =
            self.slots.iter().map(|(id, slot)| (id.clone(), slot.state.clone())).collect();
        self.journal.write(records.clone());
        let cared_for = |id: &DeviceId| self.slots[id].care.is_some();
        let states: HandoverStates = records.into_iter().filter(|(id, _)| cared_for(id)).collect();
        self.metrics.stand(states.values().map(State::name));
        if publish(&self.states, Arc::new(states)) {
            self.tidings.news.notify_one();
        }
    }
}

impl std::fmt::Debug for Handovers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handovers").finish_non_exhaustive()
    }
}

fn log(device: &DeviceId, from: &State, to: &State) {
    let (from, now) = (from.name(), to.name());
    match to {
        State::Quarantined { failed: Failure { why, attempts, .. }, .. } => {
            tracing::warn!(%device, from, attempts, why, "hand-over failed, nobody gets the device");
        }
        State::InUse { .. } => tracing::info!(%device, from, "handed over"),
        State::Clean => tracing::info!(%device, from, "clean again"),
        _ => tracing::debug!(%device, from, now, "hand-over"),
    }
}
