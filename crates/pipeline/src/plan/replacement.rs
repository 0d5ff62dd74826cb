//! Placement after a node failure: replicas of the failed node move, all others stay.

use super::{Unplaceable, objective_value};
use crate::{
    fleet::Fleet,
    pipeline::Pipeline,
    placement::{Placement, Replica},
};

/// Moves the replicas of the failed node, one after the other, each to the place with the best objective value.
///
/// # Errors
///
/// A replica fits on no other node.
pub fn move_off_node(
    pipeline: &Pipeline,
    fleet: &Fleet,
    placement: &Placement,
    failed_node: usize,
) -> Result<Placement, Unplaceable> {
    let mut placement = placement.clone();
    for stage in 0..pipeline.stages.len() {
        for position in 0..placement.replicas[stage].len() {
            if placement.replicas[stage][position].node == failed_node {
                placement =
                    move_replica(pipeline, fleet, &placement, (stage, position), failed_node)?;
            }
        }
    }
    Ok(placement)
}

/// Moves one replica to its best place while all others stay.
fn move_replica(
    pipeline: &Pipeline,
    fleet: &Fleet,
    placement: &Placement,
    (stage, position): (usize, usize),
    failed_node: usize,
) -> Result<Placement, Unplaceable> {
    let mut best: Option<(_, Placement)> = None;
    for place in places(pipeline, fleet, stage).filter(|place| place.node != failed_node) {
        let mut candidate = placement.clone();
        candidate.replicas[stage][position] = place;
        if !candidate.conflicts(pipeline, fleet).is_empty() {
            continue;
        }
        let objective = objective_value(pipeline, fleet, &candidate);
        if best.as_ref().is_none_or(|(best, _)| objective.is_above(*best)) {
            best = Some((objective, candidate));
        }
    }
    let reason = || format!("no node but {} has room for it", fleet.nodes[failed_node].name);
    let name = &pipeline.stages[stage].name;
    best.map(|(_, placement)| placement).ok_or_else(|| Unplaceable::stage(name, reason()))
}

/// All places of a replica, including the occupied ones.
fn places<'a>(
    pipeline: &'a Pipeline,
    fleet: &'a Fleet,
    stage: usize,
) -> impl Iterator<Item = Replica> + 'a {
    let stage = &pipeline.stages[stage];
    stage.alternatives.iter().enumerate().flat_map(move |(alternative, option)| {
        let nodes = fleet.nodes.iter().enumerate().filter(|(_, node)| node.admits(stage));
        nodes.flat_map(move |(position, node)| {
            node.candidate_devices(&option.device).map(move |device| Replica {
                node: position,
                alternative,
                device,
            })
        })
    })
}
