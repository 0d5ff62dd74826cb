//! Devices that may not serve a request: too small alone, or on another NUMA node.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use super::{Pool, ShareError, Topology};

/// The devices that have enough by themselves; where replicas are required, the one that has these.
pub(super) fn that_suffice_alone(
    mut pools: Vec<Pool>,
    size: usize,
) -> Result<Vec<Pool>, ShareError> {
    match pools.iter().filter(|pool| pool.is_held()).count() {
        0 => {}
        1 => pools.retain(Pool::is_held),
        several => return Err(ShareError::RequiredOnSeveral(several)),
    }
    let most = pools.iter().map(Pool::available).max().unwrap_or_default();
    pools.retain(|pool| pool.available() >= size);
    if pools.is_empty() { Err(ShareError::TooFewOnOne { size, most }) } else { Ok(pools) }
}

/// The devices of the NUMA node that has the most left, of those that have the required replicas. Where
/// the machine tells no node it is taken for one; where it tells some, a device whose node it does not tell
/// is on one of its own.
pub(super) fn of_one_node(
    topology: &Topology,
    mut pools: Vec<Pool>,
    size: usize,
) -> Result<Vec<Pool>, ShareError> {
    let told = |pool: &Pool| topology.spot(pool.at).numa_node;
    let tells_some = pools.iter().any(|pool| told(pool).is_some());
    let node_of =
        |pool: &Pool| (told(pool), (tells_some && told(pool).is_none()).then_some(pool.at));
    let mut left = BTreeMap::new();
    for pool in &pools {
        *left.entry(node_of(pool)).or_insert(0) += pool.available();
    }
    let held: BTreeSet<_> = pools.iter().filter(|pool| pool.is_held()).map(node_of).collect();
    if held.len() > 1 {
        return Err(ShareError::RequiredOnNodes);
    }
    left.retain(|node, _| held.iter().all(|held| held == node));
    let best = left.into_iter().max_by_key(|(node, left)| (*left, Reverse(*node)));
    let (node, most) = best.unwrap_or_default();
    if most < size {
        return Err(ShareError::NoNumaNode { size, most });
    }
    pools.retain(|pool| node_of(pool) == node);
    Ok(pools)
}
