//! What there is to tell: the difference between what events have told and what is.

use std::collections::BTreeMap;

use jiff::Timestamp;
use windlass_core::{
    device::{Device, DeviceId},
    health::HealthState,
    inventory::Inventory,
};
use windlass_host::abbreviate::beginning;
use windlass_lifecycle::cleanup::Failure;
use windlass_resources::NodeState;

/// The devices that were told to be unhealthy, and how that was put.
#[derive(Debug, Default)]
pub(super) struct Told(BTreeMap<DeviceId, String>);

/// One thing to tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Report {
    pub(super) device: DeviceId,
    pub(super) news: News,
    /// The same words for the same news: what is told again is told apart by its time.
    pub(super) note: String,
    /// When it happened.
    pub(super) at: Timestamp,
}

/// What sort of news it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// The device is unhealthy; the text is its health's.
    Unhealthy(String),
    /// It is healthy again.
    Recovered,
}

/// The longest note that the API server takes, in bytes.
const LONGEST_NOTE: usize = 1024;

// === impl Told ===

impl Told {
    /// The first thing in the inventory that is not told yet.
    pub(super) fn next(&mut self, state: &NodeState) -> Option<Report> {
        self.0.retain(|id, _| state.inventory.get(id.as_str()).is_some());
        state.inventory.devices.iter().find_map(|device| self.about(device, state))
    }

    /// Remembers that something was told.
    pub(super) fn tell(&mut self, report: &Report) {
        match &report.news {
            News::Unhealthy(health) => self.0.insert(report.device.clone(), health.clone()),
            News::Recovered => self.0.remove(&report.device),
        };
    }

    fn about(&self, device: &Device, state: &NodeState) -> Option<Report> {
        let (inventory, known) = (&state.inventory, self.0.get(&device.id));
        let health = device.health.to_string();
        let (news, happened, at) = match device.health.state {
            HealthState::Unknown => return None,
            HealthState::Healthy => match state.unclean.get(&device.id) {
                Some(Failure { why, .. }) if known == Some(why) => return None,
                Some(Failure { why, since, .. }) => {
                    let happened = format!("is kept back, its hand-over failed: {why}");
                    (News::Unhealthy(why.clone()), happened, *since)
                }
                None => {
                    let happened = format!("is {health} again, was {}", known?);
                    (News::Recovered, happened, device.health.since)
                }
            },
            HealthState::Unhealthy if known == Some(&health) => return None,
            HealthState::Unhealthy if whole_is_so_too(device, inventory) => return None,
            HealthState::Unhealthy => {
                let trouble = device.health.trouble();
                let at = trouble.map_or(device.health.since, |trouble| trouble.last);
                (News::Unhealthy(health.clone()), format!("is {health}"), at)
            }
        };
        let note = note(device, &happened, inventory.simulated.as_deref());
        Some(Report { device: device.id.clone(), news, note, at })
    }
}

/// A fault of a GPU is one of each of its instances; told once, it is told.
fn whole_is_so_too(device: &Device, inventory: &Inventory) -> bool {
    let whole = device.parent.as_ref().and_then(|id| inventory.get(id.as_str()));
    whole.is_some_and(|whole| whole.health.to_string() == device.health.to_string())
}

fn note(device: &Device, happened: &str, simulated: Option<&str>) -> String {
    let simulated = simulated.map(|profile| format!(" (simulated {profile})")).unwrap_or_default();
    let note = format!("{} {}{simulated} {happened}", device.kind, device.id);
    beginning(&note, LONGEST_NOTE).to_owned()
}
