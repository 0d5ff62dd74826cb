//! Why a choice of replicas is what it is: what each device has, and whose turn would be next.

use serde::Serialize;

use super::{ShareChoice, ShareError, ShareRequest, Topology, filled, pools};
use crate::device::DeviceId;

/// A choice of replicas, and what it was made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ShareExplanation {
    /// The answer.
    pub choice: ShareChoice,
    /// Every device that could give replicas, in the inventory's order.
    pub devices: Vec<ShareState>,
    /// Where one more replica would have come from; `None` where nothing is left.
    pub next: Option<Next>,
}

/// A shared device before and after a choice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ShareState {
    /// The device.
    pub device: DeviceId,
    /// Replicas that other containers hold.
    pub in_use: usize,
    /// Replicas that could be chosen.
    pub free: usize,
    /// Replicas that were chosen.
    pub chosen: usize,
}

/// The device that came off second.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Next {
    /// The device.
    pub device: DeviceId,
    /// How many devices are its equals for the policy, itself included; of these the connections decide,
    /// then the position.
    pub equals: usize,
}

/// Chooses as [`super::choose`] does, and tells what it was chosen from.
pub fn explain(
    topology: &Topology,
    request: ShareRequest<'_>,
) -> Result<ShareExplanation, ShareError> {
    let mut filling = filled(topology, request)?;
    let choice = ShareChoice::of(&filling);
    let state = |pool: &super::Pool| {
        let of_pool = filling.pools.iter().find(|filled| filled.at == pool.at);
        ShareState {
            device: topology.id(pool.at).clone(),
            in_use: pool.in_use,
            free: pool.free.len(),
            chosen: of_pool.map_or(0, super::Pool::chosen),
        }
    };
    let devices = pools(topology, request.devices).iter().map(state).collect();
    let equals = filling.whose_turn();
    let count = equals.len();
    let next = filling
        .best_connected(equals, 1)
        .first()
        .map(|&place| Next { device: topology.id(filling.pools[place].at).clone(), equals: count });
    Ok(ShareExplanation { choice, devices, next })
}
