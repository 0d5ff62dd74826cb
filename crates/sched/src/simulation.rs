//! A recorded cluster's pods, played against a scheduler.

mod churn;
mod filling;

use crate::{
    forecast::Forecast,
    policy::Policy,
    random::Random,
    request::{Class, Request},
    scheduler::Scheduler,
    view::View,
};

pub use churn::{Churn, Load, churn};
pub use filling::{Filling, fill};

/// A cluster and the pods to play against it.
#[derive(Clone, Debug)]
pub struct Simulation {
    view: View,
    pods: Vec<Request>,
}

/// Most pods that may be needed to fill a cluster; the public traces need ten thousand.
const MOST_PODS: u64 = 10_000_000;

/// A trace that nothing can be measured with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnusableTrace {
    /// The cluster has no GPU.
    #[error("no node has a GPU")]
    NoGpu,
    /// The pods ask for so little that only a vast number of them fills the cluster.
    #[error(
        "the pods ask for too few GPUs: more than {MOST_PODS} of them would be needed to fill the cluster"
    )]
    NoDemand,
}

/// The knowledge of requests to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnowledgeSource {
    /// The frequencies of the whole trace.
    Trace,
    /// The pods that came so far.
    History,
}

/// One run of a simulation.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The rule to choose by.
    pub policy: Policy,
    /// The scheduler's knowledge.
    pub knowledge: KnowledgeSource,
    /// Draws the order of pods and nodes.
    pub seed: u64,
}

/// Pods of each class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Classes([Tally; Class::ALL.len()]);

/// Pods that came and pods that were refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Pods that came.
    pub arrived: u64,
    /// Pods that no node could take.
    pub refused: u64,
    /// GPUs of pods that came, in thousandths.
    pub arrived_milli: u64,
    /// GPUs of refused pods, in thousandths.
    pub refused_milli: u64,
}

impl Classes {
    /// The pods of one class.
    pub fn of(&self, class: Class) -> Tally {
        self.0[class as usize]
    }

    fn count(&mut self, request: &Request, is_refused: bool) {
        let (count, milli) =
            (&mut self.0[request.class() as usize], u64::from(request.gpu_milli()));
        count.arrived += 1;
        count.arrived_milli += milli;
        if is_refused {
            count.refused += 1;
            count.refused_milli += milli;
        }
    }
}

impl Simulation {
    /// A simulation of pods on an empty cluster.
    pub fn new(view: View, pods: Vec<Request>) -> Result<Self, UnusableTrace> {
        if view.nodes().iter().all(|node| node.gpus.is_empty()) {
            return Err(UnusableTrace::NoGpu);
        }
        let simulation = Self { view, pods };
        let demand: u64 = simulation.pods.iter().map(|pod| u64::from(pod.gpu_milli())).sum();
        let filling = u128::from(simulation.capacity_milli()) * simulation.pods.len() as u128;
        if filling > u128::from(demand) * u128::from(MOST_PODS) {
            return Err(UnusableTrace::NoDemand);
        }
        Ok(simulation)
    }

    /// The cluster.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// The pods.
    pub fn pods(&self) -> &[Request] {
        &self.pods
    }

    /// All GPUs of the cluster, in thousandths of one.
    pub fn capacity_milli(&self) -> u64 {
        let gpus: usize = self.view.nodes().iter().map(|node| node.gpus.len()).sum();
        gpus as u64 * 1000
    }

    fn scheduler(&self, settings: &Settings) -> Scheduler {
        // The scheduler's own draws are not those of the arrivals.
        let seed = !settings.seed;
        match settings.knowledge {
            KnowledgeSource::History => Scheduler::learning(settings.policy, seed),
            KnowledgeSource::Trace => {
                let mut forecast = Forecast::default();
                self.pods.iter().for_each(|pod| forecast.observe(pod));
                Scheduler::informed(settings.policy, &forecast, &self.view, seed)
            }
        }
    }

    /// The cluster with its nodes in a random order, which decides between equal ranks.
    fn shuffled(&self, random: &mut Random) -> View {
        let mut nodes = self.view.nodes().to_vec();
        random.shuffle(&mut nodes);
        View::new(self.view.catalog().clone(), nodes)
    }
}
