//! Which devices a rule is about.

use std::collections::BTreeSet;

use windlass_core::{
    device::{Device, DeviceKind},
    selector::{DeviceExpression, NoAnswer},
};

/// Picks devices of one kind that fit everything it names; what is empty fits all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector {
    /// The kind.
    pub kind: DeviceKind,
    /// Positions as `windlass devices` shows them; a MIG instance has its GPU's.
    pub index: BTreeSet<u32>,
    /// Device ids.
    pub ids: BTreeSet<String>,
    /// MIG profiles, `1g.10gb`.
    pub profiles: BTreeSet<String>,
    /// An expression over the device's attributes and capacities.
    pub expression: Option<DeviceExpression>,
}

// === impl Selector ===

impl Selector {
    /// All devices of a kind.
    pub fn all(kind: DeviceKind) -> Self {
        let (index, ids, profiles) = Default::default();
        Self { kind, index, ids, profiles, expression: None }
    }

    /// Whether the device is picked. An expression is asked last, and only about devices that fit
    /// the rest.
    pub fn matches(&self, device: &Device, profile: Option<&str>) -> Result<bool, NoAnswer> {
        let fits = device.kind == self.kind
            && (self.index.is_empty() || self.index.contains(&device.index))
            && (self.ids.is_empty() || self.ids.contains(device.id.as_str()))
            && (self.profiles.is_empty() || profile.is_some_and(|p| self.profiles.contains(p)));
        match &self.expression {
            Some(expression) if fits => expression.matches(device),
            _ => Ok(fits),
        }
    }

    /// Whether every device that `other` picks is picked by this one, as far as can be told without
    /// looking at devices: expressions are compared by their text.
    pub fn covers(&self, other: &Self) -> bool {
        fn within<T: Ord>(all: &BTreeSet<T>, some: &BTreeSet<T>) -> bool {
            all.is_empty() || (!some.is_empty() && some.is_subset(all))
        }
        self.kind == other.kind
            && within(&self.index, &other.index)
            && within(&self.ids, &other.ids)
            && within(&self.profiles, &other.profiles)
            && (self.expression.is_none() || self.expression == other.expression)
    }
}
