//! The plan of a pipeline for a layout: placement, prediction, and the gain of additional devices.

mod baseline;
mod replacement;

use crate::{
    fleet::{Fleet, FreeDevice},
    pipeline::{DeviceRequirement, Goal, Pipeline},
    placement::Placement,
    prediction::{Model, Prediction},
    search::{self, SearchBudget},
};

pub use self::replacement::move_off_node;
pub use crate::search::{ObjectiveValue, Unplaceable};

/// Assignment of stages to pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Layout {
    /// One pod per replica of each stage, placed by kube-scheduler.
    Pods,
    /// One pod for all stages, with one container per stage.
    Pod,
    /// Each stage on the devices and nodes that are best for the goal; linked stages with one replica each share a pod
    /// if they are on one node.
    Planned,
}

/// A layout's placement with its prediction.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The layout.
    pub layout: Layout,
    /// Nodes and devices of the replicas.
    pub placement: Placement,
    /// Throughput and latency of the placement.
    pub prediction: Prediction,
    /// Objective value of the placement.
    pub objective: ObjectiveValue,
    /// Upper bound of the objective values of all placements of the layout.
    pub bound: ObjectiveValue,
    /// True if the placement is proven to be the best one of the layout.
    pub is_exact: bool,
    /// The second-best placement that the search evaluated; `None` without an exact search.
    pub runner_up: Option<(Placement, Prediction)>,
}

/// Gain of one additional device.
#[derive(Clone, Debug)]
pub struct Gain {
    /// The device.
    pub device: DeviceRequirement,
    /// Name of the node that gets the device.
    pub node: String,
    /// Throughput and latency with the device.
    pub prediction: Prediction,
    /// Objective value of the placement with the device.
    pub objective: ObjectiveValue,
}

/// Search budget of a plan: at most a second for fifty stages on two hundred devices.
const PLAN_BUDGET: SearchBudget = SearchBudget { steps: 400_000 };
/// Search budget for each candidate node of [`gains`], which runs some dozen searches.
const GAIN_BUDGET: SearchBudget = SearchBudget { steps: 20_000 };
/// Maximum number of kinds of nodes that [`gains`] tries.
const MAX_KINDS: usize = 8;
/// Minimum gain, as a share of the plan's objective value.
const MIN_GAIN: f64 = 0.01;

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
    /// A stage, or for [`Layout::Pod`] the pod, fits on no node.
    pub fn of(pipeline: &Pipeline, fleet: &Fleet, layout: Layout) -> Result<Self, Unplaceable> {
        match layout {
            Layout::Planned => Self::search_best(pipeline, fleet),
            Layout::Pods => {
                let placement = baseline::by_scheduler(pipeline, fleet)?;
                Ok(Self::of_placement(pipeline, fleet, layout, placement))
            }
            Layout::Pod => baseline::on_one_node(pipeline, fleet),
        }
    }

    /// The best placement. After a search that ran out of steps, it is no worse than the other layouts' placements.
    fn search_best(pipeline: &Pipeline, fleet: &Fleet) -> Result<Self, Unplaceable> {
        let plan = search_plan(pipeline, fleet, Layout::Planned, PLAN_BUDGET)?;
        if plan.is_exact {
            return Ok(plan);
        }
        let other_plans =
            [Layout::Pod, Layout::Pods].map(|layout| Self::of(pipeline, fleet, layout));
        let better_plans = other_plans
            .into_iter()
            .flatten()
            .filter(|candidate| candidate.objective.is_above(plan.objective));
        let best =
            better_plans.reduce(|a, b| if b.objective.is_above(a.objective) { b } else { a });
        Ok(match best {
            Some(Plan { placement, prediction, objective, .. }) => {
                Self { placement, prediction, objective, ..plan }
            }
            None => plan,
        })
    }

    /// A plan for a given placement.
    fn of_placement(
        pipeline: &Pipeline,
        fleet: &Fleet,
        layout: Layout,
        placement: Placement,
    ) -> Self {
        let objective = objective_value(pipeline, fleet, &placement);
        let rate = match pipeline.goal {
            // The amount is the largest rate whose latency is within the limit.
            Goal::ThroughputUnder(_) if objective.meets_goal => Some(objective.amount),
            _ => pipeline.rate,
        };
        let prediction = Prediction::at(pipeline, fleet, &placement, rate);
        Self {
            layout,
            placement,
            prediction,
            objective,
            bound: objective,
            is_exact: true,
            runner_up: None,
        }
    }
}

fn search_plan(
    pipeline: &Pipeline,
    fleet: &Fleet,
    layout: Layout,
    budget: SearchBudget,
) -> Result<Plan, Unplaceable> {
    let result = search::best(pipeline, fleet, budget)?;
    // In a search that ran out of steps, the runner-up is only an intermediate result.
    let runner_up = result.runner_up.filter(|_| result.is_exact).map(|placement| {
        let prediction = Prediction::of(pipeline, fleet, &placement);
        (placement, prediction)
    });
    let plan = Plan::of_placement(pipeline, fleet, layout, result.placement);
    Ok(Plan { bound: result.bound.objective, is_exact: result.is_exact, runner_up, ..plan })
}

// === impl Prediction ===

impl Prediction {
    /// Predicts a complete placement at the pipeline's rate.
    pub fn of(pipeline: &Pipeline, fleet: &Fleet, placement: &Placement) -> Self {
        Self::at(pipeline, fleet, placement, pipeline.rate)
    }

    /// Predicts a complete placement at `rate` items per second; `None` for 70 % of its throughput.
    pub fn at(
        pipeline: &Pipeline,
        fleet: &Fleet,
        placement: &Placement,
        rate: Option<f64>,
    ) -> Self {
        let model = Model { pipeline, fleet, bounds: &[] };
        model.predict(&placement.replicas, rate)
    }
}

/// Objective value of a complete placement.
pub fn objective_value(
    pipeline: &Pipeline,
    fleet: &Fleet,
    placement: &Placement,
) -> ObjectiveValue {
    let model = Model { pipeline, fleet, bounds: &[] };
    search::Score::of(&model, &placement.replicas).objective
}

/// Gain of one additional device of each kind, on the node where the gain is largest. Sorted by objective value, best
/// first. Kinds with a gain below 1 % are left out.
pub fn gains(pipeline: &Pipeline, fleet: &Fleet, plan: &Plan) -> Vec<Gain> {
    let mut gains = Vec::new();
    for requirement in device_kinds(pipeline) {
        let device = device_of(&requirement, fleet);
        let mut best: Option<Gain> = None;
        for node in kinds_of_nodes(pipeline, fleet) {
            let mut larger_fleet = fleet.clone();
            larger_fleet.nodes[node].devices.push(device.clone());
            let Ok(extended_plan) = search_plan(pipeline, &larger_fleet, plan.layout, GAIN_BUDGET)
            else {
                continue;
            };
            if best.as_ref().is_none_or(|best| extended_plan.objective.is_above(best.objective)) {
                let node = fleet.nodes[node].name.clone();
                let Plan { prediction, objective, .. } = extended_plan;
                best = Some(Gain { device: requirement.clone(), node, prediction, objective });
            }
        }
        gains.extend(best.filter(|best| {
            let threshold = plan.objective.amount + MIN_GAIN * plan.objective.amount.abs();
            best.objective.is_above(ObjectiveValue { amount: threshold, ..plan.objective })
        }));
    }
    gains.sort_by(|a, b| b.objective.amount.total_cmp(&a.objective.amount));
    gains
}

/// Distinct device requirements of the pipeline's stages.
fn device_kinds(pipeline: &Pipeline) -> Vec<DeviceRequirement> {
    let mut requirements: Vec<DeviceRequirement> = Vec::new();
    for alternative in pipeline.stages.iter().flat_map(|stage| &stage.alternatives) {
        if alternative.device != DeviceRequirement::CpuOnly
            && !requirements.contains(&alternative.device)
        {
            requirements.push(alternative.device.clone());
        }
    }
    requirements
}

/// A device that satisfies the requirement: a copy of one in the fleet, otherwise one with only its resource or class.
fn device_of(requirement: &DeviceRequirement, fleet: &Fleet) -> FreeDevice {
    let devices = fleet.nodes.iter().flat_map(|node| &node.devices);
    let existing =
        devices.clone().find(|device| device.serves(requirement).unwrap_or(false)).cloned();
    existing.unwrap_or_else(|| {
        let (resource, classes) = match requirement {
            DeviceRequirement::Resource(name) => (Some(name.clone()), Vec::new()),
            DeviceRequirement::Claim { class, .. } => (None, vec![class.clone()]),
            DeviceRequirement::CpuOnly => (None, Vec::new()),
        };
        FreeDevice { name: requirement.to_string(), resource, classes, published: None }
    })
}

/// One node of each kind, up to [`MAX_KINDS`]. Nodes of one kind have the same board, link and admitted stages.
fn kinds_of_nodes(pipeline: &Pipeline, fleet: &Fleet) -> Vec<usize> {
    let mut kinds: Vec<usize> = Vec::new();
    for (position, node) in fleet.nodes.iter().enumerate() {
        let is_same_kind = |other: &usize| {
            let other = &fleet.nodes[*other];
            let admits_same_stages =
                || pipeline.stages.iter().all(|stage| other.admits(stage) == node.admits(stage));
            (other.board.as_str(), other.link) == (node.board.as_str(), node.link)
                && admits_same_stages()
        };
        if kinds.len() < MAX_KINDS && !kinds.iter().any(is_same_kind) {
            kinds.push(position);
        }
    }
    kinds
}
