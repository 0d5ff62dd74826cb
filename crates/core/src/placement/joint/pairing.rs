//! Pairing of chosen GPUs with chosen NICs.

use super::{
    junctions::{JunctionPath, Junctions, LEVELS},
    loads::Loads,
};

/// Pairs as (GPU, NIC) positions, ascending. Pairs at the nearest junctions are formed first.
pub(super) fn pairs(junctions: &Junctions, gpus: &[usize], nics: &[usize]) -> Vec<(usize, usize)> {
    let loads = Loads::of(gpus.len(), nics.len());
    let gpus_are_more = gpus.len() >= nics.len();
    let (more, fewer) = if gpus_are_more { (gpus, nics) } else { (nics, gpus) };
    let mut capacity = capacity(junctions, loads, more, fewer);
    let mut open = more.to_vec();
    let mut pairs = Vec::with_capacity(loads.pairs);
    let levels = (0..LEVELS.len()).rev().map(Some);
    for level in levels.chain([None]) {
        open.retain(|&one| {
            let mut others = fewer.iter().zip(&mut capacity);
            let meet = |other: usize| level.is_none_or(|level| junctions.meet(one, other, level));
            let partner = others.find(|(other, capacity)| **capacity > 0 && meet(**other));
            let Some((&other, capacity)) = partner else { return true };
            *capacity -= 1;
            pairs.push(if gpus_are_more { (one, other) } else { (other, one) });
            false
        });
    }
    pairs.sort_unstable();
    pairs
}

/// Pair count of each device of the less numerous kind.
fn capacity(junctions: &Junctions, loads: Loads, more: &[usize], fewer: &[usize]) -> Vec<usize> {
    let paths: Vec<_> = fewer.iter().map(|&at| junctions.path(at).clone()).collect();
    let least = loads.pairs / fewer.len();
    let mut slots: Vec<_> = junctions.count(fewer).into_iter().map(|here| here * least).collect();
    let mut spare = vec![1; fewer.len()];
    give_extra(&paths, &mut spare, &junctions.count(more), &mut slots, loads.extra);
    spare.into_iter().map(|spare| least + 1 - spare).collect()
}

/// Distributes the extra pairs: `spare[n]` of the devices at `paths[n]` may take one. Per junction, `more` is the
/// number of devices of the more numerous kind, and `slots` the number of pairs of the other kind.
///
/// Greedy: each extra pair goes to the device where it shortens a pair at the farthest level, then at nearer levels.
/// Greedy is optimal, since each further slot of a junction gains at most as much as the last one, and junctions are
/// nested (laminar concave functions).
pub(super) fn give_extra(
    paths: &[JunctionPath],
    spare: &mut [usize],
    more: &[usize],
    slots: &mut [usize],
    extra: usize,
) {
    for _ in 0..extra {
        let gain = |path: &JunctionPath| {
            let gains = path.iter().enumerate().filter(|&(_, &at)| more[at] > slots[at]);
            gains.fold(0_u32, |sum, (level, _)| sum | 1 << (LEVELS.len() - level))
        };
        let open = (0..paths.len()).filter(|&nth| spare[nth] > 0).rev();
        let best =
            open.max_by_key(|&nth| gain(&paths[nth])).expect("fewer extra pairs than devices");
        spare[best] -= 1;
        paths[best].iter().for_each(|&at| slots[at] += 1);
    }
}
