//! Filling: pods arrive and never end. This is the protocol of the experiment in the FGD paper (USENIX ATC 2023).
//!
//! The pods of the trace arrive in random order, followed by copies of random pods. Arrivals end when the next pod
//! would raise the demand above `load` times the cluster's GPUs. A pod that fits no node is refused and does not arrive
//! again.

use super::{ClassCounts, Settings, Simulation};
use crate::{random::Random, request::Request};

/// The outcome of a run.
#[derive(Clone, Debug)]
pub struct FillingResult {
    /// Mean percentage of allocated GPUs, by percentage of GPUs requested so far. `None` if no arrival fell on that
    /// percentage.
    pub allocated: Vec<Option<f64>>,
    /// Arrived and refused pods.
    pub classes: ClassCounts,
    /// Number of scheduling decisions.
    pub decisions: u64,
}

/// Simulates one run.
pub fn fill(simulation: &Simulation, settings: &Settings, load: f64) -> FillingResult {
    let mut random = Random::new(settings.seed);
    let pods = arrivals(simulation, load, &mut random);
    let mut view = simulation.shuffled(&mut random);
    let mut scheduler = simulation.scheduler(settings);
    let capacity = percent_of(simulation.capacity_milli());
    let (mut arrived, mut allocated) = (0, 0);
    let mut columns: Vec<(f64, u32)> = Vec::new();
    let mut classes = ClassCounts::default();
    for pod in &pods {
        scheduler.observe(&view, pod);
        let placement = scheduler.choose_placement(&view, pod);
        if let Some(placement) = placement {
            view.allocate(pod, placement).expect("a decision fits the view it was made on");
            allocated += u64::from(pod.gpu_milli());
        }
        classes.count(pod, placement.is_none());
        arrived += u64::from(pod.gpu_milli());
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a percentage")]
        let column = capacity(arrived).round() as usize;
        if columns.len() <= column {
            columns.resize(column + 1, (0.0, 0));
        }
        columns[column].0 += capacity(allocated);
        columns[column].1 += 1;
    }
    let mean = |(sum, count): (f64, u32)| (count > 0).then(|| sum / f64::from(count));
    let allocated = columns.into_iter().map(mean).collect();
    FillingResult { allocated, classes, decisions: pods.len() as u64 }
}

/// The pods in the order of their arrival.
fn arrivals(simulation: &Simulation, load: f64, random: &mut Random) -> Vec<Request> {
    let mut shuffled = simulation.pods.clone();
    random.shuffle(&mut shuffled);
    let percent = percent_of(simulation.capacity_milli());
    let (mut pods, mut demand) = (Vec::new(), 0);
    let mut originals = shuffled.into_iter();
    loop {
        let copy = |random: &mut Random| simulation.pods[random.below(simulation.pods.len())];
        let pod = originals.next().unwrap_or_else(|| copy(random));
        demand += u64::from(pod.gpu_milli());
        if percent(demand) > load * 100.0 {
            return pods;
        }
        pods.push(pod);
    }
}

#[expect(clippy::cast_precision_loss, reason = "thousandths of GPUs are far below 2^52")]
fn percent_of(capacity: u64) -> impl Fn(u64) -> f64 {
    move |milli| 100.0 * milli as f64 / capacity.max(1) as f64
}
