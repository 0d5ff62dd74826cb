//! Preparation and release of claims. One task owns the state of all claims. The work for each claim runs in its own
//! task, so that claims do not wait for each other.
//!
//! ```text
//!   Prepare, Release ──> input ──> State::transition ──> state, action ──> task of the claim ──> outcome
//!                          ^                                        └── immediate action ────────────┐ │
//!                          └─────────────────────────────────────────────────────────────────────────┴─┘
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
    watches: JoinSet<WatchOutcome>,
    /// Longest wait of a claim for devices of other claims.
    wait_limit: Duration,
    /// Interval of checks for missing documents.
    check_interval: Duration,
}

/// Results of the `watches`.
enum WatchOutcome {
    /// Other claims may have released the devices of this claim, which waits no longer than the deadline.
    Released(String, Deadline),
    /// These claims are orphaned.
    Orphaned(Vec<OrphanCandidate>),
}

/// Interval of checks for orphaned claims.
const ORPHAN_CHECK_INTERVAL: Duration = Duration::from_secs(10 * 60);

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
        let tracked_claims = records
            .into_iter()
            .map(|(uid, record)| (uid, TrackedClaim::from_record(record)))
            .collect();
        let (tasks, watches) = Default::default();
        let preparer = Self {
            environment,
            requests,
            tracked_claims,
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
        let (mut orphans, mut check) =
            (interval(ORPHAN_CHECK_INTERVAL), interval(self.check_interval));
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
                        WatchOutcome::Released(uid, deadline) => self.retry_after_wait(&uid, deadline),
                        WatchOutcome::Orphaned(claims) => self.release_orphans(claims),
                    }
                }
                Ok(()) = state.changed(), if has_unknown_devices => self.find_devices(),
                _ = orphans.tick() => self.find_orphans(),
                _ = check.tick() => self.check_documents(),
            }
        }
    }

    fn handle(&mut self, Request { claim, operation }: Request) {
        let uid = claim.uid.clone();
        let tracked = self
            .tracked_claims
            .entry(uid.clone())
            .or_insert_with(|| TrackedClaim::new(claim.clone()));
        // A kubelet uses the same namespace and name in both calls.
        if tracked.claim != claim {
            return operation.refuse(format!(
                "claim {claim} has the UID {uid}, which is another claim's on this node"
            ));
        }
        let input = match operation {
            Operation::Prepare(reply) => {
                tracked.request_count += 1;
                tracked.prepare_replies.push(reply);
                Input::Prepare
            }
            Operation::Release(reply) => {
                tracked.release_replies.push(reply);
                Input::Release
            }
        };
        self.step(&uid, input);
    }

    /// Advances a claim as far as possible without waiting. An idle claim then takes its next request.
    fn step(&mut self, uid: &str, input: Input) {
        let mut next_input = Some(input);
        while let Some(input) = next_input {
            let Some(tracked) = self.tracked_claims.get_mut(uid) else { return };
            let (state, action) = tracked.state.transition(input);
            tracked.enter(state);
            next_input = self.perform(uid, action).or_else(|| self.next_request(uid));
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
            Action::Wait(blocker, deadline) => self.wait(uid, blocker, deadline),
            Action::Abandon => self.abandon(uid),
            Action::ChangeMig(claim) => self.change_mig(uid, claim),
            Action::Execute => self.execute_steps(uid),
            Action::Record => {
                let record_write = self.save();
                self.spawn(uid, async { Input::from_record(record_write.await) });
            }
            Action::Reply => self.reply(uid),
            Action::Refuse(failure) => self.refuse(uid, failure),
            Action::RollBack(reason) => self.roll_back(uid, reason),
            Action::Restore => self.restore_document(uid),
            Action::LogDocumentError(error) => self.log_document_error(uid, error),
            Action::UndoSteps => self.undo_steps(uid),
            Action::Release => self.release(uid),
            Action::RefuseRelease(error) => self.refuse_release(uid, error),
        }
        None
    }

    /// Next request of an idle claim. Drops a claim without record and request.
    fn next_request(&mut self, uid: &str) -> Option<Input> {
        let tracked = self.tracked_claims.get(uid)?;
        let State::Idle(stage) = tracked.state else { return None };
        let next_request = tracked.next_request();
        if next_request.is_none() && stage.is_none() {
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
    fn execute_steps(&mut self, uid: &str) {
        let Some(record) = self.record(uid).cloned() else { return };
        let is_begun = record.state == Stage::PrepareStarted;
        let record_write = is_begun.then(|| self.save());
        let nodes = is_begun.then(|| nodes(&record.devices, &self.environment.state.borrow()));
        let environment = self.environment.clone();
        self.spawn(uid, async move {
            if let Some(record_write) = record_write
                && let Err(error) = record_write.await
            {
                return Input::RecordFailed(error);
            }
            let steps = async {
                environment.wait_for_cleanup(&record).await?;
                environment.wait_for_daemons(&record).await?;
                if is_begun {
                    environment.set_time_slices(&record).await?;
                }
                blocking(move || environment.write_document(&record, &nodes.unwrap_or_default()))
                    .await
            };
            steps.await.into()
        });
    }

    fn reply(&mut self, uid: &str) {
        self.failures.clear(uid);
        let Some(tracked) = self.tracked_claims.get_mut(uid) else { return };
        let devices = tracked.record.iter().flat_map(|record| record.devices.clone()).collect();
        tracked.reply_to_prepare(&Ok(devices));
    }

    /// Answers the waiting callers with an error; begun steps stay.
    fn refuse(&mut self, uid: &str, failure: Failure) {
        let Some(tracked) = self.tracked_claims.get_mut(uid) else { return };
        tracked.reply_to_prepare(&Err(failure.reason.clone()));
        // A claim that could not be read has no device for a status.
        if tracked.record.is_some() || failure.refused.is_some() {
            self.failures.set(uid, failure);
        } else {
            self.failures.clear(uid);
        }
    }

    /// Releases the devices in the ledger: the record could not be written, so no step was done.
    fn roll_back(&mut self, uid: &str, error: String) {
        let refused = self.tracked_claims.get_mut(uid).and_then(|tracked| tracked.record.take());
        self.environment.ledger.release_claim(uid);
        drop(self.save());
        self.refuse(uid, Failure { reason: error, refused });
    }

    fn records(&self) -> Records {
        let record = |(uid, tracked): (&String, &TrackedClaim)| {
            Some((uid.clone(), tracked.persisted_record()?.clone()))
        };
        self.tracked_claims.iter().filter_map(record).collect()
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
        for record in self.tracked_claims.values().filter_map(TrackedClaim::persisted_record) {
            self.environment.ledger.restore_claim(&record.claim, record.uses());
        }
    }

    /// Finds devices of which the kubelet's checkpoint gave only the name.
    fn find_devices(&mut self) {
        let state = self.environment.state.borrow().clone();
        let catalog = self.environment.catalog(&state);
        for tracked in
            self.tracked_claims.values_mut().filter(|tracked| tracked.has_unknown_devices())
        {
            let devices = tracked.record.iter_mut().flat_map(|record| &mut record.devices);
            for device in devices.filter(|device| device.device.is_none()) {
                let Some(entry) = catalog.find(&device.pool, &device.name) else { continue };
                device.device = Some(entry.device.clone());
                device.partition =
                    entry.partition.clone().filter(|_| device.usage != ClaimUse::Admin);
            }
        }
        self.restore_holds();
        drop(self.save());
    }
}
