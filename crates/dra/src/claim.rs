//! The driver's view of a `ResourceClaim`, with every required field checked.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{
    DeviceAllocationConfiguration, DeviceRequestAllocationResult, ResourceClaim,
};
use serde_json::Value;
use windlass_allocations::ledger::ClaimRef;
use windlass_cluster::ClusterError;
use windlass_config::DriverName;
use windlass_core::name;

/// Allocated devices of this driver in a claim, and the parameters for them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Claim {
    pub(crate) reference: ClaimRef,
    /// The pod's name for the claim, if it was made for one pod; else its own name.
    pub(crate) pod_claim_name: String,
    pub(crate) results: Vec<AllocatedDevice>,
    /// Parameters for the devices; later ones override earlier ones.
    pub(crate) configs: Vec<OpaqueConfig>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AllocatedDevice {
    /// Name of the request, `gpu`, or of its chosen alternative, `gpu/large`.
    pub(crate) request: String,
    pub(crate) pool: String,
    pub(crate) device: String,
    pub(crate) access: Access,
    /// Id of the share, if the device is shared.
    pub(crate) share: Option<String>,
    /// Consumed capacity by name.
    pub(crate) consumed: BTreeMap<String, String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// The claim uses the device.
    Regular,
    /// Admin access: the claim monitors the device beside its users.
    Admin,
}

/// Opaque parameters for the driver.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct OpaqueConfig {
    /// Its origin in the claim, for messages: `configuration 2 of the allocation, from the class`.
    pub(crate) origin: String,
    /// The requests that it applies to; an empty list means all.
    pub(crate) requests: Vec<String>,
    pub(crate) parameters: Value,
}

/// Annotation of a claim that was created from a pod's template: the pod's name for the claim (Kubernetes'
/// `PodResourceClaimAnnotation`).
const POD_CLAIM_NAME: &str = "resource.kubernetes.io/pod-claim-name";

/// Reason why a claim cannot be prepared.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClaimError {
    #[error(transparent)]
    Read(#[from] ClusterError),
    #[error("claim {0} does not exist")]
    NotFound(ClaimRef),
    #[error("claim {claim} was replaced: it has UID {found} and not {}", claim.uid)]
    Replaced { claim: ClaimRef, found: String },
    #[error("claim {0} is not allocated")]
    NotAllocated(ClaimRef),
    #[error("claim {claim} has no {field}")]
    MissingField { claim: ClaimRef, field: String },
}

// === impl Claim ===

impl Claim {
    /// Reads a claim, and checks that it is the requested one.
    pub(crate) fn read(
        object: ResourceClaim,
        reference: &ClaimRef,
        driver: &DriverName,
    ) -> Result<Self, ClaimError> {
        let missing = |field: &str| ClaimError::MissingField {
            claim: reference.clone(),
            field: field.to_owned(),
        };
        let uid = object.metadata.uid.ok_or_else(|| missing("metadata.uid"))?;
        if uid != reference.uid {
            return Err(ClaimError::Replaced { claim: reference.clone(), found: uid });
        }
        let pod_claim_name = object
            .metadata
            .annotations
            .and_then(|mut annotations| annotations.remove(POD_CLAIM_NAME));
        // The claim's author may write any value, and the name becomes part of an environment variable.
        let pod_claim_name = pod_claim_name
            .filter(|name| name::is_label(name))
            .unwrap_or_else(|| reference.name.clone());
        let allocation = object.status.and_then(|status| status.allocation);
        let allocation = allocation.ok_or_else(|| ClaimError::NotAllocated(reference.clone()))?;
        let devices = allocation.devices.unwrap_or_default();
        let results = devices.results.unwrap_or_default().into_iter();
        let own_results =
            results.enumerate().filter(|(_, result)| result.driver == driver.as_str());
        let results = own_results.map(|(position, result)| {
            let field =
                |name: &str| format!("status.allocation.devices.results[{position}].{name}");
            AllocatedDevice::read(result).map_err(|name| missing(&field(name)))
        });
        let results = results.collect::<Result<_, _>>()?;
        let configs = configs(devices.config.unwrap_or_default(), driver);
        Ok(Self { reference: reference.clone(), pod_claim_name, results, configs })
    }
}

/// Parameters of this driver: those of the device class, then those of the claim.
fn configs(all: Vec<DeviceAllocationConfiguration>, driver: &DriverName) -> Vec<OpaqueConfig> {
    let own_configs = all.into_iter().enumerate().filter_map(|(position, config)| {
        let opaque = config.opaque.filter(|opaque| opaque.driver == driver.as_str())?;
        let is_of_claim = config.source == "FromClaim";
        let level = if is_of_claim { "claim" } else { "class" };
        let config = OpaqueConfig {
            origin: format!("configuration {} of the allocation, from the {level}", position + 1),
            requests: config.requests.unwrap_or_default(),
            parameters: opaque.parameters.0,
        };
        Some((is_of_claim, config))
    });
    let (claim_configs, class_configs): (Vec<_>, Vec<_>) =
        own_configs.partition(|(is_of_claim, _)| *is_of_claim);
    class_configs.into_iter().chain(claim_configs).map(|(_, config)| config).collect()
}

// === impl AllocatedDevice ===

impl AllocatedDevice {
    /// Reads a result, or names the missing field.
    fn read(result: DeviceRequestAllocationResult) -> Result<Self, &'static str> {
        let consumed = result.consumed_capacity.unwrap_or_default().into_iter();
        Ok(Self {
            request: non_empty(result.request).ok_or("request")?,
            pool: non_empty(result.pool).ok_or("pool")?,
            device: non_empty(result.device).ok_or("device")?,
            access: if result.admin_access == Some(true) { Access::Admin } else { Access::Regular },
            share: result.share_id,
            consumed: consumed.map(|(name, amount)| (name, amount.0)).collect(),
        })
    }

    /// The request without its alternative, as the kubelet knows it.
    pub(crate) fn base_request(&self) -> &str {
        self.request.split('/').next().unwrap_or_default()
    }
}

fn non_empty(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

// === impl OpaqueConfig ===

impl OpaqueConfig {
    /// True if it applies to the device.
    pub(crate) fn applies_to(&self, result: &AllocatedDevice) -> bool {
        self.requests.is_empty() || self.names_request(result)
    }

    /// True if it names the device's request, or the chosen alternative.
    pub(crate) fn names_request(&self, result: &AllocatedDevice) -> bool {
        self.requests.iter().any(|name| *name == result.request || name == result.base_request())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn reference() -> ClaimRef {
        let [namespace, name, uid] = ["ns", "c", "u1"].map(ToOwned::to_owned);
        ClaimRef { namespace, name, uid }
    }

    fn read(status: &Value) -> Result<Claim, ClaimError> {
        let object = json!({
            "metadata": {"name": "c", "namespace": "ns", "uid": "u1"},
            "spec": {}, "status": status,
        });
        let object = serde_json::from_value(object).expect("a claim");
        Claim::read(object, &reference(), &DriverName::default())
    }

    fn result(request: &str, driver: &str) -> Value {
        json!({"request": request, "driver": driver, "pool": "n1/nvidia", "device": "gpu-0"})
    }

    #[test]
    fn results_of_other_drivers_are_ignored() {
        let results = [result("a", "other.dev"), result("b/large", "windlass.dev")];
        let claim = read(&json!({"allocation": {"devices": {"results": results}}})).expect("read");
        let requests: Vec<_> = claim.results.iter().map(AllocatedDevice::base_request).collect();
        assert_eq!(requests, ["b"]);
    }

    #[test]
    fn a_claim_from_a_template_has_the_pods_name_for_it() {
        for (annotations, expected) in [
            (json!({POD_CLAIM_NAME: "links"}), "links"),
            (json!({POD_CLAIM_NAME: "A=b\nC"}), "c"),
            (json!({}), "c"),
        ] {
            let object = json!({
                "metadata": {"uid": "u1", "annotations": annotations},
                "spec": {}, "status": {"allocation": {}},
            });
            let object = serde_json::from_value(object).expect("a claim");
            let claim = Claim::read(object, &reference(), &DriverName::default()).expect("read");
            assert_eq!(claim.pod_claim_name, expected);
        }
    }

    #[test]
    fn parameters_of_the_class_come_before_those_of_the_claim() {
        let config = |source: &str, driver: &str, n: u32| json!({"source": source, "opaque": {"driver": driver, "parameters": {"n": n}}});
        let config = [
            config("FromClaim", "windlass.dev", 1),
            config("FromClass", "other.dev", 2),
            config("FromClass", "windlass.dev", 3),
            config("FromClaim", "windlass.dev", 4),
        ];
        let claim = read(&json!({"allocation": {"devices": {"config": config}}})).expect("read");
        let order: Vec<_> =
            claim.configs.iter().map(|config| config.parameters["n"].clone()).collect();
        assert_eq!(order, [3, 1, 4]);
    }

    #[test]
    fn an_unusable_claim_is_refused_with_its_reason() {
        let mut without_pool = result("a", "windlass.dev");
        without_pool["pool"] = json!("");
        for (status, expected) in [
            (json!({}), "claim ns/c is not allocated"),
            (
                json!({"allocation": {"devices": {"results": [without_pool]}}}),
                "claim ns/c has no status.allocation.devices.results[0].pool",
            ),
        ] {
            assert_eq!(read(&status).expect_err("refused").to_string(), expected);
        }
        let replaced = ClaimRef { uid: "u0".to_owned(), ..reference() };
        let object = json!({"metadata": {"uid": "u1"}, "spec": {}});
        let object = serde_json::from_value(object).expect("a claim");
        let error = Claim::read(object, &replaced, &DriverName::default()).expect_err("refused");
        assert_eq!(error.to_string(), "claim ns/c was replaced: it has UID u1 and not u0");
    }
}
