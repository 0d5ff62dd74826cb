//! Constraints between the devices of a claim.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::resource::v1::{Device, DeviceAttribute, DeviceConstraint, ResourceClaim};

use windlass_core::attribute::AttributeName;

use super::AllocationError;

/// A constraint, and its state for the devices chosen so far.
#[derive(Clone, Debug)]
pub(super) struct Constraint {
    requests: Arc<[String]>,
    attribute: Arc<str>,
    rule: Rule,
    /// Number of chosen devices that the constraint applies to.
    chosen_count: usize,
}

#[derive(Clone, Debug)]
enum Rule {
    /// All devices have the value of the first device.
    Match(Option<DeviceAttribute>),
    /// Each value differs from the last one of every other request.
    Distinct(BTreeMap<String, DeviceAttribute>),
}

/// Names of the request and alternative for which a device is chosen.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestName<'a> {
    pub(super) request: &'a str,
    /// `request/alternative`.
    pub(super) full_name: &'a str,
}

/// Reads the constraints of a claim.
pub(super) fn constraints(
    claim: &ResourceClaim,
    claim_name: &str,
) -> Result<Vec<Constraint>, AllocationError> {
    let device_constraints =
        claim.spec.devices.iter().flat_map(|devices| devices.constraints.iter().flatten());
    let parse = |(index, constraint)| {
        Constraint::of(constraint).ok_or_else(|| {
            AllocationError::Invalid(format!(
                "claim {claim_name}, constraint #{index}: empty constraint (unsupported constraint type?)"
            ))
        })
    };
    device_constraints.enumerate().map(parse).collect()
}

// === impl Constraint ===

impl Constraint {
    /// Reads a constraint; `None` if its kind is unknown.
    fn of(constraint: &DeviceConstraint) -> Option<Self> {
        let (attribute, rule) = match (&constraint.match_attribute, &constraint.distinct_attribute)
        {
            (Some(attribute), _) => (attribute, Rule::Match(None)),
            (None, Some(attribute)) => (attribute, Rule::Distinct(BTreeMap::new())),
            (None, None) => return None,
        };
        let requests = constraint.requests.as_deref().unwrap_or_default();
        Some(Self {
            requests: requests.into(),
            attribute: attribute.as_str().into(),
            rule,
            chosen_count: 0,
        })
    }

    /// The attribute that the constraint compares. `None` for a name without a domain: it names a different attribute
    /// for each driver.
    pub(super) fn attribute_read(&self) -> Option<AttributeName> {
        let (domain, name) = self.attribute.split_once('/')?;
        (!name.contains('/')).then(|| AttributeName::from_slice_name(domain, name))
    }

    /// Adds a device if it satisfies the constraint. Returns false if it does not.
    pub(super) fn add(&mut self, names: RequestName<'_>, device: &Device, driver: &str) -> bool {
        if !self.applies_to(names) {
            return true;
        }
        let Some(value) = lookup(device, driver, &self.attribute) else { return false };
        let is_satisfied = self.chosen_count == 0
            || match &self.rule {
                Rule::Match(first) => is_single(value) && first.as_ref() == Some(value),
                Rule::Distinct(others) => is_single(value) && others.values().all(|o| o != value),
            };
        if is_satisfied {
            match &mut self.rule {
                Rule::Match(first) if self.chosen_count == 0 => *first = Some(value.clone()),
                Rule::Match(_) => {}
                Rule::Distinct(others) => {
                    others.insert(names.request.to_owned(), value.clone());
                }
            }
            self.chosen_count += 1;
        }
        is_satisfied
    }

    /// Removes an added device.
    pub(super) fn remove(&mut self, names: RequestName<'_>) {
        if self.applies_to(names) {
            self.chosen_count = self.chosen_count.saturating_sub(1);
            if let Rule::Distinct(others) = &mut self.rule {
                others.remove(names.request);
            }
        }
    }

    fn applies_to(&self, names: RequestName<'_>) -> bool {
        let is_named = |name: &String| *name == names.request || *name == names.full_name;
        self.requests.is_empty() || self.requests.iter().any(is_named)
    }
}

/// The attribute with this full name. A driver may publish attributes of its own domain without the domain.
fn lookup<'a>(device: &'a Device, driver: &str, name: &str) -> Option<&'a DeviceAttribute> {
    let attributes = device.attributes.as_ref()?;
    attributes.get(name).or_else(|| {
        let (domain, id) = name.split_once('/')?;
        attributes.get(id).filter(|_| domain == driver)
    })
}

/// True for a single value. Lists never compare equal.
fn is_single(value: &DeviceAttribute) -> bool {
    value.string.is_some() || value.int.is_some() || value.bool.is_some() || value.version.is_some()
}
