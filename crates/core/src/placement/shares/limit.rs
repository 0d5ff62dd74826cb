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
/// the machine tells no node it is taken for one.
pub(super) fn of_one_node(
    topology: &Topology,
    mut pools: Vec<Pool>,
    size: usize,
) -> Result<Vec<Pool>, ShareError> {
    let node_of = |pool: &Pool| topology.spot(pool.at).numa_node;
    let mut left: BTreeMap<Option<u32>, usize> = BTreeMap::new();
    for pool in &pools {
        *left.entry(node_of(pool)).or_default() += pool.available();
    }
    let untold = left.len() == 1;
    let held: BTreeSet<_> = pools.iter().filter(|pool| pool.is_held()).map(node_of).collect();
    left.retain(|node, _| (untold || node.is_some()) && held.iter().all(|held| held == node));
    let best = left.into_iter().max_by_key(|(node, left)| (*left, Reverse(*node)));
    let (node, most) = best.unwrap_or_default();
    if most < size {
        return Err(ShareError::NoNumaNode { size, most });
    }
    pools.retain(|pool| node_of(pool) == node);
    Ok(pools)
}
