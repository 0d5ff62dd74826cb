//! Difference between the reported and the actual state of devices.

use std::collections::BTreeMap;

use jiff::Timestamp;
use windlass_core::{
    device::{Device, DeviceId},
    event_reason::MAX_NOTE_BYTES,
    health::HealthState,
    inventory::Inventory,
};
use windlass_host::abbreviate::prefix;
use windlass_lifecycle::cleanup::Failure;
use windlass_resources::NodeState;

/// Devices whose last event was `Unhealthy`, with the health in that event.
#[derive(Debug, Default)]
pub(super) struct ReportedDevices(BTreeMap<DeviceId, String>);

/// One change of a device, for an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Report {
    pub(super) device: DeviceId,
    pub(super) change: Change,
    /// Text of the event. Equal changes have equal notes and differ in `at`.
    pub(super) note: String,
    /// Time of the change.
    pub(super) at: Timestamp,
}

/// Kind of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// The device became unhealthy; the text describes its health.
    Unhealthy(String),
    Recovered,
}

// === impl ReportedDevices ===

impl ReportedDevices {
    /// The first change in the state that is not reported yet.
    pub(super) fn next(&mut self, state: &NodeState) -> Option<Report> {
        self.0.retain(|id, _| state.inventory.get(id.as_str()).is_some());
        state.inventory.devices.iter().find_map(|device| self.report_for(device, state))
    }

    /// Records a reported change.
    pub(super) fn add(&mut self, report: &Report) {
        match &report.change {
            Change::Unhealthy(health) => self.0.insert(report.device.clone(), health.clone()),
            Change::Recovered => self.0.remove(&report.device),
        };
    }

    fn report_for(&self, device: &Device, state: &NodeState) -> Option<Report> {
        let (inventory, reported) = (&state.inventory, self.0.get(&device.id));
        let health = device.health.to_string();
        let (change, event, at) = match device.health.state {
            HealthState::Unknown => return None,
            HealthState::Healthy => match state.failed_cleanups.get(&device.id) {
                Some(Failure { why: reason, .. }) if reported == Some(reason) => return None,
                Some(Failure { why, since, .. }) => {
                    let event = format!("is withheld: cleanup failed: {why}");
                    (Change::Unhealthy(why.clone()), event, *since)
                }
                None => {
                    let event = format!("is {health} again, was {}", reported?);
                    (Change::Recovered, event, device.health.since)
                }
            },
            HealthState::Unhealthy if reported == Some(&health) => return None,
            HealthState::Unhealthy if is_fault_of_parent(device, inventory) => return None,
            HealthState::Unhealthy => {
                let failure = device.health.failure();
                let at = failure.map_or(device.health.since, |failure| failure.last);
                (Change::Unhealthy(health.clone()), format!("is {health}"), at)
            }
        };
        let note = note(device, &event, inventory.simulated.as_deref());
        Some(Report { device: device.id.clone(), change, note, at })
    }
}

/// True if the parent has the same fault: a GPU's fault is reported once, not for each instance.
fn is_fault_of_parent(device: &Device, inventory: &Inventory) -> bool {
    let parent = device.parent.as_ref().and_then(|id| inventory.get(id.as_str()));
    parent.is_some_and(|parent| parent.health.to_string() == device.health.to_string())
}

fn note(device: &Device, event: &str, simulated: Option<&str>) -> String {
    let simulated = simulated.map(|profile| format!(" (simulated {profile})")).unwrap_or_default();
    let note = format!("{} {}{simulated} {event}", device.kind, device.id);
    prefix(&note, MAX_NOTE_BYTES).to_owned()
}
