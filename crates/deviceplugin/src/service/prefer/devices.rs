//! Preferred allocation among exclusive devices.

use std::collections::BTreeMap;

use windlass_core::{
    device::DeviceId,
    placement::{self, Request},
};
use windlass_resources::offers::OfferedDevice;

use super::{super::super::wire::Refusal, Preference, PreferenceRequest};
use crate::{ClusterDecisions, history::Candidates};

/// Devices of the offer, without duplicates.
type OfferedById<'a> = BTreeMap<&'a DeviceId, &'a OfferedDevice>;

impl PreferenceRequest<'_> {
    pub(super) fn prefer_devices(&self) -> Result<Preference, Refusal> {
        let offered = self.offered_devices(&self.request.available_device_i_ds).into_iter();
        let (allocatable, unallocatable): (OfferedById<'_>, OfferedById<'_>) =
            offered.partition(|(id, device)| self.is_allocatable(id, device));
        let required = self.offered_devices(&self.request.must_include_device_i_ds);
        let near: Vec<_> = self.near.iter().map(DeviceId::as_str).collect();
        let request = Request {
            available: &ids(&allocatable),
            required: &ids(&required),
            near: &near,
            size: self.size(),
            policy: self.policy,
        };
        let choice = placement::choose(&self.state.topology, request).map_err(|source| {
            let (resource, excluded) =
                (self.resource.clone(), self.exclusions(unallocatable.into_iter()));
            Refusal::Placement { resource, source, excluded }
        })?;
        Ok(Preference {
            ids: choice.devices.iter().map(ToString::to_string).collect(),
            policy: self.policy,
            reason: self.explain(&choice.connections),
            steps: choice.steps,
            exact: choice.exact,
            candidates: Some(Candidates::Devices {
                available: allocatable.into_keys().cloned().collect(),
                required: required.into_keys().cloned().collect(),
                near: self.near.clone(),
                chosen: choice.devices,
            }),
        })
    }

    /// The first decided set that matches the request, if all of its GPUs are available.
    pub(super) fn decided_preference(&self, sets: &ClusterDecisions) -> Option<Preference> {
        let available = self.offered_devices(&self.request.available_device_i_ds);
        let is_allocatable =
            |id: &DeviceId| available.get(id).is_some_and(|device| self.is_allocatable(id, device));
        let required = &self.request.must_include_device_i_ds;
        let matches_request = |set: &&Vec<DeviceId>| {
            set.len() == self.size()
                && set.iter().all(is_allocatable)
                && required.iter().all(|id| set.iter().any(|gpu| gpu.as_str() == id))
        };
        let ids = sets.iter().find(matches_request)?.iter().map(ToString::to_string).collect();
        let reason = "decided by the cluster half".to_owned();
        Some(Preference {
            ids,
            policy: self.policy,
            reason,
            steps: 0,
            exact: true,
            candidates: None,
        })
    }

    fn offered_devices<'a>(&'a self, ids: &'a [String]) -> OfferedById<'a> {
        let devices = ids.iter().filter_map(|id| self.offer.devices.get_key_value(id.as_str()));
        devices.filter(|(_, device)| device.is_exclusive()).collect()
    }
}

fn ids<'a>(devices: &OfferedById<'a>) -> Vec<&'a str> {
    devices.keys().map(|id| id.as_str()).collect()
}
