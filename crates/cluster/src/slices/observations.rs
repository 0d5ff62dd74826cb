//! Observations of the API server's answers to published slices, on one connection: refused devices, dropped fields.
//!
//! An observation is valid for exactly the content that was sent: a changed device is sent again. A new connection
//! starts without observations, because the API server may have been upgraded.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::resource::v1::{Device, DeviceTaint, ResourceSlice};
use kube::core::Status;

use super::{DesiredSlices, DroppedFields, OmittedDevice, SliceContent, layout::Layout};

/// Observations on one connection.
#[derive(Default)]
pub(super) struct Observations {
    /// Refused devices with the reason, by pool and name.
    devices: BTreeMap<(String, String), (Device, String)>,
    /// Pools whose refusal named no device.
    pools: BTreeMap<String, RefusedPool>,
    /// Sent and stored content of slices that the API server changed, by pool and index.
    mutated_slices: BTreeMap<(String, usize), (SliceContent, SliceContent)>,
    dropped_fields: BTreeSet<DroppedFields>,
    /// Layout of counters that the API server accepts; `None` before the first use.
    pub(super) layout: Option<Layout>,
    /// Number of observations so far. Each observation changes the next plan.
    revision: u64,
}

struct RefusedPool {
    desired: Vec<SliceContent>,
    reason: String,
    /// Previous content, to restore: some slices of the pool may have been overwritten already.
    previous: Vec<SliceContent>,
}

/// Pool of a slice, and its index there.
pub(super) type SlicePosition<'a> = (&'a str, usize);

// === impl Observations ===

impl Observations {
    /// The desired slices without refused devices; refused pools have their previous content.
    pub(super) fn apply(&self, desired: &DesiredSlices) -> DesiredSlices {
        let mut accepted = desired.clone();
        for (pool, refused) in &self.pools {
            if let Some(slices) =
                accepted.pools.get_mut(pool).filter(|slices| **slices == refused.desired)
            {
                slices.clone_from(&refused.previous);
            }
        }
        for (pool, slices) in &mut accepted.pools {
            for slice in &mut *slices {
                let is_accepted = |device: &Device| match self.obstacle(pool, device) {
                    None => true,
                    Some(reason) => {
                        let (pool, device) = (pool.clone(), device.name.clone());
                        accepted.omitted.push(OmittedDevice { pool, device, reason });
                        false
                    }
                };
                slice.devices.retain(is_accepted);
            }
            *slices = self.layout.unwrap_or_default().arrange(std::mem::take(slices));
        }
        accepted
    }

    /// True if a published slice has the sent content, or the content that the API server stores instead.
    pub(super) fn is_published(
        &self,
        position: SlicePosition<'_>,
        sent: &SliceContent,
        published: &ResourceSlice,
    ) -> bool {
        let published = SliceContent::of(published).normalized();
        let sent = sent.normalized();
        let stored = self.mutated_slices.get(&(position.0.to_owned(), position.1));
        published == sent
            || stored.is_some_and(|(sent_content, stored_content)| {
                *sent_content == sent && *stored_content == published
            })
    }

    /// Compares the sent content with the API server's answer, and records a difference.
    pub(super) fn record_stored(
        &mut self,
        (pool, index): SlicePosition<'_>,
        sent: &SliceContent,
        answer: &ResourceSlice,
    ) {
        let stored = SliceContent::of(answer);
        let position = (pool.to_owned(), index);
        if stored.is_same_as(sent) {
            self.mutated_slices.remove(&position);
            return;
        }
        for dropped in DroppedFields::between(sent, &stored) {
            if self.dropped_fields.insert(dropped) {
                self.revision += 1;
            }
        }
        self.mutated_slices.insert(position, (sent.normalized(), stored.normalized()));
    }

    /// Records a refusal: for the devices that the answer names, or else for the whole pool.
    pub(super) fn record_refusal(
        &mut self,
        pool: &str,
        desired: &[SliceContent],
        previous: &[SliceContent],
        sent: &SliceContent,
        status: &Status,
    ) {
        let causes = status.details.iter().flat_map(|details| &details.causes);
        let mut reasons = BTreeMap::<usize, Vec<String>>::new();
        for cause in causes {
            if let Some(index) = device_index(&cause.field) {
                let reason = format!("{}: {}", cause.field, cause.message);
                reasons.entry(index).or_default().push(reason);
            }
        }
        let refused = reasons.into_iter();
        let refused =
            refused.filter_map(|(index, reasons)| Some((sent.devices.get(index)?, reasons)));
        let refused: Vec<_> = refused.collect();
        self.revision += 1;
        if refused.is_empty() {
            let (desired, mut reason) = (desired.to_vec(), status.message.clone());
            let mut previous = previous.to_vec();
            let recorded = self.pools.get_mut(pool).filter(|refused| refused.desired == desired);
            if let Some(recorded) = recorded {
                // The previous content is refused as well.
                (previous, reason) = (Vec::new(), std::mem::take(&mut recorded.reason));
            }
            self.pools.insert(pool.to_owned(), RefusedPool { desired, reason, previous });
        }
        for (device, reasons) in refused {
            let mut device = device.clone();
            // This device is later compared with desired devices, which have no taint times.
            device.taints.iter_mut().flatten().for_each(|taint| taint.time_added = None);
            let reason = format!("refused by the API server: {}", reasons.join("; "));
            let key = (pool.to_owned(), device.name.clone());
            self.devices.insert(key, (device, reason));
        }
    }

    /// Removes refused pools whose desired content has changed. Called once the desired slices are published.
    pub(super) fn prune(&mut self, desired: &DesiredSlices) {
        self.pools.retain(|pool, refused| desired.pools.get(pool) == Some(&refused.desired));
    }

    /// Number of observations so far.
    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    pub(super) fn dropped_fields(&self) -> &BTreeSet<DroppedFields> {
        &self.dropped_fields
    }

    /// Refused pools with their reasons, as one text; `None` without any.
    pub(super) fn refusals(&self) -> Option<String> {
        let refusals = self.pools.iter();
        let refusals: Vec<_> = refusals
            .map(|(pool, refused)| format!("pool {pool} is refused: {}", refused.reason))
            .collect();
        (!refusals.is_empty()).then(|| refusals.join("; "))
    }

    /// Reason why a device cannot be published, if any.
    fn obstacle(&self, pool: &str, device: &Device) -> Option<String> {
        let refused = self.devices.get(&(pool.to_owned(), device.name.clone()));
        if let Some((_, reason)) = refused.filter(|(refused, _)| refused == device) {
            return Some(reason.clone());
        }
        let consumes =
            device.consumes_counters.as_ref().is_some_and(|consumed| !consumed.is_empty());
        if consumes && self.dropped_fields.contains(&DroppedFields::Counters) {
            // Without its counters, the device could be allocated together with devices on the same hardware.
            return Some("it consumes counters, and the API server keeps none".to_owned());
        }
        if !self.dropped_fields.contains(&DroppedFields::Taints) {
            return None;
        }
        // Without its taint, the device could be allocated.
        let taint = device.taints.iter().flatten().find(|taint| taint.effect != "None")?;
        let DeviceTaint { key, value, .. } = taint;
        let value = value.as_deref().unwrap_or_default();
        Some(format!("tainted {key}={value}, and the API server keeps no taints"))
    }
}

/// `3` of `spec.devices[3].name`.
fn device_index(field: &str) -> Option<usize> {
    let (index, _) = field.strip_prefix("spec.devices[")?.split_once(']')?;
    index.parse().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_device_with_counters_is_left_out_if_the_api_server_drops_counters() {
        let consumed = json!([{"counterSet": "c", "counters": {"m": {"value": "1"}}}]);
        let devices = json!([{"name": "gpu-0"}, {"name": "part", "consumesCounters": consumed}]);
        let devices = serde_json::from_value(devices).expect("devices");
        let slices = vec![SliceContent { devices, ..SliceContent::default() }];
        let desired =
            DesiredSlices { pools: [("n1".to_owned(), slices)].into(), ..DesiredSlices::default() };
        let mut observations = Observations::default();
        assert_eq!(observations.apply(&desired), desired);
        observations.dropped_fields.insert(DroppedFields::Counters);
        let accepted = observations.apply(&desired);
        assert_eq!(accepted.pools["n1"][0].devices.len(), 1);
        assert_eq!(accepted.omitted[0].device, "part");
    }
}
