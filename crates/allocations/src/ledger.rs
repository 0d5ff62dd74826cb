//! Who holds which device, and through which of the kubelet's two ways: the one place where Allocate and
//! Prepare meet.
//!
//! ```text
//!   Allocate ──take_for_container──> ┌────────┐ <──take_for_claim── Prepare
//!   kubelet's record ──recorded────> │ ledger │ <──release_claim─── Unprepare
//!    (follow)                        │        │ <──restore_claim─── the driver's own record
//!                                    └────────┘ ──watch──> reconciler (obstacles), catalog (taints)
//! ```
//!
//! # Guarantees
//!
//! To take is one step: of an Allocate and a Prepare that want one device, whichever comes second is
//! refused, and is told by what it is held. A device is in the way of its parts, and a part of its whole. No claim
//! gets anything before it is known what containers have.
//!
//! # Assumptions
//!
//! Among containers of the device plugin the kubelet keeps account, and among shares of a device the
//! scheduler; the ledger refuses what neither of them can know, and shares that are more than the device,
//! counted or by amounts.

mod kin;
mod lull;
mod portion;
mod shares;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tokio::{sync::watch, time::Instant};
use windlass_core::{
    device::DeviceId,
    replica::{device_of, token},
    resource::ResourceName,
};
use windlass_host::shared::Shared;

pub use self::{
    kin::{Footprint, Kinship},
    portion::{Portion, together},
    shares::Shares,
};
use crate::Held;

/// The way to the ledger; clones lead to the same one.
#[derive(Clone, Debug, Default)]
pub struct LedgerDesk(Arc<Published>);

/// The ledger, and the snapshots of it.
#[derive(Debug, Default)]
struct Published {
    ledger: Shared<Ledger>,
    snapshots: watch::Sender<Ledger>,
}

/// Who holds what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Of what containers have.
    knowledge: Knowledge,
    /// Of what claims have.
    of_claims: Knowledge,
    containers: BTreeMap<DeviceId, ContainerHold>,
    claims: ClaimHolds,
}

/// The claims that have each device, by their UID.
pub type ClaimHolds = BTreeMap<DeviceId, HoldsByUid>;

type HoldsByUid = BTreeMap<String, ClaimHold>;

/// Whether it is known what somebody has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Knowledge {
    /// All is here.
    #[default]
    Complete,
    /// All of it, by the kubelet's record alone, which does not say how they have it.
    Hearsay,
    /// Its record was not read yet, or not for a while, or cannot be.
    Lacking,
}

/// A claim, as its object is called.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ClaimRef {
    /// The claim's namespace.
    pub namespace: String,
    /// The claim's name.
    pub name: String,
    /// The UID of its object: another claim of that name is another one.
    pub uid: String,
}

/// How a claim has a device; of two ways in which one claim has it the greater one counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Use {
    /// To look at it, whoever has it.
    Admin,
    /// Other claims have shares of it, and it is not known how many this one has.
    Share,
    /// Other claims have shares of it.
    Shares(Shares),
    /// Other claims have shares of it by amounts.
    Portion(Portion),
    /// No one else may have it.
    Alone,
    /// No one else may have it, and the claim's containers share it by MPS.
    Served,
}

/// Containers that have a device through the device plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ContainerHold {
    resource: ResourceName,
    /// When it was last given away; `None` if an earlier life of the agent did.
    given: Option<Instant>,
    /// Whether the kubelet's record had it since.
    is_recorded: bool,
}

/// How long what was given away may be missing in the kubelet's record before it counts as not given. The
/// kubelet writes once all plugins have answered for a container, and waits for each without a limit.
pub const UNRECORDED: Duration = Duration::from_secs(30);

/// A claim that has a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimHold {
    claim: ClaimRef,
    usage: Use,
}

/// What containers have by the kubelet's record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    /// Devices, as which resource.
    pub(crate) devices: BTreeMap<DeviceId, ResourceName>,
    /// Resources of which tokens are held; a token does not say which devices were given with it.
    pub(crate) pools: BTreeSet<ResourceName>,
}

/// Why a device cannot be taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Conflict {
    /// Somebody else has the device, or what overlaps it.
    #[error("{device} is held by {holder}")]
    Held {
        /// The device.
        device: DeviceId,
        /// Who has it.
        holder: Holder,
    },
    /// Nobody knows yet what containers have.
    #[error(
        "{device} cannot be taken before it is known what containers hold, by the kubelet's record"
    )]
    Unknown {
        /// The device.
        device: DeviceId,
    },
    /// Nobody knows what claims have.
    #[error(
        "{device} cannot be taken while it is not known what claims have; the agent's log says why"
    )]
    UnknownClaims {
        /// The device.
        device: DeviceId,
    },
    /// The device has less memory or compute left than is wanted.
    #[error(
        "{device}: {} MiB of memory and {} % of compute are wanted, and other claims leave {left} of {} MiB \
         and {compute_left} %",
        wanted.memory, wanted.compute, wanted.of
    )]
    Exceeded {
        /// The device.
        device: DeviceId,
        /// What is wanted.
        wanted: Portion,
        /// What is left.
        left: u64,
        /// The percentage of compute that is left.
        compute_left: u64,
    },
    /// The device serves as many as it may.
    #[error(
        "{device}: {} of its {} shares wanted, and what other claims have leaves {left}: a pod that is \
         gone may still be ending",
        wanted.count, wanted.of
    )]
    NoShareLeft {
        /// The device.
        device: DeviceId,
        /// What is wanted.
        wanted: Shares,
        /// What is left.
        left: u32,
    },
}

/// Who has a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A container that got it as this resource.
    Container(ResourceName),
    /// A claim.
    Claim(ClaimRef),
}

// === impl LedgerDesk ===

impl LedgerDesk {
    /// The ledger of an agent that starts: what containers have is still to be read.
    pub fn unread() -> Self {
        let desk = Self::default();
        desk.forget_record();
        desk
    }

    /// Takes devices for a container of the device plugin, all or none. Who watches is told only of devices that
    /// none had as this resource.
    pub fn take_for_container(
        &self,
        resource: &ResourceName,
        devices: &[Footprint],
    ) -> Result<(), Conflict> {
        self.take(|ledger| {
            devices.iter().try_for_each(|it| ledger.free_for_container(it))?;
            let hold = ContainerHold::given(resource);
            let mut is_news = false;
            for it in devices {
                let before = ledger.containers.insert(it.device.clone(), hold.clone());
                is_news |= before.is_none_or(|before| before.resource != hold.resource);
            }
            Ok(is_news)
        })
    }

    /// Takes devices for a claim, all or none. What the claim has already it may take again.
    pub fn take_for_claim(
        &self,
        claim: &ClaimRef,
        devices: &[(Footprint, Use)],
    ) -> Result<(), Conflict> {
        self.take(|ledger| {
            devices.iter().try_for_each(|(it, usage)| ledger.free_for_claim(it, *usage, claim))?;
            let devices = devices.iter().map(|(it, usage)| (&it.device, *usage));
            Ok(ledger.enter(claim, devices))
        })
    }

    /// Puts back what a claim has by the driver's own record, whoever else is said to have it: what was
    /// given cannot be refused any more.
    pub fn restore_claim<'a>(
        &self,
        claim: &ClaimRef,
        devices: impl IntoIterator<Item = (&'a DeviceId, Use)>,
    ) {
        self.step(|ledger| ledger.enter(claim, devices));
    }

    /// The claim has let go of all that it had.
    pub fn release_claim(&self, uid: &str) {
        self.step(|ledger| {
            let mut released = false;
            for holds in ledger.claims.values_mut() {
                released |= holds.remove(uid).is_some();
            }
            ledger.claims.retain(|_, holds| !holds.is_empty());
            released
        });
    }

    /// Takes in what containers have by the kubelet's record, as it was read at this time. What was given
    /// away before may not be in it yet, or, a moment before, not any more.
    pub fn recorded(&self, recorded: &Recorded, (read, delay): (Instant, Duration)) {
        self.step(|ledger| {
            ledger.containers.retain(|id, hold| {
                let is_recorded = recorded.has(id, &hold.resource);
                // What was read before it was given away tells of an earlier holder.
                hold.is_recorded |= is_recorded && hold.given.is_none_or(|given| given < read);
                is_recorded || hold.is_late(read, delay)
            });
            for (id, resource) in &recorded.devices {
                let hold = || ContainerHold::recorded(resource);
                ledger.containers.entry(id.clone()).or_insert_with(hold);
            }
            ledger.knowledge = Knowledge::Complete;
            // The snapshot is of the step before.
            *ledger != *self.0.snapshots.borrow()
        });
    }

    /// The agent was stopped for so long, and the kubelet may have been as well: what was given away before is as new
    /// as it was then.
    pub(crate) fn was_stopped(&self, time: Duration) {
        let now = Instant::now();
        // Nobody else needs to know: who has what stays as it is.
        self.step(|ledger| {
            for hold in ledger.containers.values_mut() {
                hold.given = hold.given.map(|given| (given + time).min(now));
            }
            false
        });
    }

    /// Neither record says what claims have: any device may be a claim's.
    pub fn forget_claims(&self) {
        self.step(|ledger| ledger.learn_of_claims(Knowledge::Lacking));
    }

    /// What claims have is known by the kubelet's record alone, for as long as this agent lives.
    pub fn hear_of_claims(&self) {
        self.step(|ledger| ledger.learn_of_claims(Knowledge::Hearsay));
    }

    /// What claims have was put back.
    pub fn recall_claims(&self) {
        self.step(|ledger| {
            ledger.of_claims == Knowledge::Lacking && ledger.learn_of_claims(Knowledge::Complete)
        });
    }

    /// Nobody reads the kubelet's record from now on.
    pub(crate) fn forget_record(&self) {
        self.step(|ledger| {
            std::mem::replace(&mut ledger.knowledge, Knowledge::Lacking) != Knowledge::Lacking
        });
    }

    /// Waits until it is known what containers have, and claims.
    pub async fn known(&self) {
        let mut ledger = self.watch();
        let is_known = |ledger: &Ledger| ledger.is_complete() && ledger.knows_claims();
        // The desk itself keeps the sender.
        drop(ledger.wait_for(is_known).await);
    }

    /// The ledger as it changes.
    pub fn watch(&self) -> watch::Receiver<Ledger> {
        self.0.snapshots.subscribe()
    }

    /// Takes in one step, which says whether that is news.
    fn take(
        &self,
        step: impl FnOnce(&mut Ledger) -> Result<bool, Conflict>,
    ) -> Result<(), Conflict> {
        self.0.ledger.step(|ledger| {
            let is_news = step(ledger)?;
            self.publish(ledger, is_news);
            Ok(())
        })
    }

    /// Makes one step and publishes it. The step says whether watchers are woken; they read the new value either way.
    fn step(&self, step: impl FnOnce(&mut Ledger) -> bool) {
        self.0.ledger.step(|ledger| {
            let is_news = step(ledger);
            self.publish(ledger, is_news);
        });
    }

    fn publish(&self, ledger: &Ledger, is_news: bool) {
        self.0.snapshots.send_if_modified(|snapshot| {
            snapshot.clone_from(ledger);
            is_news
        });
    }
}

// === impl Ledger ===

impl Ledger {
    /// Whether it is known what containers have.
    pub fn is_complete(&self) -> bool {
        self.knowledge == Knowledge::Complete
    }

    /// Whether it is known what claims have.
    pub fn knows_claims(&self) -> bool {
        self.of_claims != Knowledge::Lacking
    }

    /// Whether a device that a claim has as a whole may be served by a daemon, for all that is known.
    pub fn is_hearsay(&self) -> bool {
        self.of_claims == Knowledge::Hearsay
    }

    /// As what a container has a device, or something of the same silicon.
    pub fn container(&self, of: &Footprint) -> Option<&ResourceName> {
        of.all().find_map(|id| self.containers.get(id)).map(|hold| &hold.resource)
    }

    /// Which claim has a device, or something of the same silicon; one that only looks does not count.
    pub fn claim(&self, of: &Footprint) -> Option<&ClaimRef> {
        let mut holds = of.all().flat_map(|id| self.holds(id));
        holds.find(|hold| hold.usage != Use::Admin).map(|hold| &hold.claim)
    }

    /// Whether a claim has just this, and not only to look at it.
    pub fn is_claimed(&self, id: &DeviceId) -> bool {
        self.holds(id).any(|hold| hold.usage != Use::Admin)
    }

    /// The UIDs of the claims that have a device, without those that only look.
    pub fn users<'a>(&'a self, id: &DeviceId) -> impl Iterator<Item = &'a str> + use<'a> {
        self.holds(id).filter(|hold| hold.usage != Use::Admin).map(|hold| hold.claim.uid.as_str())
    }

    /// Whether a claim has any device, be it to look at it.
    pub fn is_held_by(&self, uid: &str) -> bool {
        self.claims.values().any(|holds| holds.contains_key(uid))
    }

    /// The claims that have devices.
    pub fn claims(&self) -> &ClaimHolds {
        &self.claims
    }

    /// When a device was last given to a container in this life of the agent.
    pub fn given(&self, id: &DeviceId) -> Option<Instant> {
        self.containers.get(id)?.given
    }

    /// When any device was last given to a container as this resource.
    pub(crate) fn given_as(&self, resource: &ResourceName) -> Option<Instant> {
        let holds = self.containers.values().filter(|hold| hold.resource == *resource);
        holds.filter_map(|hold| hold.given).max()
    }

    fn holds<'a>(&'a self, id: &DeviceId) -> impl Iterator<Item = &'a ClaimHold> + use<'a> {
        self.claims.get(id).into_iter().flat_map(BTreeMap::values)
    }

    /// Notes how well it is known what claims have; gives whether that is news.
    fn learn_of_claims(&mut self, knowledge: Knowledge) -> bool {
        std::mem::replace(&mut self.of_claims, knowledge) != knowledge
    }

    /// Notes what a claim has; gives whether that is news.
    fn enter<'a>(
        &mut self,
        claim: &ClaimRef,
        devices: impl IntoIterator<Item = (&'a DeviceId, Use)>,
    ) -> bool {
        let mut is_news = false;
        for (device, usage) in devices {
            let holds = self.claims.entry(device.clone()).or_default();
            let known = holds.get(&claim.uid).map(|hold| hold.usage);
            if known < Some(usage) {
                holds.insert(claim.uid.clone(), ClaimHold { claim: claim.clone(), usage });
                is_news = true;
            }
        }
        is_news
    }

    fn free_for_container(&self, it: &Footprint) -> Result<(), Conflict> {
        match self.claim(it) {
            Some(claim) => Err(Conflict::held(it, Holder::Claim(claim.clone()))),
            None if self.knows_claims() => Ok(()),
            None => Err(Conflict::UnknownClaims { device: it.device.clone() }),
        }
    }

    fn free_for_claim(&self, it: &Footprint, usage: Use, claim: &ClaimRef) -> Result<(), Conflict> {
        let is_its_own = |hold: &ClaimHold| hold.claim.uid == claim.uid && hold.usage >= usage;
        if usage == Use::Admin || self.holds(&it.device).any(is_its_own) {
            return Ok(());
        }
        if let Some(resource) = self.container(it) {
            return Err(Conflict::held(it, Holder::Container(resource.clone())));
        }
        if !self.is_complete() {
            return Err(Conflict::Unknown { device: it.device.clone() });
        }
        if !self.knows_claims() {
            return Err(Conflict::UnknownClaims { device: it.device.clone() });
        }
        let is_in_the_way = |id: &DeviceId, hold: &ClaimHold| {
            let both_share = hold.usage.goes_with(usage) && *id == it.device;
            hold.claim.uid != claim.uid && hold.usage != Use::Admin && !both_share
        };
        let mut others = it.all().flat_map(|id| self.holds(id).map(move |hold| (id, hold)));
        let other = others.find(|(id, hold)| is_in_the_way(id, hold));
        if let Some((_, hold)) = other {
            return Err(Conflict::held(it, Holder::Claim(hold.claim.clone())));
        }
        match usage {
            Use::Portion(wanted) => self.has_left(it, wanted, &claim.uid),
            Use::Shares(wanted) => self.has_shares_left(it, wanted, &claim.uid),
            _ => Ok(()),
        }
    }
}

// === impl ContainerHold ===

impl ContainerHold {
    fn given(resource: &ResourceName) -> Self {
        let given = Some(Instant::now());
        Self { resource: resource.clone(), given, is_recorded: false }
    }

    /// By an earlier life of the agent.
    fn recorded(resource: &ResourceName) -> Self {
        Self { resource: resource.clone(), given: None, is_recorded: true }
    }

    /// Whether a record that was read then may lack it, though it is held.
    fn is_late(&self, read: Instant, delay: Duration) -> bool {
        let delay = if self.is_recorded { delay } else { UNRECORDED };
        self.given.is_some_and(|given| read - given < delay)
    }
}

// === impl Recorded ===

impl Recorded {
    /// Whether containers have a device that was given as this resource.
    fn has(&self, id: &DeviceId, resource: &ResourceName) -> bool {
        self.devices.contains_key(id) || self.pools.contains(resource)
    }
}

// === impl Conflict ===

impl Conflict {
    fn held(of: &Footprint, holder: Holder) -> Self {
        Self::Held { device: of.device.clone(), holder }
    }

    /// The claim that has the device, for the node's own log: what this displays is told to whoever wanted it,
    /// whose business another's name is not.
    pub fn holder(&self) -> Option<&ClaimRef> {
        match self {
            Self::Held { holder: Holder::Claim(claim), .. } => Some(claim),
            _ => None,
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Container(resource) => write!(f, "a container, as {resource}"),
            Self::Claim(_) => f.write_str("another claim"),
        }
    }
}

impl fmt::Display for ClaimRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

// === impl Recorded ===

impl Recorded {
    /// What the kubelet's record says, whichever plugin gave it away.
    pub(crate) fn of(record: &Held) -> Self {
        let mut all = Self::default();
        for (resource, id) in
            record.iter().flat_map(|(name, ids)| ids.iter().map(move |id| (name, id)))
        {
            if token(id).is_some() {
                all.pools.insert(resource.clone());
            }
            all.devices.extend(device_of(id).map(|device| (device, resource.clone())));
        }
        all
    }
}

#[cfg(test)]
pub(crate) mod tests;
