//! Claims of the node's pods and their transitions. Pure: no files, no sockets, no clock.

use std::collections::{BTreeMap, BTreeSet};

use windlass_kubelet_api::dra::checkpoint::{Checkpoint, ClaimState, Device, DriverState};

use super::{ClaimError, ClaimId, PodClaim};
use crate::pod::Pod;

/// Claims by namespace and name: the real manager's claim info cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Claims {
    by_name: BTreeMap<(String, String), Claim>,
}

/// A claim in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) state: ClaimState,
    /// True if the claim was prepared since the kubelet's start. The checkpoint omits this.
    pub(crate) is_prepared: bool,
}

/// Claims of one pod to release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClaimRelease {
    pub(crate) pod: String,
    pub(crate) namespace: String,
    pub(crate) names: Vec<String>,
}

// === impl Claims ===

impl Claims {
    /// Restores the claims of the previous run. They count as unprepared.
    pub(crate) fn restore(checkpoint: Checkpoint) -> Self {
        let claims = checkpoint.claims.into_iter().flatten();
        let by_name = claims.map(|state| {
            let key = (state.namespace.clone(), state.claim_name.clone());
            (key, Claim { state, is_prepared: false })
        });
        Self { by_name: by_name.collect() }
    }

    /// Converts the claims to a checkpoint.
    pub(crate) fn to_checkpoint(&self) -> Checkpoint {
        Checkpoint { claims: Some(self.iter().map(|claim| claim.state.clone()).collect()) }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Claim> {
        self.by_name.values()
    }

    pub(crate) fn get(&self, namespace: &str, name: &str) -> Result<&Claim, ClaimError> {
        self.by_name.get(&claim_key(namespace, name)).ok_or_else(|| unknown_claim(namespace, name))
    }

    fn get_mut(&mut self, id: &ClaimId) -> Result<&mut Claim, ClaimError> {
        let claim = self.by_name.get_mut(&claim_key(&id.namespace, &id.name));
        claim.ok_or_else(|| unknown_claim(&id.namespace, &id.name))
    }

    /// Adds a pod to the users of a claim, and the claim if it is new. Fails if the claim of this name
    /// has another UID.
    pub(crate) fn add_user(&mut self, claim: &PodClaim, pod: &str) -> Result<&Claim, ClaimError> {
        let ClaimId { namespace, name, uid } = &claim.id;
        let entry = self.by_name.entry(claim_key(namespace, name));
        let claim = entry.or_insert_with(|| Claim::new(claim));
        if claim.state.claim_uid != *uid {
            let uid = claim.state.claim_uid.clone();
            return Err(ClaimError::UidMismatch { name: name.clone(), uid });
        }
        claim.state.pod_uids.insert(pod.to_owned());
        Ok(claim)
    }

    /// Adds a driver's prepared devices. Like the real manager, this does not remove duplicates: after a
    /// restart or a second attempt, a device is listed twice.
    pub(crate) fn add_devices(
        &mut self,
        id: &ClaimId,
        driver: &str,
        devices: Vec<Device>,
    ) -> Result<(), ClaimError> {
        let drivers = &mut self.get_mut(id)?.state.drivers;
        let driver_devices = &mut drivers.entry(driver.to_owned()).or_default().devices;
        if !devices.is_empty() {
            driver_devices.get_or_insert_default().extend(devices);
        }
        Ok(())
    }

    pub(crate) fn set_prepared(&mut self, id: &ClaimId) -> Result<(), ClaimError> {
        self.get_mut(id)?.is_prepared = true;
        Ok(())
    }

    /// Removes a pod from the users of a claim that has several users. A claim with at most one user stays
    /// unchanged and is returned, for its release. Like the real manager, this does not check that the
    /// only user is this pod.
    pub(crate) fn remove_user(&mut self, pod: &str, namespace: &str, name: &str) -> Option<&Claim> {
        let claim = self.by_name.get_mut(&claim_key(namespace, name))?;
        if claim.state.pod_uids.len() > 1 {
            claim.state.pod_uids.remove(pod);
            return None;
        }
        Some(claim)
    }

    pub(crate) fn remove(&mut self, id: &ClaimId) {
        self.by_name.remove(&claim_key(&id.namespace, &id.name));
    }

    /// Claims with users that are not active, grouped by user.
    pub(crate) fn stale(&self, active: &BTreeSet<String>) -> Vec<ClaimRelease> {
        let mut releases = BTreeMap::<String, ClaimRelease>::new();
        for claim in self.iter() {
            for pod in claim.state.pod_uids.iter().filter(|pod| !active.contains(*pod)) {
                let release = releases.entry(pod.clone()).or_insert_with(|| ClaimRelease {
                    pod: pod.clone(),
                    namespace: claim.state.namespace.clone(),
                    names: Vec::new(),
                });
                release.names.push(claim.state.claim_name.clone());
            }
        }
        releases.into_values().collect()
    }

    /// CDI device names for a container, in the order of the pod's claims. Fails for an unknown claim.
    pub(crate) fn cdi_devices(
        &self,
        pod: &Pod,
        container: &str,
    ) -> Result<Vec<String>, ClaimError> {
        let mut names = Vec::new();
        for pod_claim in &pod.claims {
            for claim_use in pod_claim.uses_of(container) {
                let claim = self.get(&pod_claim.id.namespace, &pod_claim.id.name)?;
                names.extend(claim.cdi_devices(claim_use.request.as_deref()));
            }
        }
        Ok(names)
    }

    /// UIDs of the pods with a claim for this device.
    pub(crate) fn users(&self, driver: &str, pool: &str, device: &str) -> BTreeSet<String> {
        let has_device = |claim: &&Claim| {
            let mut devices = claim.devices().filter(|(name, _)| *name == driver);
            devices.any(|(_, claim_device)| {
                claim_device.pool_name == pool && claim_device.device_name == device
            })
        };
        self.iter()
            .filter(has_device)
            .flat_map(|claim| claim.state.pod_uids.iter().cloned())
            .collect()
    }
}

// === impl Claim ===

impl Claim {
    /// An unprepared claim without users.
    fn new(claim: &PodClaim) -> Self {
        let drivers = claim.drivers.iter().map(|name| (name.clone(), DriverState::default()));
        let state = ClaimState {
            claim_uid: claim.id.uid.clone(),
            claim_name: claim.id.name.clone(),
            namespace: claim.id.namespace.clone(),
            pod_uids: BTreeSet::new(),
            drivers: drivers.collect(),
        };
        Self { state, is_prepared: false }
    }

    pub(crate) fn id(&self) -> ClaimId {
        ClaimId {
            namespace: self.state.namespace.clone(),
            name: self.state.claim_name.clone(),
            uid: self.state.claim_uid.clone(),
        }
    }

    /// All devices, each with the name of its driver.
    pub(crate) fn devices(&self) -> impl Iterator<Item = (&str, &Device)> {
        self.state.drivers.iter().flat_map(|(name, driver)| {
            driver.devices.iter().flatten().map(move |device| (name.as_str(), device))
        })
    }

    fn cdi_devices(&self, request: Option<&str>) -> Vec<String> {
        let serving = self.devices().filter(|(_, device)| serves_request(device, request));
        serving.flat_map(|(_, device)| device.cdi_device_ids.iter().flatten().cloned()).collect()
    }
}

/// True if a device serves a request. A device without request names serves all requests. Without a
/// request, all devices match.
pub(super) fn serves_request(device: &Device, request: Option<&str>) -> bool {
    let names = device.request_names.as_deref().unwrap_or_default();
    request.is_none_or(|request| names.is_empty() || names.iter().any(|name| name == request))
}

fn claim_key(namespace: &str, name: &str) -> (String, String) {
    (namespace.to_owned(), name.to_owned())
}

fn unknown_claim(namespace: &str, name: &str) -> ClaimError {
    ClaimError::UnknownClaim { name: name.to_owned(), namespace: namespace.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(name: &str, requests: &[&str]) -> Device {
        let names: Vec<String> = requests.iter().map(|&name| name.to_owned()).collect();
        Device {
            pool_name: "pool".to_owned(),
            device_name: name.to_owned(),
            request_names: (!names.is_empty()).then_some(names),
            cdi_device_ids: Some(vec![format!("v/c={name}")]),
            ..Device::default()
        }
    }

    fn claim() -> PodClaim {
        PodClaim::new("gpus", ClaimId::new("claim")).driver("a.b").driver("c.d")
    }

    fn prepared_claims() -> Claims {
        let mut claims = Claims::default();
        claims.add_user(&claim(), "pod").expect("a new claim");
        let devices = vec![device("one", &["big"]), device("two", &["small"]), device("all", &[])];
        claims.add_devices(&claim().id, "a.b", devices).expect("a known claim");
        claims
    }

    #[test]
    fn a_container_gets_the_devices_of_the_requests_that_it_uses() {
        let pod = Pod::new("p").claim(claim().used_by("all").request_used_by("big", "some"));
        let claims = prepared_claims();
        let names = |container| claims.cdi_devices(&pod, container).expect("a known claim");
        assert_eq!(names("all"), ["v/c=one", "v/c=two", "v/c=all"]);
        assert_eq!(names("some"), ["v/c=one", "v/c=all"]);
        assert_eq!(names("none"), [""; 0]);
        let error = Claims::default().cdi_devices(&pod, "all").expect_err("not in the cache");
        assert_eq!(
            error.to_string(),
            "internal error: unable to get claim info for ResourceClaim claim in namespace default"
        );
    }

    #[test]
    fn another_claim_with_the_same_name_is_refused() {
        let mut claims = prepared_claims();
        let mut other = claim();
        other.id.uid = "other".to_owned();
        let error = claims.add_user(&other, "next").expect_err("the old claim exists");
        assert_eq!(
            error.to_string(),
            "old ResourceClaim with same name claim and different UID claim-uid still exists \
             (previous pod force-deleted?!)"
        );
    }

    #[test]
    fn only_the_last_pod_releases_a_claim() {
        let mut claims = prepared_claims();
        claims.add_user(&claim(), "second").expect("the same claim");
        assert_eq!(claims.remove_user("pod", "default", "claim"), None);
        assert!(claims.remove_user("second", "default", "claim").is_some());
        assert_eq!(claims.remove_user("second", "default", "unknown"), None);
    }

    #[test]
    fn restored_claims_equal_the_saved_ones_and_count_as_unprepared() {
        let mut claims = prepared_claims();
        claims.set_prepared(&claim().id).expect("a known claim");
        let restored = Claims::restore(claims.to_checkpoint());
        assert!(restored.iter().all(|claim| !claim.is_prepared));
        assert_eq!(restored.to_checkpoint(), claims.to_checkpoint());
        let stale = restored.stale(&BTreeSet::new());
        assert_eq!((&*stale[0].pod, &*stale[0].names[0]), ("pod", "claim"));
        assert_eq!(restored.stale(&BTreeSet::from(["pod".to_owned()])), []);
    }
}
