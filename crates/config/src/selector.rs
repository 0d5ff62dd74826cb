//! Which devices a rule is about.

use std::collections::BTreeSet;

use windlass_core::{
    device::{Device, DeviceKind, SourceName},
    selector::{DeviceExpression, NoAnswer},
};

/// Picks devices that fit everything it names; what is empty fits all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector {
    /// The kind.
    pub kind: Option<DeviceKind>,
    /// Who found them. GPUs are NVIDIA's where nothing is said: a rule for `nvidia.com/gpu` shall not
    /// take the graphics of the processor too.
    pub source: Option<SourceName>,
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
    /// All devices of a kind; of GPUs and MIG instances NVIDIA's.
    pub fn all(kind: DeviceKind) -> Self {
        let source = kind.facts().usual_source.clone();
        let (index, ids, profiles) = Default::default();
        Self { kind: Some(kind), source, index, ids, profiles, expression: None }
    }

    /// All devices of a source.
    pub fn of_source(source: SourceName) -> Self {
        let (index, ids, profiles) = Default::default();
        Self { kind: None, source: Some(source), index, ids, profiles, expression: None }
    }

    /// Whether the rule is about such devices, whichever of them it picks.
    pub fn is_about(&self, device: &Device) -> bool {
        self.kind.is_none_or(|kind| kind == device.kind)
            && self.source.as_ref().is_none_or(|source| *source == device.source)
    }

    /// What such devices are called in a message.
    pub(super) fn noun(&self) -> String {
        match (self.kind, &self.source) {
            (Some(kind), source) if *source == kind.facts().usual_source => kind.to_string(),
            (Some(kind), Some(source)) => format!("{kind} of {source}"),
            (Some(kind), None) => kind.to_string(),
            (None, Some(source)) => format!("device of {source}"),
            (None, None) => "device".to_owned(),
        }
    }

    /// Whether the device is picked. An expression is asked last, and only about devices that fit
    /// the rest.
    pub fn matches(&self, device: &Device, profile: Option<&str>) -> Result<bool, NoAnswer> {
        let fits = self.is_about(device)
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
        self.kind.is_none_or(|kind| Some(kind) == other.kind)
            && (self.source.is_none() || self.source == other.source)
            && within(&self.index, &other.index)
            && within(&self.ids, &other.ids)
            && within(&self.profiles, &other.profiles)
            && (self.expression.is_none() || self.expression == other.expression)
    }
}
