//! Throughput and latency of a placement: each stage and each network port is a queue.
//!
//! **Throughput** is the minimum over stages, ports and streams. A stage processes the sum of its replicas' rates. A
//! port carries its bit rate divided by the bits per item. A stream carries one window per round trip.
//!
//! **Latency** at a rate is the longest path through the graph. Each link adds the wait for the ports, the transmission
//! and the delay; each stage adds the wait for a replica and the processing time. The mean wait of a stage is that of a
//! G/G/m queue by Allen and Cunneen, in units of the processing time:
//! `(ca² + cs²) / 2 * ρ^(√(2(m+1)) - 1) / (m (1 - ρ))`. The squared variation of the departures is Whitt's
//! `cd² = 1 + (1 - ρ²)(ca² - 1) + ρ² (cs² - 1) / √m` (The Queueing Network Analyzer, 1983). Items arrive at a constant
//! rate: `ca² = 0` at the first stage.

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
    /// Maximum items per second.
    pub throughput: f64,
    /// The part that limits the throughput.
    pub bottleneck: Bottleneck,
    /// Arrival rate of the latency, in items per second.
    pub rate: f64,
    /// Latency at [`Self::rate`]; `None` if the pipeline cannot sustain the rate.
    pub latency: Option<Latency>,
}

/// The part of a pipeline that limits its throughput.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bottleneck {
    /// A stage, by position.
    Stage(usize),
    /// The egress of a node's port, by the node's position.
    Egress(usize),
    /// The ingress of a node's port, by the node's position.
    Ingress(usize),
    /// A link, by position, whose window is small for its delay: the sender waits for receipts.
    Window(usize),
}

/// Mean times of an item, in seconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Latency {
    /// From the source to the last listener of the pipeline.
    pub total: f64,
    /// By stage.
    pub stages: Vec<StageTimes>,
    /// By link: wait for both ports, transmission and delay.
    pub links: Vec<f64>,
}

/// Mean times of an item at a stage, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct StageTimes {
    /// Wait in the queue.
    pub waited: f64,
    /// Processing time of the item's batch.
    pub worked: f64,
    /// Utilisation of the replicas, 0 to 1.
    pub load: f64,
}

/// Optimistic figures of an unplaced stage. A prediction with them bounds every placement of the stage.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StageBound {
    /// Items per second of the maximum number of replicas on the fastest places.
    pub(crate) rate: f64,
    /// Processing time of a batch of one item on the fastest place, in seconds.
    pub(crate) time: f64,
}

/// Performance model of a pipeline on a fleet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Model<'a> {
    pub(crate) pipeline: &'a Pipeline,
    pub(crate) fleet: &'a Fleet,
    /// Bounds by stage; empty if all stages are placed.
    pub(crate) bounds: &'a [StageBound],
}

/// The replicas of a stage as the servers of one queue.
#[derive(Clone, Copy, Debug)]
struct Servers {
    count: f64,
    /// Items per second of all servers with full batches.
    rate: f64,
    /// Mean time of a batch of the expected size, in seconds.
    batch_time: f64,
    /// Mean wait for the end of the previous batch, in seconds.
    batch_wait: f64,
    /// Squared coefficient of variation of the processing time.
    variation: f64,
}

/// Maximum number of unacknowledged items of one stream: the window of the stage kit.
pub const WINDOW: f64 = 8.0;
/// Default arrival rate for latencies, as a share of the throughput.
pub const DEFAULT_LOAD: f64 = 0.7;

// === impl Model ===

impl Model<'_> {
    /// Predicts a placement. `rate` is the arrival rate; `None` for [`DEFAULT_LOAD`] of the throughput.
    pub(crate) fn predict(&self, replicas: &[Vec<Replica>], rate: Option<f64>) -> Prediction {
        let traffic = Traffic::of(self, replicas);
        let (throughput, bottleneck) = self.throughput(replicas, &traffic);
        let rate = rate.unwrap_or(DEFAULT_LOAD * throughput);
        let latency = (rate < throughput).then(|| self.latency(replicas, rate));
        Prediction { throughput, bottleneck, rate, latency: latency.flatten() }
    }

    /// Maximum items per second, and the part that limits them.
    pub(crate) fn throughput(
        &self,
        replicas: &[Vec<Replica>],
        traffic: &Traffic,
    ) -> (f64, Bottleneck) {
        let stages = (0..replicas.len())
            .map(|stage| (self.stage_rate(replicas, stage), Bottleneck::Stage(stage)));
        let ports = |ports: &[Port], bottleneck: fn(usize) -> Bottleneck| {
            let rates = ports.iter().enumerate().filter(|(_, port)| port.busy_seconds > 0.0);
            rates
                .map(|(node, port)| (1.0 / port.busy_seconds, bottleneck(node)))
                .collect::<Vec<_>>()
        };
        let windows = self.pipeline.links.iter().enumerate();
        let windows = windows.map(|(position, link)| {
            (self.window_rate(replicas, link), Bottleneck::Window(position))
        });
        stages
            .chain(ports(&traffic.egress, Bottleneck::Egress))
            .chain(ports(&traffic.ingress, Bottleneck::Ingress))
            .chain(windows)
            .min_by(|(a, _), (b, _)| a.total_cmp(b))
            .expect("a pipeline has a stage")
    }

    fn stage_rate(&self, replicas: &[Vec<Replica>], stage: usize) -> f64 {
        if replicas[stage].is_empty() {
            return self.bounds[stage].rate;
        }
        replicas[stage].iter().map(|replica| self.rate(replica, stage)).sum()
    }

    /// Items per second of a replica with full batches.
    fn rate(&self, replica: &Replica, stage: usize) -> f64 {
        let (batch, batch_gap) = (self.pipeline.stages[stage].batch, self.fleet.overhead.batch_gap);
        replica.alternative(self.pipeline, stage).rate(batch, batch_gap)
    }

    /// Items per second of a link's streams if only their windows limit them.
    fn window_rate(&self, replicas: &[Vec<Replica>], link: &Link) -> f64 {
        let (from, to) = (&replicas[link.from], &replicas[link.to]);
        let pairs = from.iter().flat_map(|from| to.iter().map(|to| (from.node, to.node)));
        let (mut streams, mut max_round_trip) = (0.0, 0.0_f64);
        for (from, to) in pairs {
            streams += 1.0;
            if from != to {
                let (transmission, delay) = traffic::path(self.fleet, (from, to), link.bytes);
                max_round_trip = max_round_trip.max(transmission + 2.0 * delay);
            }
        }
        if max_round_trip > 0.0 { WINDOW * streams / max_round_trip } else { f64::INFINITY }
    }

    /// Mean latency at an arrival rate; `None` if a queue grows without bound.
    pub(crate) fn latency(&self, replicas: &[Vec<Replica>], rate: f64) -> Option<Latency> {
        let active: Vec<_> =
            (0..replicas.len()).map(|stage| self.active_replicas(replicas, stage, rate)).collect();
        let replicas = &*active;
        let traffic = Traffic::of(self, replicas);
        let count = self.pipeline.stages.len();
        let mut departures = vec![0.0; count];
        // Squared variation of the arrivals at each stage. A join takes the largest of its links.
        let mut arrivals = vec![0.0_f64; count];
        let mut stages = vec![StageTimes::default(); count];
        for stage in 0..count {
            let servers = self.servers(replicas, stage, rate);
            let load = rate / servers.rate;
            if load >= 1.0 {
                return None;
            }
            let worked = servers.batch_time;
            stages[stage] = StageTimes { waited: 0.0, worked, load };
            if !replicas[stage].is_empty() {
                stages[stage].waited = servers.batch_wait + servers.wait(load, arrivals[stage]);
                departures[stage] = servers.departure_variation(load, arrivals[stage]);
            }
            for link in self.pipeline.links_from(stage) {
                arrivals[link.to] = arrivals[link.to].max(departures[stage]);
            }
        }
        let links = traffic.link_times(self, rate, &departures)?;
        let hop = self.fleet.overhead.hop.0;
        let finish_time = |arrival_time: f64, stage: usize| {
            let StageTimes { waited, worked, .. } = stages[stage];
            arrival_time + waited + worked
        };
        let mut arrival_times = vec![hop; count];
        // Links are sorted by their senders, and each sender precedes its receivers.
        for (link, time) in self.pipeline.links.iter().zip(&links) {
            let arrival = finish_time(arrival_times[link.from], link.from) + time + hop;
            arrival_times[link.to] = arrival_times[link.to].max(arrival);
        }
        // The maximum is at a last stage: every other stage finishes before the next one.
        let total =
            (0..count).map(|stage| finish_time(arrival_times[stage], stage)).fold(0.0, f64::max);
        Some(Latency { total: total + hop, stages, links })
    }

    /// The replicas that receive items at an arrival rate. Each item goes to the replica that is expected to finish it
    /// first: to every replica with more than half the rate of the fastest one, and to slower ones only while the sum
    /// of the faster ones is at most the arrival rate.
    fn active_replicas(&self, replicas: &[Vec<Replica>], stage: usize, rate: f64) -> Vec<Replica> {
        let mut by_rate = replicas[stage].clone();
        by_rate.sort_by(|a, b| self.rate(b, stage).total_cmp(&self.rate(a, stage)));
        let (mut active, mut active_rate) = (Vec::new(), 0.0);
        for replica in by_rate {
            let replica_rate = self.rate(&replica, stage);
            let is_needed = active.first().is_none_or(|fastest| {
                active_rate <= rate || replica_rate > self.rate(fastest, stage) / 2.0
            });
            if !is_needed {
                break;
            }
            active_rate += replica_rate;
            active.push(replica);
        }
        active
    }

    fn servers(&self, replicas: &[Vec<Replica>], stage: usize, rate: f64) -> Servers {
        let servers = &replicas[stage];
        if servers.is_empty() {
            let StageBound { rate, time } = self.bounds[stage];
            return Servers { count: 1.0, rate, batch_time: time, batch_wait: 0.0, variation: 0.0 };
        }
        let batch = self.pipeline.stages[stage].batch;
        let total_rate = self.stage_rate(replicas, stage);
        let (mut batch_time, mut batch_wait, mut variation) = (0.0, 0.0, 0.0);
        for replica in servers {
            let alternative = replica.alternative(self.pipeline, stage);
            let share = self.rate(replica, stage) / total_rate;
            let (fixed_time, item_time) = (alternative.batch_time.0, alternative.time.0);
            let items = batch_size(rate * share, fixed_time, item_time, batch);
            let time = fixed_time + items * item_time;
            batch_time += share * time;
            variation += share * alternative.variation * alternative.variation;
            if items > 1.0 {
                batch_wait += share * time / 2.0;
            }
        }
        #[expect(clippy::cast_precision_loss, reason = "a stage has at most a thousand replicas")]
        let count = servers.len() as f64;
        Servers { count, rate: total_rate, batch_time, batch_wait, variation }
    }
}

/// Expected size of a batch: the items that arrive while the previous batch is processed, 1 to `max`.
fn batch_size(rate: f64, fixed_time: f64, item_time: f64, max: u32) -> f64 {
    let idle_share = 1.0 - rate * item_time;
    let items = if idle_share > 0.0 { rate * fixed_time / idle_share } else { f64::INFINITY };
    items.clamp(1.0, f64::from(max))
}

// === impl Servers ===

impl Servers {
    /// Mean wait in seconds, by Allen and Cunneen. `arrivals` is the squared variation of the arrivals. The time of a
    /// server is the mean over all replicas: each item goes to the replica that is expected to finish it first.
    fn wait(&self, load: f64, arrivals: f64) -> f64 {
        let time = self.count / self.rate;
        let exponent = (2.0 * (self.count + 1.0)).sqrt() - 1.0;
        f64::midpoint(arrivals, self.variation) * time * load.powf(exponent)
            / (self.count * (1.0 - load))
    }

    /// Squared variation of the departures, by Whitt's formula. `arrivals` is the squared variation of the arrivals.
    fn departure_variation(&self, load: f64, arrivals: f64) -> f64 {
        let load_squared = load * load;
        let variation = 1.0
            + (1.0 - load_squared) * (arrivals - 1.0)
            + load_squared * (self.variation - 1.0) / self.count.sqrt();
        variation.max(0.0)
    }
}
