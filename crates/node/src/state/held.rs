//! Who holds what, by the kubelet's own record, and who has let go since.
//!
//! The record keeps a pod that is gone until the kubelet next writes it, which is at the next Allocate
//! for whatever resource. A device that is kept back for its holder may be what that Allocate waits
//! for, so the kubelet is asked as well. It tells of no pods for a moment after it has started: what
//! it does not tell of must stay away for a while, and much longer if it tells of no pod at all.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    time::Duration,
};

use tokio::time::Instant;

use windlass_core::{device::DeviceId, replica::ReplicaId, resource::ResourceName};

use crate::{
    causes,
    holders::{self, Holders, patience},
    offer::{Held, device_of},
};

/// What containers hold, as far as it matters.
#[derive(Debug, Default)]
pub(super) struct Holdings {
    held: Held,
    /// Since when the kubelet tells of no holder.
    missing: BTreeMap<(ResourceName, String), Instant>,
}

// === impl Holdings ===

impl Holdings {
    pub(super) fn new(held: Held) -> Self {
        Self { held, missing: BTreeMap::new() }
    }

    pub(super) fn held(&self) -> &Held {
        &self.held
    }

    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// The devices that are held, whole or in part.
    pub(super) fn devices(&self) -> impl Iterator<Item = DeviceId> {
        self.held.values().flatten().filter_map(|id| device_of(id))
    }

    /// The devices of which replicas are held.
    pub(super) fn shared_devices(&self) -> BTreeSet<DeviceId> {
        let ids = self.held.values().flatten();
        ids.filter_map(|id| Some(id.parse::<ReplicaId>().ok()?.device)).collect()
    }

    /// Forgets what the record has no longer.
    pub(super) fn retain_recorded(&mut self, recorded: &Held) {
        self.retain(|name, id| recorded.get(name).is_some_and(|held| held.contains(id)));
    }

    /// Forgets what the kubelet, asked so often, has not told of for long enough.
    pub(super) fn retain_told(&mut self, told: &Holders, now: Instant, look_interval: Duration) {
        if !matches!(told.answered, Some(Ok(()))) {
            return self.missing.clear();
        }
        let patience = patience(look_interval, told.pods);
        let mut missing = std::mem::take(&mut self.missing);
        let still = |name: &ResourceName, id: &String| {
            let key = (name.clone(), id.clone());
            if told.holds(name.as_str(), id) {
                missing.remove(&key);
                return true;
            }
            now - *missing.entry(key).or_insert(now) < patience
        };
        self.retain(still);
        missing.retain(|(name, id), _| self.held.get(name).is_some_and(|ids| ids.contains(id)));
        self.missing = missing;
    }

    fn retain(&mut self, mut keep: impl FnMut(&ResourceName, &String) -> bool) {
        self.held.retain(|name, ids| {
            ids.retain(|id| keep(name, id));
            !ids.is_empty()
        });
    }
}

/// What containers hold, by the kubelet's own record. Without a record nothing is held; `None` for one
/// that cannot be read, which is no reason not to serve.
pub(super) fn read(path: &Path) -> Option<Held> {
    let record = match holders::checkpoint(path) {
        Ok(record) => record,
        Err(error) => {
            let error = causes(&error);
            tracing::warn!(path = %path.display(), error, "ignoring the kubelet's record");
            return None;
        }
    };
    let names = record.pods.iter().flatten().map(|entry| entry.resource_name.clone());
    let names: BTreeSet<String> = names.collect();
    let held = |name: &String| {
        let ids = record.held(name).map(str::to_owned).collect();
        Some((name.parse().ok()?, ids))
    };
    Some(names.iter().filter_map(held).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::holders::tests::holder;

    const LOOK: Duration = Duration::from_secs(10);

    fn held(ids: &[&str]) -> Held {
        let ids = ids.iter().map(ToString::to_string).collect();
        Held::from([("nvidia.com/gpu".parse().expect("valid"), ids)])
    }

    fn told(ids: &[&str], pods: usize) -> Holders {
        let held_by = |id: &&str| (id.parse().expect("an id"), BTreeSet::from([holder()]));
        Holders { answered: Some(Ok(())), by_device: ids.iter().map(held_by).collect(), pods }
    }

    #[test]
    fn what_the_kubelet_tells_of_no_longer_is_released_after_a_while() {
        let (mut holdings, begun) = (Holdings::new(held(&["a", "b::1"])), Instant::now());
        holdings.retain_told(&told(&["a"], 3), begun, LOOK);
        assert_eq!(holdings.held(), &held(&["a", "b::1"]));
        holdings.retain_told(&told(&["a"], 3), begun + LOOK * 3, LOOK);
        assert_eq!(holdings.held(), &held(&["a"]));
    }

    #[test]
    fn a_kubelet_that_has_just_started_or_does_not_answer_releases_nothing() {
        let (mut holdings, begun) = (Holdings::new(held(&["a"])), Instant::now());
        holdings.retain_told(&told(&[], 0), begun, LOOK);
        holdings.retain_told(&told(&[], 0), begun + LOOK * 6, LOOK);
        assert_eq!(holdings.held(), &held(&["a"]), "without pods the wait is longer");
        holdings.retain_told(&Holders::default(), begun + LOOK * 6, LOOK);
        holdings.retain_told(&told(&[], 3), begun + LOOK * 9, LOOK);
        assert_eq!(holdings.held(), &held(&["a"]), "the wait begins anew");
        holdings.retain_recorded(&Held::new());
        assert!(holdings.is_empty());
    }
}
