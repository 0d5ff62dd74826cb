//! Node signatures: on nodes with equal signatures the same claims get devices at equal positions.
//!
//! A signature leaves out all names of nodes, pools, slices, devices and counters, and the attributes that the claims
//! do not read. So thousands of nodes, each with its own UUIDs, have few different signatures.

use std::collections::{BTreeSet, HashMap};

use k8s_openapi::{
    api::resource::v1::{CapacityRequestPolicy, DeviceAttribute, DeviceCapacity},
    apimachinery::pkg::api::resource::Quantity,
};
use windlass_core::{attribute::AttributeName, selector::Amount};

use super::{
    candidate::Candidate,
    counters::Counters,
    node_losses,
    pool::{Pool, State},
    pools::Pools,
    taken::{Holding, Taken},
};

/// Device attributes that claims read, besides those that [`NodeLosses`](super::NodeLosses) reads. `None` if they may
/// read any.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AttributesRead(Option<BTreeSet<AttributeName>>);

/// Signature of a node: the state of its devices, reduced to what some claims read.
///
/// # Guarantees
///
/// On nodes with equal signatures, equal claims get equal results of [`Claims::choose`](super::Claims::choose) and of
/// [`NodeLosses::of`](super::NodeLosses::of), if they read no other attributes. Errors may differ. Only signatures made
/// with the same [`DeviceSignatures`] may be compared.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeSignature {
    /// Number of each device's signature.
    pub(super) devices: Box<[u32]>,
    /// Encoded state of the pools, and of the devices' holders.
    rest: Box<[u8]>,
}

/// Numbers of device signatures. Devices with equal signatures are equal in everything that the claims read.
#[derive(Debug, Default)]
pub struct DeviceSignatures {
    numbers: HashMap<Box<[u8]>, u32>,
    /// Last number that was assigned. Numbers are never reused.
    count: u32,
}

/// Maximum number of remembered device signatures. A forgotten one gets a new number when it comes back.
const MAX_DEVICE_SIGNATURES: usize = 1 << 18;

/// Encoder of a signature. Lists and texts begin with their length, so that different states have different bytes.
#[derive(Default)]
struct Key(Vec<u8>);

// === impl AttributesRead ===

impl AttributesRead {
    pub(super) fn of(
        by_expressions: impl Iterator<Item = Option<BTreeSet<AttributeName>>>,
        by_constraints: impl Iterator<Item = Option<AttributeName>>,
    ) -> Self {
        let by_constraints = by_constraints.map(|name| Some(BTreeSet::from([name?])));
        let all: Option<Vec<_>> = by_expressions.chain(by_constraints).collect();
        Self(all.map(|all| all.into_iter().flatten().collect()))
    }

    /// True if the claims may read any attribute. Hardly any two nodes are equal then.
    pub fn is_any(&self) -> bool {
        self.0.is_none()
    }

    fn includes(&self, driver: &str, key: &str) -> bool {
        let (domain, name) = key.split_once('/').unwrap_or((driver, key));
        let is_it = |read: &AttributeName| read.name() == name && read.domain() == domain;
        node_losses::ATTRIBUTES.contains(&name)
            || self.0.as_ref().is_none_or(|read| read.iter().any(is_it))
    }
}

// === impl NodeSignature ===

impl NodeSignature {
    /// The signature of a node with these pools, for claims that read these attributes.
    pub fn of(
        pools: &Pools,
        taken: &Taken,
        read: &AttributesRead,
        devices: &mut DeviceSignatures,
    ) -> Self {
        let (mut key, mut device, mut numbers) = (Key::default(), Key::default(), Vec::new());
        let holdings = taken.of_pools(&pools.all);
        let counters = Counters::of(&pools.all, &holdings);
        key.number(pools.all.len());
        for (index, pool) in pools.all.iter().enumerate() {
            key.pool(pool, counters.of_pool(index));
        }
        for candidate in &pools.candidates {
            device.0.clear();
            device.device(candidate, read);
            numbers.push(devices.number(&device.0));
            let holding = holdings[candidate.pool].and_then(|it| it.get(&candidate.device().name));
            key.holding(holding);
        }
        Self { devices: numbers.into(), rest: key.0.into() }
    }
}

// === impl DeviceSignatures ===

impl DeviceSignatures {
    fn number(&mut self, device: &[u8]) -> u32 {
        if let Some(known) = self.numbers.get(device) {
            return *known;
        }
        if self.numbers.len() >= MAX_DEVICE_SIGNATURES {
            self.numbers.clear();
        }
        self.count += 1;
        self.numbers.insert(device.into(), self.count);
        self.count
    }
}

// === impl Key ===

impl Key {
    fn pool(&mut self, Pool { id, state }: &Pool, left: &[Amount]) {
        self.text(&id.driver);
        let State::Ready(contents) = state else {
            return self.flags([true, matches!(state, State::Incomplete)]);
        };
        self.flags([false; 2]);
        self.list(contents.stock.starts(), |key, start| key.number(*start));
        self.list(contents.stock.full(), |key, amount| key.amount(*amount));
        self.list(left, |key, amount| key.amount(*amount));
    }

    fn device(&mut self, candidate: &Candidate, read: &AttributesRead) {
        let (device, driver) = (candidate.device(), candidate.driver());
        self.number(candidate.pool);
        self.text(driver);
        self.flags([candidate.is_here, candidate.is_shared()]);
        let attributes = device.attributes.iter().flatten();
        let attributes: Vec<_> =
            attributes.filter(|(name, _)| read.includes(driver, name)).collect();
        self.list(&attributes, |key, (name, value)| {
            key.text(name);
            key.attribute(value);
        });
        let capacity: Vec<_> = device.capacity.iter().flatten().collect();
        self.list(&capacity, |key, (name, capacity)| {
            key.text(name);
            key.capacity(capacity);
        });
        let taints: Vec<_> = candidate.taints().collect();
        self.list(&taints, |key, taint| {
            key.text(&taint.effect);
            key.text(&taint.key);
            key.text(taint.value.as_deref().unwrap_or_default());
        });
        self.list(&candidate.draws, |key, draw| {
            key.number(draw.counter());
            key.amount(draw.amount());
        });
    }

    fn attribute(&mut self, value: &DeviceAttribute) {
        // List attributes are left out, because constraints and expressions do not read them.
        let DeviceAttribute { bool, int, string, version, .. } = value;
        self.option(bool.as_ref(), |key, it| key.flags([*it, false]));
        self.option(int.as_ref(), |key, it| key.0.extend_from_slice(&it.to_le_bytes()));
        self.option(string.as_ref(), |key, it| key.text(it));
        self.option(version.as_ref(), |key, it| key.text(it));
    }

    fn capacity(&mut self, DeviceCapacity { value, request_policy }: &DeviceCapacity) {
        self.text(&value.0);
        self.option(request_policy.as_ref(), |key, policy| {
            let CapacityRequestPolicy { default, valid_range, valid_values } = policy;
            key.quantity(default.as_ref());
            key.option(valid_range.as_ref(), |key, range| {
                key.text(&range.min.0);
                key.quantity(range.max.as_ref());
                key.quantity(range.step.as_ref());
            });
            key.list(valid_values.as_deref().unwrap_or_default(), |key, it| key.text(&it.0));
        });
    }

    /// Encodes the claims' hold on the device.
    fn holding(&mut self, holding: Option<&Holding>) {
        let Some(Holding { whole, shares, consumed }) = holding else {
            return self.flags([false; 2]);
        };
        self.flags([*whole > 0, *shares > 0]);
        // Capacity is consumed only by shares.
        if *shares > 0 {
            let consumed: Vec<_> = consumed.iter().collect();
            self.list(&consumed, |key, (name, amount)| {
                key.text(name);
                key.amount(**amount);
            });
        }
    }

    fn list<T>(&mut self, items: &[T], put: impl Fn(&mut Self, &T)) {
        self.number(items.len());
        for item in items {
            put(self, item);
        }
    }

    fn option<T>(&mut self, item: Option<&T>, put: impl Fn(&mut Self, &T)) {
        self.flags([item.is_some(), false]);
        if let Some(item) = item {
            put(self, item);
        }
    }

    fn quantity(&mut self, quantity: Option<&Quantity>) {
        self.option(quantity, |key, it| key.text(&it.0));
    }

    fn text(&mut self, text: &str) {
        self.number(text.len());
        self.0.extend_from_slice(text.as_bytes());
    }

    fn number(&mut self, number: usize) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn amount(&mut self, amount: Amount) {
        self.0.extend_from_slice(&amount.billionths().to_le_bytes());
    }

    fn flags(&mut self, flags: [bool; 2]) {
        self.0.extend_from_slice(&flags.map(u8::from));
    }
}
