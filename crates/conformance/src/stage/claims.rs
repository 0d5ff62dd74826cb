//! Claims of pods, allocated by the scheduler from the driver's slices.

use k8s_openapi::api::{
    core::v1::Pod,
    resource::v1::{DeviceClass, ResourceClaim},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use windlass_cluster_sim::cluster::{Scheduled, Unscheduled};

use super::{Driver, LOOK, Stage};
use crate::case::{Unmet, failed, not_applicable};

/// Class of all devices that the cases claim.
const CLASS: &str = "conformance";

/// Request of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// One device.
    Device,
    /// One device, as the first choice of a list.
    FirstChoice,
    /// A device with exclusive access.
    Alone,
    /// A device that several claims may share.
    Share,
}

// === impl Wanted ===

impl Wanted {
    fn request(self) -> Value {
        let class = json!({"deviceClassName": CLASS, "count": 1, "allocationMode": "ExactCount"});
        match self {
            Self::Device => json!({"name": "one", "exactly": class}),
            Self::FirstChoice => {
                let mut first = class;
                first["name"] = "best".into();
                json!({"name": "one", "firstAvailable": [first]})
            }
            Self::Alone | Self::Share => {
                let expression =
                    format!("device.allowMultipleAllocations == {}", self == Self::Share);
                let mut chosen = class;
                chosen["selectors"] = json!([{"cel": {"expression": expression}}]);
                json!({"name": "one", "exactly": chosen})
            }
        }
    }
}

// === impl Stage, for claims ===

impl Stage {
    /// Claim with a device, for a pod of the same name.
    pub(crate) async fn claim(
        &mut self,
        driver: &Driver,
        name: &str,
        wanted: Wanted,
    ) -> Result<ResourceClaim, Unmet> {
        let scheduled = self.scheduled(driver, name, wanted).await?;
        scheduled
            .claims
            .into_iter()
            .next()
            .ok_or_else(|| Unmet::Failed("no stage: no claim".into()))
    }

    /// Schedules a pod, and retries: devices may become free shortly after they are published.
    pub(crate) async fn scheduled(
        &mut self,
        driver: &Driver,
        name: &str,
        wanted: Wanted,
    ) -> Result<Scheduled, Unmet> {
        self.put_class(driver);
        self.put(&asking(name, wanted));
        self.bound(&pod(name, name)).await
    }

    /// Pod on its node, with its devices.
    pub(crate) async fn bound(&mut self, pod: &Pod) -> Result<Scheduled, Unmet> {
        let (begun, limit) = (Instant::now(), self.subject.within.start);
        loop {
            match self.cluster.schedule(pod) {
                Ok(scheduled) => return Ok(scheduled),
                Err(why @ Unscheduled::NoNode { .. }) if begun.elapsed() >= limit => {
                    return not_applicable(format!("no device for such a claim: {why}"));
                }
                Err(Unscheduled::NoNode { .. }) => sleep(LOOK).await,
                Err(why) => {
                    return failed(format!(
                        "no stage: {why}: {:?}",
                        std::error::Error::source(&why)
                    ));
                }
            }
            self.alive()?;
        }
    }

    /// Claims with a device each, one for each device, up to a limit.
    pub(crate) async fn claims(
        &mut self,
        driver: &Driver,
        most: usize,
    ) -> Result<Vec<ResourceClaim>, Unmet> {
        let mut claims = vec![self.claim(driver, "claim-0", Wanted::Device).await?];
        for number in 1..most {
            let name = format!("claim-{number}");
            self.put(&asking(&name, Wanted::Device));
            match self.cluster.schedule(&pod(&name, &name)) {
                Ok(scheduled) => claims.extend(scheduled.claims),
                Err(_) => break,
            }
        }
        Ok(claims)
    }

    /// Stores a claim unchanged.
    pub(crate) fn put(&self, claim: &ResourceClaim) -> ResourceClaim {
        self.cluster.objects().put(claim)
    }

    fn put_class(&self, driver: &Driver) {
        let of_driver = format!("device.driver == {:?}", driver.name);
        let expressions = [Some(of_driver), self.subject.devices.clone()];
        let selectors =
            expressions.into_iter().flatten().map(|it| json!({"cel": {"expression": it}}));
        self.cluster.objects().put(&typed::<DeviceClass>(json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": CLASS},
            "spec": {"selectors": selectors.collect::<Vec<_>>()},
        })));
    }
}

/// Claim without an allocation.
fn asking(name: &str, wanted: Wanted) -> ResourceClaim {
    typed(json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"namespace": "default", "name": name, "uid": uid(name)},
        "spec": {"devices": {"requests": [wanted.request()]}},
    }))
}

/// UID of a claim, derived from its name.
fn uid(name: &str) -> String {
    format!("{name}-uid")
}

/// Pod of one container `c`, which uses a whole claim.
pub(crate) fn pod(name: &str, claim: &str) -> Pod {
    typed(json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "default", "name": name},
        "spec": {
            "resourceClaims": [{"name": "it", "resourceClaimName": claim}],
            "containers": [{"name": "c", "resources": {"claims": [{"name": "it"}]}}],
        },
    }))
}

/// Copy of a claim under another name, with the same devices.
pub(crate) fn twin(claim: &ResourceClaim, name: &str) -> ResourceClaim {
    let mut twin = claim.clone();
    twin.metadata.name = Some(name.to_owned());
    twin.metadata.uid = Some(uid(name));
    twin.metadata.resource_version = None;
    twin
}

fn typed<T: DeserializeOwned>(document: Value) -> T {
    serde_json::from_value(document).expect("a document of the API")
}
