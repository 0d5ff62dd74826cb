//! Checks of sources, devices and resources, from the state after one scan.

use windlass_core::{
    device::Device, finding::Finding, health::HealthState, inventory::SourceState,
};
use windlass_resources::{DeviceOffer, NodeState};

use crate::commands::short_name;

const AREA: &str = "devices";

pub(super) fn check(state: &NodeState) -> Vec<Finding> {
    let sources = state.inventory.sources.iter().map(|(name, state)| source(name, state));
    let mut findings: Vec<_> = sources.collect();
    if state.inventory.devices.is_empty() {
        findings.push(
            Finding::warning(AREA, "devices", "no source has found a device")
                .with_remedy("with --all, the lines above have the result of each source"),
        );
    }
    let offers = state.device_offers();
    for device in &state.inventory.devices {
        if let Some(finding) = unhealthy(device) {
            findings.push(finding);
        } else if let Some(offer) = offers.get(&device.id) {
            findings.extend(withheld(device, offer));
        }
    }
    for (resource, reason) in &state.empty_resources {
        findings.push(
            Finding::warning(AREA, resource.to_string(), format!("no device: {reason}"))
                .with_remedy("`windlass devices` lists the devices; change the rule's selector"),
        );
    }
    findings.extend(
        state.no_offer_warning().map(|detail| Finding::problem(AREA, "configuration", detail)),
    );
    let missing_parts = state.missing_parts.problems.iter();
    findings.extend(
        missing_parts.map(|problem| Finding::warning(AREA, "CDI documents", problem.clone())),
    );
    for (resource, (listed, allocatable)) in state.resources() {
        let detail = format!("{allocatable} of {listed} allocatable");
        findings.push(if allocatable == 0 && listed > 0 {
            Finding::problem(AREA, resource.to_string(), detail)
                .with_remedy("the lines above have the reason for each device")
        } else {
            Finding::ok(AREA, resource.to_string(), detail)
        });
    }
    findings
}

/// Reports a withheld device. A device without a resource is left out on purpose; a device with one cannot be
/// allocated.
fn withheld(device: &Device, offer: &DeviceOffer) -> Option<Finding> {
    let detail = format!("withheld: {}", offer.obstacle.as_deref()?);
    let name = short_name(device);
    Some(match &offer.resource {
        None => Finding::ok(AREA, name, detail),
        Some(_) => Finding::warning(AREA, name, detail)
            .with_remedy("docs/troubleshooting.md has each reason, and when it ends"),
    })
}

fn source(name: &str, state: &SourceState) -> Finding {
    let subject = format!("source {name}");
    match state {
        SourceState::Ready(summary) => Finding::ok(AREA, subject, summary.clone()),
        SourceState::Absent(reason) => Finding::ok(AREA, subject, format!("none: {reason}")),
        SourceState::Starting => Finding::problem(AREA, subject, "it did not answer in time")
            .with_remedy(
                "a driver call hangs: see `dmesg`, and reset the device or restart the machine",
            ),
        SourceState::Failing(reason) => Finding::problem(AREA, subject, reason.clone())
            .with_remedy("docs/troubleshooting.md has the messages of drivers"),
    }
}

fn unhealthy(device: &Device) -> Option<Finding> {
    let health = &device.health;
    if health.is_healthy() {
        return None;
    }
    let failure = health.failure();
    let detail = failure.map_or_else(|| health.state.to_string(), ToString::to_string);
    let finding = match health.state {
        HealthState::Unhealthy => Finding::problem(AREA, short_name(device), detail),
        _ => Finding::warning(AREA, short_name(device), detail),
    };
    let action = failure.and_then(|failure| failure.reason.action());
    Some(match action.filter(|action| action.concerns_operator()) {
        Some(action) => finding.with_remedy(action.to_string()),
        None => finding,
    })
}
