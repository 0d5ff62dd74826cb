//! A preference among devices that serve one container each.

use std::collections::BTreeMap;

use windlass_core::{
    device::DeviceId,
    placement::{self, Request},
};
use windlass_resources::offers::OfferedDevice;

use super::{super::super::wire::Refusal, Preferred, Question};
use crate::history::Among;

/// Devices of the offer, each once.
type Known<'a> = BTreeMap<&'a DeviceId, &'a OfferedDevice>;

impl Question<'_> {
    pub(super) fn among_devices(&self) -> Result<Preferred, Refusal> {
        let known = self.known(&self.request.available_device_i_ds).into_iter();
        let (open, closed): (Known<'_>, Known<'_>) =
            known.partition(|(id, device)| self.is_open(id, device));
        let required = self.known(&self.request.must_include_device_i_ds);
        let near: Vec<_> = self.near.iter().map(DeviceId::as_str).collect();
        let request = Request {
            available: &texts(&open),
            required: &texts(&required),
            near: &near,
            size: self.size(),
            policy: self.policy,
        };
        let choice = placement::choose(&self.state.topology, request).map_err(|source| {
            let (resource, left_out) = (self.resource.clone(), self.left_out(closed.into_iter()));
            Refusal::Placement { resource, source, left_out }
        })?;
        Ok(Preferred {
            ids: choice.devices.iter().map(ToString::to_string).collect(),
            policy: self.policy,
            why: self.told(&choice.connections),
            steps: choice.steps,
            exact: choice.exact,
            among: Some(Among::Devices {
                available: open.into_keys().cloned().collect(),
                required: required.into_keys().cloned().collect(),
                near: self.near.clone(),
                chosen: choice.devices,
            }),
        })
    }

    fn known<'a>(&'a self, ids: &'a [String]) -> Known<'a> {
        let devices = ids.iter().filter_map(|id| self.offer.devices.get_key_value(id.as_str()));
        devices.filter(|(_, device)| device.is_exclusive()).collect()
    }
}

fn texts<'a>(devices: &Known<'a>) -> Vec<&'a str> {
    devices.keys().map(|id| id.as_str()).collect()
}
