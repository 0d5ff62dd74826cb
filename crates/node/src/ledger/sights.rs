//! What containers have, by one look at the kubelet after another: a fold over looks.
//!
//! The record keeps a pod that is gone, so the kubelet is asked as well; when it is believed, `Sight` says.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::time::Instant;
use windlass_core::{device::DeviceId, resource::ResourceName};
use windlass_kubelet_api::checkpoint::Checkpoint;

use super::{Ledger, Recorded};
use crate::{
    holders::{Glance, Holders, SERVES, Sight},
    offer::{device_of, token},
};

/// One look at who has what.
pub(super) struct Look {
    /// When the reading began.
    pub(super) begun: Instant,
    pub(super) recorded: Recorded,
    pub(super) told: Arc<Holders>,
}

/// What was seen of everything that the record has.
#[derive(Debug, Default)]
pub(super) struct Sights(BTreeMap<Held, Seen>);

/// What the record knows by a name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Held {
    Device(DeviceId),
    /// Tokens of a pool.
    Tokens(ResourceName),
}

#[derive(Debug)]
struct Seen {
    sight: Sight,
    /// When it was given away last: whoever has it since was not looked at before.
    given: Option<Instant>,
}

/// The least time between two looks that count. The kubelet's answer serves for a while, so that what was given
/// away a moment ago is not in it; three looks in a row outlast it, however often is looked.
const LEAST_INTERVAL: Duration = SERVES.checked_div(2).expect("two is not zero");

// === impl Recorded ===

impl Recorded {
    /// What the kubelet's record says, whichever plugin gave it away.
    pub(super) fn of(record: &Checkpoint) -> Self {
        let mut all = Self::default();
        for entry in record.pods.iter().flatten() {
            let Ok(resource) = entry.resource_name.parse::<ResourceName>() else { continue };
            for id in entry.device_ids.values().flatten() {
                if token(id).is_some() {
                    all.pools.insert(resource.clone());
                }
                all.devices.extend(device_of(id).map(|device| (device, resource.clone())));
            }
        }
        all
    }

    pub(super) fn is_empty(&self) -> bool {
        self.devices.is_empty() && self.pools.is_empty()
    }
}

// === impl Sights ===

impl Sights {
    /// Takes in a look; gives what of the record is held still.
    pub(super) fn fold(
        &mut self,
        look: &Look,
        ledger: &Ledger,
        look_interval: Duration,
    ) -> Recorded {
        let look_interval = look_interval.max(LEAST_INTERVAL);
        let mut known = std::mem::take(&mut self.0);
        let mut is_held = |held: Held, told: Option<bool>| {
            let given = held.given(ledger);
            let before = known.remove(&held).unwrap_or_else(|| Seen::new(given));
            let seen = before.after(given, look.glance(told), look_interval);
            let is_held = seen.sight.is_held();
            self.0.insert(held, seen);
            is_held
        };
        let mut still = look.recorded.clone();
        still.devices.retain(|id, _| is_held(Held::Device(id.clone()), look.told.tells_of(id)));
        let mut is_pool_held = |name: &ResourceName| {
            is_held(Held::Tokens(name.clone()), look.told.tells_of_tokens(name))
        };
        still.pools.retain(&mut is_pool_held);
        still
    }
}

// === impl Seen ===

impl Seen {
    fn new(given: Option<Instant>) -> Self {
        Self { sight: Sight::new(false), given }
    }

    fn after(mut self, given: Option<Instant>, glance: Glance, look_interval: Duration) -> Self {
        if given > self.given {
            (self.sight, self.given) = (Sight::new(true), given);
        }
        self.sight.is_let_go(glance, look_interval);
        self
    }
}

// === impl Look ===

impl Look {
    fn glance(&self, told: Option<bool>) -> Glance {
        Glance { recorded: Some(true), told, pods: self.told.pods, at: self.begun }
    }
}

// === impl Held ===

impl Held {
    fn given(&self, ledger: &Ledger) -> Option<Instant> {
        match self {
            Self::Device(id) => ledger.given(id),
            Self::Tokens(pool) => ledger.given_as(pool),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{
        holders::tests::holder,
        ledger::{Kinship, LedgerDesk},
    };

    const LOOK: Duration = Duration::from_secs(10);

    fn id() -> DeviceId {
        "GPU-a".parse().expect("an id")
    }

    fn resource() -> ResourceName {
        holder().resource.parse().expect("a name")
    }

    /// A kubelet whose record has the device, and that tells of this many holders of it.
    fn look(begun: Instant, holders: usize) -> Look {
        let recorded = Recorded { devices: [(id(), resource())].into(), ..Recorded::default() };
        let held_by = (0..holders).map(|_| (id(), BTreeSet::from([holder()]))).collect();
        let told = Holders { answered: Some(Ok(())), by_device: held_by, pods: 3 };
        Look { begun, recorded, told: Arc::new(told) }
    }

    #[test]
    fn what_the_kubelet_tells_of_no_longer_is_let_go_until_it_is_given_away_anew() {
        let (ledger, mut sights) = (LedgerDesk::default(), Sights::default());
        let footprint = Kinship::default().footprint(&id());
        let give = || ledger.take_for_container(&resource(), std::slice::from_ref(&footprint));
        let mut is_held = |look: &Look| {
            let known = ledger.watch().borrow().clone();
            let still = sights.fold(look, &known, LOOK);
            ledger.recorded(&still, (look.begun, Duration::ZERO));
            !still.is_empty()
        };
        give().expect("free");
        let begun = Instant::now();
        assert!(is_held(&look(begun, 1)));
        assert!(is_held(&look(begun + LOOK, 0)));
        assert!(!is_held(&look(begun + LOOK * 4, 0)));
        assert!(!is_held(&look(begun + LOOK * 5, 0)), "though it is in the record");
        give().expect("free");
        assert!(is_held(&look(begun + LOOK * 6, 0)), "the answer may be older");
        assert!(!is_held(&look(begun + LOOK * 9, 0)));
    }
}
