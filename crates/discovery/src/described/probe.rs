//! Whether described devices work: each is asked by a task of its own, and never by the look.
//!
//! ```text
//!   look ── questions: device -> what to ask ──> Prober ──> one task per device
//!    ^                                             │
//!    └── verdicts: device -> what it answered <────┘
//! ```
//!
//! A device is awaited until it has answered once. A failure counts when there were as many in a row as the
//! probe says.

mod ask;

use std::{collections::BTreeMap, mem, sync::Arc, time::Duration};

use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;
use windlass_core::{
    device::{Device, DeviceId},
    health::{Observation, Reason},
};
use windlass_host::Host;

use ask::{Bench, Leftover, ask};

pub(super) use ask::Question;

/// What a probe has come to.
pub(super) type Answer = Result<(), (Reason, String)>;

/// What is to be asked, of which device.
pub(super) type Questions = BTreeMap<DeviceId, Question>;

/// What each device that was asked has answered, and whether that counts.
type Verdicts = BTreeMap<DeviceId, Answer>;

/// The look's side: what it wants to know, and what it was told.
#[derive(Debug)]
pub(super) struct ProbeDesk {
    questions: watch::Sender<Arc<Questions>>,
    verdicts: watch::Receiver<Arc<Verdicts>>,
    news: Arc<Notify>,
}

/// Asks.
pub(crate) struct Prober {
    host: Host,
    questions: watch::Receiver<Arc<Questions>>,
    verdicts: watch::Sender<Arc<Verdicts>>,
    news: Arc<Notify>,
    slots: BTreeMap<DeviceId, Slot>,
    tasks: JoinSet<Asked>,
    /// Tells answers to a question from those to an earlier one.
    round: u64,
}

/// A device that is asked.
struct Slot {
    question: Question,
    round: u64,
    /// When it is asked next; `None` while it is.
    due: Option<Instant>,
    /// Failures in a row.
    failures: u32,
    /// What of an earlier attempt does not return.
    leftover: Leftover,
}

/// What one task brings back.
struct Asked {
    device: DeviceId,
    round: u64,
    answer: Answer,
    leftover: Leftover,
}

/// Both sides.
pub(super) fn desk(host: Host) -> (ProbeDesk, Prober) {
    let news = Arc::new(Notify::new());
    let (questions, asked) = watch::channel(Arc::default());
    let (answered, verdicts) = watch::channel(Arc::default());
    let desk = ProbeDesk { questions, verdicts, news: news.clone() };
    let (slots, tasks) = Default::default();
    (desk, Prober { host, questions: asked, verdicts: answered, news, slots, tasks, round: 0 })
}

// === impl ProbeDesk ===

impl ProbeDesk {
    /// Notified of each new verdict.
    pub(super) fn news(&self) -> Arc<Notify> {
        self.news.clone()
    }

    /// What is known of a device that is asked.
    pub(super) fn observation(&self, device: &Device) -> Observation {
        match self.verdicts.borrow().get(&device.id) {
            None => Observation::Awaited,
            Some(Ok(())) => Observation::Passed,
            Some(Err((reason, detail))) => Observation::Failed(*reason, detail.clone()),
        }
    }

    /// Asks these, and no others.
    pub(super) fn ask(&self, questions: Questions) {
        windlass_host::watch::publish(&self.questions, Arc::new(questions));
    }
}

// === impl Prober ===

impl Prober {
    /// Asks until stopped; what is being asked then is dropped, programs included.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        loop {
            self.ask_due();
            let next = self.slots.values().filter_map(|slot| slot.due).min();
            tokio::select! {
                () = stop.cancelled() => return,
                Ok(()) = self.questions.changed() => self.adopt(),
                Some(asked) = self.tasks.join_next(), if !self.tasks.is_empty() => {
                    self.take(asked.expect("asking neither panics nor is cancelled"));
                }
                () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {}
            }
        }
    }

    /// A question that stays goes on as it is; a new one is asked at once.
    fn adopt(&mut self) {
        let questions = self.questions.borrow_and_update().clone();
        self.slots.retain(|device, slot| questions.get(device) == Some(&slot.question));
        for (device, question) in questions.iter() {
            if !self.slots.contains_key(device) {
                self.round += 1;
                let slot = Slot::new(question.clone(), self.round);
                self.slots.insert(device.clone(), slot);
                self.tell(device, None);
            }
        }
        self.verdicts.send_if_modified(|verdicts| {
            let differs = verdicts.keys().any(|device| !questions.contains_key(device));
            if differs {
                Arc::make_mut(verdicts).retain(|device, _| questions.contains_key(device));
            }
            differs
        });
    }

    fn ask_due(&mut self) {
        let now = Instant::now();
        for (device, slot) in &mut self.slots {
            if slot.due.is_none_or(|due| due > now) {
                continue;
            }
            slot.due = None;
            let (device, round) = (device.clone(), slot.round);
            let bench = Bench { host: self.host.clone(), leftover: mem::take(&mut slot.leftover) };
            let question = slot.question.clone();
            self.tasks.spawn(async move {
                let (answer, leftover) = ask(&device, &question, bench).await;
                Asked { device, round, answer, leftover }
            });
        }
    }

    fn take(&mut self, Asked { device, round, answer, leftover }: Asked) {
        // The answer to a question that nobody asks any more.
        let Some(slot) = self.slots.get_mut(&device).filter(|slot| slot.round == round) else {
            return;
        };
        slot.leftover = leftover;
        slot.due = Some(Instant::now() + slot.question.every);
        slot.failures = if answer.is_ok() { 0 } else { slot.failures.saturating_add(1) };
        if answer.is_ok() || slot.failures >= slot.question.failures {
            self.tell(&device, Some(answer));
        }
    }

    fn tell(&self, device: &DeviceId, answer: Option<Answer>) {
        let differs = self.verdicts.send_if_modified(|verdicts| {
            let differs = verdicts.get(device) != answer.as_ref();
            if differs {
                let verdicts = Arc::make_mut(verdicts);
                match answer {
                    Some(answer) => drop(verdicts.insert(device.clone(), answer)),
                    None => drop(verdicts.remove(device)),
                }
            }
            differs
        });
        if differs {
            self.news.notify_one();
        }
    }
}

// === impl Slot ===

impl Slot {
    fn new(question: Question, round: u64) -> Self {
        Self {
            question,
            round,
            due: Some(Instant::now()),
            failures: 0,
            leftover: Leftover::default(),
        }
    }
}

/// No more often than this, whatever is written: a probe is no load.
pub(super) const SHORTEST: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests;
