//! Status of claims and DRA drivers, for the node's status.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use windlass_kubelet_api::dra::checkpoint::Device;

use super::{
    ClaimOrigin, Dra, DraService, PodClaim, ResourceHealthStatus,
    claims::{Claim, serves_request},
    driver::Driver,
};
use crate::pod::Pod;

/// Status of a claim that pods of the node use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimStatus {
    /// UID of the claim.
    pub uid: String,
    /// UIDs of the pods that use the claim.
    pub pods: BTreeSet<String>,
    /// True if the claim was prepared since the kubelet started.
    pub is_prepared: bool,
    /// Devices by driver. The list of a driver is empty until the driver prepares the claim.
    pub devices: BTreeMap<String, Vec<PreparedDevice>>,
}

/// A prepared device, as described by its driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreparedDevice {
    /// Name of the device's pool.
    pub pool: String,
    /// Name of the device in its pool.
    pub name: String,
    /// Id of the allocated share, if the driver sent one.
    pub share_id: Option<String>,
    /// Requests that the device serves; an empty list means all requests.
    pub requests: Vec<String>,
    /// Qualified CDI device names.
    pub cdi_devices: Vec<String>,
}

/// Status of a registered endpoint of a driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverStatus {
    /// Path of the DRA socket.
    pub endpoint: PathBuf,
    /// Version of the DRA service in use.
    pub service: DraService,
    /// True while the DRA socket has a connection.
    pub is_connected: bool,
}

/// Health of a claim's device, in a container's `allocatedResourcesStatus`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimDeviceHealth {
    /// The first CDI device name, or `<driver>/<pool>/<device>` for a device without one.
    pub resource_id: String,
    /// Health of the device.
    pub health: ResourceHealthStatus,
    /// The driver's explanation.
    pub message: Option<String>,
}

// === impl Dra, for the status ===

impl Dra {
    /// Claims by `namespace/name`.
    pub(crate) fn claim_statuses(&self) -> BTreeMap<String, ClaimStatus> {
        let claims = self.claims.iter();
        claims.map(|claim| (claim.id().to_string(), ClaimStatus::of(claim))).collect()
    }

    /// Endpoints by driver, in the order of registration.
    pub(crate) fn driver_statuses(&self) -> BTreeMap<String, Vec<DriverStatus>> {
        let to_status = |driver: &Driver| DriverStatus {
            endpoint: driver.endpoint().to_owned(),
            service: driver.service,
            is_connected: *driver.connected.borrow(),
        };
        let drivers = self.drivers.iter();
        drivers
            .map(|(name, endpoints)| (name.clone(), endpoints.iter().map(to_status).collect()))
            .collect()
    }

    /// Health of a container's claim devices, by `claim:<name>` or `claim:<name>/<request>`. Each entry has
    /// a device once.
    pub(crate) fn health_of(
        &self,
        pod: &Pod,
        container: &str,
    ) -> BTreeMap<String, Vec<ClaimDeviceHealth>> {
        let mut healths = BTreeMap::new();
        for claim in pod.claims.iter().filter(|claim| claim.origin == ClaimOrigin::PodSpec) {
            for claim_use in claim.uses_of(container) {
                let request = claim_use.request.as_deref();
                let devices = self.health_of_claim(claim, request);
                let request = request.map(|request| format!("/{request}")).unwrap_or_default();
                if !devices.is_empty() {
                    healths.insert(format!("claim:{}{request}", claim.name), devices);
                }
            }
        }
        healths
    }

    fn health_of_claim(
        &self,
        pod_claim: &PodClaim,
        request: Option<&str>,
    ) -> Vec<ClaimDeviceHealth> {
        let Ok(claim) = self.claims.get(&pod_claim.id.namespace, &pod_claim.id.name) else {
            return Vec::new();
        };
        // The pod may name a request as `<request>/<subrequest>`. Devices name only `<request>`.
        let request =
            request.map(|request| request.split_once('/').map_or(request, |(base, _)| base));
        let mut seen = BTreeSet::new();
        let serving = claim.devices().filter(|(_, device)| serves_request(device, request));
        let healths = serving.map(|(driver, device)| self.health_of_device(driver, device));
        healths.filter(|health| seen.insert(health.resource_id.clone())).collect()
    }

    fn health_of_device(&self, driver: &str, device: &Device) -> ClaimDeviceHealth {
        let Device { pool_name, device_name, cdi_device_ids, .. } = device;
        let health = self.health.get(driver, pool_name, device_name);
        let cdi_name = cdi_device_ids.iter().flatten().next().cloned();
        ClaimDeviceHealth {
            resource_id: cdi_name.unwrap_or_else(|| format!("{driver}/{pool_name}/{device_name}")),
            health: health.health,
            message: (!health.message.is_empty()).then_some(health.message),
        }
    }
}

// === impl ClaimStatus ===

impl ClaimStatus {
    fn of(claim: &Claim) -> Self {
        let drivers = claim.state.drivers.iter().map(|(name, driver)| {
            let devices = driver.devices.iter().flatten().map(PreparedDevice::of).collect();
            (name.clone(), devices)
        });
        Self {
            uid: claim.state.claim_uid.clone(),
            pods: claim.state.pod_uids.clone(),
            is_prepared: claim.is_prepared,
            devices: drivers.collect(),
        }
    }
}

// === impl PreparedDevice ===

impl PreparedDevice {
    fn of(device: &Device) -> Self {
        Self {
            pool: device.pool_name.clone(),
            name: device.device_name.clone(),
            share_id: device.share_id.clone(),
            requests: device.request_names.clone().unwrap_or_default(),
            cdi_devices: device.cdi_device_ids.clone().unwrap_or_default(),
        }
    }
}
