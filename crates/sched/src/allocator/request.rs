//! Requests of a claim, each with its alternatives (subrequests).

use std::sync::Arc;

use k8s_openapi::api::resource::v1::{
    CapacityRequirements, DeviceClass, DeviceRequest, DeviceSelector, DeviceTaint,
    DeviceToleration, ResourceClaim,
};
use windlass_core::selector::{PreparedDevice, PublishedExpression};

use super::AllocationError;

/// A request: one alternative, or several in order of preference.
#[derive(Clone, Debug)]
pub(super) struct ClaimRequest {
    pub(super) name: String,
    pub(super) alternatives: Vec<Alternative>,
}

/// One way to satisfy a request: its only one, or a subrequest.
#[derive(Clone, Debug)]
pub(super) struct Alternative {
    /// `request`, or `request/alternative`.
    pub(super) full_name: String,
    pub(super) class: Arc<DeviceClass>,
    pub(super) device_count: DeviceCount,
    pub(super) admin_access: bool,
    pub(super) capacity: Option<CapacityRequirements>,
    pub(super) tolerations: Option<Vec<DeviceToleration>>,
    selectors: Vec<Selector>,
}

/// Number of requested devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeviceCount {
    Exactly(usize),
    All,
}

/// A CEL expression or its parse error, with its origin for error messages.
#[derive(Clone, Debug)]
struct Selector {
    owner: String,
    expression: Result<PublishedExpression, String>,
}

/// The common fields of a request and a subrequest.
struct RequestFields<'a> {
    full_name: String,
    class: &'a str,
    mode: Option<&'a String>,
    count: Option<i64>,
    admin_access: bool,
    capacity: Option<&'a CapacityRequirements>,
    tolerations: Option<&'a Vec<DeviceToleration>>,
    selectors: &'a [DeviceSelector],
}

/// Reads the requests of a claim.
pub(super) fn requests(
    claim: &ResourceClaim,
    classes: &[DeviceClass],
) -> Result<Vec<ClaimRequest>, AllocationError> {
    let requests = claim.spec.devices.iter().flat_map(|devices| devices.requests.iter().flatten());
    let parse = |request: &DeviceRequest| {
        let parse = |fields| Alternative::of(fields, &namespaced_name(claim), classes);
        let alternatives =
            request_fields(request).into_iter().map(parse).collect::<Result<Vec<_>, _>>()?;
        Ok(ClaimRequest { name: request.name.clone(), alternatives })
    };
    requests.map(parse).collect()
}

/// `namespace/name`.
pub(super) fn namespaced_name(claim: &ResourceClaim) -> String {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    format!("{}/{}", text(&claim.metadata.namespace), text(&claim.metadata.name))
}

fn request_fields(request: &DeviceRequest) -> Vec<RequestFields<'_>> {
    let alternatives = request.first_available.iter().flatten().map(|subrequest| RequestFields {
        full_name: format!("{}/{}", request.name, subrequest.name),
        class: &subrequest.device_class_name,
        mode: subrequest.allocation_mode.as_ref(),
        count: subrequest.count,
        admin_access: false,
        capacity: subrequest.capacity.as_ref(),
        tolerations: subrequest.tolerations.as_ref(),
        selectors: subrequest.selectors.as_deref().unwrap_or_default(),
    });
    let exactly = request.exactly.iter().map(|exactly| RequestFields {
        full_name: request.name.clone(),
        class: &exactly.device_class_name,
        mode: exactly.allocation_mode.as_ref(),
        count: exactly.count,
        admin_access: exactly.admin_access == Some(true),
        capacity: exactly.capacity.as_ref(),
        tolerations: exactly.tolerations.as_ref(),
        selectors: exactly.selectors.as_deref().unwrap_or_default(),
    });
    exactly.chain(alternatives).collect()
}

// === impl Alternative ===

impl Alternative {
    fn of(
        fields: RequestFields<'_>,
        claim: &str,
        classes: &[DeviceClass],
    ) -> Result<Self, AllocationError> {
        let invalid = |problem: &str| {
            AllocationError::Invalid(format!(
                "claim {claim}, request {}: {problem}",
                fields.full_name
            ))
        };
        let is_named = |class: &&DeviceClass| class.metadata.name.as_deref() == Some(fields.class);
        let class = classes.iter().find(is_named).ok_or_else(|| {
            let name = fields.class;
            invalid(&format!(
                "could not retrieve device class {name}: deviceclass.resource.k8s.io {name:?} not found"
            ))
        })?;
        let device_count = match fields.mode.map(String::as_str) {
            None | Some("ExactCount") => DeviceCount::Exactly(
                usize::try_from(fields.count.unwrap_or(1)).unwrap_or(usize::MAX),
            ),
            Some("All") => DeviceCount::All,
            Some(other) => return Err(invalid(&format!("unsupported count mode {other}"))),
        };
        let class_selectors = class.spec.selectors.as_deref().unwrap_or_default();
        let parse_selectors = |owner: &str, selectors: &[DeviceSelector]| -> Vec<Selector> {
            let owner = |index| format!("{owner}: selector #{index}");
            let indexed = selectors.iter().enumerate();
            indexed.map(|(index, selector)| Selector::of(owner(index), selector)).collect()
        };
        let mut selectors = parse_selectors(&format!("class {}", fields.class), class_selectors);
        selectors.extend(parse_selectors(&format!("claim {claim}"), fields.selectors));
        Ok(Self {
            full_name: fields.full_name,
            class: Arc::new(class.clone()),
            device_count,
            admin_access: fields.admin_access,
            capacity: fields.capacity.cloned(),
            tolerations: fields.tolerations.cloned(),
            selectors,
        })
    }

    /// True if all expressions select the device.
    pub(super) fn selects(&self, device: &PreparedDevice) -> Result<bool, AllocationError> {
        for Selector { owner, expression } in &self.selectors {
            let invalid = |phase: &str, error: &dyn std::fmt::Display| {
                AllocationError::Invalid(format!("{owner}: CEL {phase} error: {error}"))
            };
            let expression = expression.as_ref().map_err(|error| invalid("compile", error))?;
            if !expression.selects(device).map_err(|error| invalid("runtime", &error))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The expressions of the alternative that parse.
    pub(super) fn expressions(&self) -> impl Iterator<Item = &PublishedExpression> {
        self.selectors.iter().filter_map(|selector| selector.expression.as_ref().ok())
    }

    /// True if the alternative does not tolerate one of the taints.
    pub(super) fn is_excluded_by<'a>(
        &self,
        mut taints: impl Iterator<Item = &'a DeviceTaint>,
    ) -> bool {
        let tolerates = |taint: &DeviceTaint| {
            self.tolerations.iter().flatten().any(|toleration| tolerates(toleration, taint))
        };
        taints.any(|taint| !tolerates(taint))
    }
}

// === impl Selector ===

impl Selector {
    fn of(owner: String, selector: &DeviceSelector) -> Self {
        let text = selector.cel.as_ref().map_or("", |cel| cel.expression.as_str());
        let expression = text.parse::<PublishedExpression>().map_err(|error| error.to_string());
        Self { owner, expression }
    }
}

/// True if the toleration covers the taint. An empty effect or key matches any.
fn tolerates(toleration: &DeviceToleration, taint: &DeviceTaint) -> bool {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let (effect, key) = (text(&toleration.effect), text(&toleration.key));
    let matches_value = match toleration.operator.as_deref() {
        None | Some("" | "Equal") => text(&toleration.value) == text(&taint.value),
        Some("Exists") => true,
        Some(_) => false,
    };
    (effect.is_empty() || effect == taint.effect)
        && (key.is_empty() || key == taint.key)
        && matches_value
}
