//! What a node has for claims, by the names that claims know: a pure function of its state.
//!
//! There is a pool for each source of devices, so that one family's mistake hides no other's.
//! The order of a pool is the order in which the scheduler tries its devices.

mod alike;
mod attributes;
mod name;
mod partitions;

use std::collections::BTreeMap;

use windlass_allocations::ledger::Ledger;
use windlass_config::{DriverName, Sharing};
use windlass_core::{
    attribute::{AttributeName, Attributes, Quantity},
    device::{Device, DeviceId, Partition},
    name::MAX_LABEL,
};
use windlass_resources::NodeState;

pub(super) use self::attributes::shares_of;
pub(crate) use self::name::EntryName;
use super::portions::Portions;

/// What a node has for claims.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Catalog {
    /// The pools by name.
    pub pools: BTreeMap<String, Pool>,
}

/// The devices of one source.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pool {
    /// In the order in which they are to be tried.
    pub entries: Vec<Entry>,
    /// What entries take their parts from.
    pub(crate) counters: Vec<Counters>,
}

/// Amounts of a set of counters: all that there is, or what an entry takes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Counters {
    pub(crate) set: String,
    pub(crate) amounts: BTreeMap<String, Quantity>,
}

/// A device as claims know it.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Its name in the pool.
    pub(crate) name: EntryName,
    /// The device that it stands for; of a partition the name of its place, by which the ledger knows it.
    pub device: DeviceId,
    /// Whether claims share it.
    pub(crate) sharing: Sharing,
    /// Whether they have shares of it by amounts.
    pub(crate) portions: Option<Portions>,
    pub(crate) attributes: Attributes,
    pub(crate) capacity: BTreeMap<AttributeName, Quantity>,
    /// Why it is not to be given away now.
    pub taints: Vec<Taint>,
    /// The place where an instance is made for whoever gets it.
    pub(crate) partition: Option<Partition>,
    /// What it takes from other entries.
    pub(crate) consumes: Option<Counters>,
    /// Whether a claim has it.
    pub(crate) is_claimed: bool,
}

/// Why a device is not to be given away now.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Taint {
    /// What sort of reason it is; published in the driver's domain.
    pub key: &'static str,
    /// In one word, as labels are written.
    pub value: String,
}

/// The taint of a device that is not healthy; its value is the sort of trouble.
const UNHEALTHY: &str = "unhealthy";

/// The taint of a device that is not clean; its value is where its hand-over stands.
const UNCLEAN: &str = "unclean";

/// The taint of a device that a container got through the device plugin; its value is the last part of the
/// resource's name.
const DEVICE_PLUGIN: &str = "device-plugin";

/// The taint of a healthy device that this node is not to hand out; its value is the sort of obstacle.
const OBSTACLE: &str = "obstacle";

/// The taint of a device that a claim has under another name.
const CLAIMED: &str = "claimed";

// === impl Catalog ===

impl Catalog {
    /// What claims may have of the node of this name.
    pub fn of(state: &NodeState, node: &str, driver: &DriverName, ledger: &Ledger) -> Self {
        let mut catalog = Self::default();
        for (device, sharing) in claimable(state) {
            let pool = catalog.pools.entry(pool_name(node, device.source.as_str()));
            let pool = pool.or_default();
            pool.entries.push(Entry::of((device, sharing), (state, ledger), driver));
        }
        let cuts = partitions::cuts((state, ledger), driver);
        for cut in &cuts {
            let pool = catalog.pools.entry(pool_name(node, cut.gpu.source.as_str()));
            let pool = pool.or_default();
            pool.counters.push(cut.counters());
            pool.entries.extend(cut.entries());
        }
        for cut in cuts.iter().rev() {
            let pool = catalog.pools.entry(pool_name(node, cut.gpu.source.as_str()));
            pool.or_default().entries.extend(cut.whole());
        }
        catalog.pools.values_mut().for_each(|pool| attributes::make_uniform(&mut pool.entries));
        alike::make_alike(&mut catalog.pools, driver);
        catalog
    }

    /// The device that claims know by this name.
    pub(crate) fn find(&self, pool: &str, name: &str) -> Option<&Entry> {
        self.pools.get(pool)?.entries.iter().find(|entry| entry.name.as_str() == name)
    }
}

// === impl Entry ===

impl Entry {
    /// A device that is there as it is.
    fn of(
        (device, sharing): (&Device, Sharing),
        (state, ledger): (&NodeState, &Ledger),
        driver: &DriverName,
    ) -> Self {
        let portions = Portions::of(device, sharing, &state.policy.dra);
        let mut capacity = attributes::capacity(device, sharing, driver);
        capacity.extend(portions.iter().flat_map(|portions| portions.capacity(driver)));
        Self {
            name: EntryName::of(&device.id),
            device: device.id.clone(),
            sharing,
            portions,
            attributes: attributes::of(device, driver),
            capacity,
            taints: taints(state, ledger, device),
            partition: None,
            consumes: None,
            is_claimed: ledger.is_claimed(&device.id),
        }
    }
}

/// A GPU that its driver cannot describe is for nobody: an expression that asks for what it lacks would keep a
/// pod from every node.
fn is_described(device: &Device) -> bool {
    device.family().described_by.is_none_or(|name| device.attributes.contains_key(name))
}

fn claimable(state: &NodeState) -> impl Iterator<Item = (&Device, Sharing)> {
    let sharing = |device: &Device| state.claimable.get(&device.id).copied();
    let devices = state.inventory.devices.iter().filter(|device| is_described(device));
    devices.filter_map(move |device| Some((device, sharing(device)?)))
}

/// The pool of a source's devices.
pub(super) fn pool_name(node: &str, source: &str) -> String {
    format!("{node}/{source}")
}

/// Whether a pool is one of the node's.
pub(super) fn is_pool_of(node: &str, pool: &str) -> bool {
    pool.strip_prefix(node).is_some_and(|rest| rest.starts_with('/'))
}

fn taints(state: &NodeState, ledger: &Ledger, device: &Device) -> Vec<Taint> {
    let all = [
        trouble(device),
        held(state, ledger, device),
        elsewhere(state, ledger, device),
        unclean(state, device),
        obstacle(state, device),
    ];
    all.into_iter().flatten().collect()
}

/// A device of which a claim has the silicon under another name, such as that of the place it was made at, or may
/// have it.
fn elsewhere(state: &NodeState, ledger: &Ledger, device: &Device) -> Option<Taint> {
    let is_taken =
        !ledger.is_claimed(&device.id) && ledger.claim(&state.kin.footprint(&device.id)).is_some();
    let taken = || Taint { key: CLAIMED, value: "other-name".to_owned() };
    is_taken.then(taken).or_else(|| untold(ledger))
}

/// Nobody knows what claims have.
fn untold(ledger: &Ledger) -> Option<Taint> {
    let taint = || Taint { key: CLAIMED, value: "not-known".to_owned() };
    (!ledger.knows_claims()).then(taint)
}

/// A device that this node is not to hand out now, in neither way.
fn obstacle(state: &NodeState, device: &Device) -> Option<Taint> {
    // Kubernetes 1.34 takes four taints of a device, and trouble says enough.
    let found = state.obstacle(device).filter(|_| device.health.is_healthy())?;
    Some(Taint { key: OBSTACLE, value: found.sort.word().to_owned() })
}

/// A device on which something is left of who had it last.
fn unclean(state: &NodeState, device: &Device) -> Option<Taint> {
    let value = (*state.unready.get(&device.id)?).to_owned();
    Some(Taint { key: UNCLEAN, value })
}

/// A device that is not healthy.
fn trouble(device: &Device) -> Option<Taint> {
    if device.health.is_healthy() {
        return None;
    }
    let value = match device.health.trouble() {
        Some(trouble) => spelled(&trouble.reason.to_string()),
        None => "not-probed".to_owned(),
    };
    Some(Taint { key: UNHEALTHY, value })
}

/// A device that a container has through the device plugin, or may have: that is gone when it is let go.
fn held(state: &NodeState, ledger: &Ledger, device: &Device) -> Option<Taint> {
    let value = match ledger.container(&state.kin.footprint(&device.id)) {
        Some(resource) => spelled(resource.as_str().rsplit('/').next().unwrap_or_default()),
        None if ledger.is_complete() => return None,
        None => "not-known".to_owned(),
    };
    Some(Taint { key: DEVICE_PLUGIN, value })
}

/// A text as the value of a label: at most 63 letters, digits, `-`, `_` and `.`. Labels of the node drop what
/// they cannot have, as gpu-feature-discovery does; here words stay apart.
fn spelled(text: &str) -> String {
    let letter = |c: char| if c.is_ascii_alphanumeric() || "_.".contains(c) { c } else { '-' };
    let mut spelled: String = text.chars().take(MAX_LABEL).map(letter).collect();
    while spelled.contains("--") {
        spelled = spelled.replace("--", "-");
    }
    spelled.trim_matches(|c: char| !c.is_ascii_alphanumeric()).to_owned()
}

#[cfg(test)]
pub(crate) mod tests;
