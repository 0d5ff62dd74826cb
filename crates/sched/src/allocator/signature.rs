//! Node signatures: on nodes with equal signatures the same claims get devices at equal positions.
//!
//! A signature leaves out all names of nodes, pools, slices, devices and counters, and the attributes that the claims
//! do not read. Thousands of nodes, each with its own UUIDs, therefore have few different signatures.

use std::collections::{BTreeSet, HashMap};

use k8s_openapi::{
    api::resource::v1::{CapacityRequestPolicy, DeviceAttribute, DeviceCapacity},
    apimachinery::pkg::api::resource::Quantity,
};
use windlass_core::{attribute::AttributeName, selector::Amount};

use super::{
    allocated_devices::{AllocatedDevices, Holding},
    candidate::Candidate,
    counters::Counters,
    node_losses,
    pool::{Pool, State},
    pools::Pools,
};

/// Device attributes that claims read. Signatures also contain those that [`NodeLosses`](super::NodeLosses) reads.
/// `None` if the claims may read any attribute.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AttributesRead(Option<BTreeSet<AttributeName>>);

/// Signature of a node: the state of its devices, reduced to the attributes that some claims read.
///
/// # Guarantees
///
/// On nodes with equal signatures, equal claims get equal results of [`Claims::choose`](super::Claims::choose) and of
/// [`NodeLosses::of`](super::NodeLosses::of), if the claims read no other attributes. Errors may differ. Compare only
/// signatures that use the same [`DeviceSignatures`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeSignature {
    /// Number of each device's signature.
    pub(super) devices: Box<[u32]>,
    /// Encoded state of the pools, and of the devices' holders.
    state: Box<[u8]>,
}

/// Numbers of device signatures. Devices with equal signatures are equal in everything that the claims read.
#[derive(Debug, Default)]
pub struct DeviceSignatures {
    numbers: HashMap<Box<[u8]>, u32>,
    /// Last assigned number. Numbers are never reused.
    last_number: u32,
}

/// Maximum number of cached device signatures. An evicted signature gets a new number when it appears again.
const MAX_DEVICE_SIGNATURES: usize = 1 << 18;

/// Encoder of a signature. Lists and texts begin with their length, so that different states have different bytes.
#[derive(Default)]
struct Encoder(Vec<u8>);

// === impl AttributesRead ===

impl AttributesRead {
    pub(super) fn of(
        by_expressions: impl Iterator<Item = Option<BTreeSet<AttributeName>>>,
        by_constraints: impl Iterator<Item = Option<AttributeName>>,
    ) -> Self {
        let by_constraints = by_constraints.map(|name| Some(BTreeSet::from([name?])));
        let names: Option<Vec<_>> = by_expressions.chain(by_constraints).collect();
        Self(names.map(|names| names.into_iter().flatten().collect()))
    }

    /// True if the claims may read any attribute. Then hardly any two nodes are equal.
    pub fn is_any(&self) -> bool {
        self.0.is_none()
    }

    fn includes(&self, driver: &str, attribute: &str) -> bool {
        let (domain, name) = attribute.split_once('/').unwrap_or((driver, attribute));
        let is_same = |it: &AttributeName| it.name() == name && it.domain() == domain;
        node_losses::ATTRIBUTES.contains(&name)
            || self.0.as_ref().is_none_or(|names| names.iter().any(is_same))
    }
}

// === impl NodeSignature ===

impl NodeSignature {
    /// The signature of a node with these pools, for claims that read these attributes.
    pub fn of(
        pools: &Pools,
        allocated: &AllocatedDevices,
        attributes_read: &AttributesRead,
        devices: &mut DeviceSignatures,
    ) -> Self {
        let (mut encoder, mut device_encoder, mut numbers) =
            (Encoder::default(), Encoder::default(), Vec::new());
        let holdings = allocated.of_pools(&pools.members);
        let counters = Counters::of(&pools.members, &holdings);
        encoder.number(pools.members.len());
        for (index, pool) in pools.members.iter().enumerate() {
            encoder.pool(pool, counters.of_pool(index));
        }
        for candidate in &pools.candidates {
            device_encoder.0.clear();
            device_encoder.device(candidate, attributes_read);
            numbers.push(devices.number(&device_encoder.0));
            let holding = holdings[candidate.pool].and_then(|it| it.get(&candidate.device().name));
            encoder.holding(holding);
        }
        Self { devices: numbers.into(), state: encoder.0.into() }
    }
}

// === impl DeviceSignatures ===

impl DeviceSignatures {
    fn number(&mut self, device: &[u8]) -> u32 {
        if let Some(number) = self.numbers.get(device) {
            return *number;
        }
        if self.numbers.len() >= MAX_DEVICE_SIGNATURES {
            self.numbers.clear();
        }
        self.last_number += 1;
        self.numbers.insert(device.into(), self.last_number);
        self.last_number
    }
}

// === impl Encoder ===

impl Encoder {
    fn pool(&mut self, Pool { id, state }: &Pool, remaining: &[Amount]) {
        self.text(&id.driver);
        let State::Ready(contents) = state else {
            return self.flags([true, matches!(state, State::Incomplete)]);
        };
        self.flags([false; 2]);
        self.list(contents.counter_sets.starts(), |encoder, start| encoder.number(*start));
        self.list(contents.counter_sets.totals(), |encoder, amount| encoder.amount(*amount));
        self.list(remaining, |encoder, amount| encoder.amount(*amount));
    }

    fn device(&mut self, candidate: &Candidate, attributes_read: &AttributesRead) {
        let (device, driver) = (candidate.device(), candidate.driver());
        self.number(candidate.pool);
        self.text(driver);
        self.flags([candidate.is_on_node, candidate.is_shared()]);
        let attributes = device.attributes.iter().flatten();
        let attributes: Vec<_> =
            attributes.filter(|(name, _)| attributes_read.includes(driver, name)).collect();
        self.list(&attributes, |encoder, (name, value)| {
            encoder.text(name);
            encoder.attribute(value);
        });
        let capacity: Vec<_> = device.capacity.iter().flatten().collect();
        self.list(&capacity, |encoder, (name, capacity)| {
            encoder.text(name);
            encoder.capacity(capacity);
        });
        let taints: Vec<_> = candidate.taints().collect();
        self.list(&taints, |encoder, taint| {
            encoder.text(&taint.effect);
            encoder.text(&taint.key);
            encoder.text(taint.value.as_deref().unwrap_or_default());
        });
        self.list(&candidate.consumptions, |encoder, consumption| {
            encoder.number(consumption.counter());
            encoder.amount(consumption.amount());
        });
    }

    fn attribute(&mut self, value: &DeviceAttribute) {
        // List attributes are omitted, because constraints and expressions do not read them.
        let DeviceAttribute { bool, int, string, version, .. } = value;
        self.option(bool.as_ref(), |encoder, it| encoder.flags([*it, false]));
        self.option(int.as_ref(), |encoder, it| encoder.0.extend_from_slice(&it.to_le_bytes()));
        self.option(string.as_ref(), |encoder, it| encoder.text(it));
        self.option(version.as_ref(), |encoder, it| encoder.text(it));
    }

    fn capacity(&mut self, DeviceCapacity { value, request_policy }: &DeviceCapacity) {
        self.text(&value.0);
        self.option(request_policy.as_ref(), |encoder, policy| {
            let CapacityRequestPolicy { default, valid_range, valid_values } = policy;
            encoder.quantity(default.as_ref());
            encoder.option(valid_range.as_ref(), |encoder, range| {
                encoder.text(&range.min.0);
                encoder.quantity(range.max.as_ref());
                encoder.quantity(range.step.as_ref());
            });
            encoder.list(valid_values.as_deref().unwrap_or_default(), |encoder, it| {
                encoder.text(&it.0);
            });
        });
    }

    /// Encodes the allocations of the device.
    fn holding(&mut self, holding: Option<&Holding>) {
        let Some(Holding { whole, shares, consumed }) = holding else {
            return self.flags([false; 2]);
        };
        self.flags([*whole > 0, *shares > 0]);
        // Capacity is consumed only by shares.
        if *shares > 0 {
            let consumed: Vec<_> = consumed.iter().collect();
            self.list(&consumed, |encoder, (name, amount)| {
                encoder.text(name);
                encoder.amount(**amount);
            });
        }
    }

    fn list<T>(&mut self, items: &[T], encode: impl Fn(&mut Self, &T)) {
        self.number(items.len());
        for item in items {
            encode(self, item);
        }
    }

    fn option<T>(&mut self, item: Option<&T>, encode: impl Fn(&mut Self, &T)) {
        self.flags([item.is_some(), false]);
        if let Some(item) = item {
            encode(self, item);
        }
    }

    fn quantity(&mut self, quantity: Option<&Quantity>) {
        self.option(quantity, |encoder, it| encoder.text(&it.0));
    }

    fn text(&mut self, text: &str) {
        self.number(text.len());
        self.0.extend_from_slice(text.as_bytes());
    }

    fn number(&mut self, number: usize) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn amount(&mut self, amount: Amount) {
        self.0.extend_from_slice(&amount.nano_units().to_le_bytes());
    }

    fn flags(&mut self, flags: [bool; 2]) {
        self.0.extend_from_slice(&flags.map(u8::from));
    }
}
