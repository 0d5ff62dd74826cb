//! Checks of ResourceSlices and DeviceClasses.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::resource::v1::{Device, ResourceSlice};
use windlass_core::finding::Finding;

use crate::objects::Objects;

const AREA: &str = "claims";

pub(super) fn check(objects: &Objects) -> Vec<Finding> {
    if objects.slices().is_empty() && objects.claims().is_empty() {
        return vec![Finding::skipped(AREA, "slices", "no driver publishes devices for claims")];
    }
    let mut pools: BTreeMap<(&str, &str), Vec<&ResourceSlice>> = BTreeMap::new();
    for slice in objects.slices() {
        pools.entry((&slice.spec.driver, &slice.spec.pool.name)).or_default().push(slice);
    }
    let mut findings = Vec::new();
    for ((driver, pool), slices) in &pools {
        findings.push(check_completeness(driver, pool, slices));
        let devices = newest(slices).flat_map(|slice| slice.spec.devices.iter().flatten());
        findings.extend(devices.filter_map(|device| check_taints(pool, device)));
    }
    findings.extend(check_classes(objects));
    findings
}

/// Slices of the pool's newest generation.
fn newest<'a>(slices: &'a [&'a ResourceSlice]) -> impl Iterator<Item = &'a ResourceSlice> {
    let newest = slices.iter().map(|slice| slice.spec.pool.generation).max();
    let newest = newest.unwrap_or_default();
    slices.iter().copied().filter(move |slice| slice.spec.pool.generation == newest)
}

/// Checks that all slices of the newest generation exist: kube-scheduler allocates nothing from an incomplete pool.
fn check_completeness(driver: &str, pool: &str, slices: &[&ResourceSlice]) -> Finding {
    let subject = format!("pool {pool} of {driver}");
    let existing = newest(slices).count();
    let expected = newest(slices).map(|slice| slice.spec.pool.resource_slice_count).max();
    let expected = expected.and_then(|count| usize::try_from(count).ok()).unwrap_or_default();
    if existing < expected {
        return Finding::problem(AREA, subject, format!("{existing} of {expected} slices exist"))
            .with_remedy(
                "the driver on this node does not run, or lacks the right to write slices: see its log",
            );
    }
    let devices: usize =
        newest(slices).map(|slice| slice.spec.devices.iter().flatten().count()).sum();
    Finding::ok(AREA, subject, format!("{devices} devices"))
}

/// Taint of a device that a pod holds through the device plugin. The device is healthy, so there is no warning.
const IN_USE_TAINT: &str = "windlass.dev/device-plugin";

/// Warning about a device that claims cannot get because of a taint.
fn check_taints(pool: &str, device: &Device) -> Option<Finding> {
    let mut taints = device.taints.iter().flatten();
    let taint = taints.find(|taint| taint.effect != "None" && taint.key != IN_USE_TAINT)?;
    let value = taint.value.as_deref().unwrap_or_default();
    let detail = format!("{}={value}:{}", taint.key, taint.effect);
    Some(
        Finding::warning(AREA, format!("device {} of {pool}", device.name), detail)
            .with_remedy("`windlass doctor` on the node has the reason and the remedy"),
    )
}

/// Findings about classes: those that claims name and that do not exist, or a cluster without any class.
fn check_classes(objects: &Objects) -> Vec<Finding> {
    let names = objects.classes().iter().filter_map(|class| class.metadata.name.as_deref());
    let existing_classes: BTreeSet<_> = names.collect();
    let requests = objects.claims().iter().flat_map(|claim| {
        let devices = claim.spec.devices.iter();
        devices.flat_map(|devices| devices.requests.iter().flatten())
    });
    let names = requests.flat_map(|request| {
        let exact = request.exactly.iter().map(|exact| exact.device_class_name.as_str());
        let alternatives = request.first_available.iter().flatten();
        exact.chain(alternatives.map(|sub| sub.device_class_name.as_str()))
    });
    let named_classes: BTreeSet<_> = names.collect();
    let missing = named_classes.difference(&existing_classes).map(|name| {
        Finding::problem(AREA, format!("class {name}"), "claims name it, but it does not exist")
            .with_remedy("apply deploy/options/claims/deviceclasses.yaml, or correct the claims")
    });
    let mut findings: Vec<_> = missing.collect();
    if existing_classes.is_empty() && findings.is_empty() {
        findings.push(
            Finding::warning(AREA, "classes", "no DeviceClass: no claim can name a device")
                .with_remedy("apply deploy/options/claims/deviceclasses.yaml"),
        );
    }
    findings
}
