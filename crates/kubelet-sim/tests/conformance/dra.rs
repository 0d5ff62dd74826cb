//! Conformance tests of the DRA manager, with a scripted driver.

pub(crate) mod driver;
mod health;
mod prepare;
mod registration;
mod restart;

use windlass_kubelet_sim::{ClaimId, Container, Pod, PodClaim};

/// Name of the driver in most tests.
pub(crate) const DRIVER: &str = "gpu.example.com";

/// A pod whose container `c` uses a claim of the driver.
pub(crate) fn pod(name: &str, claim: &str) -> Pod {
    pod_of(name, claim, &[DRIVER])
}

/// A pod whose container `c` uses a claim with devices of these drivers.
pub(crate) fn pod_of(name: &str, claim: &str, drivers: &[&str]) -> Pod {
    let claim = PodClaim::new("devices", ClaimId::new(claim)).used_by("c");
    let claim = drivers.iter().fold(claim, |claim, driver| claim.driver(*driver));
    Pod::new(name).container(Container::new("c")).claim(claim)
}
