//! Prepares claims and releases them: one task owns what is prepared, and what is done for a claim is done
//! beside it, so that no claim waits for another.
//!
//! ```text
//!   Prepare ──> reading ──planned, taken──> started ──recorded, done──> completed ──recorded──> answer
//!               ^  │ refused              │    ^  │ failed
//!        let go │  v             recorded │    │  v
//!           waiting │ too long, released  v    │ started: begun anew when the kubelet asks again
//!                   v                   making ┘ GPUs made whole or cut, planned again with the instances
//!               as before
//!
//!   Release ──> removing ──document, instances gone──> forgetting ──recorded, let go──> answer
//!                  ^
//!                  └── Prepare of a claim that was allocated other devices since, which is then read
//! ```
//!
//! # Guarantees
//!
//! The record says what is begun before it is begun, and that it is done before the kubelet is told. A
//! claim that is completed has the same answer whenever it is asked for, from the record alone, unless the API
//! server says that it was allocated anew: what it had is released first then. Releasing needs the record
//! alone too.

mod begin;
mod daemons;
mod documents;
mod ground;
mod partitions;
mod release;
mod slot;
mod time_slices;
mod waiting;

use std::collections::BTreeMap;

use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Duration, MissedTickBehavior, interval},
};
use windlass_allocations::ledger::Use;
use windlass_host::{deadline::Deadline, state_file::Journal};

pub(super) use self::ground::Ground;
use self::{
    ground::{Allocation, Suspect, blocking, nodes},
    slot::{Slot, Work},
};
use super::{
    claim::Claim,
    desk::{Request, Wish},
    record::{Entry, Records, Stage},
    status::{Trouble, Troubles},
};

/// Prepares and releases claims.
pub(super) struct Preparer {
    ground: Ground,
    requests: mpsc::Receiver<Request>,
    slots: BTreeMap<String, Slot>,
    troubles: Troubles,
    journal: Journal<Records>,
    tasks: JoinSet<Event>,
    /// How long a claim waits for others to let go of what it is to get.
    patience: Duration,
    /// How often is looked whether documents are there.
    look_interval: Duration,
    /// Why documents could not be written again when that was last tried.
    unwritten: Vec<String>,
}

/// What a task has come to.
enum Event {
    /// A claim that is completed was compared with its object.
    Compared(String, Allocation),
    /// The claim was read.
    Read(String, Box<Result<Claim, String>>),
    /// Others may have let go of what it is to get; so much patience is left.
    Waited(String, Deadline),
    /// Its GPUs are whole, or cut, as it is to get them.
    Made(String, Box<Result<Claim, Failed>>),
    /// What the record says is begun is done.
    Acted(String, Result<(), Failed>),
    /// That it is done is in the record.
    Settled(String, Result<(), String>),
    /// Nothing is left of it but the record.
    Removed(String, Result<(), String>),
    /// The record has forgotten it.
    Forgotten(String, Result<(), String>),
    /// The documents of these claims are there, but for those that cannot be written.
    Restored(Vec<String>, Vec<String>),
    /// Nobody has these claims any more.
    Stale(Vec<Suspect>),
}

/// Why something was not done.
enum Failed {
    /// It was not begun, since it could not be written down.
    Record(String),
    Act(String),
}

/// How often claims are looked for that nobody has any more.
const COLLECT: Duration = Duration::from_secs(10 * 60);

// === impl Preparer ===

impl Preparer {
    /// Takes up what an earlier agent left, in the ledger too.
    pub(super) fn new(
        ground: Ground,
        (requests, look_interval, patience): (mpsc::Receiver<Request>, Duration, Duration),
        records: Records,
        troubles: Troubles,
        journal: Journal<Records>,
    ) -> Self {
        let slots = records.into_iter().map(|(uid, entry)| (uid, Slot::of(entry))).collect();
        let (tasks, unwritten) = (JoinSet::new(), Vec::new());
        let preparer = Self {
            ground,
            requests,
            slots,
            troubles,
            journal,
            tasks,
            patience,
            look_interval,
            unwritten,
        };
        preparer.ground.metrics.holds(&preparer.records());
        for entry in preparer.slots.values().filter_map(|slot| slot.entry.as_ref()) {
            preparer.take_again(entry);
        }
        preparer
    }

    /// Prepares and releases until nobody may ask any more.
    pub(super) async fn run(mut self) {
        let (mut collect, mut look) = (interval(COLLECT), interval(self.look_interval));
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut state = self.ground.state.clone();
        loop {
            let is_vague = self.slots.values().any(Slot::is_vague);
            tokio::select! {
                request = self.requests.recv() => match request {
                    Some(request) => self.ask(request),
                    None => return,
                },
                Some(event) = self.tasks.join_next() => {
                    self.take(event.expect("tasks neither panic nor are cancelled"));
                }
                Ok(()) = state.changed(), if is_vague => self.find_devices(),
                _ = collect.tick() => self.collect(),
                _ = look.tick() => self.restore_documents(),
            }
        }
    }

    fn ask(&mut self, Request { claim, wish }: Request) {
        let uid = claim.uid.clone();
        let slot = self.slots.entry(uid.clone()).or_insert_with(|| Slot::new(claim.clone()));
        // A kubelet names a claim in both calls as it read it.
        if slot.claim != claim {
            return wish.refuse(format!(
                "claim {claim} has the UID {uid}, which is another claim's on this node"
            ));
        }
        match wish {
            Wish::Prepare(reply) => {
                slot.asked += 1;
                slot.preparing.push(reply);
            }
            Wish::Release(reply) => {
                slot.releasing.push(reply);
                slot.stop_waiting();
            }
        }
        self.advance(&uid);
    }

    /// Begins what is wanted of a claim next, unless something is done for it already.
    fn advance(&mut self, uid: &str) {
        let Some(slot) = self.slots.get_mut(uid).filter(|slot| slot.work.is_none()) else { return };
        match (&slot.entry, slot.preparing.is_empty(), slot.releasing.is_empty()) {
            (Some(entry), false, _) if entry.state == Stage::PrepareCompleted => {
                let entry = entry.clone();
                self.compare(entry);
            }
            (_, false, _) => self.read(uid),
            // What is not known may have devices all the same that are to be cleaned.
            (_, true, false) => self.remove(uid),
            (None, true, true) => drop(self.slots.remove(uid)),
            (Some(_), true, true) => {}
        }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Compared(uid, Allocation::Same) => self.act(&uid),
            Event::Compared(uid, Allocation::Another) => self.remove(&uid),
            Event::Read(uid, read) => match *read {
                Ok(claim) => self.take_up(&uid, claim),
                Err(why) => self.refuse(&uid, why.into()),
            },
            Event::Waited(uid, left) => self.waited(&uid, left),
            Event::Acted(uid, Ok(())) => self.settle(&uid),
            Event::Made(uid, made) => self.made(&uid, *made),
            Event::Acted(uid, Err(failed)) => self.failed(&uid, failed),
            Event::Settled(uid, outcome) => self.answer(&uid, outcome),
            Event::Removed(uid, Ok(())) => self.forget(&uid),
            Event::Removed(uid, Err(why)) | Event::Forgotten(uid, Err(why)) => {
                self.keep(&uid, why);
            }
            Event::Forgotten(uid, Ok(())) => self.let_go(&uid),
            Event::Restored(uids, failed) => self.restored(uids, failed),
            Event::Stale(claims) => self.release_stale(claims),
        }
    }

    /// Does what the record says is begun, or makes sure of what it says is done.
    fn act(&mut self, uid: &str) {
        let Some(entry) = self.slots.get(uid).and_then(|slot| slot.entry.clone()) else { return };
        let is_begun = entry.state == Stage::PrepareStarted;
        let (recorded, state) = (is_begun.then(|| self.save()), self.ground.state.borrow().clone());
        let nodes = if is_begun { nodes(&entry.devices, &state) } else { Vec::new() };
        if let Some(slot) = self.slots.get_mut(uid) {
            slot.work.get_or_insert(Work::Acting);
        }
        let (ground, uid) = (self.ground.clone(), uid.to_owned());
        self.tasks.spawn(async move {
            if let Some(Err(why)) = maybe(recorded).await {
                return Event::Acted(uid, Err(Failed::Record(why)));
            }
            let done = async {
                ground.hand_over(&entry).await?;
                ground.daemons_are_right(&entry).await?;
                if is_begun {
                    ground.set_time_slices(&entry).await?;
                }
                blocking(move || ground.do_it(&entry, &nodes)).await
            };
            Event::Acted(uid, done.await.map_err(Failed::Act))
        });
    }

    /// Has it written down that a claim is done, if it is not yet.
    fn settle(&mut self, uid: &str) {
        let Some(slot) = self.slots.get_mut(uid) else { return };
        match &mut slot.entry {
            Some(entry) if entry.state == Stage::PrepareStarted => {
                entry.state = Stage::PrepareCompleted;
            }
            _ => return self.answer(uid, Ok(())),
        }
        slot.work = Some(Work::Settling);
        let (recorded, uid) = (self.save(), uid.to_owned());
        self.tasks.spawn(async move { Event::Settled(uid, recorded.await) });
    }

    fn answer(&mut self, uid: &str, outcome: Result<(), String>) {
        if let Err(why) = outcome {
            if let Some(entry) = self.slots.get_mut(uid).and_then(|slot| slot.entry.as_mut()) {
                entry.state = Stage::PrepareStarted;
            }
            return self.refuse(uid, why.into());
        }
        let Some(slot) = self.slots.get_mut(uid) else { return };
        let is_news = slot.work.take() == Some(Work::Settling);
        self.troubles.forget(uid);
        if let Some(entry) = slot.entry.clone() {
            if is_news {
                let devices: Vec<_> = entry.devices.iter().map(|held| held.name.as_str()).collect();
                tracing::info!(claim = %entry.claim, uid, devices = devices.join(" "), "claim prepared");
            } else {
                tracing::debug!(claim = %entry.claim, uid, "claim is prepared as before");
            }
            slot.prepared(&Ok(entry.devices));
        }
        self.advance(uid);
    }

    fn failed(&mut self, uid: &str, failed: Failed) {
        match failed {
            Failed::Act(why) => self.refuse(uid, why.into()),
            Failed::Record(why) => self.undo(uid, why),
        }
    }

    /// Tells those who wait why a claim is not prepared; what was begun stays begun.
    fn refuse(&mut self, uid: &str, trouble: Trouble) {
        let Some(slot) = self.slots.get_mut(uid) else { return };
        slot.work = None;
        slot.prepared(&Err(trouble.why.clone()));
        // Of a claim that could not be read there is no device that a status could speak of.
        if slot.entry.is_some() || trouble.refused.is_some() {
            self.troubles.note(uid, trouble);
        } else {
            self.troubles.forget(uid);
        }
        self.advance(uid);
    }

    /// Nothing was done of what could not be written down.
    fn undo(&mut self, uid: &str, why: String) {
        let Some(slot) = self.slots.get_mut(uid) else { return };
        let mut refused = None;
        if slot.work == Some(Work::Beginning) {
            refused = slot.entry.take();
            self.ground.ledger.release_claim(uid);
            drop(self.save());
        }
        self.refuse(uid, Trouble { why, refused });
    }

    fn records(&self) -> Records {
        let entry = |(uid, slot): (&String, &Slot)| Some((uid.clone(), slot.entry.clone()?));
        self.slots.iter().filter_map(entry).collect()
    }

    /// Has what is prepared written down, again if the disk did not take it before. Gives what waits until
    /// it is.
    fn save(&self) -> impl Future<Output = Result<(), String>> + Send + use<> {
        let records = self.records();
        self.ground.metrics.holds(&records);
        self.journal.write(records);
        self.journal.recorded()
    }

    /// What an earlier agent gave away is held.
    fn take_again(&self, entry: &Entry) {
        self.ground.ledger.restore_claim(&entry.claim, entry.uses());
    }

    /// Finds out which devices are meant by names that only the kubelet's record told.
    fn find_devices(&mut self) {
        let state = self.ground.state.borrow().clone();
        let catalog = self.ground.catalog(&state);
        for slot in self.slots.values_mut() {
            let devices = slot.entry.iter_mut().flat_map(|entry| &mut entry.devices);
            for held in devices.filter(|held| held.device.is_none()) {
                let Some(found) = catalog.find(&held.pool, &held.name) else { continue };
                held.device = Some(found.device.clone());
                held.partition = found.partition.clone().filter(|_| held.usage != Use::Admin);
            }
        }
        for entry in self.slots.values().filter_map(|slot| slot.entry.as_ref()) {
            self.take_again(entry);
        }
        drop(self.save());
    }
}

async fn maybe<T>(waiting: Option<impl Future<Output = T>>) -> Option<T> {
    match waiting {
        Some(waiting) => Some(waiting.await),
        None => None,
    }
}
