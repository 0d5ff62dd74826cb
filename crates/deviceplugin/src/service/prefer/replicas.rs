//! A preference among replicas of devices that serve several containers.

use std::collections::BTreeMap;

use windlass_config::Shared;
use windlass_core::{
    device::DeviceId,
    placement::shares::{self, ShareRequest, SharedDevice},
    replica::ReplicaId,
};

use super::{
    super::super::wire::{LeftOut, Refusal},
    Preferred, Question,
};
use crate::history::{Among, Numbers, Pool};

/// Numbers of replicas by device.
type ByDevice<'a> = BTreeMap<&'a str, Vec<u32>>;

/// A device and what is left of it.
type Part<'a> = (&'a DeviceId, SharedDevice<'a>);

impl Question<'_> {
    pub(super) fn among_replicas(&self, shared: Shared) -> Result<Preferred, Refusal> {
        let free = self.free(shared);
        let parts = self.parts(&free, shared);
        let devices: Vec<_> = parts.iter().map(|(_, device)| *device).collect();
        let required = self.request.must_include_device_i_ds.iter();
        let required: Vec<ReplicaId> = required.filter_map(|id| id.parse().ok()).collect();
        let near: Vec<_> = self.near.iter().map(DeviceId::as_str).collect();
        let request = ShareRequest {
            devices: &devices,
            required: &required,
            near: &near,
            size: self.size(),
            policy: self.policy,
            span: shared.method.span(),
        };
        let choice = shares::choose(&self.state.topology, request).map_err(|source| {
            let (resource, left_out) = (self.resource.clone(), self.left_out_of(&free));
            Refusal::Shares { resource, source, left_out }
        })?;
        Ok(Preferred {
            ids: choice.replicas.iter().map(ToString::to_string).collect(),
            policy: self.policy,
            why: self.told(&choice),
            steps: choice.steps,
            exact: choice.exact,
            among: Some(Among::Replicas {
                span: shared.method.span(),
                near: self.near.clone(),
                pools: pools(&parts, &required, &choice.replicas),
            }),
        })
    }

    /// What the kubelet calls available; numbers beyond those of today are left out.
    fn free(&self, shared: Shared) -> ByDevice<'_> {
        let ids = self.request.available_device_i_ds.iter();
        let replicas = ids.filter_map(|id| ReplicaId::split(id));
        by_device(replicas.filter(|(_, number)| *number < shared.replicas.get()))
    }

    /// How many replicas of a device other containers hold, the kubelet does not say: it is what is
    /// missing from those it calls available.
    fn parts<'a>(&'a self, free: &'a ByDevice<'_>, shared: Shared) -> Vec<Part<'a>> {
        let devices = self.offer.devices.iter();
        let open = devices.filter(|(id, device)| self.is_open(id, device));
        let part = |(id, _): (&'a DeviceId, _)| {
            let free = free.get(id.as_str()).map_or(&[][..], Vec::as_slice);
            let in_use = (shared.replicas.get() as usize).saturating_sub(free.len());
            (id, SharedDevice { id: id.as_str(), free, in_use })
        };
        open.map(part).collect()
    }

    fn left_out_of(&self, free: &ByDevice<'_>) -> LeftOut {
        let devices = self.offer.devices.iter();
        self.left_out(devices.filter(|(id, _)| free.contains_key(id.as_str())))
    }
}

/// What each device had, and gave.
fn pools(parts: &[Part<'_>], required: &[ReplicaId], chosen: &[ReplicaId]) -> Vec<Pool> {
    let (required, chosen) = (named(required), named(chosen));
    let numbers = |all: &ByDevice<'_>, id: &DeviceId| -> Numbers {
        all.get(id.as_str()).into_iter().flatten().copied().collect()
    };
    let pool = |(id, device): &Part<'_>| Pool {
        device: (*id).clone(),
        in_use: device.in_use,
        free: device.free.iter().copied().collect(),
        required: numbers(&required, id),
        chosen: numbers(&chosen, id),
    };
    parts.iter().map(pool).collect()
}

fn named(replicas: &[ReplicaId]) -> ByDevice<'_> {
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
