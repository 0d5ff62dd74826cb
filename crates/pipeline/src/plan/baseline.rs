//! Baseline layouts that need no search over nodes: one pod per stage, and one pod for all stages.

use super::{Layout, Plan, Unplaceable, search_plan};
use crate::{
    capacity::Capacity,
    fleet::Fleet,
    pipeline::Pipeline,
    placement::{Placement, Replica},
    search::{SearchBudget, unplaceable},
};

/// Search steps for all nodes together. A single node has few placements.
const STEPS: u64 = 200_000;
/// Minimum of search steps per node.
const MIN_STEPS_PER_NODE: u64 = 1_000;

/// Places the stages one by one as kube-scheduler does: each with its first alternative that fits, on the node with the
/// largest mean share of free CPUs and memory (the scoring strategy `LeastAllocated`).
pub(super) fn by_scheduler(pipeline: &Pipeline, fleet: &Fleet) -> Result<Placement, Unplaceable> {
    let mut placement = Placement::empty(pipeline.stages.len());
    let mut used =
        Used { requested: vec![Capacity::default(); fleet.nodes.len()], devices: Vec::new() };
    for (stage, spec) in pipeline.stages.iter().enumerate() {
        for _ in 0..spec.max_replicas {
            match used.place(pipeline, fleet, stage) {
                Some(replica) => placement.replicas[stage].push(replica),
                None => break,
            }
        }
        if placement.replicas[stage].is_empty() {
            // A stage without a place on an empty fleet has a more specific reason.
            let reason = "earlier stages occupy all devices, CPUs or memory that it could use";
            let error = Unplaceable::stage(&spec.name, reason);
            return Err(unplaceable(pipeline, fleet).unwrap_or(error));
        }
    }
    Ok(placement)
}

/// Places one replica of each stage on a single node: the best of the nodes that can hold all of them.
pub(super) fn on_one_node(pipeline: &Pipeline, fleet: &Fleet) -> Result<Plan, Unplaceable> {
    let mut single_replica_pipeline = pipeline.clone();
    single_replica_pipeline.stages.iter_mut().for_each(|stage| stage.max_replicas = 1);
    let steps = (STEPS / fleet.nodes.len().max(1) as u64).max(MIN_STEPS_PER_NODE);
    let mut best: Option<Plan> = None;
    for position in 0..fleet.nodes.len() {
        let one_node = Fleet { nodes: vec![fleet.nodes[position].clone()], ..*fleet };
        let Ok(mut plan) =
            search_plan(&single_replica_pipeline, &one_node, Layout::Pod, SearchBudget { steps })
        else {
            continue;
        };
        plan.placement.replicas.iter_mut().flatten().for_each(|replica| replica.node = position);
        if let Some((runner_up, _)) = &mut plan.runner_up {
            runner_up.replicas.iter_mut().flatten().for_each(|replica| replica.node = position);
        }
        if best.as_ref().is_none_or(|best| plan.objective.is_above(best.objective)) {
            best = Some(plan);
        }
    }
    let reason = "no node has the devices, CPUs and memory for all stages together";
    best.ok_or_else(|| unplaceable(pipeline, fleet).unwrap_or_else(|| Unplaceable::one_pod(reason)))
}

/// Capacity and devices that earlier stages occupy.
struct Used {
    requested: Vec<Capacity>,
    /// Indices of node and device.
    devices: Vec<(usize, usize)>,
}

// === impl Used ===

impl Used {
    /// Allocates a place for the next replica of the stage.
    fn place(&mut self, pipeline: &Pipeline, fleet: &Fleet, stage: usize) -> Option<Replica> {
        let stage = &pipeline.stages[stage];
        for (alternative, option) in stage.alternatives.iter().enumerate() {
            let admitting_nodes =
                (0..fleet.nodes.len()).filter(|node| fleet.nodes[*node].admits(stage));
            let mut nodes: Vec<_> = admitting_nodes.collect();
            // The sort is stable: ties go to the first node.
            nodes.sort_by(|a, b| self.free_share(fleet, *b).total_cmp(&self.free_share(fleet, *a)));
            for node in nodes {
                if !fleet.nodes[node].free.fits_both(self.requested[node], option.request) {
                    continue;
                }
                let is_free = |device: &Option<usize>| {
                    device.is_none_or(|device| !self.devices.contains(&(node, device)))
                };
                let Some(device) =
                    fleet.nodes[node].candidate_devices(&option.device).find(is_free)
                else {
                    continue;
                };
                self.requested[node] += option.request;
                self.devices.extend(device.map(|device| (node, device)));
                return Some(Replica { node, alternative, device });
            }
        }
        None
    }

    fn free_share(&self, fleet: &Fleet, node: usize) -> f64 {
        let (free, requested) = (fleet.nodes[node].free, self.requested[node]);
        #[expect(clippy::cast_precision_loss, reason = "a share of memory")]
        let memory = (requested.memory.0 as f64, free.memory.0 as f64);
        let share = |(requested, total): (f64, f64)| {
            if total > 0.0 { 1.0 - requested / total } else { 0.0 }
        };
        f64::midpoint(share((requested.cpus, free.cpus)), share(memory))
    }
}
