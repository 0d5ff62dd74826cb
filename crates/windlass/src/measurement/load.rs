//! Load on a running pipeline: sends items to the first stage, and listens for their ends at the last stages.

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
use windlass_stage::{
    Addresses, End, EndEvent, EndListener, Failure, Settings, Source, StageMetrics, Visit,
};

use crate::precise::{minimise_timer_slack, sleep_until};

/// Addresses at which items enter and leave a pipeline.
#[derive(Clone, Debug)]
pub(crate) struct PipelineEndpoints {
    /// Name of the first stage.
    pub(crate) first: String,
    pub(crate) addresses: Addresses,
    /// Addresses of the replicas of each stage at which items leave.
    pub(crate) ends: Vec<Addresses>,
    /// Size of an item at the first stage, in bytes.
    pub(crate) input: usize,
}

/// Items to send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// Items per second; `None` sends as fast as the first stage accepts items.
    pub(crate) rate: Option<f64>,
    /// Duration of the sending.
    pub(crate) duration: Duration,
}

/// Outcome of a run.
#[derive(Debug)]
pub(crate) struct LoadRun {
    /// Time at which the first item was accepted.
    pub(crate) started: SystemTime,
    /// Duration of the sending.
    pub(crate) duration: Duration,
    pub(crate) sent: u64,
    pub(crate) arrived: Vec<ArrivedItem>,
    pub(crate) failures: Vec<FailedItem>,
    /// Number of items without a result or an error. Zero, unless this program was too slow for the ends.
    pub(crate) missing: u64,
}

/// An item that arrived at every end.
#[derive(Debug)]
pub(crate) struct ArrivedItem {
    pub(crate) id: u64,
    /// Time at which the source was to send the item, since the start of the run.
    pub(crate) due: Duration,
    /// Time from `due` to the item's last end.
    pub(crate) latency: Duration,
    /// Time of the item's last end, since the start of the run.
    pub(crate) at: Duration,
    pub(crate) visits: Vec<Visit>,
}

/// An item that failed.
#[derive(Debug)]
pub(crate) struct FailedItem {
    pub(crate) id: u64,
    /// Time at which the source was to send the item, since the start of the run.
    pub(crate) due: Duration,
    pub(crate) failure: Failure,
    /// Visits of the stages that the item reached.
    pub(crate) visits: Vec<Visit>,
}

/// Event of a run, with its time.
#[derive(Debug)]
enum Event {
    Sent(u64, Instant),
    Ended(End, Instant),
    /// Number of ends that the listener missed, because it was too slow.
    Missed(u64),
    /// The last item was sent.
    AllSent,
}

/// Longest wait for the next end after the last item was sent.
const LAST_ITEM_LIMIT: Duration = Duration::from_secs(20);
/// Longest wait for a connection to the first stage, and to each last stage.
const CONNECT_LIMIT: Duration = Duration::from_secs(20);
/// Name of the source in the stages' metrics and messages.
const SOURCE: &str = "source";
/// Capacity of the channel between the tasks of a load: more than the items in a pipeline.
const EVENT_CAPACITY: usize = 4096;

// === impl PipelineEndpoints ===

impl PipelineEndpoints {
    /// Sends items, and listens until each has ended.
    pub(crate) async fn run_load(&self, load: Load) -> Result<LoadRun> {
        let (sender, mut events) = channel(EVENT_CAPACITY);
        // The tasks end with this function.
        let mut tasks = JoinSet::new();
        for addresses in &self.ends {
            let listen = timeout(CONNECT_LIMIT, EndListener::listen(addresses.clone()));
            let ends = listen.await.with_context(|| {
                format!("no stage serves at {addresses}: look at its pods, or give its address with --end")
            })?;
            tasks.spawn(forward_ends(ends, sender.clone()));
        }
        tasks.spawn(self.clone().send_items(load, sender));
        let mut log = RunLog::default();
        let mut deadline = Instant::now() + load.duration + CONNECT_LIMIT + LAST_ITEM_LIMIT;
        while !log.is_complete(self.ends.len()) {
            let Ok(Some(event)) = timeout_at(deadline.into(), events.recv()).await else { break };
            if log.all_sent || matches!(event, Event::AllSent) {
                deadline = Instant::now() + LAST_ITEM_LIMIT;
            }
            log.record(event);
        }
        ensure!(
            !log.sent.is_empty(),
            "{} at {} took no item: look at its logs",
            self.first,
            self.addresses
        );
        Ok(log.into_run(load.duration, self.ends.len()))
    }

    /// Sends items at a constant rate, or as fast as the first stage accepts them.
    async fn send_items(self, load: Load, sender: Sender<Event>) {
        let (settings, metrics) = (Settings::default(), StageMetrics::new());
        let mut source = Source::connect(SOURCE, &self.first, self.addresses, settings, metrics);
        let payload = Bytes::from(vec![0; self.input]);
        // The run begins once the first item is accepted, so that it does not include the connection.
        let first = source.send(payload.clone(), None).await;
        let start = Instant::now();
        if sender.send(Event::Sent(first, start)).await.is_err() {
            return;
        }
        let mut ticks = load.rate.map(|rate| ticks(rate, load.duration));
        while start.elapsed() < load.duration {
            let due = match &mut ticks {
                None => Instant::now(),
                // The latency of a delayed item counts from the time at which it was due.
                Some(ticks) => match ticks.recv().await {
                    Some(due) => due,
                    None => break,
                },
            };
            let id = source.send(payload.clone(), None).await;
            if sender.send(Event::Sent(id, due)).await.is_err() {
                return;
            }
        }
        let _ = sender.send(Event::AllSent).await;
        source.finish().await;
    }
}

/// Times at which items are due. A thread sends them, because tokio's timer has a resolution of a millisecond.
fn ticks(rate: f64, duration: Duration) -> Receiver<Instant> {
    let (tick_sender, ticks) = channel(1);
    thread::spawn(move || {
        minimise_timer_slack();
        let start = Instant::now();
        let pause = Duration::from_secs_f64(1.0 / rate);
        let mut next = start;
        while start.elapsed() < duration && tick_sender.blocking_send(next).is_ok() {
            next += pause;
            sleep_until(next);
        }
    });
    ticks
}

/// Forwards the ends of one stage.
async fn forward_ends(mut ends: EndListener, sender: Sender<Event>) {
    loop {
        let event = match ends.next().await {
            EndEvent::End(end) => Event::Ended(end, Instant::now()),
            EndEvent::Missed(count) => Event::Missed(count),
        };
        if sender.send(event).await.is_err() {
            return;
        }
    }
}

/// All events of a run so far.
#[derive(Debug, Default)]
struct RunLog {
    sent: Vec<(u64, Instant)>,
    all_sent: bool,
    /// Ends by item id. A new listener also receives ends of earlier loads.
    ended: HashMap<u64, Vec<(End, Instant)>>,
    missed: u64,
}

// === impl RunLog ===

impl RunLog {
    fn record(&mut self, event: Event) {
        match event {
            Event::Sent(id, due) => self.sent.push((id, due)),
            Event::Ended(end, at) => {
                self.ended.entry(end.id).or_default().push((end, at));
            }
            Event::Missed(count) => self.missed += count,
            Event::AllSent => self.all_sent = true,
        }
    }

    /// True if every item has ended at every last stage. Missed ends count as ended.
    fn is_complete(&self, ends: usize) -> bool {
        let end_count = |id: &u64| self.ended.get(id).map_or(0, Vec::len);
        let open_ends = || {
            self.sent.iter().map(|(id, _)| ends.saturating_sub(end_count(id)) as u64).sum::<u64>()
        };
        self.all_sent && open_ends() <= self.missed
    }

    fn into_run(mut self, duration: Duration, ends: usize) -> LoadRun {
        let start = self.sent.first().map_or_else(Instant::now, |(_, due)| *due);
        let mut run = LoadRun {
            started: SystemTime::now() - start.elapsed(),
            duration,
            sent: self.sent.len() as u64,
            arrived: Vec::with_capacity(self.sent.len()),
            failures: Vec::new(),
            missing: 0,
        };
        for (id, at) in self.sent {
            let item_ends = self.ended.remove(&id).unwrap_or_default();
            let due = at - start;
            let failure = item_ends.iter().find_map(|(end, _)| end.failure.clone());
            let visits = |item_ends: Vec<(End, Instant)>| {
                item_ends.into_iter().flat_map(|(end, _)| end.visits).collect()
            };
            if let Some(failure) = failure {
                run.failures.push(FailedItem { id, due, failure, visits: visits(item_ends) });
            } else if item_ends.len() < ends {
                run.missing += 1;
            } else {
                let last = item_ends.iter().map(|(_, time)| *time).max().unwrap_or(at);
                run.arrived.push(ArrivedItem {
                    id,
                    due,
                    latency: last - at,
                    at: last - start,
                    visits: visits(item_ends),
                });
            }
        }
        run
    }
}
