//! Replicas of a node that failed, placed anew; the others stay where they are.

use super::{Unplaceable, worth};
use crate::{
    fleet::Fleet,
    pipeline::Pipeline,
    placement::{Placement, Replica},
};

/// Moves the replicas of a node to where the goal is served best, one after the other.
///
/// # Errors
///
/// A replica fits on no other node.
pub fn replaced(
    pipeline: &Pipeline,
    fleet: &Fleet,
    placement: &Placement,
    failed: usize,
) -> Result<Placement, Unplaceable> {
    let mut placement = placement.clone();
    for stage in 0..pipeline.stages.len() {
        for position in 0..placement.replicas[stage].len() {
            if placement.replicas[stage][position].node == failed {
                placement = moved(pipeline, fleet, &placement, (stage, position), failed)?;
            }
        }
    }
    Ok(placement)
}

/// The best place of one replica, with all others where they are.
fn moved(
    pipeline: &Pipeline,
    fleet: &Fleet,
    placement: &Placement,
    (stage, position): (usize, usize),
    failed: usize,
) -> Result<Placement, Unplaceable> {
    let mut best: Option<(_, Placement)> = None;
    for place in places(pipeline, fleet, stage).filter(|place| place.node != failed) {
        let mut other = placement.clone();
        other.replicas[stage][position] = place;
        if !other.conflicts(pipeline, fleet).is_empty() {
            continue;
        }
        let worth = worth(pipeline, fleet, &other);
        if best.as_ref().is_none_or(|(best, _)| worth.is_above(*best)) {
            best = Some((worth, other));
        }
    }
    let reason = || format!("no node but {} has room for it", fleet.nodes[failed].name);
    let name = &pipeline.stages[stage].name;
    best.map(|(_, placement)| placement).ok_or_else(|| Unplaceable::stage(name, reason()))
}

/// All places of a replica, whether or not they are taken.
fn places<'a>(
    pipeline: &'a Pipeline,
    fleet: &'a Fleet,
    stage: usize,
) -> impl Iterator<Item = Replica> + 'a {
    let of = &pipeline.stages[stage];
    of.alternatives.iter().enumerate().flat_map(move |(alternative, one)| {
        let nodes = fleet.nodes.iter().enumerate().filter(|(_, node)| node.admits(of));
        nodes.flat_map(move |(position, node)| {
            node.serving(&one.device).map(move |device| Replica {
                node: position,
                alternative,
                device,
            })
        })
    })
}
