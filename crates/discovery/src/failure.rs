//! Device failures that the host's files report.

use std::{collections::BTreeMap, path::Path};

use windlass_core::{
    device::DeviceNode,
    health::{Observation, Reason},
    pci::PciAddress,
};
use windlass_host::{
    Host, PciFunction, drm_nodes,
    external::{DeadlineExceeded, ScanPool},
    hwmon,
};

/// Failure of a device: reason and detail.
pub(super) type Failure = (Reason, String);

/// Reader of device conditions. Firmware serves these files, and may block a read forever during a reset.
#[derive(Debug, Default)]
pub(super) struct ConditionReader {
    pool: ScanPool<PciAddress, Option<Failure>>,
}

/// Failure of a device that missed its deadline.
pub(super) fn unresponsive() -> Failure {
    (Reason::NotReady, "it does not answer".to_owned())
}

pub(super) fn observation(failure: Option<Failure>) -> Observation {
    failure.map_or(Observation::Passed, |(reason, detail)| Observation::Failed(reason, detail))
}

/// Failure of a function to which none of these drivers is bound.
pub(super) fn driver_failure(function: &PciFunction, drivers: &[&str]) -> Option<Failure> {
    let expected = drivers.join(" or ");
    let detail = match function.driver.as_deref() {
        Some(driver) if drivers.contains(&driver) => return None,
        Some(other) => format!("its driver is {other}, not {expected}"),
        None => format!("it has no driver: {expected} is not bound"),
    };
    Some((Reason::DriverUnbound, detail))
}

/// Failure of a GPU without a render node, or with a missing node.
pub(super) fn node_failure(host: &Host, nodes: &[DeviceNode]) -> Option<Failure> {
    if !nodes.iter().any(drm_nodes::is_render) {
        return Some((Reason::NodeMissing, "its driver made no render node".to_owned()));
    }
    let missing = nodes.iter().find(|node| !host.exists(&node.path))?;
    Some((Reason::NodeMissing, format!("{} is not there", missing.path.display())))
}

/// Failure of a device with a temperature beyond its limit.
pub(super) fn overheating_failure(host: &Host, folder: &Path) -> Option<Failure> {
    Some((Reason::OutOfBounds, hwmon::overheated(host, folder)?))
}

// === impl ConditionReader ===

impl ConditionReader {
    /// Failures of the functions that have a driver, each read with a deadline. Late functions fail too.
    pub(super) fn read_failures(
        &mut self,
        host: &Host,
        functions: &[PciFunction],
        read: fn(&Host, &Path) -> Option<Failure>,
    ) -> BTreeMap<PciAddress, Failure> {
        let bound_functions = functions.iter().filter(|function| function.driver.is_some());
        let failures = bound_functions.filter_map(|function| {
            let (host, folder) = (host.clone(), function.folder());
            let result = self.pool.call(function.address, move || read(&host, &folder));
            Some((
                function.address,
                result.unwrap_or_else(|DeadlineExceeded| Some(unresponsive()))?,
            ))
        });
        let failures = failures.collect();
        self.pool.end_scan(|address| functions.iter().any(|function| function.address == *address));
        failures
    }
}
