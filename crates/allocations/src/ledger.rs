//! Ledger of allocated devices, shared by the device plugin (Allocate) and the DRA driver (Prepare).
//!
//! ```text
//!   Allocate ──take_for_container──> ┌────────┐ <──take_for_claim── Prepare
//!   checkpoint ──apply_checkpoint──> │ ledger │ <──release_claim─── Unprepare
//!    (follow)                        │        │ <──restore_claim─── state file of claims
//!                                    └────────┘ ──watch──> reconciler (obstacles), catalog (taints)
//! ```
//!
//! # Guarantees
//!
//! Taking is atomic. Of an Allocate and a Prepare for one device, the second is refused and learns the kind of holder.
//! A device conflicts with its parts, and a part with its parent. No claim gets a device before the containers' devices
//! are known.
//!
//! # Assumptions
//!
//! The kubelet accounts for containers of the device plugin, and the scheduler for claims and their shares. The ledger
//! refuses conflicts that neither can see, and shares that exceed the device, by count or by amounts.

mod checkpoint_wait;
mod overlap;
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
    replica::{device_of_id, token_number},
    resource::ResourceName,
};
use windlass_host::shared::Shared;

pub use self::{
    overlap::{Overlap, Overlaps},
    portion::{FULL_COMPUTE_PERCENT, Portion, combined},
    shares::Shares,
};
use crate::HeldIds;

/// Handle of the ledger. Clones share one ledger.
#[derive(Clone, Debug, Default)]
pub struct SharedLedger(Arc<Published>);

#[derive(Debug, Default)]
struct Published {
    ledger: Shared<Ledger>,
    snapshots: watch::Sender<Ledger>,
}

/// Holders of devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Knowledge of the containers' devices.
    container_knowledge: Knowledge,
    /// Knowledge of the claims' devices.
    claim_knowledge: Knowledge,
    containers: BTreeMap<DeviceId, ContainerHold>,
    claims: ClaimHolds,
}

/// Claims of each device, by UID.
pub type ClaimHolds = BTreeMap<DeviceId, HoldsByUid>;

type HoldsByUid = BTreeMap<String, ClaimHold>;

/// Completeness of the known holders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Knowledge {
    /// All holders are known.
    #[default]
    Complete,
    /// All holders are known from the kubelet's checkpoint alone, which does not say how devices are
    /// shared.
    KubeletOnly,
    /// The holders are not known, or no longer kept up to date.
    Unknown,
}

/// Reference to a ResourceClaim.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ClaimRef {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID: a new claim under the same name has another one.
    pub uid: String,
}

/// Use of a device by a claim, from the weakest to the strongest. If a claim uses a device in two ways, the stronger
/// counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ClaimUse {
    /// Admin access, beside any holder.
    Admin,
    /// A share of unknown size.
    #[serde(rename = "share")]
    UnsizedShare,
    /// A counted share.
    Shares(Shares),
    /// A share by amounts.
    Portion(Portion),
    /// Exclusive use.
    #[serde(rename = "alone")]
    Exclusive,
    /// Exclusive use by the claim's containers, which share it by MPS.
    #[serde(rename = "served")]
    ExclusiveMps,
}

/// Hold of a device by containers, through the device plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ContainerHold {
    resource: ResourceName,
    /// Time of the last Allocate; `None` if an earlier agent served it.
    allocated_at: Option<Instant>,
    /// True once a checkpoint since then has contained the device.
    is_recorded: bool,
}

/// Longest time until the checkpoint contains an allocated device. The kubelet writes it once all plugins have answered
/// for a container, and it waits for each without a limit.
pub const CHECKPOINT_GRACE: Duration = Duration::from_secs(30);

/// Hold of a device by a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimHold {
    claim: ClaimRef,
    usage: ClaimUse,
}

/// Devices of containers in the kubelet's checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedDevices {
    pub(crate) devices: BTreeMap<DeviceId, ResourceName>,
    /// Resources with held tokens. A token does not name its devices.
    pub(crate) pools: BTreeSet<ResourceName>,
}

/// Reason why a device cannot be taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Conflict {
    /// Another holder has the device, or a device that overlaps it.
    #[error("{device} is held by {holder}")]
    Held {
        /// The device.
        device: DeviceId,
        /// The holder.
        holder: ConflictingHolder,
    },
    /// The kubelet's checkpoint was not read yet.
    #[error("{device} cannot be taken yet: the kubelet's checkpoint was not read")]
    UnknownContainers {
        /// The device.
        device: DeviceId,
    },
    /// The devices of claims are unknown.
    #[error(
        "{device} cannot be taken while the devices of claims are unknown: see the agent's log"
    )]
    UnknownClaims {
        /// The device.
        device: DeviceId,
    },
    /// The device has too little memory or compute left.
    #[error(
        "{device}: {} MiB of memory and {} % of compute are requested, and other claims leave {left} of {} MiB \
         and {compute_left} %",
        requested.memory, requested.compute, requested.of
    )]
    AmountExceeded {
        /// The device.
        device: DeviceId,
        /// Requested share.
        requested: Portion,
        /// Memory left, in mebibytes.
        left: u64,
        /// Compute left, in percent.
        compute_left: u64,
    },
    /// The device has too few shares left.
    #[error(
        "{device}: {} of its {} shares requested, and {left} left by other claims: containers of a \
         deleted pod may still be running",
        requested.count, requested.of
    )]
    NoShareLeft {
        /// The device.
        device: DeviceId,
        /// Requested shares.
        requested: Shares,
        /// Shares left.
        left: u32,
    },
}

/// Holder of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConflictingHolder {
    /// A container, through this resource.
    Container(ResourceName),
    /// A claim.
    Claim(ClaimRef),
}

// === impl SharedLedger ===

impl SharedLedger {
    /// Ledger of a starting agent: the containers' devices are unknown.
    pub fn with_unknown_containers() -> Self {
        let ledger = Self::default();
        ledger.mark_containers_unknown();
        ledger
    }

    /// Takes devices for a container of the device plugin, all or none. Watchers wake only for devices that
    /// are new under this resource.
    pub fn take_for_container(
        &self,
        resource: &ResourceName,
        devices: &[Overlap],
    ) -> Result<(), Conflict> {
        self.try_update(|ledger| {
            devices.iter().try_for_each(|overlap| ledger.check_free_for_container(overlap))?;
            let hold = ContainerHold::allocated(resource);
            let mut is_changed = false;
            for overlap in devices {
                let previous = ledger.containers.insert(overlap.device.clone(), hold.clone());
                is_changed |= previous.is_none_or(|previous| previous.resource != hold.resource);
            }
            Ok(is_changed)
        })
    }

    /// Takes devices for a claim, all or none. The claim may take its own devices again.
    pub fn take_for_claim(
        &self,
        claim: &ClaimRef,
        devices: &[(Overlap, ClaimUse)],
    ) -> Result<(), Conflict> {
        self.try_update(|ledger| {
            devices.iter().try_for_each(|(overlap, usage)| {
                ledger.check_free_for_claim(overlap, *usage, claim)
            })?;
            let devices = devices.iter().map(|(overlap, usage)| (&overlap.device, *usage));
            Ok(ledger.add(claim, devices))
        })
    }

    /// Restores the devices of a claim, or of a pod's share, from its record: it may be prepared in part. Other holders
    /// are not checked, because the claim has the devices already.
    pub fn restore_claim<'a>(
        &self,
        claim: &ClaimRef,
        devices: impl IntoIterator<Item = (&'a DeviceId, ClaimUse)>,
    ) {
        self.update(|ledger| ledger.add(claim, devices));
    }

    /// Releases all devices of a claim.
    pub fn release_claim(&self, uid: &str) {
        self.update(|ledger| {
            let mut is_changed = false;
            for holds in ledger.claims.values_mut() {
                is_changed |= holds.remove(uid).is_some();
            }
            ledger.claims.retain(|_, holds| !holds.is_empty());
            is_changed
        });
    }

    /// Applies a checkpoint that was read at `read_at`. It may lack an Allocate that is younger than `delay`.
    pub fn apply_checkpoint(&self, recorded: &RecordedDevices, read_at: Instant, delay: Duration) {
        self.update(|ledger| {
            ledger.containers.retain(|id, hold| {
                let is_recorded = recorded.contains(id, &hold.resource);
                // A checkpoint from before the Allocate names an earlier holder.
                hold.is_recorded |= is_recorded
                    && hold.allocated_at.is_none_or(|allocated_at| allocated_at < read_at);
                is_recorded || hold.may_be_missing(read_at, delay)
            });
            for (id, resource) in &recorded.devices {
                let holds = ledger.containers.entry(id.clone());
                holds.or_insert_with(|| ContainerHold::recorded(resource));
            }
            ledger.container_knowledge = Knowledge::Complete;
            // The published snapshot is still that of the previous step.
            *ledger != *self.0.snapshots.borrow()
        });
    }

    /// Moves the times of Allocates forward by a pause of the agent's process, because the kubelet may have paused too.
    pub(crate) fn shift_for_pause(&self, time: Duration) {
        let now = Instant::now();
        // Watchers need not wake: no holder changes.
        self.update(|ledger| {
            for hold in ledger.containers.values_mut() {
                hold.allocated_at =
                    hold.allocated_at.map(|allocated_at| (allocated_at + time).min(now));
            }
            false
        });
    }

    /// Marks the claims' devices as unknown: any device may be a claim's.
    pub fn mark_claims_unknown(&self) {
        self.update(|ledger| ledger.set_claim_knowledge(Knowledge::Unknown));
    }

    /// Marks the claims' devices as known from the kubelet's checkpoint only, until the agent ends.
    pub fn mark_claims_from_kubelet(&self) {
        self.update(|ledger| ledger.set_claim_knowledge(Knowledge::KubeletOnly));
    }

    /// Marks unknown claims' devices as known again.
    pub fn mark_claims_known(&self) {
        self.update(|ledger| {
            ledger.claim_knowledge == Knowledge::Unknown
                && ledger.set_claim_knowledge(Knowledge::Complete)
        });
    }

    /// Marks the containers' devices as unknown: the kubelet's checkpoint is no longer read.
    pub(crate) fn mark_containers_unknown(&self) {
        self.update(|ledger| {
            std::mem::replace(&mut ledger.container_knowledge, Knowledge::Unknown)
                != Knowledge::Unknown
        });
    }

    /// Waits until the devices of containers and claims are known.
    pub async fn wait_until_known(&self) {
        let mut ledger = self.watch();
        let is_known = |ledger: &Ledger| ledger.is_complete() && ledger.knows_claims();
        // The wait cannot fail: this handle owns the sender.
        drop(ledger.wait_for(is_known).await);
    }

    /// Snapshots of the ledger.
    pub fn watch(&self) -> watch::Receiver<Ledger> {
        self.0.snapshots.subscribe()
    }

    /// Makes a change that may fail, and publishes it. The change returns true if watchers have to wake.
    fn try_update(
        &self,
        change: impl FnOnce(&mut Ledger) -> Result<bool, Conflict>,
    ) -> Result<(), Conflict> {
        self.0.ledger.with_lock(|ledger| {
            let is_changed = change(ledger)?;
            self.publish(ledger, is_changed);
            Ok(())
        })
    }

    /// Makes a change, and publishes it. The change returns true if watchers have to wake; they read the new value
    /// either way.
    fn update(&self, change: impl FnOnce(&mut Ledger) -> bool) {
        self.0.ledger.with_lock(|ledger| {
            let is_changed = change(ledger);
            self.publish(ledger, is_changed);
        });
    }

    fn publish(&self, ledger: &Ledger, is_changed: bool) {
        self.0.snapshots.send_if_modified(|snapshot| {
            snapshot.clone_from(ledger);
            is_changed
        });
    }
}

// === impl Ledger ===

impl Ledger {
    /// True if the containers' devices are known.
    pub fn is_complete(&self) -> bool {
        self.container_knowledge == Knowledge::Complete
    }

    /// True if the claims' devices are known.
    pub fn knows_claims(&self) -> bool {
        self.claim_knowledge != Knowledge::Unknown
    }

    /// True if any exclusive claim may be served by an MPS daemon: the kubelet's checkpoint does not say.
    pub fn knows_claims_from_kubelet_only(&self) -> bool {
        self.claim_knowledge == Knowledge::KubeletOnly
    }

    /// Resource through which a container holds the device, or a device that overlaps it.
    pub fn container_holder(&self, overlap: &Overlap) -> Option<&ResourceName> {
        overlap.all().find_map(|id| self.containers.get(id)).map(|hold| &hold.resource)
    }

    /// Claim that holds the device, or a device that overlaps it. Admin access does not count.
    pub fn claim_holder(&self, overlap: &Overlap) -> Option<&ClaimRef> {
        let mut holds = overlap.all().flat_map(|id| self.holds(id));
        holds.find(|hold| hold.usage != ClaimUse::Admin).map(|hold| &hold.claim)
    }

    /// True if a claim holds this very device. Admin access does not count.
    pub fn is_claimed(&self, id: &DeviceId) -> bool {
        self.holds(id).any(|hold| hold.usage != ClaimUse::Admin)
    }

    /// UIDs of the claims that hold the device. Admin access does not count.
    pub fn claim_uids<'a>(&'a self, id: &DeviceId) -> impl Iterator<Item = &'a str> + use<'a> {
        self.holds(id)
            .filter(|hold| hold.usage != ClaimUse::Admin)
            .map(|hold| hold.claim.uid.as_str())
    }

    /// True if the claim holds any device, admin access included.
    pub fn is_held_by(&self, uid: &str) -> bool {
        self.claims.values().any(|holds| holds.contains_key(uid))
    }

    /// Sum of the shares by amounts that claims and pods have of the device.
    pub fn portion(&self, id: &DeviceId) -> Option<Portion> {
        self.others_portion(id, "")
    }

    /// True if pods hold shares of the device by amounts.
    pub fn is_shared_by_pods(&self, id: &DeviceId) -> bool {
        self.holds(id).any(|hold| hold.claim.is_share())
    }

    /// True if a container or a claim excludes shares of the device by amounts. A holder of such a share does not.
    pub fn excludes_shares(&self, overlap: &Overlap) -> bool {
        let is_beside = |id: &DeviceId, hold: &ClaimHold| match hold.usage {
            ClaimUse::Admin => true,
            ClaimUse::Portion(portion) => !portion.method.is_mps() && *id == overlap.device,
            _ => false,
        };
        self.container_holder(overlap).is_some()
            || overlap.all().any(|id| self.holds(id).any(|hold| !is_beside(id, hold)))
    }

    /// Devices that containers hold through the device plugin.
    pub fn container_devices(&self) -> impl Iterator<Item = &DeviceId> {
        self.containers.keys()
    }

    /// Claims of each device.
    pub fn claims(&self) -> &ClaimHolds {
        &self.claims
    }

    /// Time of the device's last Allocate from this agent.
    pub fn allocated_at(&self, id: &DeviceId) -> Option<Instant> {
        self.containers.get(id)?.allocated_at
    }

    /// Time of the resource's last Allocate from this agent.
    pub(crate) fn resource_allocated_at(&self, resource: &ResourceName) -> Option<Instant> {
        let holds = self.containers.values().filter(|hold| hold.resource == *resource);
        holds.filter_map(|hold| hold.allocated_at).max()
    }

    fn holds<'a>(&'a self, id: &DeviceId) -> impl Iterator<Item = &'a ClaimHold> + use<'a> {
        self.claims.get(id).into_iter().flat_map(BTreeMap::values)
    }

    /// Sets the knowledge of the claims' devices; returns true if it changed.
    fn set_claim_knowledge(&mut self, knowledge: Knowledge) -> bool {
        std::mem::replace(&mut self.claim_knowledge, knowledge) != knowledge
    }

    /// Adds a claim's devices; returns true if anything changed.
    fn add<'a>(
        &mut self,
        claim: &ClaimRef,
        devices: impl IntoIterator<Item = (&'a DeviceId, ClaimUse)>,
    ) -> bool {
        let mut is_changed = false;
        for (device, usage) in devices {
            let holds = self.claims.entry(device.clone()).or_default();
            let previous = holds.get(&claim.uid).map(|hold| hold.usage);
            if previous < Some(usage) {
                holds.insert(claim.uid.clone(), ClaimHold { claim: claim.clone(), usage });
                is_changed = true;
            }
        }
        is_changed
    }

    fn check_free_for_container(&self, overlap: &Overlap) -> Result<(), Conflict> {
        match self.claim_holder(overlap) {
            Some(claim) => Err(Conflict::held_by(overlap, ConflictingHolder::Claim(claim.clone()))),
            None if self.knows_claims() => Ok(()),
            None => Err(Conflict::UnknownClaims { device: overlap.device.clone() }),
        }
    }

    fn check_free_for_claim(
        &self,
        overlap: &Overlap,
        usage: ClaimUse,
        claim: &ClaimRef,
    ) -> Result<(), Conflict> {
        let is_its_own = |hold: &ClaimHold| hold.claim.uid == claim.uid && hold.usage >= usage;
        if usage == ClaimUse::Admin || self.holds(&overlap.device).any(is_its_own) {
            return Ok(());
        }
        if let Some(resource) = self.container_holder(overlap) {
            return Err(Conflict::held_by(overlap, ConflictingHolder::Container(resource.clone())));
        }
        if !self.is_complete() {
            return Err(Conflict::UnknownContainers { device: overlap.device.clone() });
        }
        if !self.knows_claims() {
            return Err(Conflict::UnknownClaims { device: overlap.device.clone() });
        }
        let others = overlap.all().flat_map(|id| self.holds(id).map(move |hold| (id, hold)));
        for (id, hold) in others {
            let is_shared = hold.usage.is_compatible_with(usage) && *id == overlap.device;
            if hold.claim.uid != claim.uid && hold.usage != ClaimUse::Admin && !is_shared {
                return Err(Conflict::held_by(
                    overlap,
                    ConflictingHolder::Claim(hold.claim.clone()),
                ));
            }
        }
        match usage {
            ClaimUse::Portion(requested) => self.check_portion(overlap, requested, &claim.uid),
            ClaimUse::Shares(requested) => self.check_shares(overlap, requested, &claim.uid),
            _ => Ok(()),
        }
    }
}

// === impl ContainerHold ===

impl ContainerHold {
    fn allocated(resource: &ResourceName) -> Self {
        let allocated_at = Some(Instant::now());
        Self { resource: resource.clone(), allocated_at, is_recorded: false }
    }

    /// A hold from before this agent.
    fn recorded(resource: &ResourceName) -> Self {
        Self { resource: resource.clone(), allocated_at: None, is_recorded: true }
    }

    /// True if a checkpoint that was read at `read_at` may still lack the hold.
    fn may_be_missing(&self, read_at: Instant, delay: Duration) -> bool {
        let delay = if self.is_recorded { delay } else { CHECKPOINT_GRACE };
        self.allocated_at.is_some_and(|allocated_at| read_at - allocated_at < delay)
    }
}

// === impl RecordedDevices ===

impl RecordedDevices {
    /// Devices and pools of the held ids, of this and of other plugins.
    pub(crate) fn from_held_ids(held_ids: &HeldIds) -> Self {
        let mut recorded = Self::default();
        for (resource, ids) in held_ids {
            if ids.iter().any(|id| token_number(id).is_some()) {
                recorded.pools.insert(resource.clone());
            }
            let devices = ids.iter().filter_map(|id| device_of_id(id));
            recorded.devices.extend(devices.map(|device| (device, resource.clone())));
        }
        recorded
    }

    /// True if a container holds the device, by its id or by a token of this resource.
    fn contains(&self, id: &DeviceId, resource: &ResourceName) -> bool {
        self.devices.contains_key(id) || self.pools.contains(resource)
    }
}

// === impl Conflict ===

impl Conflict {
    fn held_by(overlap: &Overlap, holder: ConflictingHolder) -> Self {
        Self::Held { device: overlap.device.clone(), holder }
    }

    /// The device that cannot be taken.
    pub fn device(&self) -> &DeviceId {
        match self {
            Self::Held { device, .. }
            | Self::UnknownContainers { device }
            | Self::UnknownClaims { device }
            | Self::AmountExceeded { device, .. }
            | Self::NoShareLeft { device, .. } => device,
        }
    }

    /// The claim that holds the device, for the node's own log. The error message hides its name, because it goes to
    /// another tenant.
    pub fn holder(&self) -> Option<&ClaimRef> {
        match self {
            Self::Held { holder: ConflictingHolder::Claim(claim), .. } => Some(claim),
            _ => None,
        }
    }
}

impl fmt::Display for ConflictingHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Container(resource) => write!(f, "a container, as {resource}"),
            Self::Claim(claim) if claim.is_share() => f.write_str("pods, as shares by amounts"),
            Self::Claim(_) => f.write_str("another claim"),
        }
    }
}

// === impl ClaimHold ===

impl ClaimHold {
    /// The claim.
    pub fn claim(&self) -> &ClaimRef {
        &self.claim
    }

    /// The claim's share by amounts, if it has one.
    pub fn portion(&self) -> Option<Portion> {
        self.usage.portion()
    }
}

// === impl ClaimRef ===

/// Prefix of the UID of a pod that stands for its share. UIDs of claims have no colon.
const SHARE: &str = "share:";

impl ClaimRef {
    /// Reference to a pod that holds a share by amounts through the device plugin. The ledger treats it as a claim.
    pub fn of_share(namespace: &str, pod: &str, uid: &str) -> Self {
        let uid = format!("{SHARE}{uid}");
        Self { namespace: namespace.to_owned(), name: pod.to_owned(), uid }
    }

    /// True for a pod with a share by amounts.
    pub fn is_share(&self) -> bool {
        self.pod_of_share().is_some()
    }

    /// UID of the pod with a share by amounts; `None` for a claim.
    pub fn pod_of_share(&self) -> Option<&str> {
        self.uid.strip_prefix(SHARE)
    }
}

impl fmt::Display for ClaimRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            // The kubelet names the holders of replicas by their UID alone.
            return write!(f, "pod {}", self.name);
        }
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

#[cfg(test)]
pub(crate) mod tests;
