//! The DRA manager, tested with a driver that speaks the real protocol.

pub(crate) mod driver;
mod health;
mod prepare;
mod registration;
mod restart;

use windlass_kubelet_sim::{ClaimId, Container, Pod, PodClaim};

/// Driver of most tests.
pub(crate) const DRIVER: &str = "gpu.example.com";

/// A pod whose container `c` uses a claim of the driver.
pub(crate) fn pod(name: &str, claim: &str) -> Pod {
    pod_of(name, claim, &[DRIVER])
}

/// A pod whose container `c` uses a claim with results of these drivers.
pub(crate) fn pod_of(name: &str, claim: &str, drivers: &[&str]) -> Pod {
    let used = PodClaim::new("devices", ClaimId::new(claim)).used_by("c");
    let used = drivers.iter().fold(used, |claim, driver| claim.driver(*driver));
    Pod::new(name).container(Container::new("c")).claim(used)
}
