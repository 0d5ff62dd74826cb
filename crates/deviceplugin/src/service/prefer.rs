//! `GetPreferredAllocation`: the best set among the free devices or replicas.
//!
//! The kubelet's list may be stale. Available ids that are unknown or not allocatable are excluded, as long as enough
//! remain. A required id that Allocate would refuse is refused here, with the same message.
//!
//! The kubelet requests each resource separately. [`super::same_container`] guesses the container's devices of other
//! resources, and placement prefers devices near them.

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
    super::wire::{Excluded, Refusal},
    MAX_LOGGED_IDS, Service,
};
use crate::history::{Candidates, RecordedChoice};

/// Request of one container with the state of its resource.
struct PreferenceRequest<'a> {
    resource: String,
    state: &'a NodeState,
    offer: &'a Offer,
    roots: &'a Roots,
    policy: Policy,
    request: &'a ContainerPreferredAllocationRequest,
    /// Devices of other resources that the same container probably has.
    near: Vec<DeviceId>,
}

/// Chosen ids with the reason.
pub(super) struct Preference {
    ids: Vec<String>,
    policy: Policy,
    reason: String,
    steps: u64,
    exact: bool,
    /// Record for the history; `None` if placement compared no sets.
    candidates: Option<Candidates>,
}

impl Service {
    pub(super) fn prefer(
        &self,
        state: &NodeState,
        request: &ContainerPreferredAllocationRequest,
    ) -> Result<Preference, Refusal> {
        let (offer, required) = (self.offer(state), &request.must_include_device_i_ds);
        self.check_known(&offer, required)?;
        if !offer.counts_shares() {
            for id in required {
                self.allocatable(state, &offer, id)?;
            }
        }
        let policy = state.placement(&self.resource);
        let preference_request = PreferenceRequest {
            resource: self.name(),
            state,
            offer: &offer,
            roots: &self.roots,
            policy,
            request,
            near: self.near(state),
        };
        if offer.counts_shares() {
            return preference_request.prefer_tokens();
        }
        match offer.sharing() {
            Sharing::Exclusive => {
                let sets = self.decisions.borrow().clone();
                let preference = preference_request.decided_preference(&sets);
                preference.map_or_else(|| preference_request.prefer_devices(), Ok)
            }
            Sharing::Shared(shared) => preference_request.prefer_replicas(shared),
            Sharing::Pooled(_) => preference_request.prefer_tokens(),
        }
    }

    /// Devices on this node that the same container probably has.
    fn near(&self, state: &NodeState) -> Vec<DeviceId> {
        let recent = self.recent.with_lock(|recent| recent.clone());
        recent
            .other_devices(&self.resource, Instant::now())
            .filter(|id| state.topology.position(id.as_str()).is_some())
            .cloned()
            .collect()
    }

    /// Logs and records the choice, and converts it for the kubelet.
    pub(super) fn record_response(
        &self,
        preference: Preference,
    ) -> ContainerPreferredAllocationResponse {
        let Preference { ids, policy, reason, steps, exact, candidates } = preference;
        tracing::info!(
            resource = self.resource.as_str(),
            devices = first_few(&ids, MAX_LOGGED_IDS),
            policy = policy.name(),
            why = reason,
            steps,
            exact,
            "preferred"
        );
        self.placements.count_choice(exact);
        let (resource, size) = (self.resource.clone(), ids.len());
        if let Some(candidates) = candidates {
            self.choices.send(|at| RecordedChoice {
                at,
                resource,
                policy,
                size,
                exact,
                candidates,
            });
        }
        ContainerPreferredAllocationResponse { device_i_ds: ids }
    }
}

// === impl PreferenceRequest ===

impl PreferenceRequest<'_> {
    fn size(&self) -> usize {
        usize::try_from(self.request.allocation_size).unwrap_or(0)
    }

    /// Reason why Allocate would refuse the device. Its nodes may have vanished since the last scan.
    fn obstacle(&self, id: &DeviceId, device: &OfferedDevice) -> Option<String> {
        if let Some(reason) = device.state.obstacle() {
            return Some(reason.to_owned());
        }
        let Some(device) = self.state.inventory.get(id.as_str()) else {
            return Some("no longer on this node".to_owned());
        };
        presence::check(self.roots, &device.nodes).err().map(|absence| absence.to_string())
    }

    fn is_allocatable(&self, id: &DeviceId, device: &OfferedDevice) -> bool {
        self.obstacle(id, device).is_none()
    }

    /// Devices that Allocate would refuse.
    fn exclusions<'a>(
        &self,
        devices: impl Iterator<Item = (&'a DeviceId, &'a OfferedDevice)>,
    ) -> Excluded {
        let exclusions =
            devices.filter_map(|(id, device)| Some((id.clone(), self.obstacle(id, device)?)));
        Excluded(exclusions.collect())
    }

    /// The reason, with the devices to be near.
    fn explain(&self, reason: &impl std::fmt::Display) -> String {
        let near: Vec<_> = self.near.iter().map(DeviceId::as_str).collect();
        match near.as_slice() {
            [] => reason.to_string(),
            near => format!("{reason}, near {}", near.join(" ")),
        }
    }
}
