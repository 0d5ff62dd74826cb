//! Owners of devices by the kubelet, by the driver's state file, and by the scheduler's allocations. No device has two.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::resource::v1::{DeviceRequestAllocationResult, ResourceClaim};
use windlass_kubelet_sim::PodPhase;

use crate::claims::world::World;

/// Owners by device.
type OwnersByDevice = BTreeMap<String, BTreeSet<String>>;

impl World {
    /// Checks that no device has two owners in any of the three sources.
    pub(crate) fn check(&self) {
        self.check_one_owner().unwrap_or_else(|error| panic!("{error}"));
        self.check_allocations();
    }

    /// Like [`World::check`], but returns the error, so that the caller can add to it.
    pub(crate) fn check_one_owner(&self) -> Result<(), String> {
        let (by_kubelet, by_driver) = (self.owners_by_kubelet(), self.owners_by_driver());
        let mut merged = by_kubelet.clone();
        for (device, owners) in &by_driver {
            merged.entry(device.clone()).or_default().extend(owners.clone());
        }
        let mut shared = merged.iter().filter(|(_, owners)| owners.len() > 1);
        let message = |(device, owners)| Err(format!("{device} has several owners: {owners:?}"));
        shared.next().map_or(Ok(()), message)
    }

    /// Claims that are prepared, and containers with the device plugin's devices.
    fn owners_by_kubelet(&self) -> OwnersByDevice {
        let (node, admins) = (self.kubelet.status(), self.admins());
        let mut owners = OwnersByDevice::new();
        let claims = node.claims.values().filter(|claim| !admins.contains(&claim.uid));
        for claim in claims {
            for device in claim.devices.values().flatten() {
                owners.entry(device.name.clone()).or_default().insert(claim.uid.clone());
            }
        }
        // A refused pod holds nothing, also after a restart.
        let admitted = node.pods.iter().filter(|(_, pod)| pod.phase == PodPhase::Admitted);
        for (uid, pod) in admitted {
            let resources = pod.containers.values().flat_map(|it| it.devices.values());
            for id in resources.flat_map(|numa| numa.values().flatten()) {
                owners.entry(id.to_lowercase()).or_default().insert(format!("pod {uid}"));
            }
        }
        owners
    }

    fn owners_by_driver(&self) -> OwnersByDevice {
        let mut owners = OwnersByDevice::new();
        for (uid, devices) in self.record() {
            for (device, _) in devices.into_iter().filter(|(_, usage)| usage != "admin") {
                owners.entry(device).or_default().insert(uid.clone());
            }
        }
        owners
    }

    /// Prepared devices are the scheduler's choice, if the claim still exists.
    fn check_allocations(&self) {
        let node = self.kubelet.status();
        for claim in self.objects().list::<ResourceClaim>() {
            let uid = claim.metadata.uid.clone().unwrap_or_default();
            let mut known = node.claims.values().filter(|it| it.uid == uid && it.is_prepared);
            let Some(prepared) = known.next() else { continue };
            let prepared = prepared.devices.values().flatten().map(|it| it.name.clone());
            let chosen = allocated(&claim).into_iter().map(|it| it.device);
            assert_eq!(
                prepared.collect::<BTreeSet<_>>(),
                chosen.collect::<BTreeSet<_>>(),
                "claim {uid} has the devices that the scheduler chose"
            );
        }
    }

    /// Claims with admin access, which monitor devices of others.
    fn admins(&self) -> BTreeSet<String> {
        let claims = self.objects().list::<ResourceClaim>().into_iter();
        let is_admin = |claim: &ResourceClaim| {
            allocated(claim).iter().any(|result| result.admin_access == Some(true))
        };
        claims.filter(is_admin).filter_map(|claim| claim.metadata.uid).collect()
    }
}

/// Scheduler's choice for a claim.
pub(crate) fn allocated(claim: &ResourceClaim) -> Vec<DeviceRequestAllocationResult> {
    let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
    let devices = allocation.and_then(|allocation| allocation.devices.as_ref());
    devices.and_then(|devices| devices.results.clone()).unwrap_or_default()
}
