//! Who holds which device, and through which of the kubelet's two ways: the one place where Allocate and
//! Prepare meet.
//!
//! ```text
//!   Allocate ──take_for_container──> ┌────────┐ <──take_for_claim── Prepare
//!   kubelet's record ──recorded────> │ ledger │ <──release_claim─── Unprepare
//!                                    └────────┘ ──watch──> keeper (obstacles), catalog (taints)
//! ```
//!
//! # Guarantees
//!
//! To take is one step: of an Allocate and a Prepare that want one device, whichever comes second is
//! refused, and is told who has it. A device is in the way of its parts, and a part of its whole.
//!
//! # Assumptions
//!
//! Among containers of the device plugin the kubelet keeps account, and among shares of a device the
//! scheduler; the ledger refuses what neither of them can know.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tokio::{sync::watch, time::Instant};
use windlass_core::{device::DeviceId, resource::ResourceName};

/// The way to the ledger; clones lead to the same one.
#[derive(Clone, Debug, Default)]
pub(crate) struct LedgerDesk(Arc<watch::Sender<Ledger>>);

/// Who holds what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ledger {
    containers: BTreeMap<DeviceId, ContainerHold>,
    claims: BTreeMap<DeviceId, BTreeMap<String, ClaimHold>>,
}

/// A device and what is of the same silicon: its whole, and its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Footprint {
    pub(crate) device: DeviceId,
    pub(crate) kin: BTreeSet<DeviceId>,
}

/// A claim, as its object is called.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct ClaimRef {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
}

/// How a claim has a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Use {
    /// No one else may have it.
    Alone,
    /// Other claims have shares of it.
    Share,
    /// To look at it, whoever has it.
    Admin,
}

/// Containers that have a device through the device plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ContainerHold {
    resource: ResourceName,
    /// When it was last given away; `None` if an earlier life of the agent did.
    given: Option<Instant>,
}

/// A claim that has a device.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ClaimHold {
    claim: ClaimRef,
    usage: Use,
}

/// Why a device cannot be taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{device} is held by {holder}")]
pub(crate) struct Conflict {
    pub(crate) device: DeviceId,
    pub(crate) holder: Holder,
}

/// Who has a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// A container that got it as this resource.
    Container(ResourceName),
    /// A claim.
    Claim(ClaimRef),
}

// === impl LedgerDesk ===

impl LedgerDesk {
    /// Takes devices for a container of the device plugin, all or none.
    pub(crate) fn take_for_container(
        &self,
        resource: &ResourceName,
        devices: &[Footprint],
    ) -> Result<(), Conflict> {
        self.take(|ledger| {
            devices.iter().try_for_each(|it| ledger.free_for_container(it))?;
            for it in devices {
                let given = Some(Instant::now());
                let hold = ContainerHold { resource: resource.clone(), given };
                ledger.containers.insert(it.device.clone(), hold);
            }
            Ok(())
        })
    }

    /// Takes devices for a claim, all or none. What the claim has already it may take again.
    pub(crate) fn take_for_claim(
        &self,
        claim: &ClaimRef,
        devices: &[(Footprint, Use)],
    ) -> Result<(), Conflict> {
        self.take(|ledger| {
            devices.iter().try_for_each(|(it, usage)| ledger.free_for_claim(it, *usage, claim))?;
            for (it, usage) in devices {
                let hold = ClaimHold { claim: claim.clone(), usage: *usage };
                let holds = ledger.claims.entry(it.device.clone()).or_default();
                holds.insert(claim.uid.clone(), hold);
            }
            Ok(())
        })
    }

    /// The claim has let go of all that it had.
    pub(crate) fn release_claim(&self, uid: &str) {
        self.0.send_if_modified(|ledger| {
            let before = ledger.claims.len();
            let mut released = false;
            for holds in ledger.claims.values_mut() {
                released |= holds.remove(uid).is_some();
            }
            ledger.claims.retain(|_, holds| !holds.is_empty());
            released || ledger.claims.len() != before
        });
    }

    /// Takes in what containers have by the kubelet's record. What was given away a moment ago may not be
    /// in it yet.
    pub(crate) fn recorded(
        &self,
        recorded: &BTreeMap<DeviceId, ResourceName>,
        (now, delay): (Instant, Duration),
    ) {
        self.0.send_if_modified(|ledger| {
            let is_late =
                |hold: &ContainerHold| hold.given.is_some_and(|given| now - given < delay);
            let before = ledger.containers.clone();
            ledger.containers.retain(|id, hold| recorded.contains_key(id) || is_late(hold));
            for (id, resource) in recorded {
                let hold = ContainerHold { resource: resource.clone(), given: None };
                ledger.containers.entry(id.clone()).or_insert(hold);
            }
            ledger.containers != before
        });
    }

    /// The ledger as it changes.
    pub(crate) fn watch(&self) -> watch::Receiver<Ledger> {
        self.0.subscribe()
    }

    fn take(&self, step: impl FnOnce(&mut Ledger) -> Result<(), Conflict>) -> Result<(), Conflict> {
        let mut outcome = Ok(());
        self.0.send_if_modified(|ledger| {
            let before = ledger.clone();
            outcome = step(ledger);
            *ledger != before
        });
        outcome
    }
}

// === impl Ledger ===

impl Ledger {
    /// Who has a device through the device plugin, or something of the same silicon.
    pub(crate) fn container(&self, of: &Footprint) -> Option<Holder> {
        let hold = of.all().find_map(|id| self.containers.get(id))?;
        Some(Holder::Container(hold.resource.clone()))
    }

    /// Which claim has a device, or something of the same silicon; one that only looks does not count.
    pub(crate) fn claim(&self, of: &Footprint) -> Option<Holder> {
        let hold = of.all().flat_map(|id| self.holds(id)).find(|hold| hold.usage != Use::Admin)?;
        Some(Holder::Claim(hold.claim.clone()))
    }

    /// The claims that have just this device.
    pub(crate) fn claims_on(&self, id: &DeviceId) -> impl Iterator<Item = &ClaimRef> {
        self.holds(id).map(|hold| &hold.claim)
    }

    fn holds(&self, id: &DeviceId) -> impl Iterator<Item = &ClaimHold> {
        self.claims.get(id).into_iter().flat_map(BTreeMap::values)
    }

    fn free_for_container(&self, it: &Footprint) -> Result<(), Conflict> {
        let conflict = |holder| Conflict { device: it.device.clone(), holder };
        self.claim(it).map_or(Ok(()), |holder| Err(conflict(holder)))
    }

    fn free_for_claim(&self, it: &Footprint, usage: Use, claim: &ClaimRef) -> Result<(), Conflict> {
        if usage == Use::Admin {
            return Ok(());
        }
        let conflict = |holder| Conflict { device: it.device.clone(), holder };
        if let Some(holder) = self.container(it) {
            return Err(conflict(holder));
        }
        let is_in_the_way = |id: &DeviceId, hold: &ClaimHold| {
            let both_share = hold.usage == Use::Share && usage == Use::Share && *id == it.device;
            hold.claim.uid != claim.uid && hold.usage != Use::Admin && !both_share
        };
        let mut others = it.all().flat_map(|id| self.holds(id).map(move |hold| (id, hold)));
        let other = others.find(|(id, hold)| is_in_the_way(id, hold));
        other.map_or(Ok(()), |(_, hold)| Err(conflict(Holder::Claim(hold.claim.clone()))))
    }
}

// === impl Footprint ===

impl Footprint {
    fn all(&self) -> impl Iterator<Item = &DeviceId> {
        std::iter::once(&self.device).chain(&self.kin)
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Container(resource) => write!(f, "a container, as {resource}"),
            Self::Claim(claim) => write!(f, "claim {claim}"),
        }
    }
}

impl fmt::Display for ClaimRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alone(id: &str) -> Footprint {
        Footprint { device: id.parse().expect("an id"), kin: BTreeSet::new() }
    }

    fn part_of(id: &str, whole: &str) -> Footprint {
        Footprint { kin: [whole.parse().expect("an id")].into(), ..alone(id) }
    }

    fn claim(name: &str) -> ClaimRef {
        let [namespace, name, uid] = ["ns", name, name].map(ToOwned::to_owned);
        ClaimRef { namespace, name, uid }
    }

    fn resource() -> ResourceName {
        "nvidia.com/gpu".parse().expect("a name")
    }

    #[test]
    fn of_a_container_and_a_claim_the_second_is_told_who_was_first() {
        let ledger = LedgerDesk::default();
        ledger.take_for_container(&resource(), &[alone("a")]).expect("free");
        let refused = ledger.take_for_claim(&claim("c"), &[(alone("a"), Use::Alone)]);
        let why = refused.expect_err("held").to_string();
        assert_eq!(why, "a is held by a container, as nvidia.com/gpu");
        ledger.take_for_claim(&claim("c"), &[(alone("b"), Use::Alone)]).expect("free");
        let refused = ledger.take_for_container(&resource(), &[alone("b")]);
        assert_eq!(refused.expect_err("held").to_string(), "b is held by claim ns/c");
    }

    #[test]
    fn a_part_is_in_the_way_of_its_whole_and_nothing_is_taken_of_what_is_half_free() {
        let ledger = LedgerDesk::default();
        ledger.take_for_claim(&claim("c"), &[(part_of("part", "a"), Use::Alone)]).expect("free");
        let whole = Footprint { kin: ["part".parse().expect("an id")].into(), ..alone("a") };
        ledger.take_for_container(&resource(), &[alone("b"), whole]).expect_err("held");
        ledger.take_for_claim(&claim("d"), &[(alone("b"), Use::Alone)]).expect("b was not taken");
    }

    #[test]
    fn shares_go_together_and_who_only_looks_is_in_nobodys_way() {
        let ledger = LedgerDesk::default();
        for (name, usage) in [("c", Use::Share), ("d", Use::Share), ("admin", Use::Admin)] {
            ledger.take_for_claim(&claim(name), &[(alone("a"), usage)]).expect(name);
        }
        ledger.take_for_claim(&claim("e"), &[(alone("a"), Use::Alone)]).expect_err("shared");
        ledger.release_claim("c");
        ledger.release_claim("d");
        ledger.take_for_claim(&claim("e"), &[(alone("a"), Use::Alone)]).expect("free");
        ledger.take_for_claim(&claim("e"), &[(alone("a"), Use::Alone)]).expect("its own");
    }

    #[test]
    fn what_was_given_a_moment_ago_need_not_be_in_the_kubelets_record_yet() {
        let (ledger, delay) = (LedgerDesk::default(), Duration::from_secs(2));
        ledger.take_for_container(&resource(), &[alone("a")]).expect("free");
        let (now, none) = (Instant::now(), BTreeMap::new());
        ledger.recorded(&none, (now, delay));
        ledger.take_for_claim(&claim("c"), &[(alone("a"), Use::Alone)]).expect_err("held");
        ledger.recorded(&none, (now + delay, delay));
        ledger.take_for_claim(&claim("c"), &[(alone("a"), Use::Alone)]).expect("free");
    }

    #[test]
    fn what_the_kubelets_record_has_is_held_after_a_restart() {
        let ledger = LedgerDesk::default();
        let recorded = [("a".parse().expect("an id"), resource())].into();
        ledger.recorded(&recorded, (Instant::now(), Duration::ZERO));
        ledger.take_for_claim(&claim("c"), &[(alone("a"), Use::Alone)]).expect_err("held");
    }
}
