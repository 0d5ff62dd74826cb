//! A plan as a document, for programs and for the table.

use serde::Serialize;
use windlass_pipeline::{
    Fleet, Layout, Pipeline, Placement, Plan, Prediction,
    pipeline::Goal,
    placement::Replica,
    plan::{Gain, ObjectiveValue, Unplaceable},
    prediction::Bottleneck,
};

/// The plans of a pipeline.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PlanReport {
    pub(super) pipeline: String,
    /// Goal of the plans, as text.
    pub(super) goal: String,
    pub(super) nodes: usize,
    /// True for simulated boards.
    pub(super) simulated: bool,
    pub(super) layouts: Vec<LayoutReport>,
}

/// The plan of a layout.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LayoutReport {
    pub(super) layout: &'static str,
    /// Reason why no placement exists; the fields below are then empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) fits_nowhere: Option<String>,
    #[serde(flatten)]
    pub(super) figures: Option<PredictedFigures>,
    /// Reason why the best placement does not meet the goal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) goal_not_met: Option<String>,
    /// True if no placement of the layout is better.
    pub(super) is_best: bool,
    /// Bound that no placement exceeds; absent if the search was exhaustive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bound: Option<String>,
    pub(super) stages: Vec<StageReport>,
    pub(super) links: Vec<LinkReport>,
    /// The next best placement.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next_best: Option<NextBest>,
    /// Predicted figures with one more device.
    pub(super) one_more: Vec<AddedDevice>,
}

/// Predicted throughput and latency of a placement.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PredictedFigures {
    pub(super) items_per_second: f64,
    /// Stage or link that limits the throughput.
    pub(super) bottleneck: String,
    /// Rate for which `latency_ms` is predicted.
    pub(super) at_items_per_second: f64,
    /// Mean latency in milliseconds; absent if items arrive faster than they pass.
    pub(super) latency_ms: Option<f64>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct StageReport {
    pub(super) stage: String,
    pub(super) replicas: Vec<ReplicaReport>,
    pub(super) waited_ms: Option<f64>,
    pub(super) worked_ms: Option<f64>,
    /// Fraction of the time in which the replicas work.
    pub(super) load: Option<f64>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ReplicaReport {
    pub(super) node: String,
    /// Device that the replica needs, or `CPU`.
    pub(super) on: String,
    /// Device that was free when the plan was made.
    pub(super) device: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LinkReport {
    pub(super) from: String,
    pub(super) to: String,
    pub(super) bytes: u64,
    /// Mean time of an item from stage to stage, in milliseconds.
    pub(super) ms: Option<f64>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NextBest {
    #[serde(flatten)]
    pub(super) figures: PredictedFigures,
    /// Stages with another placement, each as `STAGE on DEVICE of NODE`.
    pub(super) differs: Vec<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AddedDevice {
    pub(super) device: String,
    pub(super) node: String,
    #[serde(flatten)]
    pub(super) figures: PredictedFigures,
}

/// Writes plans as reports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlanWriter<'a> {
    pub(crate) pipeline: &'a Pipeline,
    pub(crate) fleet: &'a Fleet,
}

// === impl PlanWriter ===

impl PlanWriter<'_> {
    pub(super) fn report(&self, layouts: Vec<LayoutReport>) -> PlanReport {
        let goal = match (self.pipeline.goal, self.pipeline.rate) {
            (Goal::Throughput, _) => "the most items per second".to_owned(),
            (Goal::Latency, rate) => {
                format!("the least latency at {} items/s", rate.unwrap_or_default())
            }
            (Goal::ThroughputUnder(limit), _) => {
                format!("the most items per second within {limit}")
            }
        };
        let (pipeline, nodes) = (self.pipeline.name.clone(), self.fleet.nodes.len());
        PlanReport { pipeline, goal, nodes, simulated: self.fleet.is_simulated, layouts }
    }

    pub(super) fn layout(
        &self,
        layout: Layout,
        plan: Result<&Plan, &Unplaceable>,
        gains: &[Gain],
    ) -> LayoutReport {
        let layout = layout.name();
        let plan = match plan {
            Ok(plan) => plan,
            Err(error) => {
                return LayoutReport {
                    layout,
                    fits_nowhere: Some(error.to_string()),
                    ..LayoutReport::default()
                };
            }
        };
        LayoutReport {
            layout,
            fits_nowhere: None,
            figures: Some(self.figures(&plan.prediction)),
            goal_not_met: (!plan.objective.meets_goal).then(|| self.unmet_goal_reason(plan)),
            is_best: plan.is_exact,
            bound: (!plan.is_exact).then(|| format_objective(plan.bound)),
            stages: self.stages(plan),
            links: self.links(plan),
            next_best: plan.runner_up.as_ref().map(|(placement, prediction)| NextBest {
                figures: self.figures(prediction),
                differs: self.moved_stages(placement, &plan.placement),
            }),
            one_more: gains.iter().map(|gain| self.added_device(gain)).collect(),
        }
    }

    fn figures(&self, prediction: &Prediction) -> PredictedFigures {
        PredictedFigures {
            items_per_second: prediction.throughput,
            bottleneck: self.bottleneck(prediction.bottleneck),
            at_items_per_second: prediction.rate,
            latency_ms: prediction.latency.as_ref().map(|latency| 1e3 * latency.total),
        }
    }

    pub(crate) fn bottleneck(&self, bottleneck: Bottleneck) -> String {
        let stage = |stage: usize| &self.pipeline.stages[stage].name;
        let node = |node: usize| &self.fleet.nodes[node];
        match bottleneck {
            Bottleneck::Stage(index) => format!("stage {}", stage(index)),
            Bottleneck::Egress(index) => {
                format!("the link of {}, sending at {}", node(index).name, node(index).link.rate)
            }
            Bottleneck::Ingress(index) => {
                format!("the link of {}, receiving at {}", node(index).name, node(index).link.rate)
            }
            Bottleneck::Window(index) => {
                let link = &self.pipeline.links[index];
                format!("the delay between {} and {}", stage(link.from), stage(link.to))
            }
        }
    }

    fn unmet_goal_reason(&self, plan: &Plan) -> String {
        let best_value = format_objective(plan.objective);
        match self.pipeline.goal {
            Goal::ThroughputUnder(limit) => {
                format!("an item takes at least {best_value}, the limit is {limit}")
            }
            Goal::Throughput | Goal::Latency => {
                let rate = self.pipeline.rate.unwrap_or_default();
                format!("the rate is {rate} items/s, and at most {best_value} pass")
            }
        }
    }

    fn stages(&self, plan: &Plan) -> Vec<StageReport> {
        let latency = plan.prediction.latency.as_ref();
        let stages = self.pipeline.stages.iter().enumerate();
        stages
            .map(|(position, stage)| {
                let times = latency.map(|latency| latency.stages[position]);
                StageReport {
                    stage: stage.name.clone(),
                    replicas: plan.placement.replicas[position]
                        .iter()
                        .map(|replica| self.replica(position, replica))
                        .collect(),
                    waited_ms: times.map(|times| 1e3 * times.waited),
                    worked_ms: times.map(|times| 1e3 * times.worked),
                    load: times.map(|times| times.load),
                }
            })
            .collect()
    }

    fn replica(&self, stage: usize, replica: &Replica) -> ReplicaReport {
        ReplicaReport {
            node: self.fleet.nodes[replica.node].name.clone(),
            on: replica.alternative(self.pipeline, stage).device.to_string(),
            device: replica.device(self.fleet).map(|device| device.name.clone()),
        }
    }

    fn links(&self, plan: &Plan) -> Vec<LinkReport> {
        let times = plan.prediction.latency.as_ref().map(|latency| &latency.links);
        let links = self.pipeline.links.iter().enumerate();
        links
            .map(|(position, link)| LinkReport {
                from: self.pipeline.stages[link.from].name.clone(),
                to: self.pipeline.stages[link.to].name.clone(),
                bytes: link.bytes.0,
                ms: times.map(|times| 1e3 * times[position]),
            })
            .collect()
    }

    /// Stages whose placement differs in `other`, with their placement there.
    pub(crate) fn moved_stages(&self, other: &Placement, plan: &Placement) -> Vec<String> {
        let stages = self.pipeline.stages.iter().enumerate();
        let changed =
            stages.filter(|(position, _)| other.replicas[*position] != plan.replicas[*position]);
        changed
            .map(|(position, stage)| format!("{} on {}", stage.name, self.places(position, other)))
            .collect()
    }

    /// Devices and nodes of a stage's replicas.
    pub(crate) fn places(&self, stage: usize, placement: &Placement) -> String {
        let places = placement.replicas[stage].iter().map(|replica| {
            let ReplicaReport { node, on, .. } = self.replica(stage, replica);
            format!("{on} of {node}")
        });
        places.collect::<Vec<_>>().join(" and ")
    }

    fn added_device(&self, gain: &Gain) -> AddedDevice {
        AddedDevice {
            device: gain.device.to_string(),
            node: gain.node.clone(),
            figures: self.figures(&gain.prediction),
        }
    }
}

/// Formats an objective: a negative amount is a latency in seconds, another is a throughput.
fn format_objective(objective: ObjectiveValue) -> String {
    if objective.amount < 0.0 {
        format!("{:.1}ms", -1e3 * objective.amount)
    } else {
        format!("{:.1} items/s", objective.amount)
    }
}
