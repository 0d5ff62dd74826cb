//! Churn: pods arrive and end, which keeps the cluster in a steady state. Pods that fit no node wait or are refused.
//!
//! Pods of the trace are drawn with replacement and arrive as a Poisson process. Lifetimes are exponentially
//! distributed, and their mean is the unit of time. The arrival rate is such that the pods, if all were served, would
//! hold `offered` times the cluster's GPUs. The measurement begins after a warm-up in which the cluster fills.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashSet, VecDeque},
};

use super::{ClassCounts, Settings, Simulation};
use crate::{
    random::Random,
    request::{Request, SizeClass},
    scheduler::Scheduler,
    view::{ClusterView, Placement},
};

/// Ticks per mean lifetime. Integers compare and add without rounding.
const MEAN_LIFETIME: u64 = 1_000_000;
/// Ticks in which the cluster fills, without measurement.
const WARM_UP: u64 = 2 * MEAN_LIFETIME;
/// Ticks of the measurement.
const MEASURED: u64 = 4 * MEAN_LIFETIME;

/// Load of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// GPUs that the running pods would hold if all were served, relative to the cluster's.
    pub offered: f64,
    /// True if a pod that fits no node waits, while later pods that fit are placed; waiting pods are tried in the order
    /// of arrival. False if the pod is refused.
    pub has_queue: bool,
}

/// The outcome of a run.
#[derive(Clone, Debug)]
pub struct ChurnResult {
    /// Mean percentage of allocated GPUs.
    pub allocated: f64,
    /// Pods that arrived or were refused during the measurement.
    pub classes: ClassCounts,
    /// Waiting times by class, ascending, in mean lifetimes. A pod that still waits at the end
    /// counts with its wait so far.
    pub waits: [Vec<f64>; SizeClass::ALL.len()],
    /// Number of scheduling decisions.
    pub decisions: u64,
}

/// A pod of the run. Times are in ticks.
struct Arrival {
    request: Request,
    arrived_at: u64,
    lifetime: u64,
}

struct Run<'a> {
    simulation: &'a Simulation,
    scheduler: Scheduler,
    view: ClusterView,
    /// Ends of the running pods: tick, and position in `running`.
    ends: BinaryHeap<Reverse<(u64, usize)>>,
    /// Pods by number; `None` for pods that have ended.
    running: Vec<Option<(Request, Placement)>>,
    queue: VecDeque<Arrival>,
    /// Requests that have fitted no node since the last pod ended.
    unplaceable: HashSet<Request>,
    allocated_milli: u64,
    /// Integral of `allocated_milli` over the ticks of the measurement.
    allocated_sum: u128,
    clock: u64,
    result: ChurnResult,
}

/// Simulates one run.
pub fn churn(simulation: &Simulation, settings: &Settings, load: Load) -> ChurnResult {
    let mut random = Random::new(settings.seed);
    let mut run = Run {
        simulation,
        scheduler: simulation.scheduler(settings),
        view: simulation.shuffled(&mut random),
        ends: BinaryHeap::new(),
        running: Vec::new(),
        queue: VecDeque::new(),
        unplaceable: HashSet::new(),
        allocated_milli: 0,
        allocated_sum: 0,
        clock: 0,
        result: ChurnResult {
            allocated: 0.0,
            classes: ClassCounts::default(),
            waits: Default::default(),
            decisions: 0,
        },
    };
    let demand: u64 = simulation.pods.iter().map(|pod| u64::from(pod.gpu_milli())).sum();
    #[expect(clippy::cast_precision_loss, reason = "thousandths of GPUs are far below 2^52")]
    let mean_gpus = demand as f64 / simulation.pods.len().max(1) as f64;
    #[expect(clippy::cast_precision_loss, reason = "thousandths of GPUs are far below 2^52")]
    let spacing = mean_gpus / (load.offered * simulation.capacity_milli() as f64);
    let mut now = 0.0;
    loop {
        now += random.exponential(spacing);
        let arrived_at = ticks(now);
        if arrived_at > WARM_UP + MEASURED {
            break;
        }
        let request = simulation.pods[random.below(simulation.pods.len())];
        let lifetime = ticks(random.exponential(1.0));
        run.end_pods_until(arrived_at);
        run.arrive(Arrival { request, arrived_at, lifetime }, load.has_queue);
    }
    run.end_pods_until(WARM_UP + MEASURED);
    run.finish()
}

impl Run<'_> {
    fn arrive(&mut self, arrival: Arrival, has_queue: bool) {
        self.scheduler.observe(&self.view, &arrival.request);
        let is_unplaceable = self.unplaceable.contains(&arrival.request);
        let is_placed = !is_unplaceable && self.place(&arrival);
        if arrival.arrived_at >= WARM_UP {
            self.result.classes.count(&arrival.request, !is_placed && !has_queue);
        }
        if !is_placed && has_queue {
            self.queue.push_back(arrival);
        }
    }

    /// Places the pod and returns true, or records that its request fits no node.
    fn place(&mut self, arrival: &Arrival) -> bool {
        let request = &arrival.request;
        self.result.decisions += 1;
        let Some(placement) = self.scheduler.choose_placement(&self.view, request) else {
            self.unplaceable.insert(*request);
            return false;
        };
        self.view.allocate(request, placement).expect("a decision fits the view it was made on");
        self.allocated_milli += u64::from(request.gpu_milli());
        self.ends.push(Reverse((self.clock + arrival.lifetime, self.running.len())));
        self.running.push(Some((*request, placement)));
        if arrival.arrived_at >= WARM_UP {
            self.record_wait(request.class(), self.clock - arrival.arrived_at);
        }
        true
    }

    fn record_wait(&mut self, class: SizeClass, ticks: u64) {
        #[expect(clippy::cast_precision_loss, reason = "a run is some million ticks")]
        self.result.waits[class as usize].push(ticks as f64 / MEAN_LIFETIME as f64);
    }

    /// Ends the pods whose lifetime ends by this tick. After each, places waiting pods that fit.
    fn end_pods_until(&mut self, tick: u64) {
        while let Some(Reverse((end, pod))) = self.ends.peek().copied() {
            if end > tick {
                break;
            }
            self.ends.pop();
            self.advance(end);
            let (request, placement) = self.running[pod].take().expect("a pod ends once");
            self.view.release(&request, placement);
            self.allocated_milli -= u64::from(request.gpu_milli());
            self.unplaceable.clear();
            self.retry_queue();
        }
        self.advance(tick);
    }

    fn retry_queue(&mut self) {
        for arrival in std::mem::take(&mut self.queue) {
            if self.unplaceable.contains(&arrival.request) || !self.place(&arrival) {
                self.queue.push_back(arrival);
            }
        }
    }

    fn advance(&mut self, tick: u64) {
        let measured_ticks = tick.max(WARM_UP) - self.clock.max(WARM_UP);
        self.allocated_sum += u128::from(measured_ticks) * u128::from(self.allocated_milli);
        self.clock = tick;
    }

    fn finish(mut self) -> ChurnResult {
        for arrival in std::mem::take(&mut self.queue) {
            if arrival.arrived_at >= WARM_UP {
                self.record_wait(arrival.request.class(), self.clock - arrival.arrived_at);
            }
        }
        let capacity = u128::from(self.simulation.capacity_milli().max(1));
        #[expect(clippy::cast_precision_loss, reason = "a percentage")]
        let allocated =
            (100 * self.allocated_sum) as f64 / (capacity * u128::from(MEASURED)) as f64;
        self.result.allocated = allocated;
        self.result.waits.iter_mut().for_each(|waits| waits.sort_by(f64::total_cmp));
        self.result
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "some lifetimes"
)]
/// Converts mean lifetimes to ticks.
fn ticks(lifetimes: f64) -> u64 {
    (lifetimes * MEAN_LIFETIME as f64).round() as u64
}
