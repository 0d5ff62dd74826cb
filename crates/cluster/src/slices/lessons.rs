//! What the API server has taught over one connection: which devices it refuses, which fields it drops.
//!
//! What is learnt holds for what was sent: a device that changes is sent again. With a new connection all of
//! it is forgotten, since the API server may be another version by then.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::resource::v1::{Device, DeviceTaint, ResourceSlice};
use kube::core::Status;

use super::{Content, LeftOut, Loss, Wanted, layout::Layout};

/// What was learnt.
#[derive(Default)]
pub(super) struct Lessons {
    /// Devices that are refused, by pool and name, and why.
    devices: BTreeMap<(String, String), (Device, String)>,
    /// Pools that are refused for none of their devices.
    pools: BTreeMap<String, RefusedPool>,
    /// What is kept of what was sent, by pool and place.
    kept: BTreeMap<(String, usize), (Content, Content)>,
    lost: BTreeSet<Loss>,
    /// Where it has counters; `None` before anybody needed to know.
    pub(super) layout: Option<Layout>,
    count: u64,
}

/// A pool that cannot be had.
struct RefusedPool {
    wanted: Vec<Content>,
    why: String,
    /// What was published before, which may be half overwritten by now, and is put back.
    before: Vec<Content>,
}

/// Where a slice belongs: its pool, and its place there.
pub(super) type Place<'a> = (&'a str, usize);

// === impl Lessons ===

impl Lessons {
    /// What is wanted, less what cannot be had.
    pub(super) fn apply(&self, wanted: &Wanted) -> Wanted {
        let mut rest = wanted.clone();
        for (pool, refused) in &self.pools {
            if let Some(slices) = rest.pools.get_mut(pool).filter(|it| **it == refused.wanted) {
                slices.clone_from(&refused.before);
            }
        }
        for (pool, slices) in &mut rest.pools {
            for slice in &mut *slices {
                let kept = |device: &Device| match self.obstacle(pool, device) {
                    None => true,
                    Some(reason) => {
                        let (pool, device) = (pool.clone(), device.name.clone());
                        rest.left_out.push(LeftOut { pool, device, reason });
                        false
                    }
                };
                slice.devices.retain(kept);
            }
            *slices = self.layout.unwrap_or_default().lay_out(std::mem::take(slices));
        }
        rest
    }

    /// Whether a slice that is there is what would come of sending this.
    pub(super) fn keeps(&self, place: Place<'_>, sent: &Content, there: &ResourceSlice) -> bool {
        let there = Content::of(there).plain();
        let sent = sent.plain();
        let kept = self.kept.get(&(place.0.to_owned(), place.1));
        there == sent || kept.is_some_and(|kept| kept.0 == sent && kept.1 == there)
    }

    /// What is kept of what was sent.
    pub(super) fn stored(&mut self, place: Place<'_>, sent: &Content, answer: &ResourceSlice) {
        let stored = Content::of(answer);
        let place = (place.0.to_owned(), place.1);
        if stored.is_same_as(sent) {
            self.kept.remove(&place);
            return;
        }
        for loss in Loss::between(sent, &stored) {
            if self.lost.insert(loss) {
                self.count += 1;
            }
        }
        self.kept.insert(place, (sent.plain(), stored.plain()));
    }

    /// Why a slice is refused: because of devices that are named, or else as a whole.
    pub(super) fn refused(
        &mut self,
        (pool, wanted, before): (&str, &[Content], &[Content]),
        sent: &Content,
        status: &Status,
    ) {
        let causes = status.details.iter().flat_map(|details| &details.causes);
        let mut reasons = BTreeMap::<usize, Vec<String>>::new();
        for cause in causes {
            if let Some(at) = device_index(&cause.field) {
                let reason = format!("{}: {}", cause.field, cause.message);
                reasons.entry(at).or_default().push(reason);
            }
        }
        let named = reasons.into_iter().filter_map(|(at, why)| Some((sent.devices.get(at)?, why)));
        let named: Vec<_> = named.collect();
        self.count += 1;
        if named.is_empty() {
            let (wanted, mut why) = (wanted.to_vec(), status.message.clone());
            let mut before = before.to_vec();
            let known = self.pools.get_mut(pool).filter(|known| known.wanted == wanted);
            if let Some(known) = known {
                // The way back is refused as well.
                (before, why) = (Vec::new(), std::mem::take(&mut known.why));
            }
            self.pools.insert(pool.to_owned(), RefusedPool { wanted, why, before });
        }
        for (device, why) in named {
            let mut device = device.clone();
            // What is wanted knows no times.
            device.taints.iter_mut().flatten().for_each(|taint| taint.time_added = None);
            let reason = format!("refused by the API server: {}", why.join("; "));
            let key = (pool.to_owned(), device.name.clone());
            self.devices.insert(key, (device, reason));
        }
    }

    /// All that can be had of a wish is published: what was refused of another is forgotten.
    pub(super) fn settled(&mut self, wanted: &Wanted) {
        self.pools.retain(|pool, refused| wanted.pools.get(pool) == Some(&refused.wanted));
    }

    /// How often something was learnt.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    pub(super) fn lost(&self) -> &BTreeSet<Loss> {
        &self.lost
    }

    /// Why pools are refused.
    pub(super) fn refusals(&self) -> Option<String> {
        let refusals = self.pools.iter();
        let refusals: Vec<_> = refusals
            .map(|(pool, refused)| format!("pool {pool} is refused: {}", refused.why))
            .collect();
        (!refusals.is_empty()).then(|| refusals.join("; "))
    }

    /// Why a device cannot be published.
    fn obstacle(&self, pool: &str, device: &Device) -> Option<String> {
        let refused = self.devices.get(&(pool.to_owned(), device.name.clone()));
        if let Some((_, reason)) = refused.filter(|(refused, _)| refused == device) {
            return Some(reason.clone());
        }
        let consumes =
            device.consumes_counters.as_ref().is_some_and(|consumed| !consumed.is_empty());
        if consumes && self.lost.contains(&Loss::Counters) {
            // Without its counters it would be given away beside others of the same silicon.
            return Some("it consumes counters, and the API server keeps none".to_owned());
        }
        if !self.lost.contains(&Loss::Taints) {
            return None;
        }
        // Without its taint it would be given away.
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
    fn what_consumes_counters_is_left_out_where_none_are_kept() {
        let consumed = json!([{"counterSet": "c", "counters": {"m": {"value": "1"}}}]);
        let devices = json!([{"name": "gpu-0"}, {"name": "part", "consumesCounters": consumed}]);
        let devices = serde_json::from_value(devices).expect("devices");
        let slices = vec![Content { devices, ..Content::default() }];
        let wanted = Wanted { pools: [("n1".to_owned(), slices)].into(), ..Wanted::default() };
        let mut lessons = Lessons::default();
        assert_eq!(lessons.apply(&wanted), wanted);
        lessons.lost.insert(Loss::Counters);
        let rest = lessons.apply(&wanted);
        assert_eq!(rest.pools["n1"][0].devices.len(), 1);
        assert_eq!(rest.left_out[0].device, "part");
    }
}
