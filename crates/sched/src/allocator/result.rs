//! Allocation results: the chosen devices, and the `allocation` of a claim's status.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{
        core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm},
        resource::v1::{
            AllocationResult, DeviceAllocationConfiguration, DeviceAllocationResult,
            DeviceRequestAllocationResult,
        },
    },
    apimachinery::pkg::api::resource::Quantity,
};
use windlass_core::selector::Amount;

use super::{
    PoolId, capacity,
    claims::Claim,
    node_affinity,
    request::Alternative,
    search::{Choice, Search},
};
use crate::random::Random;

/// A device that is chosen for an allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChosenDevice {
    /// Position of the device in [`Pools`](super::Pools).
    pub device: usize,
    /// Capacity that the allocation consumes of a shared device; `None` for a whole device.
    pub consumed: Option<BTreeMap<String, Amount>>,
}

// === impl Search ===

impl Search<'_> {
    /// Chosen devices of all claims after a successful search, without those for admin access.
    pub(super) fn chosen(&self) -> Vec<ChosenDevice> {
        let claim_devices = |(claim, choices): (&Claim, &Vec<Choice>)| {
            let is_held = |choice: &&Choice| {
                !claim.requests[choice.request].alternatives[choice.alternative].admin_access
            };
            let amounts = |consumed: &BTreeMap<String, Quantity>| {
                consumed.iter().map(|(name, it)| (name.clone(), capacity::amount(it))).collect()
            };
            let chosen_device = |choice: &Choice| ChosenDevice {
                device: choice.candidate,
                consumed: choice.consumed.as_ref().map(amounts),
            };
            choices.iter().filter(is_held).map(chosen_device).collect::<Vec<_>>()
        };
        self.claims.iter().zip(&self.chosen).flat_map(claim_devices).collect()
    }

    /// Result of a claim after a successful search.
    pub(super) fn result(&self, claim: usize) -> AllocationResult {
        let mut share_ids = Random::of_text(&self.claims[claim].uid);
        let choices = self.chosen[claim].iter();
        let results = choices.map(|choice| self.device(claim, choice, &mut share_ids)).collect();
        let config = [self.class_config(claim), self.claim_config(claim)].concat();
        AllocationResult {
            devices: Some(DeviceAllocationResult {
                results: Some(results),
                config: Some(config).filter(|config| !config.is_empty()),
            }),
            node_selector: self.node_selector(claim),
            ..AllocationResult::default()
        }
    }

    fn device(
        &self,
        claim: usize,
        choice: &Choice,
        share_ids: &mut Random,
    ) -> DeviceRequestAllocationResult {
        let candidate = &self.pools.candidates[choice.candidate];
        let (device, PoolId { driver, name }) =
            (candidate.device(), &self.pools.members[candidate.pool].id);
        let alternative =
            &self.claims[claim].requests[choice.request].alternatives[choice.alternative];
        DeviceRequestAllocationResult {
            request: alternative.full_name.clone(),
            driver: driver.clone(),
            pool: name.clone(),
            device: device.name.clone(),
            admin_access: alternative.admin_access.then_some(true),
            tolerations: alternative.tolerations.clone(),
            share_id: choice.consumed.as_ref().map(|_| share_ids.uuid()),
            consumed_capacity: choice.consumed.clone().filter(|consumed| !consumed.is_empty()),
            binding_conditions: device.binding_conditions.clone(),
            binding_failure_conditions: device.binding_failure_conditions.clone(),
        }
    }

    /// Chosen alternative of each request.
    fn chosen_alternatives(&self, claim: usize) -> impl Iterator<Item = &Alternative> {
        self.claims[claim].requests.iter().enumerate().map(move |(index, request)| {
            let alternative = self.alternatives.get(&(claim, index)).copied().unwrap_or_default();
            &request.alternatives[alternative]
        })
    }

    /// Configuration of each class, once for all requests that name the class.
    fn class_config(&self, claim: usize) -> Vec<DeviceAllocationConfiguration> {
        let mut config: Vec<DeviceAllocationConfiguration> = Vec::new();
        let mut class_ranges = BTreeMap::new();
        for alternative in self.chosen_alternatives(claim) {
            let start = config.len();
            let name = alternative.class.metadata.name.clone();
            if let Some(entries) = class_ranges.get(&name) {
                let entries: &std::ops::Range<usize> = entries;
                for entry in &mut config[entries.clone()] {
                    entry.requests.get_or_insert_default().push(alternative.full_name.clone());
                }
                continue;
            }
            let class_config = alternative.class.spec.config.iter().flatten();
            config.extend(class_config.map(|entry| DeviceAllocationConfiguration {
                source: "FromClass".to_owned(),
                requests: Some(vec![alternative.full_name.clone()]),
                opaque: entry.opaque.clone(),
            }));
            class_ranges.insert(name, start..config.len());
        }
        config
    }

    /// Configuration of the claim that applies to the chosen alternatives.
    fn claim_config(&self, claim: usize) -> Vec<DeviceAllocationConfiguration> {
        let mut config = Vec::new();
        for entry in &self.claims[claim].config {
            let request_names = entry.requests.as_deref().unwrap_or_default();
            let repetitions = if request_names.is_empty() {
                1
            } else {
                // Like upstream, repeats the entry for each request that the entry names.
                let requests = self.claims[claim].requests.iter().map(|request| &request.name);
                let pairs = requests.zip(self.chosen_alternatives(claim));
                pairs
                    .filter(|(request, alternative)| {
                        request_names
                            .iter()
                            .any(|name| *name == **request || *name == alternative.full_name)
                    })
                    .count()
            };
            config.extend((0..repetitions).map(|_| DeviceAllocationConfiguration {
                source: "FromClaim".to_owned(),
                requests: entry.requests.clone(),
                opaque: entry.opaque.clone(),
            }));
        }
        config
    }

    /// Nodes on which the devices are available: only this node if one of the devices is local to it.
    fn node_selector(&self, claim: usize) -> Option<NodeSelector> {
        let mut term = NodeSelectorTerm::default();
        for choice in &self.chosen[claim] {
            let candidate = &self.pools.candidates[choice.candidate];
            let (device, slice) = (candidate.device(), &candidate.slice);
            let (name, selector) = if node_affinity::is_per_device(slice) {
                (&device.node_name, &device.node_selector)
            } else {
                (&slice.spec.node_name, &slice.spec.node_selector)
            };
            if name.is_some() || device.binds_to_node == Some(true) {
                return Some(self.this_node());
            }
            for other in selector.iter().flat_map(|selector| &selector.node_selector_terms) {
                merge(&mut term.match_expressions, other.match_expressions.as_ref());
                merge(&mut term.match_fields, other.match_fields.as_ref());
            }
        }
        let is_limited = term != NodeSelectorTerm::default();
        is_limited.then(|| NodeSelector { node_selector_terms: vec![term] })
    }

    fn this_node(&self) -> NodeSelector {
        let requirement = NodeSelectorRequirement {
            key: "metadata.name".to_owned(),
            operator: "In".to_owned(),
            values: Some(self.pools.node.iter().cloned().collect()),
        };
        let term = NodeSelectorTerm {
            match_fields: Some(vec![requirement]),
            ..NodeSelectorTerm::default()
        };
        NodeSelector { node_selector_terms: vec![term] }
    }
}

/// Adds the requirements that are not there yet.
fn merge(
    requirements: &mut Option<Vec<NodeSelectorRequirement>>,
    additional: Option<&Vec<NodeSelectorRequirement>>,
) {
    for requirement in additional.into_iter().flatten() {
        let merged = requirements.get_or_insert_default();
        if !merged.contains(requirement) {
            merged.push(requirement.clone());
        }
    }
}
