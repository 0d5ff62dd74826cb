//! Preparation and release of claims. One task owns the state of all claims. The work for each claim runs in its own
//! task, so that claims do not wait for each other.
//!
//! ```text
//!   Prepare, Release ──> input ──> State::next ──> state, action ──> task of the claim ──> outcome
//!                          ^                                  └── immediate action ────────────┐ │
//!                          └───────────────────────────────────────────────────────────────────┴─┘
//! ```
//!
//! [`State`] has a drawing of a claim's states. Each submodule executes some of the actions.
//!
//! # Guarantees
//!
//! The record on disk names a step before it begins, and its completion before the kubelet is answered. A completed
//! claim gets the same answer each time, from the record alone. If the API server shows another allocation, the old
//! devices are released first. A release needs the record alone too.

mod begin;
mod daemons;
mod documents;
mod environment;
mod partitions;
mod release;
mod slot;
mod state;
mod time_slices;
mod waiting;

use std::collections::BTreeMap;

use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Duration, MissedTickBehavior, interval},
};
use windlass_allocations::ledger::ClaimUse;
use windlass_host::{blocking, deadline::Deadline, keyed::KeyedTasks, state_file::Journal};

pub(super) use self::environment::Environment;
use self::{
    environment::{OrphanCandidate, nodes},
    slot::TrackedClaim,
    state::{Action, Input, State},
};
use super::{
    queue::{Operation, Request},
    record::{PreparedClaim, Records, Stage},
    status::{Failure, Failures},
};

/// Prepares and releases claims.
pub(super) struct Preparer {
    environment: Environment,
    requests: mpsc::Receiver<Request>,
    tracked_claims: BTreeMap<String, TrackedClaim>,
    failures: Failures,
    journal: Journal<Records>,
    /// The work of each claim, by UID.
    tasks: KeyedTasks<String, Input>,
    /// Waits for other claims, and searches for orphans.
    watches: JoinSet<Notice>,
    /// Longest wait of a claim for devices of other claims.
    wait_limit: Duration,
    /// Interval of checks for missing documents.
    check_interval: Duration,
}

/// Results of the `watches`.
enum Notice {
    /// Other claims may have released the devices of this claim, which waits no longer than the deadline.
    Released(String, Deadline),
    /// These claims are orphaned.
    Orphaned(Vec<OrphanCandidate>),
}

/// Interval of checks for orphaned claims.
const ORPHAN_CHECK: Duration = Duration::from_secs(10 * 60);

// === impl Preparer ===

impl Preparer {
    /// Restores the claims of an earlier agent, in the ledger too.
    pub(super) fn new(
        environment: Environment,
        requests: mpsc::Receiver<Request>,
        check_interval: Duration,
        wait_limit: Duration,
        records: Records,
        failures: Failures,
        journal: Journal<Records>,
    ) -> Self {
        let slots = records
            .into_iter()
            .map(|(uid, entry)| (uid, TrackedClaim::from_record(entry)))
            .collect();
        let (tasks, watches) = Default::default();
        let preparer = Self {
            environment,
            requests,
            tracked_claims: slots,
            failures,
            journal,
            tasks,
            watches,
            wait_limit,
            check_interval,
        };
        preparer.environment.metrics.set_claims(&preparer.records());
        preparer.restore_holds();
        preparer
    }

    /// Prepares and releases claims until the queue is closed.
    pub(super) async fn run(mut self) {
        let (mut orphans, mut check) = (interval(ORPHAN_CHECK), interval(self.check_interval));
        check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut state = self.environment.state.clone();
        loop {
            let has_unknown_devices =
                self.tracked_claims.values().any(TrackedClaim::has_unknown_devices);
            tokio::select! {
                request = self.requests.recv() => match request {
                    Some(request) => self.handle(request),
                    None => return,
                },
                Some((uid, outcome)) = self.tasks.join_next() => self.step(&uid, outcome),
                Some(notice) = self.watches.join_next() => {
                    match notice.expect("watches neither panic nor are cancelled") {
                        Notice::Released(uid, deadline) => self.retry_after_wait(&uid, deadline),
                        Notice::Orphaned(claims) => self.release_orphans(claims),
                    }
                }
                Ok(()) = state.changed(), if has_unknown_devices => self.find_devices(),
                _ = orphans.tick() => self.find_orphans(),
                _ = check.tick() => self.check(),
            }
        }
    }

    fn handle(&mut self, Request { claim, operation }: Request) {
        let uid = claim.uid.clone();
        let slot = self
            .tracked_claims
            .entry(uid.clone())
            .or_insert_with(|| TrackedClaim::new(claim.clone()));
        // A kubelet uses the same namespace and name in both calls.
        if slot.claim != claim {
            return operation.refuse(format!(
                "claim {claim} has the UID {uid}, which is another claim's on this node"
            ));
        }
        let input = match operation {
            Operation::Prepare(reply) => {
                slot.request_count += 1;
                slot.prepare_replies.push(reply);
                Input::Prepare
            }
            Operation::Release(reply) => {
                slot.release_replies.push(reply);
                Input::Release
            }
        };
        self.step(&uid, input);
    }

    /// Advances a claim as far as possible without waiting. An idle claim then takes its next request.
    fn step(&mut self, uid: &str, input: Input) {
        let mut next = Some(input);
        while let Some(input) = next {
            let Some(slot) = self.tracked_claims.get_mut(uid) else { return };
            let (state, action) = slot.state.transition(input);
            slot.enter(state);
            next = self.perform(uid, action).or_else(|| self.next_request(uid));
        }
    }

    /// Executes an immediate action, or begins the work. Returns the input of an immediate action.
    fn perform(&mut self, uid: &str, action: Action) -> Option<Input> {
        match action {
            Action::None => {}
            Action::Plan(claim) => return Some(self.plan(claim)),
            Action::Replan(claim) => return Some(self.replan(&claim)),
            Action::Compare => self.compare(uid),
            Action::Read => self.read(uid),
            Action::Wait(others, deadline) => self.wait(uid, others, deadline),
            Action::Abandon => self.abandon(uid),
            Action::ChangeMig(claim) => self.change_mig(uid, claim),
            Action::Execute => self.execute(uid),
            Action::Record => {
                let recorded = self.save();
                self.spawn(uid, async { Input::from_record(recorded.await) });
            }
            Action::Reply => self.reply(uid),
            Action::Refuse(failure) => self.refuse(uid, failure),
            Action::RollBack(why) => self.roll_back(uid, why),
            Action::Restore => self.restore_document(uid),
            Action::LogDocumentError(why) => self.log_document_error(uid, why),
            Action::UndoSteps => self.undo_steps(uid),
            Action::Release => self.release(uid),
            Action::RefuseRelease(why) => self.refuse_release(uid, why),
        }
        None
    }

    /// Next request of an idle claim. Drops a claim without record and request.
    fn next_request(&mut self, uid: &str) -> Option<Input> {
        let slot = self.tracked_claims.get(uid)?;
        let State::Idle(recorded) = slot.state else { return None };
        let next_request = slot.next_request();
        if next_request.is_none() && recorded.is_none() {
            self.tracked_claims.remove(uid);
        }
        next_request
    }

    fn spawn(&mut self, uid: &str, work: impl Future<Output = Input> + Send + 'static) {
        self.tasks.submit(uid.to_owned(), work);
    }

    fn record(&self, uid: &str) -> Option<&PreparedClaim> {
        self.tracked_claims.get(uid)?.record.as_ref()
    }

    /// Executes the recorded steps, or checks the completed ones.
    fn execute(&mut self, uid: &str) {
        let Some(entry) = self.record(uid).cloned() else { return };
        let is_begun = entry.state == Stage::PrepareStarted;
        let recorded = is_begun.then(|| self.save());
        let nodes = is_begun.then(|| nodes(&entry.devices, &self.environment.state.borrow()));
        let environment = self.environment.clone();
        self.spawn(uid, async move {
            if let Some(recorded) = recorded
                && let Err(why) = recorded.await
            {
                return Input::RecordFailed(why);
            }
            let done = async {
                environment.wait_for_cleanup(&entry).await?;
                environment.wait_for_daemons(&entry).await?;
                if is_begun {
                    environment.set_time_slices(&entry).await?;
                }
                blocking(move || environment.write_document(&entry, &nodes.unwrap_or_default()))
                    .await
            };
            done.await.into()
        });
    }

    fn reply(&mut self, uid: &str) {
        self.failures.clear(uid);
        let Some(slot) = self.tracked_claims.get_mut(uid) else { return };
        let devices = slot.record.iter().flat_map(|entry| entry.devices.clone()).collect();
        slot.reply_to_prepare(&Ok(devices));
    }

    /// Answers the waiting callers with an error; begun steps stay.
    fn refuse(&mut self, uid: &str, failure: Failure) {
        let Some(slot) = self.tracked_claims.get_mut(uid) else { return };
        slot.reply_to_prepare(&Err(failure.why.clone()));
        // A claim that could not be read has no device for a status.
        if slot.record.is_some() || failure.refused.is_some() {
            self.failures.set(uid, failure);
        } else {
            self.failures.clear(uid);
        }
    }

    /// Releases the devices in the ledger: the record could not be written, so no step was done.
    fn roll_back(&mut self, uid: &str, why: String) {
        let refused = self.tracked_claims.get_mut(uid).and_then(|slot| slot.record.take());
        self.environment.ledger.release_claim(uid);
        drop(self.save());
        self.refuse(uid, Failure { why, refused });
    }

    fn records(&self) -> Records {
        let entry = |(uid, slot): (&String, &TrackedClaim)| {
            Some((uid.clone(), slot.persisted_record()?.clone()))
        };
        self.tracked_claims.iter().filter_map(entry).collect()
    }

    /// Queues a write of the records, even if they are unchanged after a failed write. The returned future waits for
    /// the disk.
    fn save(&self) -> impl Future<Output = Result<(), String>> + Send + use<> {
        let records = self.records();
        self.environment.metrics.set_claims(&records);
        self.journal.write(records);
        self.journal.wait_written()
    }

    /// Holds the devices of recorded claims in the ledger.
    fn restore_holds(&self) {
        for entry in self.tracked_claims.values().filter_map(TrackedClaim::persisted_record) {
            self.environment.ledger.restore_claim(&entry.claim, entry.uses());
        }
    }

    /// Finds devices of which the kubelet's checkpoint gave only the name.
    fn find_devices(&mut self) {
        let state = self.environment.state.borrow().clone();
        let catalog = self.environment.catalog(&state);
        for slot in self.tracked_claims.values_mut().filter(|slot| slot.has_unknown_devices()) {
            let devices = slot.record.iter_mut().flat_map(|entry| &mut entry.devices);
            for held in devices.filter(|held| held.device.is_none()) {
                let Some(found) = catalog.find(&held.pool, &held.name) else { continue };
                held.device = Some(found.device.clone());
                held.partition = found.partition.clone().filter(|_| held.usage != ClaimUse::Admin);
            }
        }
        self.restore_holds();
        drop(self.save());
    }
}
