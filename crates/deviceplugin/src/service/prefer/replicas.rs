//! Preferred allocation among replicas of shared devices.

use std::collections::BTreeMap;

use windlass_config::Shared;
use windlass_core::{
    device::DeviceId,
    placement::shares::{self, ShareRequest, SharedDevice},
    replica::ReplicaId,
};
use windlass_resources::offers::OfferedDevice;

use super::{
    super::super::wire::{Excluded, Refusal},
    Preference, PreferenceRequest,
};
use crate::history::{Candidates, ReplicaNumbers, ReplicaPool};

type ByDevice<'a> = BTreeMap<&'a str, Vec<u32>>;

type Candidate<'a> = (&'a DeviceId, SharedDevice<'a>);

impl PreferenceRequest<'_> {
    pub(super) fn prefer_replicas(&self, shared: Shared) -> Result<Preference, Refusal> {
        let free_replicas = self.free_replicas();
        let candidates = self.candidates(&free_replicas);
        let devices: Vec<_> = candidates.iter().map(|(_, device)| *device).collect();
        let required = self.request.must_include_device_i_ds.iter();
        let required: Vec<ReplicaId> = required.filter_map(|id| id.parse().ok()).collect();
        let near: Vec<_> = self.near.iter().map(DeviceId::as_str).collect();
        let request = ShareRequest {
            devices: &devices,
            required: &required,
            near: &near,
            size: self.size(),
            policy: self.policy,
            span: shared.method.span(shared.memory_mib),
        };
        let choice = shares::choose(&self.state.topology, request).map_err(|source| {
            let (resource, excluded) =
                (self.resource.clone(), self.excluded_replicas(&free_replicas));
            Refusal::Shares { resource, source, excluded }
        })?;
        Ok(Preference {
            ids: choice.replicas.iter().map(ToString::to_string).collect(),
            policy: self.policy,
            reason: self.explain(&choice),
            steps: choice.steps,
            exact: choice.exact,
            candidates: Some(Candidates::Replicas {
                span: shared.method.span(shared.memory_mib),
                near: self.near.clone(),
                pools: pools(&candidates, &required, &choice.replicas),
            }),
        })
    }

    /// Available replicas by device. Numbers beyond the device's replicas are dropped.
    fn free_replicas(&self) -> ByDevice<'_> {
        let ids = self.request.available_device_i_ds.iter();
        let replicas = ids.filter_map(|id| ReplicaId::split(id));
        let replica_count = |device: &str| self.offer.devices.get(device).map_or(0, replicas_of);
        by_device(replicas.filter(|(device, number)| *number < replica_count(device)))
    }

    /// Allocatable devices with their free replicas. The kubelet does not report replicas in use: they are missing in
    /// its available ids.
    fn candidates<'a>(&'a self, free_replicas: &'a ByDevice<'_>) -> Vec<Candidate<'a>> {
        let devices = self.offer.devices.iter();
        let allocatable = devices.filter(|(id, device)| self.is_allocatable(id, device));
        let candidate = |(id, device): (&'a DeviceId, &OfferedDevice)| {
            let free = free_replicas.get(id.as_str()).map_or(&[][..], Vec::as_slice);
            let in_use = (replicas_of(device) as usize).saturating_sub(free.len());
            (id, SharedDevice { id: id.as_str(), free, in_use })
        };
        allocatable.map(candidate).collect()
    }

    fn excluded_replicas(&self, free_replicas: &ByDevice<'_>) -> Excluded {
        let devices = self.offer.devices.iter();
        self.exclusions(devices.filter(|(id, _)| free_replicas.contains_key(id.as_str())))
    }
}

/// Number of a device's replicas.
fn replicas_of(device: &OfferedDevice) -> u32 {
    device.shared().map_or(0, |shared| shared.replicas.get())
}

/// State and outcome of each device, for the history.
fn pools(
    candidates: &[Candidate<'_>],
    required: &[ReplicaId],
    chosen: &[ReplicaId],
) -> Vec<ReplicaPool> {
    let (required, chosen) = (ids_by_device(required), ids_by_device(chosen));
    let numbers = |numbers_by_device: &ByDevice<'_>, id: &DeviceId| -> ReplicaNumbers {
        numbers_by_device.get(id.as_str()).into_iter().flatten().copied().collect()
    };
    let pool = |(id, device): &Candidate<'_>| ReplicaPool {
        device: (*id).clone(),
        in_use: device.in_use,
        free: device.free.iter().copied().collect(),
        required: numbers(&required, id),
        chosen: numbers(&chosen, id),
    };
    candidates.iter().map(pool).collect()
}

fn ids_by_device(replicas: &[ReplicaId]) -> ByDevice<'_> {
    by_device(replicas.iter().map(|replica| (replica.device.as_str(), replica.number)))
}

fn by_device<'a>(replicas: impl Iterator<Item = (&'a str, u32)>) -> ByDevice<'a> {
    let mut devices = ByDevice::new();
    for (device, number) in replicas {
        devices.entry(device).or_default().push(number);
    }
    for numbers in devices.values_mut() {
        numbers.sort_unstable();
        numbers.dedup();
    }
    devices
}
