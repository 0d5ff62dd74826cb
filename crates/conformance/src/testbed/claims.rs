//! Claims of pods, which the embedded scheduler allocates from the driver's slices.

use k8s_openapi::api::{
    core::v1::Pod,
    resource::v1::{DeviceClass, ResourceClaim},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use windlass_cluster_sim::cluster::{ScheduledPod, SchedulingError};

use super::{Driver, POLL_INTERVAL, Testbed};
use crate::case::{CheckError, failed, not_applicable};

/// Name of the device class of all devices that the cases claim.
const CLASS: &str = "conformance";

/// Kind of request in a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClaimRequest {
    /// One device.
    Device,
    /// One device, as the first choice of a list.
    FirstAvailable,
    /// One device that a single claim can have.
    Exclusive,
    /// One device that several claims may share.
    Share,
}

// === impl ClaimRequest ===

impl ClaimRequest {
    fn to_json(self) -> Value {
        let exact_request =
            json!({"deviceClassName": CLASS, "count": 1, "allocationMode": "ExactCount"});
        match self {
            Self::Device => json!({"name": "one", "exactly": exact_request}),
            Self::FirstAvailable => {
                let mut subrequest = exact_request;
                subrequest["name"] = "best".into();
                json!({"name": "one", "firstAvailable": [subrequest]})
            }
            Self::Exclusive | Self::Share => {
                let expression =
                    format!("device.allowMultipleAllocations == {}", self == Self::Share);
                let mut request_with_selector = exact_request;
                request_with_selector["selectors"] = json!([{"cel": {"expression": expression}}]);
                json!({"name": "one", "exactly": request_with_selector})
            }
        }
    }
}

// === impl Testbed, for claims ===

impl Testbed {
    /// Allocated claim of a scheduled pod with the same name.
    pub(crate) async fn create_claim(
        &mut self,
        driver: &Driver,
        name: &str,
        request: ClaimRequest,
    ) -> Result<ResourceClaim, CheckError> {
        let scheduled = self.schedule_with_claim(driver, name, request).await?;
        scheduled.claims.into_iter().next().ok_or_else(|| {
            CheckError::Failed("cannot set up the test: the scheduled pod has no claim".into())
        })
    }

    /// Creates a claim and schedules its pod.
    pub(crate) async fn schedule_with_claim(
        &mut self,
        driver: &Driver,
        name: &str,
        request: ClaimRequest,
    ) -> Result<ScheduledPod, CheckError> {
        self.store_class(driver);
        self.store_claim(&unallocated(name, request));
        self.schedule(&pod(name, name)).await
    }

    /// Schedules a pod. Retries up to the start limit, because the driver may still be publishing its devices.
    pub(crate) async fn schedule(&mut self, pod: &Pod) -> Result<ScheduledPod, CheckError> {
        let (started_at, limit) = (Instant::now(), self.subject.limits.start);
        loop {
            match self.cluster.schedule(pod) {
                Ok(scheduled) => return Ok(scheduled),
                Err(error @ SchedulingError::NoNode { .. }) if started_at.elapsed() >= limit => {
                    return not_applicable(format!("no device fits the claim: {error}"));
                }
                Err(SchedulingError::NoNode { .. }) => sleep(POLL_INTERVAL).await,
                Err(error) => {
                    return failed(format!(
                        "cannot set up the test: {error}: {:?}",
                        std::error::Error::source(&error)
                    ));
                }
            }
            self.check_alive()?;
        }
    }

    /// Allocated claims with a device each: up to `limit`, or one for each device.
    pub(crate) async fn create_claims(
        &mut self,
        driver: &Driver,
        limit: usize,
    ) -> Result<Vec<ResourceClaim>, CheckError> {
        let mut claims = vec![self.create_claim(driver, "claim-0", ClaimRequest::Device).await?];
        for number in 1..limit {
            let name = format!("claim-{number}");
            self.store_claim(&unallocated(&name, ClaimRequest::Device));
            match self.cluster.schedule(&pod(&name, &name)) {
                Ok(scheduled) => claims.extend(scheduled.claims),
                Err(_) => break,
            }
        }
        Ok(claims)
    }

    /// Stores a claim in the API server without validation, and returns the stored object.
    pub(crate) fn store_claim(&self, claim: &ResourceClaim) -> ResourceClaim {
        self.cluster.objects().put(claim)
    }

    fn store_class(&self, driver: &Driver) {
        let is_of_driver = format!("device.driver == {:?}", driver.name);
        let expressions = [Some(is_of_driver), self.subject.devices.clone()];
        let selectors = expressions
            .into_iter()
            .flatten()
            .map(|expression| json!({"cel": {"expression": expression}}));
        self.cluster.objects().put(&from_json::<DeviceClass>(json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": CLASS},
            "spec": {"selectors": selectors.collect::<Vec<_>>()},
        })));
    }
}

/// Claim before its allocation.
fn unallocated(name: &str, request: ClaimRequest) -> ResourceClaim {
    from_json(json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"namespace": "default", "name": name, "uid": uid(name)},
        "spec": {"devices": {"requests": [request.to_json()]}},
    }))
}

/// UID of a claim, derived from its name.
fn uid(name: &str) -> String {
    format!("{name}-uid")
}

/// Pod with one container `c`, which uses all requests of a claim.
pub(crate) fn pod(name: &str, claim: &str) -> Pod {
    from_json(json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "default", "name": name},
        "spec": {
            "resourceClaims": [{"name": "it", "resourceClaimName": claim}],
            "containers": [{"name": "c", "resources": {"claims": [{"name": "it"}]}}],
        },
    }))
}

/// Copy of a claim with another name and UID, and with the same devices.
pub(crate) fn copy_of(claim: &ResourceClaim, name: &str) -> ResourceClaim {
    let mut copy = claim.clone();
    copy.metadata.name = Some(name.to_owned());
    copy.metadata.uid = Some(uid(name));
    copy.metadata.resource_version = None;
    copy
}

fn from_json<T: DeserializeOwned>(document: Value) -> T {
    serde_json::from_value(document).expect("a valid API object")
}
