//! `GetPreferredAllocation`: which of the free devices, or replicas, go best together.

use std::collections::BTreeMap;

use windlass_core::{
    placement::{
        self, Policy,
        shares::{self, ShareRequest, SharedDevice, Span},
    },
    replica::ReplicaId,
};
use windlass_kubelet_api::deviceplugin::{
    ContainerPreferredAllocationRequest, ContainerPreferredAllocationResponse,
};

use super::{super::wire::Refusal, Service};
use crate::{
    config::{Shared, SharingMethod, Spread},
    offer::Offer,
    state::NodeState,
};

impl Service {
    pub(super) fn prefer(
        &self,
        state: &NodeState,
        request: &ContainerPreferredAllocationRequest,
    ) -> Result<ContainerPreferredAllocationResponse, Refusal> {
        let offer = self.offer(state);
        let device_i_ds = match offer.shared() {
            None => self.prefer_devices(state, request)?,
            Some(shared) => self.prefer_replicas(state, &offer, shared, request)?,
        };
        Ok(ContainerPreferredAllocationResponse { device_i_ds })
    }

    /// A preference is a hint: ids that are not known are no reason to refuse the pod.
    fn prefer_devices(
        &self,
        state: &NodeState,
        request: &ContainerPreferredAllocationRequest,
    ) -> Result<Vec<String>, Refusal> {
        let available: Vec<_> = request.available_device_i_ds.iter().map(String::as_str).collect();
        let required: Vec<_> =
            request.must_include_device_i_ds.iter().map(String::as_str).collect();
        let question = placement::Request {
            available: &available,
            required: &required,
            near: &[],
            size: size(request),
            policy: Policy::Aligned,
        };
        let choice = placement::choose(&state.topology, question)
            .map_err(|source| Refusal::Placement { resource: self.name(), source })?;
        let chosen: Vec<_> = choice.devices.iter().map(ToString::to_string).collect();
        tracing::info!(
            resource = self.resource.as_str(),
            devices = chosen.join(" "),
            why = choice.connections.to_string(),
            steps = choice.steps,
            exact = choice.exact,
            "preferred"
        );
        Ok(chosen)
    }

    /// How many replicas of a device other containers hold, the kubelet does not say: it is what is
    /// missing from those it calls available.
    fn prefer_replicas(
        &self,
        state: &NodeState,
        offer: &Offer,
        shared: Shared,
        request: &ContainerPreferredAllocationRequest,
    ) -> Result<Vec<String>, Refusal> {
        let free = by_device(&request.available_device_i_ds);
        let devices = offer.devices.iter().filter_map(|(id, offered)| {
            let replicas = offered.shared()?.replicas.get() as usize;
            let free = free.get(id.as_str()).map_or(&[][..], Vec::as_slice);
            let in_use = replicas.saturating_sub(free.len());
            Some(SharedDevice { id: id.as_str(), free, in_use })
        });
        let devices: Vec<_> = devices.collect();
        let required: Vec<_> =
            request.must_include_device_i_ds.iter().filter_map(|id| id.parse().ok()).collect();
        let question = ShareRequest {
            devices: &devices,
            required: &required,
            size: size(request),
            policy: policy(shared),
            span: span(shared),
        };
        let choice = shares::choose(&state.topology, question)
            .map_err(|source| Refusal::Shares { resource: self.name(), source })?;
        let chosen: Vec<_> = choice.replicas.iter().map(ToString::to_string).collect();
        tracing::info!(
            resource = self.resource.as_str(),
            devices = chosen.join(" "),
            why = choice.to_string(),
            "preferred"
        );
        Ok(chosen)
    }
}

fn policy(shared: Shared) -> Policy {
    match shared.spread {
        Spread::Distributed => Policy::Distributed,
        Spread::Packed => Policy::Packed,
    }
}

/// A client of MPS talks to one daemon, and each device has its own.
fn span(shared: Shared) -> Span {
    match shared.method {
        SharingMethod::TimeSlicing => Span::AnyDevices,
        SharingMethod::Mps => Span::OneDevice,
    }
}

/// The numbers of the replicas, sorted, by device.
fn by_device(ids: &[String]) -> BTreeMap<&str, Vec<u32>> {
    let mut numbers: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    for (device, number) in ids.iter().filter_map(|id| ReplicaId::split(id)) {
        numbers.entry(device).or_default().push(number);
    }
    for numbers in numbers.values_mut() {
        numbers.sort_unstable();
    }
    numbers
}

fn size(request: &ContainerPreferredAllocationRequest) -> usize {
    usize::try_from(request.allocation_size).unwrap_or(0)
}
