//! The layouts that people use without a plan: a pod for each stage, and one pod for all.

use super::{Layout, Plan, Unplaceable, searched};
use crate::{
    capacity::Capacity,
    fleet::Fleet,
    pipeline::Pipeline,
    placement::{Placement, Replica},
    search::{Effort, unplaceable},
};

/// Steps for all nodes together, and at least for each: one node has few placements.
const STEPS: u64 = 200_000;
const LEAST_STEPS: u64 = 1_000;

/// Places the stages one by one as kube-scheduler does alone: each with its first alternative that is free, on the node
/// with the largest mean share of free CPUs and memory (its strategy `LeastAllocated`).
pub(super) fn by_scheduler(pipeline: &Pipeline, fleet: &Fleet) -> Result<Placement, Unplaceable> {
    let mut placement = Placement::empty(pipeline.stages.len());
    let mut used =
        Used { taken: vec![Capacity::default(); fleet.nodes.len()], devices: Vec::new() };
    for (stage, of) in pipeline.stages.iter().enumerate() {
        for _ in 0..of.max_replicas {
            match used.next(pipeline, fleet, stage) {
                Some(replica) => placement.replicas[stage].push(replica),
                None => break,
            }
        }
        if placement.replicas[stage].is_empty() {
            // A stage that has no place at all has a better reason.
            let reason = "all that it could run on is taken by the stages before it";
            let taken = Unplaceable::stage(&of.name, reason);
            return Err(unplaceable(pipeline, fleet).unwrap_or(taken));
        }
    }
    Ok(placement)
}

/// Puts all stages on the best of the nodes that can hold one replica of each.
pub(super) fn on_one_node(pipeline: &Pipeline, fleet: &Fleet) -> Result<Plan, Unplaceable> {
    let mut single = pipeline.clone();
    single.stages.iter_mut().for_each(|stage| stage.max_replicas = 1);
    let steps = (STEPS / fleet.nodes.len().max(1) as u64).max(LEAST_STEPS);
    let mut best: Option<Plan> = None;
    for position in 0..fleet.nodes.len() {
        let alone = Fleet { nodes: vec![fleet.nodes[position].clone()], ..*fleet };
        let Ok(mut plan) = searched(&single, &alone, Layout::Pod, Effort { steps }) else {
            continue;
        };
        plan.placement.replicas.iter_mut().flatten().for_each(|replica| replica.node = position);
        if let Some((runner_up, _)) = &mut plan.runner_up {
            runner_up.replicas.iter_mut().flatten().for_each(|replica| replica.node = position);
        }
        if best.as_ref().is_none_or(|best| plan.worth.is_above(best.worth)) {
            best = Some(plan);
        }
    }
    let reason = "no node has the devices, CPUs and memory for all stages at once";
    best.ok_or_else(|| unplaceable(pipeline, fleet).unwrap_or_else(|| Unplaceable::one_pod(reason)))
}

/// Capacity and devices of the stages before.
struct Used {
    taken: Vec<Capacity>,
    devices: Vec<(usize, usize)>,
}

// === impl Used ===

impl Used {
    /// Takes a place for a replica.
    fn next(&mut self, pipeline: &Pipeline, fleet: &Fleet, stage: usize) -> Option<Replica> {
        let of = &pipeline.stages[stage];
        for (alternative, one) in of.alternatives.iter().enumerate() {
            let admitting = (0..fleet.nodes.len()).filter(|node| fleet.nodes[*node].admits(of));
            let mut nodes: Vec<_> = admitting.collect();
            // The sort is stable: of equals the first.
            nodes.sort_by(|a, b| self.free_share(fleet, *b).total_cmp(&self.free_share(fleet, *a)));
            for node in nodes {
                if !fleet.nodes[node].free.has_room(self.taken[node], one.request) {
                    continue;
                }
                let is_free = |device: &Option<usize>| {
                    device.is_none_or(|device| !self.devices.contains(&(node, device)))
                };
                let Some(device) = fleet.nodes[node].serving(&one.device).find(is_free) else {
                    continue;
                };
                self.taken[node] += one.request;
                self.devices.extend(device.map(|device| (node, device)));
                return Some(Replica { node, alternative, device });
            }
        }
        None
    }

    fn free_share(&self, fleet: &Fleet, node: usize) -> f64 {
        let (free, taken) = (fleet.nodes[node].free, self.taken[node]);
        #[expect(clippy::cast_precision_loss, reason = "a share of memory")]
        let memory = (taken.memory.0 as f64, free.memory.0 as f64);
        let share = |(taken, all): (f64, f64)| if all > 0.0 { 1.0 - taken / all } else { 0.0 };
        f64::midpoint(share((taken.cpus, free.cpus)), share(memory))
    }
}
