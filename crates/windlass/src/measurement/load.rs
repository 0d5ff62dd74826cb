//! Load on a running pipeline: items go in at the first stage, and their ends are listened to.

use std::{
    collections::HashMap,
    thread,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use tokio::{
    sync::mpsc::{Receiver, Sender, channel},
    task::JoinSet,
    time::{timeout, timeout_at},
};
use windlass_stage::{Addresses, End, Ends, Failure, Settings, Source, StageMetrics, Told, Visit};

use crate::precise::{be_woken_on_time, sleep_until};

/// Where items go in and come out.
#[derive(Clone, Debug)]
pub(crate) struct Entrance {
    /// Name of the first stage.
    pub(crate) first: String,
    pub(crate) addresses: Addresses,
    /// Addresses of the replicas of each stage where items leave.
    pub(crate) ends: Vec<Addresses>,
    /// Size of an item as it goes in.
    pub(crate) input: usize,
}

/// Items to send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// Items per second; without one, as many as the pipeline takes.
    pub(crate) rate: Option<f64>,
    /// Time for which items are sent.
    pub(crate) lasts: Duration,
}

/// Ended items of a run.
#[derive(Debug)]
pub(crate) struct LoadRun {
    /// The time at which the first item went in.
    pub(crate) begun: SystemTime,
    /// Time for which items went in.
    pub(crate) lasted: Duration,
    pub(crate) sent: u64,
    pub(crate) arrived: Vec<ArrivedItem>,
    pub(crate) failures: Vec<FailedItem>,
    /// Items of which nothing was heard: none, unless the ends came too fast for this program.
    pub(crate) unheard: u64,
}

/// An item that arrived at every end.
#[derive(Debug)]
pub(crate) struct ArrivedItem {
    pub(crate) id: u64,
    /// The source's wish to send it, since the run began.
    pub(crate) left: Duration,
    /// From the source's wish to send it until its end.
    pub(crate) latency: Duration,
    /// Time of its last end, since the run began.
    pub(crate) at: Duration,
    pub(crate) visits: Vec<Visit>,
}

/// An item that failed.
#[derive(Debug)]
pub(crate) struct FailedItem {
    pub(crate) id: u64,
    /// The source's wish to send it, since the run began.
    pub(crate) left: Duration,
    pub(crate) failure: Failure,
    /// The stages that it came to.
    pub(crate) visits: Vec<Visit>,
}

/// An item's send, or one of its ends, with its time.
#[derive(Debug)]
enum Event {
    Sent(u64, Instant),
    Ended(End, Instant),
    /// The listener was too slow for so many ends.
    Missed(u64),
    /// The last item was sent.
    AllSent,
}

/// Longest wait for the next end when all items were sent.
const LAST_ITEMS: Duration = Duration::from_secs(20);
/// Longest wait for the first and last stages.
const CONNECT: Duration = Duration::from_secs(20);
/// Name of the source in the stages' metrics and messages.
const SOURCE: &str = "source";
/// Events between the tasks of a load: more than a pipeline holds.
const EVENTS: usize = 4096;

// === impl Entrance ===

impl Entrance {
    /// Sends items, and listens until each has ended.
    pub(crate) async fn load(&self, load: Load) -> Result<LoadRun> {
        let (told, mut events) = channel(EVENTS);
        // The tasks end with this function.
        let mut tasks = JoinSet::new();
        for addresses in &self.ends {
            let listening = timeout(CONNECT, Ends::listen(addresses.clone()));
            let ends = listening.await.with_context(|| {
                format!("no stage serves at {addresses}: look at its pods, or give its address with --end")
            })?;
            tasks.spawn(listen(ends, told.clone()));
        }
        tasks.spawn(self.clone().send(load, told));
        let mut seen = Seen::default();
        let mut deadline = Instant::now() + load.lasts + CONNECT + LAST_ITEMS;
        while !seen.is_complete(self.ends.len()) {
            let Ok(Some(event)) = timeout_at(deadline.into(), events.recv()).await else { break };
            if seen.all_sent || matches!(event, Event::AllSent) {
                deadline = Instant::now() + LAST_ITEMS;
            }
            seen.note(event);
        }
        ensure!(
            !seen.sent.is_empty(),
            "{} at {} took no item: look at its logs",
            self.first,
            self.addresses
        );
        Ok(seen.run(load.lasts, self.ends.len()))
    }

    /// Sends items at a constant rate, or as fast as the first stage takes them.
    async fn send(self, load: Load, told: Sender<Event>) {
        let (settings, metrics) = (Settings::default(), StageMetrics::new());
        let mut source = Source::connect(SOURCE, &self.first, self.addresses, settings, metrics);
        let payload = Bytes::from(vec![0; self.input]);
        // The load begins when the first item was taken: connecting takes as long as it takes.
        let first = source.send(payload.clone(), None).await;
        let begun = Instant::now();
        if told.send(Event::Sent(first, begun)).await.is_err() {
            return;
        }
        let mut ticks = load.rate.map(|rate| ticks(rate, load.lasts));
        while begun.elapsed() < load.lasts {
            let left = match &mut ticks {
                None => Instant::now(),
                // An item that is held back was still wished for at its time.
                Some(ticks) => match ticks.recv().await {
                    Some(due) => due,
                    None => break,
                },
            };
            let id = source.send(payload.clone(), None).await;
            if told.send(Event::Sent(id, left)).await.is_err() {
                return;
            }
        }
        let _ = told.send(Event::AllSent).await;
        source.finish().await;
    }
}

/// The times at which items are due, by a thread: tokio's timer has whole milliseconds.
fn ticks(rate: f64, lasts: Duration) -> Receiver<Instant> {
    let (tick, ticks) = channel(1);
    thread::spawn(move || {
        be_woken_on_time();
        let begun = Instant::now();
        let pause = Duration::from_secs_f64(1.0 / rate);
        let mut next = begun;
        while begun.elapsed() < lasts && tick.blocking_send(next).is_ok() {
            next += pause;
            sleep_until(next);
        }
    });
    ticks
}

/// Hands on the ends of one stage.
async fn listen(mut ends: Ends, told: Sender<Event>) {
    loop {
        let event = match ends.next().await {
            Told::End(end) => Event::Ended(end, Instant::now()),
            Told::Missed(count) => Event::Missed(count),
        };
        if told.send(event).await.is_err() {
            return;
        }
    }
}

/// All events of a run so far.
#[derive(Debug, Default)]
struct Seen {
    sent: Vec<(u64, Instant)>,
    all_sent: bool,
    /// Ends by id; those of earlier loads too, which a new listener is told.
    ended: HashMap<u64, Vec<(End, Instant)>>,
    missed: u64,
}

// === impl Seen ===

impl Seen {
    fn note(&mut self, event: Event) {
        match event {
            Event::Sent(id, left) => self.sent.push((id, left)),
            Event::Ended(end, at) => {
                self.ended.entry(end.id).or_default().push((end, at));
            }
            Event::Missed(count) => self.missed += count,
            Event::AllSent => self.all_sent = true,
        }
    }

    /// True if every item has ended everywhere. Ends that were missed will not come.
    fn is_complete(&self, ends: usize) -> bool {
        let told = |id: &u64| self.ended.get(id).map_or(0, Vec::len);
        let open =
            || self.sent.iter().map(|(id, _)| ends.saturating_sub(told(id)) as u64).sum::<u64>();
        self.all_sent && open() <= self.missed
    }

    fn run(mut self, lasted: Duration, ends: usize) -> LoadRun {
        let begun = self.sent.first().map_or_else(Instant::now, |(_, left)| *left);
        let mut run = LoadRun {
            begun: SystemTime::now() - begun.elapsed(),
            lasted,
            sent: self.sent.len() as u64,
            arrived: Vec::with_capacity(self.sent.len()),
            failures: Vec::new(),
            unheard: 0,
        };
        for (id, at) in self.sent {
            let told = self.ended.remove(&id).unwrap_or_default();
            let left = at - begun;
            let failure = told.iter().find_map(|(end, _)| end.failure.clone());
            let visits = |told: Vec<(End, Instant)>| {
                told.into_iter().flat_map(|(end, _)| end.visits).collect()
            };
            if let Some(failure) = failure {
                run.failures.push(FailedItem { id, left, failure, visits: visits(told) });
            } else if told.len() < ends {
                run.unheard += 1;
            } else {
                let last = told.iter().map(|(_, ended)| *ended).max().unwrap_or(at);
                run.arrived.push(ArrivedItem {
                    id,
                    left,
                    latency: last - at,
                    at: last - begun,
                    visits: visits(told),
                });
            }
        }
        run
    }
}
