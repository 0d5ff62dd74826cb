//! `GetPreferredAllocation`: which of the free devices, or replicas, go best together.
//!
//! The kubelet's list may be older than ours. Of what it calls available, ids that nobody knows and
//! devices that cannot be allocated now are left out, for as long as enough remains. What it requires
//! is another matter: Allocate would refuse the pod for it, so it is refused here, with the same words.
//!
//! Each resource is asked about by itself. What the container got of other resources a moment ago is known
//! from [`super::company`]; the choice is near that.

mod devices;
mod replicas;
mod tokens;

use tokio::time::Instant;
use windlass_config::Sharing;
use windlass_core::{device::DeviceId, placement::Policy};
use windlass_host::{Roots, abbreviate::first_few, presence};
use windlass_kubelet_api::deviceplugin::{
    ContainerPreferredAllocationRequest, ContainerPreferredAllocationResponse,
};
use windlass_resources::{
    NodeState,
    offers::{Offer, OfferedDevice},
};

use super::{
    super::wire::{LeftOut, Refusal},
    LOGGED, Service,
};
use crate::history::{Among, Remembered};

/// One container's question, and what is known of its resource.
struct Question<'a> {
    resource: String,
    state: &'a NodeState,
    offer: &'a Offer,
    roots: &'a Roots,
    policy: Policy,
    request: &'a ContainerPreferredAllocationRequest,
    /// Devices that the same container seems to have got a moment ago.
    near: Vec<DeviceId>,
}

/// Its answer, and what is told of it.
pub(super) struct Preferred {
    ids: Vec<String>,
    policy: Policy,
    why: String,
    steps: u64,
    exact: bool,
    /// `None` where there was nothing to choose.
    among: Option<Among>,
}

impl Service {
    pub(super) fn prefer(
        &self,
        state: &NodeState,
        request: &ContainerPreferredAllocationRequest,
    ) -> Result<Preferred, Refusal> {
        let (offer, required) = (self.offer(state), &request.must_include_device_i_ds);
        self.check_known(&offer, required)?;
        for id in required {
            self.allocatable(state, &offer, id)?;
        }
        let policy = state.placement(&self.resource);
        let (resource, near) = (self.name(), self.neighbours(state));
        let roots = &self.roots;
        let question = Question { resource, state, offer: &offer, roots, policy, request, near };
        match offer.sharing() {
            Sharing::Exclusive => question.among_devices(),
            Sharing::Shared(shared) => question.among_replicas(shared),
            Sharing::Pooled(_) => question.among_tokens(),
        }
    }

    /// What the same container seems to have got of other resources, as far as it is here.
    fn neighbours(&self, state: &NodeState) -> Vec<DeviceId> {
        let company = self.company.step(|it| it.clone());
        let beside = company.beside(&self.resource, Instant::now());
        let present = beside.filter(|id| state.topology.position(id.as_str()).is_some());
        present.cloned().collect()
    }

    /// Tells of the answer, and gives it as the kubelet takes it.
    pub(super) fn answer(&self, preferred: Preferred) -> ContainerPreferredAllocationResponse {
        let Preferred { ids, policy, why, steps, exact, among } = preferred;
        tracing::info!(
            resource = self.resource.as_str(),
            devices = first_few(&ids, LOGGED),
            policy = policy.name(),
            why,
            steps,
            exact,
            "preferred"
        );
        self.placements.chosen(exact);
        let (resource, size) = (self.resource.clone(), ids.len());
        if let Some(among) = among {
            self.choices.tell(|at| Remembered { at, resource, policy, size, exact, among });
        }
        ContainerPreferredAllocationResponse { device_i_ds: ids }
    }
}

// === impl Question ===

impl Question<'_> {
    fn size(&self) -> usize {
        usize::try_from(self.request.allocation_size).unwrap_or(0)
    }

    /// Why Allocate would refuse a device, if it would: its nodes may be gone since the last look.
    fn obstacle(&self, id: &DeviceId, device: &OfferedDevice) -> Option<String> {
        if let Some(why) = device.state.obstacle() {
            return Some(why.to_owned());
        }
        let Some(there) = self.state.inventory.get(id.as_str()) else {
            return Some("no longer on this node".to_owned());
        };
        presence::check(self.roots, &there.nodes).err().map(|absence| absence.to_string())
    }

    fn is_open(&self, id: &DeviceId, device: &OfferedDevice) -> bool {
        self.obstacle(id, device).is_none()
    }

    /// Those of the devices that Allocate would refuse.
    fn left_out<'a>(
        &self,
        devices: impl Iterator<Item = (&'a DeviceId, &'a OfferedDevice)>,
    ) -> LeftOut {
        LeftOut::new(
            devices.filter_map(|(id, device)| Some((id.clone(), self.obstacle(id, device)?))),
        )
    }

    /// Why, and what the chosen were to be near to.
    fn told(&self, why: &impl std::fmt::Display) -> String {
        let near: Vec<_> = self.near.iter().map(DeviceId::as_str).collect();
        match near.as_slice() {
            [] => why.to_string(),
            near => format!("{why}, near {}", near.join(" ")),
        }
    }
}
