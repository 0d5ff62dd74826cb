//! Pairing of chosen GPUs with chosen NICs.

use super::{
    junctions::{JunctionPath, Junctions, LEVELS},
    loads::Loads,
};

/// Pairs as (GPU, NIC) positions, ascending. Pairs at the nearest junctions are formed first.
pub(super) fn pairs(junctions: &Junctions, gpus: &[usize], nics: &[usize]) -> Vec<(usize, usize)> {
    let loads = Loads::of(gpus.len(), nics.len());
    let gpus_are_larger_kind = gpus.len() >= nics.len();
    let (larger_kind, smaller_kind) =
        if gpus_are_larger_kind { (gpus, nics) } else { (nics, gpus) };
    let mut capacities = pair_counts(junctions, loads, larger_kind, smaller_kind);
    let mut unpaired = larger_kind.to_vec();
    let mut pairs = Vec::with_capacity(loads.pairs);
    let levels = (0..LEVELS.len()).rev().map(Some);
    for level in levels.chain([None]) {
        unpaired.retain(|&device| {
            let mut candidates = smaller_kind.iter().zip(&mut capacities);
            let is_near = |partner_device: usize| {
                level.is_none_or(|level| junctions.share_junction(device, partner_device, level))
            };
            let partner = candidates
                .find(|(partner_device, capacity)| **capacity > 0 && is_near(**partner_device));
            let Some((&partner_device, capacity)) = partner else { return true };
            *capacity -= 1;
            pairs.push(if gpus_are_larger_kind {
                (device, partner_device)
            } else {
                (partner_device, device)
            });
            false
        });
    }
    pairs.sort_unstable();
    pairs
}

/// Pair count of each device of the less numerous kind.
fn pair_counts(
    junctions: &Junctions,
    loads: Loads,
    larger_kind: &[usize],
    smaller_kind: &[usize],
) -> Vec<usize> {
    let paths: Vec<_> =
        smaller_kind.iter().map(|&position| junctions.path(position).clone()).collect();
    let min_load = loads.pairs / smaller_kind.len();
    let mut slots: Vec<_> =
        junctions.count(smaller_kind).into_iter().map(|count| count * min_load).collect();
    let mut spare = vec![1; smaller_kind.len()];
    distribute_extra(&paths, &mut spare, &junctions.count(larger_kind), &mut slots, loads.extra);
    spare.into_iter().map(|spare| min_load + 1 - spare).collect()
}

/// Distributes the extra pairs: `spare[i]` of the devices with the junctions `paths[i]` may take one each. For each
/// junction, `more` has the number of devices of the more numerous kind, and `slots` the number of pairs of the other
/// kind.
///
/// Greedy: each extra pair goes to the device where it shortens a pair at the farthest level, then at nearer levels.
/// Greedy is optimal: each further slot of a junction gains at most as much as the one before, and junctions are nested
/// (laminar concave functions).
pub(super) fn distribute_extra(
    paths: &[JunctionPath],
    spare: &mut [usize],
    more: &[usize],
    slots: &mut [usize],
    extra: usize,
) {
    for _ in 0..extra {
        let gain = |path: &JunctionPath| {
            let gains =
                path.iter().enumerate().filter(|&(_, &junction)| more[junction] > slots[junction]);
            gains.fold(0_u32, |sum, (level, _)| sum | 1 << (LEVELS.len() - level))
        };
        let with_spare = (0..paths.len()).filter(|&index| spare[index] > 0).rev();
        let best = with_spare
            .max_by_key(|&index| gain(&paths[index]))
            .expect("fewer extra pairs than devices");
        spare[best] -= 1;
        paths[best].iter().for_each(|&junction| slots[junction] += 1);
    }
}
