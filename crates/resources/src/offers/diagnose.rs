//! Reasons why a configured resource has no device on this node.

use std::collections::BTreeMap;

use windlass_config::{ResourceRule, Selector};
use windlass_core::{
    device::{Device, DeviceId},
    inventory::{Inventory, SourceState},
    resource::ResourceName,
};

use super::Offer;

/// Results of a plan, from which the reasons are derived.
#[derive(Clone, Copy)]
pub(super) struct PlanResults<'a> {
    pub(super) inventory: &'a Inventory,
    pub(super) offers: &'a BTreeMap<ResourceName, Offer>,
    pub(super) withheld: &'a BTreeMap<DeviceId, String>,
}

/// Configured resources without a device, with the reason.
pub(super) fn diagnose(
    rules: &[ResourceRule],
    results: PlanResults<'_>,
) -> BTreeMap<ResourceName, String> {
    let mut selectors_by_resource = BTreeMap::<ResourceName, Vec<&Selector>>::new();
    for rule in rules.iter().filter(|rule| !results.offers.contains_key(&rule.name)) {
        selectors_by_resource.entry(rule.name.clone()).or_default().push(&rule.devices);
    }
    selectors_by_resource
        .into_iter()
        .map(|(name, selectors)| (name, results.empty_reason(&selectors)))
        .collect()
}

// === impl PlanResults ===

impl PlanResults<'_> {
    /// Describes why a resource with these selectors has no device: the selected devices are elsewhere, or the
    /// selectors match no device.
    fn empty_reason(self, selectors: &[&Selector]) -> String {
        let devices = self.inventory.devices.iter();
        let selected: Vec<_> = devices
            .filter(|device| {
                selectors
                    .iter()
                    .any(|selector| selector.matches(device, device.mig_profile()) == Ok(true))
            })
            .collect();
        match selected.as_slice() {
            [] => {
                selectors.first().map(|selector| self.no_match_reason(selector)).unwrap_or_default()
            }
            [device] => self.description_of(device),
            [first, others @ ..] => {
                let has_same_reason = |device: &&Device| {
                    self.exclusion_reason(device) == self.exclusion_reason(first)
                };
                match others.iter().filter(|device| !has_same_reason(device)).count() {
                    0 => {
                        format!(
                            "{}, like all {} devices of its rule",
                            self.description_of(first),
                            selected.len()
                        )
                    }
                    _ => format!(
                        "{}, and {} more devices of its rule",
                        self.description_of(first),
                        others.len()
                    ),
                }
            }
        }
    }

    fn description_of(self, device: &Device) -> String {
        format!("{} {}", device.id, self.exclusion_reason(device))
    }

    /// Reason why a selected device is not part of its resource.
    fn exclusion_reason(self, device: &Device) -> String {
        let mut offers = self.offers.iter();
        let other_offer = offers.find(|(_, offer)| offer.devices.contains_key(&device.id));
        match (other_offer, self.withheld.get(&device.id)) {
            (Some((name, _)), _) => format!("is part of {name}"),
            (None, Some(reason)) => format!("is not offered: {reason}"),
            (None, None) => "is not offered: other devices are in its place".to_owned(),
        }
    }

    /// Reason why a selector matches no device.
    fn no_match_reason(self, selector: &Selector) -> String {
        let devices = self.inventory.devices.iter().filter(|device| selector.matches_kind(device));
        let (description, mut first) = (selector_text(selector), None);
        let mut count = 0_usize;
        for device in devices {
            count += 1;
            first = first.or_else(|| Some((device, mismatch_reason(selector, device))));
        }
        match first {
            None => format!("this node has no {description}{}", self.source_reason(selector)),
            Some((device, reason)) if count == 1 => {
                format!("{}, the only {description}, {reason}", device.id)
            }
            Some((device, reason)) => {
                format!(
                    "none of {count} is the {description} that its rule selects: {} {reason}",
                    device.id
                )
            }
        }
    }

    /// Reason of the selector's source for having found nothing.
    fn source_reason(self, selector: &Selector) -> String {
        let state =
            selector.source().and_then(|source| self.inventory.sources.get(source.as_str()));
        match state {
            Some(SourceState::Absent(reason) | SourceState::Failing(reason)) => {
                format!(": {reason}")
            }
            Some(SourceState::Starting | SourceState::Ready(_)) | None => String::new(),
        }
    }
}

/// A selector's kind and source, in words.
fn selector_text(selector: &Selector) -> String {
    let kind = selector.kind.map(|kind| format!("of kind {kind}"));
    let source = selector.source.as_ref().filter(|source| {
        selector.kind.is_none_or(|kind| Selector::all(kind).source() != Some(source))
    });
    let source = source.map(|source| format!("of source {source}"));
    let parts: Vec<_> = kind.into_iter().chain(source).collect();
    format!("device {}", parts.join(" and "))
}

/// Reason why a selector does not match a device of its kind.
fn mismatch_reason(selector: &Selector, device: &Device) -> String {
    let without_expression = Selector { expression: None, ..selector.clone() };
    let matches_otherwise = without_expression.matches(device, device.mig_profile()) == Ok(true);
    let expression = selector.expression.as_ref().filter(|_| matches_otherwise);
    match expression.and_then(|expression| expression.explain_mismatch(device)) {
        Some(reason) => format!("does not match: {reason}"),
        None => "has another index, id or profile".to_owned(),
    }
}
