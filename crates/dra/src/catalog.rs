//! Catalog of a node's devices for claims: a pure function of the node's state.
//!
//! Each source of devices has its own pool, so that an invalid device of one source hides no device of another. The
//! scheduler tries devices in the order of their pool.

mod attributes;
mod common_attributes;
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

pub(super) use self::attributes::shares_capacity_name;
pub(crate) use self::name::DeviceName;
use super::consumable_capacity::ConsumableCapacity;

/// Devices of a node for claims.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Catalog {
    /// Pools by name.
    pub pools: BTreeMap<String, Pool>,
}

/// Devices of one source.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pool {
    /// Devices in the order in which the scheduler tries them.
    pub entries: Vec<CatalogEntry>,
    /// Counters that devices consume.
    pub(crate) counters: Vec<Counters>,
}

/// Amounts of a counter set: its total, or the consumption of a device.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Counters {
    pub(crate) set: String,
    pub(crate) amounts: BTreeMap<String, Quantity>,
}

/// A device of the catalog.
#[derive(Clone, Debug, PartialEq)]
pub struct CatalogEntry {
    pub(crate) name: DeviceName,
    /// The device. For a partition, the id of its placement, which the ledger uses.
    pub device: DeviceId,
    /// Sharing among claims.
    pub(crate) sharing: Sharing,
    /// Capacity for shares by amounts.
    pub(crate) consumable: Option<ConsumableCapacity>,
    pub(crate) attributes: Attributes,
    pub(crate) capacity: BTreeMap<AttributeName, Quantity>,
    /// Reasons not to allocate it now.
    pub taints: Vec<Taint>,
    /// Placement of the MIG instance that the driver creates for a claim.
    pub(crate) partition: Option<Partition>,
    pub(crate) consumes: Option<Counters>,
    /// True if a claim holds it.
    pub(crate) is_claimed: bool,
}

/// Reason not to allocate a device now.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Taint {
    /// Kind of reason, published in the driver's domain.
    pub key: &'static str,
    /// One word, written like a label.
    pub value: String,
}

/// Taint of an unhealthy device; the value is the kind of failure.
const UNHEALTHY: &str = "unhealthy";

/// Taint of an unclean device; the value is its state of cleanup.
const UNCLEAN: &str = "unclean";

/// Taint of a device that a container got through the device plugin; the value is the last part of the
/// resource's name.
const DEVICE_PLUGIN: &str = "device-plugin";

/// Taint of a healthy device with an obstacle; the value is the kind of obstacle.
const OBSTACLE: &str = "obstacle";

/// Taint of a device that a claim holds under another name.
const CLAIMED: &str = "claimed";

// === impl Catalog ===

impl Catalog {
    /// Builds the catalog of the node called `node`.
    pub fn of(state: &NodeState, node: &str, driver: &DriverName, ledger: &Ledger) -> Self {
        let mut catalog = Self::default();
        for (device, sharing) in claimable(state) {
            let pool = catalog.pool(node, device);
            pool.entries.push(CatalogEntry::of(device, sharing, state, ledger, driver));
        }
        let gpus = partitions::partitionable_gpus(state, ledger, driver);
        for gpu in &gpus {
            let pool = catalog.pool(node, gpu.gpu);
            pool.counters.push(gpu.counters());
            pool.entries.extend(gpu.entries());
        }
        for gpu in gpus.iter().rev() {
            catalog.pool(node, gpu.gpu).entries.extend(gpu.full_gpu_entry());
        }
        catalog.pools.values_mut().for_each(|pool| attributes::make_uniform(&mut pool.entries));
        common_attributes::unify(&mut catalog.pools, driver);
        catalog
    }

    pub(crate) fn find(&self, pool: &str, name: &str) -> Option<&CatalogEntry> {
        self.pools.get(pool)?.entries.iter().find(|entry| entry.name.as_str() == name)
    }

    fn pool(&mut self, node: &str, device: &Device) -> &mut Pool {
        self.pools.entry(pool_name(node, device.source.as_str())).or_default()
    }
}

// === impl CatalogEntry ===

impl CatalogEntry {
    fn of(
        device: &Device,
        sharing: Sharing,
        state: &NodeState,
        ledger: &Ledger,
        driver: &DriverName,
    ) -> Self {
        let consumable = ConsumableCapacity::of(device, sharing, state);
        let mut capacity = attributes::capacity(device, sharing, driver);
        capacity.extend(consumable.iter().flat_map(|consumable| consumable.capacity(driver)));
        Self {
            name: DeviceName::of(&device.id),
            device: device.id.clone(),
            sharing,
            attributes: attributes::of(
                device,
                consumable.as_ref().and(state.enforcement(device)),
                driver,
            ),
            consumable,
            capacity,
            taints: taints(state, ledger, device),
            partition: None,
            consumes: None,
            is_claimed: ledger.is_claimed(&device.id),
        }
    }
}

/// True if the vendor's driver reports the GPU's attributes. A CEL expression that asks for a missing attribute fails
/// the allocation on every node.
fn is_described(device: &Device) -> bool {
    device.family().driver_attribute.is_none_or(|name| device.attributes.contains_key(name))
}

fn claimable(state: &NodeState) -> impl Iterator<Item = (&Device, Sharing)> {
    let sharing = |device: &Device| state.claimable.get(&device.id).copied();
    let devices = state.inventory.devices.iter().filter(|device| is_described(device));
    devices.filter_map(move |device| Some((device, sharing(device)?)))
}

pub(super) fn pool_name(node: &str, source: &str) -> String {
    format!("{node}/{source}")
}

/// True for a pool of this node.
pub(super) fn is_pool_of(node: &str, pool: &str) -> bool {
    pool.strip_prefix(node).is_some_and(|suffix| suffix.starts_with('/'))
}

fn taints(state: &NodeState, ledger: &Ledger, device: &Device) -> Vec<Taint> {
    let taints = [
        unhealthy_taint(device),
        device_plugin_taint(state, ledger, device),
        claimed_under_other_name(state, ledger, device),
        unclean_taint(state, device),
        obstacle_taint(state, device),
    ];
    taints.into_iter().flatten().collect()
}

/// Taint of a device whose hardware a claim holds under another name, such as the placement of an instance, or may hold
/// while claims are unknown.
fn claimed_under_other_name(state: &NodeState, ledger: &Ledger, device: &Device) -> Option<Taint> {
    let is_claimed = !ledger.is_claimed(&device.id)
        && ledger.claim_holder(&state.overlaps.overlap(&device.id)).is_some();
    let claimed = || Taint { key: CLAIMED, value: "other-name".to_owned() };
    is_claimed.then(claimed).or_else(|| unknown_claims(ledger))
}

/// Taint of every device while the devices of claims are unknown.
fn unknown_claims(ledger: &Ledger) -> Option<Taint> {
    let taint = || Taint { key: CLAIMED, value: "not-known".to_owned() };
    (!ledger.knows_claims()).then(taint)
}

fn obstacle_taint(state: &NodeState, device: &Device) -> Option<Taint> {
    // Kubernetes 1.34 accepts four taints of a device, and an unhealthy device has one already.
    let obstacle = state.obstacle(device).filter(|_| device.health.is_healthy())?;
    Some(Taint { key: OBSTACLE, value: obstacle.kind.as_str().to_owned() })
}

/// Taint of a device that waits for cleanup, or whose cleanup failed.
fn unclean_taint(state: &NodeState, device: &Device) -> Option<Taint> {
    let value = (*state.pending_cleanups.get(&device.id)?).to_owned();
    Some(Taint { key: UNCLEAN, value })
}

fn unhealthy_taint(device: &Device) -> Option<Taint> {
    if device.health.is_healthy() {
        return None;
    }
    let value = match device.health.failure() {
        Some(failure) => label_value(&failure.reason.to_string()),
        None => "not-probed".to_owned(),
    };
    Some(Taint { key: UNHEALTHY, value })
}

/// Taint of a device that a container holds, or may hold, through the device plugin. The release removes it.
fn device_plugin_taint(state: &NodeState, ledger: &Ledger, device: &Device) -> Option<Taint> {
    let value = match ledger.container_holder(&state.overlaps.overlap(&device.id)) {
        Some(resource) => label_value(resource.as_str().rsplit('/').next().unwrap_or_default()),
        None if ledger.is_shared_by_pods(&device.id) => "shares".to_owned(),
        None if ledger.is_complete() => return None,
        None => "not-known".to_owned(),
    };
    Some(Taint { key: DEVICE_PLUGIN, value })
}

/// Converts text to a label value: at most 63 letters, digits, `-`, `_` and `.`. Other characters become dashes.
fn label_value(text: &str) -> String {
    let allowed_or_dash = |character: char| {
        if character.is_ascii_alphanumeric() || "_.".contains(character) { character } else { '-' }
    };
    let mut label_value: String = text.chars().take(MAX_LABEL).map(allowed_or_dash).collect();
    while label_value.contains("--") {
        label_value = label_value.replace("--", "-");
    }
    label_value.trim_matches(|character: char| !character.is_ascii_alphanumeric()).to_owned()
}

#[cfg(test)]
pub(crate) mod tests;
