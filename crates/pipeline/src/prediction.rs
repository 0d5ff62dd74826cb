//! Throughput and latency of a placement: each stage and each network port is a queue.
//!
//! **Throughput** is that of the slowest: a stage serves the sum of its replicas' rates, a port carries its rate over the
//! bytes that cross it per item, a stream carries its window per round trip.
//!
//! **Latency** at a rate is the longest way through the graph: on each link the transmission, the delay and the wait for
//! the port; at each stage the wait for a replica and the work. Waits are those of a G/G/m queue by Allen and Cunneen,
//! `(ca² + cs²) / 2 * ρ^(√(2(m+1)) - 1) / (m (1 - ρ))` times of work; the variation of what leaves a queue is Whitt's,
//! `cd² = 1 + (1 - ρ²)(ca² - 1) + ρ² (cs² - 1) / √m` (The Queueing Network Analyzer, 1983). Items come at a constant rate.

pub(crate) mod traffic;

use serde::Serialize;

use crate::{
    fleet::Fleet,
    pipeline::{Link, Pipeline},
    placement::Replica,
};
pub use traffic::FRAMING;
use traffic::{Port, Traffic};

/// Throughput and latency of a placement.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// Items per second that pass at most.
    pub throughput: f64,
    /// The part that lets no more pass.
    pub bottleneck: Bottleneck,
    /// The rate for which the latency is predicted.
    pub rate: f64,
    /// The latency at that rate; `None` where more items come than pass.
    pub latency: Option<Latency>,
}

/// The part of a pipeline that limits its throughput.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bottleneck {
    /// A stage, by its position.
    Stage(usize),
    /// The port of a node as it sends.
    Sending(usize),
    /// The port of a node as it receives.
    Receiving(usize),
    /// A link that waits for answers: its window is small for its delay.
    Window(usize),
}

/// Mean times of an item, in seconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Latency {
    /// From the source to a listener at the end of the pipeline.
    pub total: f64,
    /// By stage.
    pub stages: Vec<StageTimes>,
    /// By link: wait for the ports, transmission and delay.
    pub links: Vec<f64>,
}

/// Mean times of an item at a stage, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct StageTimes {
    /// In the queue.
    pub waited: f64,
    /// In the work, with the rest of its batch.
    pub worked: f64,
    /// Share of the time in which the replicas work.
    pub load: f64,
}

/// A stage that is not placed counts as its best: so the result bounds that of every placement of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Best {
    /// Items per second of as many replicas as there may be.
    pub(crate) rate: f64,
    /// Time of one item.
    pub(crate) time: f64,
}

/// A pipeline on a fleet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Model<'a> {
    pub(crate) pipeline: &'a Pipeline,
    pub(crate) fleet: &'a Fleet,
    /// By stage; empty where all stages are placed.
    pub(crate) best: &'a [Best],
}

/// Replicas of a stage as one queue.
#[derive(Clone, Copy, Debug)]
struct Servers {
    count: f64,
    /// Items per second with full batches.
    rate: f64,
    /// Time of a batch of the expected size.
    worked: f64,
    /// Wait for the batch before.
    batch_wait: f64,
    /// Squared coefficient of variation of the work of one replica.
    variation: f64,
}

/// Items of one stream that no receipt has answered: the stage kit's own window.
pub const WINDOW: f64 = 8.0;
/// Where no rate is given: latency at so much of the throughput.
pub const USUAL_LOAD: f64 = 0.7;

// === impl Model ===

impl Model<'_> {
    /// Predicts a placement; `rate` is that of the items that come.
    pub(crate) fn predict(&self, replicas: &[Vec<Replica>], rate: Option<f64>) -> Prediction {
        let traffic = Traffic::of(self, replicas);
        let (throughput, bottleneck) = self.throughput(replicas, &traffic);
        let rate = rate.unwrap_or(USUAL_LOAD * throughput);
        let latency = (rate < throughput).then(|| self.latency(replicas, rate));
        Prediction { throughput, bottleneck, rate, latency: latency.flatten() }
    }

    /// Items per second, and what lets no more pass.
    pub(crate) fn throughput(
        &self,
        replicas: &[Vec<Replica>],
        traffic: &Traffic,
    ) -> (f64, Bottleneck) {
        let stages = (0..replicas.len())
            .map(|stage| (self.stage_rate(replicas, stage), Bottleneck::Stage(stage)));
        let ports = |ports: &[Port], bottleneck: fn(usize) -> Bottleneck| {
            let rates = ports.iter().enumerate().filter(|(_, port)| port.busy > 0.0);
            rates.map(|(node, port)| (1.0 / port.busy, bottleneck(node))).collect::<Vec<_>>()
        };
        let windows = self.pipeline.links.iter().enumerate();
        let windows = windows.map(|(position, link)| {
            (self.window_rate(replicas, link), Bottleneck::Window(position))
        });
        stages
            .chain(ports(&traffic.sending, Bottleneck::Sending))
            .chain(ports(&traffic.receiving, Bottleneck::Receiving))
            .chain(windows)
            .min_by(|(a, _), (b, _)| a.total_cmp(b))
            .expect("a pipeline has a stage")
    }

    fn stage_rate(&self, replicas: &[Vec<Replica>], stage: usize) -> f64 {
        if replicas[stage].is_empty() {
            return self.best[stage].rate;
        }
        replicas[stage].iter().map(|replica| self.rate(replica, stage)).sum()
    }

    /// Items per second of a replica.
    fn rate(&self, replica: &Replica, stage: usize) -> f64 {
        let (batch, step) = (self.pipeline.stages[stage].batch, self.fleet.overhead.step);
        replica.alternative(self.pipeline, stage).rate(batch, step)
    }

    /// Items per second of a link's streams, if nothing but their window holds them back.
    fn window_rate(&self, replicas: &[Vec<Replica>], link: &Link) -> f64 {
        let (from, to) = (&replicas[link.from], &replicas[link.to]);
        let pairs = from.iter().flat_map(|from| to.iter().map(|to| (from.node, to.node)));
        let (mut streams, mut slowest) = (0.0, 0.0_f64);
        for (from, to) in pairs {
            streams += 1.0;
            if from != to {
                let (transmission, delay) = traffic::path(self.fleet, (from, to), link.bytes);
                slowest = slowest.max(transmission + 2.0 * delay);
            }
        }
        if slowest > 0.0 { WINDOW * streams / slowest } else { f64::INFINITY }
    }

    /// Mean latency at a rate; `None` if a queue grows for ever.
    pub(crate) fn latency(&self, replicas: &[Vec<Replica>], rate: f64) -> Option<Latency> {
        let busy: Vec<_> =
            (0..replicas.len()).map(|stage| self.busy(replicas, stage, rate)).collect();
        let replicas = &*busy;
        let traffic = Traffic::of(self, replicas);
        let count = self.pipeline.stages.len();
        let mut variations = vec![0.0; count];
        // Of what comes to each stage: a join takes the most varied.
        let mut coming = vec![0.0_f64; count];
        let mut stages = vec![StageTimes::default(); count];
        for stage in 0..count {
            let servers = self.servers(replicas, stage, rate);
            let load = rate / servers.rate;
            if load >= 1.0 {
                return None;
            }
            let worked = servers.worked;
            stages[stage] = StageTimes { waited: 0.0, worked, load };
            if !replicas[stage].is_empty() {
                stages[stage].waited = servers.batch_wait + servers.wait(load, coming[stage]);
                variations[stage] = servers.leaving(load, coming[stage]);
            }
            for link in self.pipeline.links_from(stage) {
                coming[link.to] = coming[link.to].max(variations[stage]);
            }
        }
        let links = traffic.link_times(self, rate, &variations)?;
        let hop = self.fleet.overhead.hop.0;
        let done_after = |arrived: f64, stage: usize| {
            let StageTimes { waited, worked, .. } = stages[stage];
            arrived + waited + worked
        };
        let mut arrived = vec![hop; count];
        // Links are in the order of their senders, which come before their receivers.
        for (link, time) in self.pipeline.links.iter().zip(&links) {
            let at = done_after(arrived[link.from], link.from) + time + hop;
            arrived[link.to] = arrived[link.to].max(at);
        }
        // A stage with a next one is done before that one.
        let total = (0..count).map(|stage| done_after(arrived[stage], stage)).fold(0.0, f64::max);
        Some(Latency { total: total + hop, stages, links })
    }

    /// The replicas that get items at a rate. Each item goes where it is expected to be done first: to replicas that are
    /// less than twice as slow as the fastest one, and to slower ones as far as those are not enough.
    fn busy(&self, replicas: &[Vec<Replica>], stage: usize, rate: f64) -> Vec<Replica> {
        let mut fastest = replicas[stage].clone();
        fastest.sort_by(|a, b| self.rate(b, stage).total_cmp(&self.rate(a, stage)));
        let (mut busy, mut sum) = (Vec::new(), 0.0);
        for replica in fastest {
            let own = self.rate(&replica, stage);
            let is_needed =
                busy.first().is_none_or(|first| sum <= rate || own > self.rate(first, stage) / 2.0);
            if !is_needed {
                break;
            }
            sum += own;
            busy.push(replica);
        }
        busy
    }

    fn servers(&self, replicas: &[Vec<Replica>], stage: usize, rate: f64) -> Servers {
        let of = &replicas[stage];
        if of.is_empty() {
            let Best { rate, time } = self.best[stage];
            return Servers { count: 1.0, rate, worked: time, batch_wait: 0.0, variation: 0.0 };
        }
        let batch = self.pipeline.stages[stage].batch;
        let total = self.stage_rate(replicas, stage);
        let (mut worked, mut batch_wait, mut variation) = (0.0, 0.0, 0.0);
        for replica in of {
            let alternative = replica.alternative(self.pipeline, stage);
            let share = self.rate(replica, stage) / total;
            let (fixed, each) = (alternative.batch_time.0, alternative.time.0);
            let items = batch_size(rate * share, fixed, each, batch);
            let time = fixed + items * each;
            worked += share * time;
            variation += share * alternative.variation * alternative.variation;
            if items > 1.0 {
                batch_wait += share * time / 2.0;
            }
        }
        #[expect(clippy::cast_precision_loss, reason = "a stage has at most a thousand replicas")]
        let count = of.len() as f64;
        Servers { count, rate: total, worked, batch_wait, variation }
    }
}

/// Items that come while a batch is worked on, which then make the next batch.
fn batch_size(rate: f64, fixed: f64, each: f64, most: u32) -> f64 {
    let spare = 1.0 - rate * each;
    let items = if spare > 0.0 { rate * fixed / spare } else { f64::INFINITY };
    items.clamp(1.0, f64::from(most))
}

// === impl Servers ===

impl Servers {
    /// Replicas of different speed do not wait for each other: an item goes where it is expected to pass first.
    fn wait(&self, load: f64, coming: f64) -> f64 {
        let time = self.count / self.rate;
        let exponent = (2.0 * (self.count + 1.0)).sqrt() - 1.0;
        f64::midpoint(coming, self.variation) * time * load.powf(exponent)
            / (self.count * (1.0 - load))
    }

    fn leaving(&self, load: f64, coming: f64) -> f64 {
        let square = load * load;
        let variation = 1.0
            + (1.0 - square) * (coming - 1.0)
            + square * (self.variation - 1.0) / self.count.sqrt();
        variation.max(0.0)
    }
}
