//! Explanation of a replica choice: candidates before and after, and the next device.

use serde::Serialize;

use super::{ShareChoice, ShareError, ShareRequest, Topology, filled, pools};
use crate::device::DeviceId;

/// A choice of replicas with its candidates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ShareExplanation {
    /// The answer.
    pub choice: ShareChoice,
    /// All candidates, in the inventory's order.
    pub devices: Vec<ShareState>,
    /// Device of one further replica; `None` if none is free.
    pub next: Option<NextDevice>,
}

/// A candidate with its replicas.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ShareState {
    /// The device.
    pub device: DeviceId,
    /// Replicas that other containers hold.
    pub in_use: usize,
    /// Free replicas before the choice.
    pub free: usize,
    /// Chosen replicas.
    pub chosen: usize,
}

/// Device that would give the next replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NextDevice {
    /// The device.
    pub device: DeviceId,
    /// Number of devices that the policy ranks equal, itself included. Connections, then positions break the
    /// tie.
    pub equals: usize,
}

/// Chooses as [`super::choose`] does, and returns the candidates too.
pub fn explain(
    topology: &Topology,
    request: ShareRequest<'_>,
) -> Result<ShareExplanation, ShareError> {
    let mut fill_state = filled(topology, request)?;
    let choice = ShareChoice::of(&fill_state);
    let state = |pool: &super::Pool| {
        let filled_pool = fill_state.pools.iter().find(|filled| filled.position == pool.position);
        ShareState {
            device: topology.id(pool.position).clone(),
            in_use: pool.in_use,
            free: pool.free.len(),
            chosen: filled_pool.map_or(0, super::Pool::chosen),
        }
    };
    let devices = pools(topology, request.devices).iter().map(state).collect();
    let tied = fill_state.next_devices();
    let tied_count = tied.len();
    let next = fill_state.best_connected(tied, 1).first().map(|&index| NextDevice {
        device: topology.id(fill_state.pools[index].position).clone(),
        equals: tied_count,
    });
    Ok(ShareExplanation { choice, devices, next })
}
