//! Pods and claim templates of the demo.

use anyhow::Result;
use k8s_openapi::api::{
    core::v1::Pod,
    resource::v1::{ResourceClaim, ResourceClaimTemplate},
};
use serde_json::{Value, json};

/// Pod with a claim that its containers share.
#[derive(Clone, Debug)]
pub(in crate::demo) struct PodSpec {
    pub(in crate::demo) name: String,
    containers: Vec<&'static str>,
    devices: Devices,
    pub(in crate::demo) request_lines: Vec<String>,
}

/// API through which the pod requests devices.
#[derive(Clone, Debug)]
enum Devices {
    /// Claim from a template.
    Claim { requests: Vec<Value>, constraints: Vec<Value> },
    /// Extended resource, as with a device plugin.
    Extended(String),
}

pub(in crate::demo) const NAMESPACE: &str = "default";

// === impl PodSpec ===

impl PodSpec {
    /// Pod with one container and a claim without requests.
    pub(in crate::demo) fn new(name: impl Into<String>) -> Self {
        let devices = Devices::Claim { requests: Vec::new(), constraints: Vec::new() };
        Self { name: name.into(), containers: vec!["main"], devices, request_lines: Vec::new() }
    }

    /// Pod with an extended resource and no claim.
    pub(in crate::demo) fn extended(name: impl Into<String>, resource: &str) -> Self {
        let request_lines = vec![format!("limits: {{{resource}: 1}}, and no claim")];
        let devices = Devices::Extended(resource.to_owned());
        Self { devices, request_lines, ..Self::new(name) }
    }

    pub(in crate::demo) fn containers(self, containers: &[&'static str]) -> Self {
        Self { containers: containers.to_vec(), ..self }
    }

    /// Adds a request for devices of a class that match the expression.
    pub(in crate::demo) fn request(
        mut self,
        name: &str,
        class: &str,
        count: usize,
        cel: &str,
    ) -> Self {
        let mut exactly = json!({"deviceClassName": class, "count": count});
        let mut text = format!("{name}: {count} of class {class}");
        if !cel.is_empty() {
            exactly["selectors"] = json!([{"cel": {"expression": cel}}]);
            text = format!("{text} with {cel}");
        }
        self.request_lines.push(text);
        if let Devices::Claim { requests, .. } = &mut self.devices {
            requests.push(json!({"name": name, "exactly": exactly}));
        }
        self
    }

    /// Adds a constraint: all devices have the same value of an attribute.
    pub(in crate::demo) fn match_attribute(mut self, attribute: &str) -> Self {
        self.request_lines.push(format!("all with the same {attribute}"));
        if let Devices::Claim { constraints, .. } = &mut self.devices {
            constraints.push(json!({"matchAttribute": attribute}));
        }
        self
    }

    /// Template of the claim, if the pod has one.
    pub(in crate::demo) fn template(&self) -> Result<Option<ResourceClaimTemplate>> {
        let Devices::Claim { requests, constraints } = &self.devices else { return Ok(None) };
        Ok(Some(serde_json::from_value(json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
            "metadata": {"name": self.name, "namespace": NAMESPACE},
            "spec": {"spec": {"devices": {"requests": requests, "constraints": constraints}}},
        }))?))
    }

    pub(in crate::demo) fn pod(&self) -> Result<Pod> {
        let (claims, resources) = match &self.devices {
            Devices::Claim { .. } => (
                json!([{"name": "devices", "resourceClaimTemplateName": self.name}]),
                json!({"claims": [{"name": "devices"}]}),
            ),
            Devices::Extended(resource) => (json!([]), json!({"limits": {resource: "1"}})),
        };
        let container = |name: &&str| json!({"name": name, "resources": resources});
        let containers: Vec<_> = self.containers.iter().map(container).collect();
        Ok(serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": self.name, "namespace": NAMESPACE},
            "spec": {"containers": containers, "resourceClaims": claims},
        }))?)
    }

    pub(in crate::demo) fn container_names(&self) -> &[&'static str] {
        &self.containers
    }
}

/// Allocated devices of a claim: request, driver, pool, device.
pub(in crate::demo) fn allocation_results(claim: &ResourceClaim) -> Vec<[String; 4]> {
    let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
    let devices = allocation.and_then(|allocation| allocation.devices.as_ref());
    let results = devices.iter().flat_map(|devices| devices.results.iter().flatten()).cloned();
    results.map(|result| [result.request, result.driver, result.pool, result.device]).collect()
}
