//! Which GPU goes with which NIC, once both are chosen.

use super::{
    junctions::{Junctions, Path, RUNGS},
    loads::Loads,
};

/// Pairs, by the positions of GPU and NIC, ascending: those that meet at the nearest junctions first.
pub(super) fn pairs(
    junctions: &Junctions,
    (gpus, nics): (&[usize], &[usize]),
) -> Vec<(usize, usize)> {
    let loads = Loads::of(gpus.len(), nics.len());
    let gpus_are_more = gpus.len() >= nics.len();
    let (more, fewer) = if gpus_are_more { (gpus, nics) } else { (nics, gpus) };
    let mut room = room(junctions, loads, (more, fewer));
    let mut open = more.to_vec();
    let mut pairs = Vec::with_capacity(loads.pairs);
    let rungs = (0..RUNGS.len()).rev().map(Some);
    for rung in rungs.chain([None]) {
        open.retain(|&one| {
            let mut others = fewer.iter().zip(&mut room);
            let meet = |other: usize| rung.is_none_or(|rung| junctions.meet(one, other, rung));
            let partner = others.find(|(other, room)| **room > 0 && meet(**other));
            let Some((&other, room)) = partner else { return true };
            *room -= 1;
            pairs.push(if gpus_are_more { (one, other) } else { (other, one) });
            false
        });
    }
    pairs.sort_unstable();
    pairs
}

/// How many pairs each of the fewer devices is in.
fn room(junctions: &Junctions, loads: Loads, (more, fewer): (&[usize], &[usize])) -> Vec<usize> {
    let paths: Vec<_> = fewer.iter().map(|&at| junctions.path(at).clone()).collect();
    let least = loads.pairs / fewer.len();
    let mut slots: Vec<_> = junctions.count(fewer).into_iter().map(|here| here * least).collect();
    let mut spare = vec![1; fewer.len()];
    give_extra(&paths, &mut spare, &junctions.count(more), &mut slots, loads.extra);
    spare.into_iter().map(|spare| least + 1 - spare).collect()
}

/// Lets some of the fewer devices be in one pair more: `spare[n]` of those at `paths[n]` may.
///
/// Each goes where it lets a pair meet at the farthest level at which one is still kept from it, and at
/// the most levels below. What a slot more brings to a junction is never more than the one before it
/// brought, and junctions are nested: for such functions (laminar concave, as they are called) taking
/// the best one at a time ends with the best of all.
pub(super) fn give_extra(
    paths: &[Path],
    spare: &mut [usize],
    more: &[usize],
    slots: &mut [usize],
    extra: usize,
) {
    for _ in 0..extra {
        let gain = |path: &Path| {
            let gains = path.iter().enumerate().filter(|&(_, &at)| more[at] > slots[at]);
            gains.fold(0_u32, |sum, (rung, _)| sum | 1 << (RUNGS.len() - rung))
        };
        let open = (0..paths.len()).filter(|&nth| spare[nth] > 0).rev();
        let best =
            open.max_by_key(|&nth| gain(&paths[nth])).expect("fewer are extra than there are");
        spare[best] -= 1;
        paths[best].iter().for_each(|&at| slots[at] += 1);
    }
}
