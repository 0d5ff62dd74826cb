//! Restrictions of the candidates: a single device, or one NUMA node.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use super::{Pool, ShareError, Topology};

/// Candidates that can each serve the whole request. With required replicas, only their device can.
pub(super) fn restrict_to_one_device(
    mut pools: Vec<Pool>,
    size: usize,
) -> Result<Vec<Pool>, ShareError> {
    match pools.iter().filter(|pool| pool.has_chosen()).count() {
        0 => {}
        1 => pools.retain(Pool::has_chosen),
        several => return Err(ShareError::RequiredOnSeveralDevices(several)),
    }
    let available = pools.iter().map(Pool::available).max().unwrap_or_default();
    pools.retain(|pool| pool.available() >= size);
    if pools.is_empty() {
        Err(ShareError::TooFewOnOneDevice { size, available })
    } else {
        Ok(pools)
    }
}

/// Candidates of one NUMA node: the node with the required replicas, or else the node with the most available replicas.
///
/// If no node is known, all devices count as on one node. Otherwise each device without a known node counts as on
/// a node of its own.
pub(super) fn restrict_to_one_node(
    topology: &Topology,
    mut pools: Vec<Pool>,
    size: usize,
) -> Result<Vec<Pool>, ShareError> {
    let numa_node = |pool: &Pool| topology.device(pool.position).numa_node;
    let is_any_known = pools.iter().any(|pool| numa_node(pool).is_some());
    let node_of = |pool: &Pool| {
        (numa_node(pool), (is_any_known && numa_node(pool).is_none()).then_some(pool.position))
    };
    let mut available_by_node = BTreeMap::new();
    for pool in &pools {
        *available_by_node.entry(node_of(pool)).or_insert(0) += pool.available();
    }
    let required_nodes: BTreeSet<_> =
        pools.iter().filter(|pool| pool.has_chosen()).map(node_of).collect();
    if required_nodes.len() > 1 {
        return Err(ShareError::RequiredOnSeveralNumaNodes);
    }
    available_by_node.retain(|node, _| required_nodes.iter().all(|required| required == node));
    let best =
        available_by_node.into_iter().max_by_key(|(node, available)| (*available, Reverse(*node)));
    let (node, available) = best.unwrap_or_default();
    if available < size {
        return Err(ShareError::NoNumaNode { size, available });
    }
    pools.retain(|pool| node_of(pool) == node);
    Ok(pools)
}
