//! Simulation of a recorded cluster: its pods are scheduled by a policy, and the allocation is measured.

mod churn;
mod filling;

use crate::{
    forecast::Forecast,
    policy::Policy,
    random::Random,
    request::{Request, SizeClass},
    scheduler::Scheduler,
    view::ClusterView,
};

pub use churn::{ChurnResult, Load, churn};
pub use filling::{FillingResult, fill};

/// A cluster and the pods to schedule on it.
#[derive(Clone, Debug)]
pub struct Simulation {
    view: ClusterView,
    pods: Vec<Request>,
}

/// Maximum number of a trace's pods that may be needed to fill its cluster. The public traces need ten thousand.
const MAX_PODS: u64 = 10_000_000;

/// Reason why a trace cannot be simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnusableTrace {
    /// The cluster has no GPU.
    #[error("no node has a GPU")]
    NoGpu,
    /// The pods request so little that more than `MAX_PODS` would be needed to fill the cluster.
    #[error(
        "the pods request too few GPUs: more than {MAX_PODS} pods would be needed to fill the cluster"
    )]
    NoDemand,
}

/// Source of the scheduler's forecast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForecastSource {
    /// The frequencies of the whole trace.
    Trace,
    /// The pods that have arrived so far.
    History,
}

/// Settings of one run.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The scheduler's policy.
    pub policy: Policy,
    /// Source of the scheduler's forecast.
    pub forecast_source: ForecastSource,
    /// Seed of the random order of pods and nodes.
    pub seed: u64,
}

/// Counts by class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClassCounts([Tally; SizeClass::ALL.len()]);

/// Arrived and refused pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of arrived pods.
    pub arrived: u64,
    /// Number of pods that fit on no node.
    pub refused: u64,
    /// GPUs of arrived pods, in thousandths.
    pub arrived_milli: u64,
    /// GPUs of refused pods, in thousandths.
    pub refused_milli: u64,
}

impl ClassCounts {
    /// The counts of one class.
    pub fn of(&self, class: SizeClass) -> Tally {
        self.0[class as usize]
    }

    fn count(&mut self, request: &Request, is_refused: bool) {
        let (tally, milli) =
            (&mut self.0[request.class() as usize], u64::from(request.gpu_milli()));
        tally.arrived += 1;
        tally.arrived_milli += milli;
        if is_refused {
            tally.refused += 1;
            tally.refused_milli += milli;
        }
    }
}

impl Simulation {
    /// A simulation of pods on an empty cluster.
    pub fn new(view: ClusterView, pods: Vec<Request>) -> Result<Self, UnusableTrace> {
        if view.nodes().iter().all(|node| node.gpus.is_empty()) {
            return Err(UnusableTrace::NoGpu);
        }
        let simulation = Self { view, pods };
        let demand: u64 = simulation.pods.iter().map(|pod| u64::from(pod.gpu_milli())).sum();
        let needed = u128::from(simulation.capacity_milli()) * simulation.pods.len() as u128;
        if needed > u128::from(demand) * u128::from(MAX_PODS) {
            return Err(UnusableTrace::NoDemand);
        }
        Ok(simulation)
    }

    /// The cluster.
    pub fn view(&self) -> &ClusterView {
        &self.view
    }

    /// The pods.
    pub fn pods(&self) -> &[Request] {
        &self.pods
    }

    /// All GPUs of the cluster, in thousandths of a GPU.
    pub fn capacity_milli(&self) -> u64 {
        let gpus: usize = self.view.nodes().iter().map(|node| node.gpus.len()).sum();
        gpus as u64 * 1000
    }

    fn scheduler(&self, settings: &Settings) -> Scheduler {
        // The arrivals use the seed itself. Another seed gives the scheduler independent numbers.
        let seed = !settings.seed;
        match settings.forecast_source {
            ForecastSource::History => Scheduler::learning(settings.policy, seed),
            ForecastSource::Trace => {
                let mut forecast = Forecast::default();
                self.pods.iter().for_each(|pod| forecast.observe(pod));
                Scheduler::with_forecast(settings.policy, &forecast, &self.view, seed)
            }
        }
    }

    /// The cluster with its nodes in random order: the order decides between equal ranks.
    fn shuffled(&self, random: &mut Random) -> ClusterView {
        let mut nodes = self.view.nodes().to_vec();
        random.shuffle(&mut nodes);
        ClusterView::new(self.view.catalog().clone(), nodes)
    }
}
