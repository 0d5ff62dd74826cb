//! One initialisation of NVML: probes its GPUs, hears its events, and tells when it must end.

use std::{collections::BTreeSet, sync::Arc};

use tokio::{
    task::{JoinError, JoinSet},
    time::Instant,
};
use windlass_core::{
    device::DeviceId,
    health::{Observation, Reason, Verdict, judge_xid},
};
use windlass_nvml::{Event, EventKind, EventSet, Nvml, NvmlError};

use super::{
    Ended,
    describe::Describe,
    events::EventWatch,
    facts::{DriverFacts, GpuFacts},
    known::Known,
    procfs::Fingerprint,
    question::Question,
};
use crate::{clock::until, config::HealthPolicy, host::Host};

pub(super) struct Connection {
    nvml: Nvml,
    driver: DriverFacts,
    host: Host,
    policy: HealthPolicy,
    fingerprint: Fingerprint,
    event_set: Arc<EventSet>,
    events: EventWatch,
    answers: JoinSet<Answer>,
    count: Count,
    slots: Vec<Slot>,
    next_round: Instant,
}

/// NVML as it answered when it was loaded.
pub(super) struct Driver {
    pub(super) nvml: Nvml,
    pub(super) facts: DriverFacts,
    pub(super) events: Arc<EventSet>,
}

/// One position in NVML's order, and what stands there.
#[derive(Default)]
struct Slot {
    facts: Option<GpuFacts>,
    /// The GPU, or a placeholder for it, and its MIG instances.
    ids: Vec<DeviceId>,
    question: Question,
}

/// How many GPUs there are.
#[derive(Default)]
struct Count {
    question: Question,
    error: Option<String>,
}

/// What a blocking thread brings back.
enum Answer {
    Count(Result<u32, NvmlError>),
    Gpu(u32, Box<Result<GpuFacts, NvmlError>>),
}

// === impl Connection ===

impl Connection {
    /// Starts to listen; the first step asks for the GPUs.
    pub(super) fn new(driver: Driver, host: &Host, policy: &HealthPolicy) -> std::io::Result<Self> {
        Ok(Self {
            events: EventWatch::start(driver.events.clone(), policy.event_wait)?,
            fingerprint: host.nvidia_fingerprint(),
            host: host.clone(),
            policy: policy.clone(),
            nvml: driver.nvml,
            driver: driver.facts,
            event_set: driver.events,
            answers: JoinSet::new(),
            count: Count::default(),
            slots: Vec::new(),
            next_round: Instant::now(),
        })
    }

    /// Whether every GPU answered once or is overdue: before that a snapshot would be half a node.
    pub(super) fn has_seen_every_gpu(&self) -> bool {
        self.count.question.is_settled() && self.slots.iter().all(|slot| slot.question.is_settled())
    }

    pub(super) fn driver(&self) -> &DriverFacts {
        &self.driver
    }

    /// Why the driver does not tell its GPUs.
    pub(super) fn trouble(&self) -> Option<&str> {
        self.count.error.as_deref()
    }

    /// Waits for one thing to happen and takes it in.
    pub(super) async fn step(&mut self, known: &mut Known) -> Option<Ended> {
        let wake = self.next_wake(known);
        tokio::select! {
            Some(answer) = self.answers.join_next() => {
                self.take_answer(answer, known);
                None
            }
            news = self.events.next() => {
                for event in news {
                    self.take_event(event, known);
                }
                None
            }
            () = until(wake) => self.wake(known),
        }
    }

    /// Lets go of the library on a thread that may hang, without waiting for it.
    pub(super) fn abandon(self) {
        tokio::task::spawn_blocking(move || drop(self));
    }

    /// Shuts NVML down, which takes up to one wait for events.
    pub(super) async fn shut_down(self) {
        let limit = self.policy.event_wait + self.policy.call_deadline;
        let ended = tokio::task::spawn_blocking(move || {
            let Self { events, event_set, slots, answers, nvml, .. } = self;
            drop((event_set, slots, answers, nvml));
            events.end();
        });
        if tokio::time::timeout(limit, ended).await.is_err() {
            tracing::warn!(?limit, "NVML did not shut down in time");
        }
    }

    /// The next round, the first answer that becomes overdue, or the first possible recovery.
    fn next_wake(&self, known: &Known) -> Instant {
        let questions = self.slots.iter().map(|slot| &slot.question).chain([&self.count.question]);
        let overdue = questions.filter_map(Question::open_since).min();
        let overdue = overdue.map(|since| since + self.policy.call_deadline);
        let quiet = self.slots.iter().filter(|slot| slot.question.is_idle());
        let recovery = known.next_recovery(quiet.flat_map(|slot| &slot.ids));
        let recovery = recovery.map(|time| known.clock().instant_of(time));
        [overdue, recovery].into_iter().flatten().fold(self.next_round, Instant::min)
    }

    fn wake(&mut self, known: &mut Known) -> Option<Ended> {
        let now = Instant::now();
        self.mark_overdue(now, known);
        if now >= self.next_round {
            if self.host.nvidia_fingerprint() != self.fingerprint {
                return Some(Ended::Changed);
            }
            self.next_round = now + self.policy.probe_interval;
            self.ask_count(now);
            (0..self.slots.len()).for_each(|index| self.ask_gpu(index, now));
        } else {
            self.ask_recovering(now, known);
        }
        None
    }

    fn mark_overdue(&mut self, now: Instant, known: &mut Known) {
        let deadline = self.policy.call_deadline;
        let why = format!("the driver did not answer within {deadline:?}");
        if self.count.question.became_overdue(now, deadline) {
            self.count.error = Some(why.clone());
        }
        for index in 0..self.slots.len() {
            if self.slots[index].question.became_overdue(now, deadline) {
                self.fail(index, Reason::Unresponsive, &why, known);
            }
        }
    }

    fn ask_count(&mut self, now: Instant) {
        if self.count.question.ask(now) {
            let nvml = self.nvml.clone();
            self.answers.spawn_blocking(move || Answer::Count(nvml.gpu_count()));
        }
    }

    fn ask_gpu(&mut self, index: usize, now: Instant) {
        let slot = &mut self.slots[index];
        if slot.question.ask(now) {
            let (nvml, events) = (self.nvml.clone(), self.event_set.clone());
            let (index, facts) = (position(index), slot.facts.clone());
            self.answers.spawn_blocking(move || {
                Answer::Gpu(index, Box::new(GpuFacts::probe(&nvml, &events, index, facts)))
            });
        }
    }

    fn ask_recovering(&mut self, now: Instant, known: &Known) {
        let due = |slot: &Slot| known.next_recovery(&slot.ids).is_some_and(|at| at <= known.now());
        let due: Vec<_> = (0..self.slots.len()).filter(|&i| due(&self.slots[i])).collect();
        for index in due {
            self.ask_gpu(index, now);
        }
    }

    fn take_answer(&mut self, answer: Result<Answer, JoinError>, known: &mut Known) {
        match answer {
            Ok(Answer::Count(count)) => self.take_count(count, known),
            Ok(Answer::Gpu(index, outcome)) => {
                let index = index as usize;
                // The set of GPUs may have shrunk while the question was open.
                let Some(slot) = self.slots.get_mut(index) else { return };
                slot.question.settle();
                match *outcome {
                    Ok(facts) => self.take_facts(index, facts, known),
                    Err(error) if error.is_lost() => {
                        self.fail(index, Reason::Lost, &error.to_string(), known);
                    }
                    Err(error) => self.fail(index, Reason::ProbeFailed, &error.to_string(), known),
                }
            }
            // A blocking task neither panics nor is cancelled while the connection lives.
            Err(error) => tracing::error!(%error, "an NVML call did not come back"),
        }
    }

    fn take_count(&mut self, count: Result<u32, NvmlError>, known: &mut Known) {
        self.count.question.settle();
        self.count.error = count.as_ref().err().map(ToString::to_string);
        let Ok(count) = count else { return };
        let count = count as usize;
        for slot in self.slots.drain(count.min(self.slots.len())..) {
            slot.ids.iter().for_each(|id| known.vanish(id, "the driver lists it no longer"));
        }
        let now = Instant::now();
        for index in self.slots.len()..count {
            self.slots.push(Slot::default());
            self.ask_gpu(index, now);
        }
        self.vanish_strangers(known);
    }

    fn take_facts(&mut self, index: usize, facts: GpuFacts, known: &mut Known) {
        let now = known.now();
        let describe = Describe { host: &self.host, driver: &self.driver, now };
        let Some(devices) = describe.gpu(position(index), &facts) else {
            let why = format!("the driver gives it the name {:?}, which is none", facts.uuid);
            return self.fail(index, Reason::ProbeFailed, &why, known);
        };
        let ids: Vec<_> = devices.iter().map(|device| device.id.clone()).collect();
        for device in devices {
            known.describe(device);
        }
        for id in &ids {
            known.observe(id, &Observation::Passed);
        }
        let slot = &mut self.slots[index];
        let gone = std::mem::replace(&mut slot.ids, ids);
        slot.facts = Some(facts);
        self.vanish_unless_present(&gone, known);
        self.vanish_strangers(known);
    }

    /// A failure concerns the GPU and every part of it. One that never told its name gets one.
    fn fail(&mut self, index: usize, reason: Reason, why: &str, known: &mut Known) {
        if self.slots[index].ids.is_empty() {
            let gpus = self.host.nvidia_gpus();
            let listed = if gpus.len() == self.slots.len() { gpus.get(index) } else { None };
            let describe = Describe { host: &self.host, driver: &self.driver, now: known.now() };
            if let Some(device) = describe.failed(position(index), listed) {
                self.slots[index].ids.push(device.id.clone());
                known.describe(device);
            }
        }
        let slot = &self.slots[index];
        let failed = Observation::Failed(reason, why.to_owned());
        slot.ids.iter().for_each(|id| known.observe(id, &failed));
    }

    fn vanish_unless_present(&self, ids: &[DeviceId], known: &mut Known) {
        let present: BTreeSet<_> = self.slots.iter().flat_map(|slot| &slot.ids).collect();
        let gone = ids.iter().filter(|id| !present.contains(id));
        gone.for_each(|id| known.vanish(id, "the driver lists it no longer"));
    }

    /// Devices of an earlier initialisation that this one does not have.
    fn vanish_strangers(&self, known: &mut Known) {
        if self.has_seen_every_gpu() {
            let ids: Vec<_> = known.ids().cloned().collect();
            self.vanish_unless_present(&ids, known);
        }
    }

    fn take_event(&mut self, event: Result<Event, NvmlError>, known: &mut Known) {
        match event {
            Ok(event) => self.take_fault(&event, known),
            Err(error) => {
                // Which GPU broke the wait is not told: all are asked.
                tracing::warn!(%error, "waiting for NVML events failed, probing every GPU");
                let now = Instant::now();
                (0..self.slots.len()).for_each(|index| self.ask_gpu(index, now));
            }
        }
    }

    fn take_fault(&self, event: &Event, known: &mut Known) {
        let Some(slot) = self.slots.iter().find(|slot| slot.is(event)) else { return };
        let fault = match event.kind {
            EventKind::Xid(code) => {
                let (counts, meaning) = self.judge(code);
                if !counts {
                    tracing::info!(device = ?slot.ids.first(), xid = code, meaning, "XID does not count");
                    return;
                }
                Observation::Fault(Reason::Xid(code), meaning.to_owned())
            }
            EventKind::DoubleBitEcc => {
                let detail = "memory that could not be corrected".to_owned();
                Observation::Fault(Reason::DoubleBitEcc, detail)
            }
            EventKind::Other(_) => return,
        };
        slot.ids.iter().for_each(|id| known.observe(id, &fault));
    }

    /// Whether an XID counts: the operator's word, then the catalogue's.
    fn judge(&self, code: u64) -> (bool, &'static str) {
        let (verdict, meaning) = judge_xid(code);
        let counts = self.policy.counted_xids.contains(&code)
            || (verdict == Verdict::Critical && !self.policy.ignored_xids.contains(&code));
        (counts, meaning)
    }
}

fn position(index: usize) -> u32 {
    u32::try_from(index).expect("NVML counts GPUs in 32 bits")
}

// === impl Slot ===

impl Slot {
    fn is(&self, event: &Event) -> bool {
        self.facts.as_ref().is_some_and(|facts| facts.gpu == event.gpu)
    }
}
