//! The plan of a pipeline for a layout: placement, prediction, and what would be better.

mod replacement;
mod usual;

use crate::{
    fleet::{Fleet, FreeDevice},
    pipeline::{Goal, Pipeline, Wanted},
    placement::Placement,
    prediction::{Model, Prediction},
    search::{self, Effort},
};

pub use self::replacement::replaced;
pub use crate::search::{Unplaceable, Worth};

/// The way in which stages are put into pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Layout {
    /// A pod for each replica of each stage, where kube-scheduler puts it.
    Pods,
    /// One pod with all stages, each in its container.
    Pod,
    /// Each stage on the devices and nodes that serve the goal best; stages of one node share a pod.
    Planned,
}

/// A layout's placement with its prediction.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The layout.
    pub layout: Layout,
    /// Where the replicas run.
    pub placement: Placement,
    /// Its throughput and latency.
    pub prediction: Prediction,
    /// Worth of the placement for the goal.
    pub worth: Worth,
    /// No placement of the layout is worth more.
    pub bound: Worth,
    /// True if the placement was shown to be the best one.
    pub is_exact: bool,
    /// The next best placement that was looked at.
    pub runner_up: Option<(Placement, Prediction)>,
}

/// The gain by one more device.
#[derive(Clone, Debug)]
pub struct Gain {
    /// The device.
    pub device: Wanted,
    /// Name of the node.
    pub node: String,
    /// Throughput and latency with the device.
    pub prediction: Prediction,
    /// Worth of the placement with it.
    pub worth: Worth,
}

/// A second or less for fifty stages on two hundred devices.
const EFFORT: Effort = Effort { steps: 400_000 };
/// Each of some dozen further searches.
const SIDE_EFFORT: Effort = Effort { steps: 20_000 };
/// Kinds of nodes on which one more device is tried.
const MOST_TRIED: usize = 8;
/// Gains below this share of the value are none.
const LEAST_GAIN: f64 = 0.01;

// === impl Layout ===

impl Layout {
    /// All layouts.
    pub const ALL: [Self; 3] = [Self::Pods, Self::Pod, Self::Planned];

    /// Name in commands and output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pods => "pods",
            Self::Pod => "pod",
            Self::Planned => "planned",
        }
    }
}

// === impl Plan ===

impl Plan {
    /// Plans a pipeline.
    ///
    /// # Errors
    ///
    /// A stage fits nowhere.
    pub fn of(pipeline: &Pipeline, fleet: &Fleet, layout: Layout) -> Result<Self, Unplaceable> {
        match layout {
            Layout::Planned => Self::planned(pipeline, fleet),
            Layout::Pods => {
                let placement = usual::by_scheduler(pipeline, fleet)?;
                Ok(Self::given(pipeline, fleet, layout, placement))
            }
            Layout::Pod => usual::on_one_node(pipeline, fleet),
        }
    }

    /// The best placement. Where the search was cut short, it is no worse than the other layouts' placements.
    fn planned(pipeline: &Pipeline, fleet: &Fleet) -> Result<Self, Unplaceable> {
        let plan = searched(pipeline, fleet, Layout::Planned, EFFORT)?;
        if plan.is_exact {
            return Ok(plan);
        }
        let others = [Layout::Pod, Layout::Pods].map(|layout| Self::of(pipeline, fleet, layout));
        let better = others.into_iter().flatten().filter(|other| other.worth.is_above(plan.worth));
        let best = better.reduce(|a, b| if b.worth.is_above(a.worth) { b } else { a });
        Ok(match best {
            Some(Plan { placement, prediction, worth, .. }) => {
                Self { placement, prediction, worth, ..plan }
            }
            None => plan,
        })
    }

    /// A plan of a placement without a search.
    fn given(pipeline: &Pipeline, fleet: &Fleet, layout: Layout, placement: Placement) -> Self {
        let worth = worth(pipeline, fleet, &placement);
        let rate = match pipeline.goal {
            // The most items that come within the limit.
            Goal::ThroughputUnder(_) if worth.meets_goal => Some(worth.amount),
            _ => pipeline.rate,
        };
        let prediction = Prediction::at(pipeline, fleet, &placement, rate);
        Self { layout, placement, prediction, worth, bound: worth, is_exact: true, runner_up: None }
    }
}

fn searched(
    pipeline: &Pipeline,
    fleet: &Fleet,
    layout: Layout,
    effort: Effort,
) -> Result<Plan, Unplaceable> {
    let found = search::best(pipeline, fleet, effort)?;
    // In a search that was cut short, it is no more than a step on the way.
    let runner_up = found.runner_up.filter(|_| found.is_exact).map(|placement| {
        let prediction = Prediction::of(pipeline, fleet, &placement);
        (placement, prediction)
    });
    let plan = Plan::given(pipeline, fleet, layout, found.placement);
    Ok(Plan { bound: found.bound.worth, is_exact: found.is_exact, runner_up, ..plan })
}

// === impl Prediction ===

impl Prediction {
    /// Predicts a complete placement at the pipeline's rate.
    pub fn of(pipeline: &Pipeline, fleet: &Fleet, placement: &Placement) -> Self {
        Self::at(pipeline, fleet, placement, pipeline.rate)
    }

    /// Predicts a complete placement; without a rate, at seventy percent of its throughput.
    pub fn at(
        pipeline: &Pipeline,
        fleet: &Fleet,
        placement: &Placement,
        rate: Option<f64>,
    ) -> Self {
        let model = Model { pipeline, fleet, best: &[] };
        model.predict(&placement.replicas, rate)
    }
}

/// Worth of a complete placement for the pipeline's goal.
pub fn worth(pipeline: &Pipeline, fleet: &Fleet, placement: &Placement) -> Worth {
    let model = Model { pipeline, fleet, best: &[] };
    search::Score::of(&model, &placement.replicas).worth
}

/// The gain by one more device of each kind, on the node where it is largest. Kinds without a gain are left out.
pub fn gains(pipeline: &Pipeline, fleet: &Fleet, plan: &Plan) -> Vec<Gain> {
    let mut gains = Vec::new();
    for wanted in wanted(pipeline) {
        let device = device_of(&wanted, fleet);
        let mut best: Option<Gain> = None;
        for node in kinds_of_nodes(pipeline, fleet) {
            let mut larger = fleet.clone();
            larger.nodes[node].devices.push(device.clone());
            let Ok(with_it) = searched(pipeline, &larger, plan.layout, SIDE_EFFORT) else {
                continue;
            };
            if best.as_ref().is_none_or(|best| with_it.worth.is_above(best.worth)) {
                let node = fleet.nodes[node].name.clone();
                let Plan { prediction, worth, .. } = with_it;
                best = Some(Gain { device: wanted.clone(), node, prediction, worth });
            }
        }
        gains.extend(best.filter(|best| {
            let least = plan.worth.amount + LEAST_GAIN * plan.worth.amount.abs();
            best.worth.is_above(Worth { amount: least, ..plan.worth })
        }));
    }
    gains.sort_by(|a, b| b.worth.amount.total_cmp(&a.worth.amount));
    gains
}

/// The devices that the pipeline's stages can use.
fn wanted(pipeline: &Pipeline) -> Vec<Wanted> {
    let mut all: Vec<Wanted> = Vec::new();
    for alternative in pipeline.stages.iter().flat_map(|stage| &stage.alternatives) {
        if alternative.device != Wanted::Cpu && !all.contains(&alternative.device) {
            all.push(alternative.device.clone());
        }
    }
    all
}

/// A device that serves the wish: like one that is there, or by its name alone.
fn device_of(wanted: &Wanted, fleet: &Fleet) -> FreeDevice {
    let devices = fleet.nodes.iter().flat_map(|node| &node.devices);
    let like = devices.clone().find(|device| device.serves(wanted).unwrap_or(false)).cloned();
    like.unwrap_or_else(|| {
        let (resource, classes) = match wanted {
            Wanted::Resource(name) => (Some(name.clone()), Vec::new()),
            Wanted::Claim { class, .. } => (None, vec![class.clone()]),
            Wanted::Cpu => (None, Vec::new()),
        };
        FreeDevice { name: wanted.to_string(), resource, classes, published: None }
    })
}

/// A node of each kind: equal boards, links and admitted stages.
fn kinds_of_nodes(pipeline: &Pipeline, fleet: &Fleet) -> Vec<usize> {
    let mut kinds: Vec<usize> = Vec::new();
    for (position, node) in fleet.nodes.iter().enumerate() {
        let is_alike = |other: &usize| {
            let other = &fleet.nodes[*other];
            let admits_the_same =
                || pipeline.stages.iter().all(|stage| other.admits(stage) == node.admits(stage));
            (other.board.as_str(), other.link) == (node.board.as_str(), node.link)
                && admits_the_same()
        };
        if kinds.len() < MOST_TRIED && !kinds.iter().any(is_alike) {
            kinds.push(position);
        }
    }
    kinds
}
