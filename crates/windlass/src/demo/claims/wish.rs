//! What pods of the demo ask for, as the documents that a person would write.

use anyhow::Result;
use k8s_openapi::api::{
    core::v1::Pod,
    resource::v1::{ResourceClaim, ResourceClaimTemplate},
};
use serde_json::{Value, json};

/// A pod and the claim that its containers share.
#[derive(Clone, Debug)]
pub(in crate::demo) struct Wish {
    pub(in crate::demo) name: String,
    containers: Vec<&'static str>,
    devices: Devices,
    /// In words.
    pub(in crate::demo) asks: Vec<String>,
}

/// By which way it asks.
#[derive(Clone, Debug)]
enum Devices {
    /// A claim of its own, from a template.
    Claim { requests: Vec<Value>, constraints: Vec<Value> },
    /// A limit, as of a device plugin.
    Extended(String),
}

/// Namespace of everything in the demo.
pub(in crate::demo) const NAMESPACE: &str = "default";

// === impl Wish ===

impl Wish {
    /// A pod with one container and a claim that asks for nothing yet.
    pub(in crate::demo) fn new(name: impl Into<String>) -> Self {
        let devices = Devices::Claim { requests: Vec::new(), constraints: Vec::new() };
        Self { name: name.into(), containers: vec!["main"], devices, asks: Vec::new() }
    }

    /// A pod that knows of no claims.
    pub(in crate::demo) fn extended(name: impl Into<String>, resource: &str) -> Self {
        let asks = vec![format!("limits: {{{resource}: 1}}, and no claim")];
        let devices = Devices::Extended(resource.to_owned());
        Self { devices, asks, ..Self::new(name) }
    }

    /// With these containers instead.
    pub(in crate::demo) fn containers(self, containers: &[&'static str]) -> Self {
        Self { containers: containers.to_vec(), ..self }
    }

    /// Asks for devices of a class, of which each fulfils the expression.
    pub(in crate::demo) fn request(
        mut self,
        name: &str,
        class: &str,
        (count, cel): (usize, &str),
    ) -> Self {
        let mut exactly = json!({"deviceClassName": class, "count": count});
        let mut words = format!("{name}: {count} of class {class}");
        if !cel.is_empty() {
            exactly["selectors"] = json!([{"cel": {"expression": cel}}]);
            words = format!("{words} with {cel}");
        }
        self.asks.push(words);
        if let Devices::Claim { requests, .. } = &mut self.devices {
            requests.push(json!({"name": name, "exactly": exactly}));
        }
        self
    }

    /// All its devices have the same value of an attribute.
    pub(in crate::demo) fn same(mut self, attribute: &str) -> Self {
        self.asks.push(format!("all with the same {attribute}"));
        if let Devices::Claim { constraints, .. } = &mut self.devices {
            constraints.push(json!({"matchAttribute": attribute}));
        }
        self
    }

    /// The template of its claim, if it has one.
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

/// The devices of a claim, as the scheduler wrote them: request, driver, pool, device.
pub(in crate::demo) fn results(claim: &ResourceClaim) -> Vec<[String; 4]> {
    let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
    let devices = allocation.and_then(|allocation| allocation.devices.as_ref());
    let results = devices.iter().flat_map(|devices| devices.results.iter().flatten()).cloned();
    results.map(|it| [it.request, it.driver, it.pool, it.device]).collect()
}
