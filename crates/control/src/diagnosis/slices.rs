//! Checks of ResourceSlices and DeviceClasses, and of the container runtimes of nodes with slices.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::{
    core::v1::Node,
    resource::v1::{Device, ResourceSlice},
};
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
    let by_cdi = objects.slices().iter().filter(|it| CDI_DRIVERS.contains(&&*it.spec.driver));
    let nodes_with_slices: BTreeSet<_> =
        by_cdi.filter_map(|slice| slice.spec.node_name.as_deref()).collect();
    let has_slices = |node: &&Node| {
        node.metadata.name.as_deref().is_some_and(|name| nodes_with_slices.contains(name))
    };
    findings.extend(objects.nodes().iter().filter(has_slices).filter_map(check_runtime));
    findings
}

/// Drivers by whose CDI documents containers get their devices.
const CDI_DRIVERS: [&str; 2] = ["windlass.dev", "gpu.nvidia.com"];
/// First releases of container runtimes that take the names of CDI devices from the kubelet (KEP-4009).
const FIRST_RELEASES_WITH_CDI: [(&str, [u32; 2]); 2] = [("containerd", [1, 7]), ("cri-o", [1, 28])];

/// Problem of a node whose container runtime reads no CDI documents.
fn check_runtime(node: &Node) -> Option<Finding> {
    let runtime = &node.status.as_ref()?.node_info.as_ref()?.container_runtime_version;
    let (name, version) = runtime.split_once("://")?;
    let (_, first_release) = FIRST_RELEASES_WITH_CDI.iter().find(|(known, _)| *known == name)?;
    let mut numbers = version.split('.').map(str::parse);
    let release = [numbers.next()?.ok()?, numbers.next()?.ok()?];
    let [major, minor] = first_release;
    (release < *first_release).then(|| {
        let subject = format!("node {}", node.metadata.name.as_deref().unwrap_or_default());
        Finding::problem(AREA, subject, format!("{name} {version} ignores the devices of claims"))
            .with_remedy(format!(
                "update {name} to {major}.{minor} or newer, which reads CDI documents"
            ))
    })
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
