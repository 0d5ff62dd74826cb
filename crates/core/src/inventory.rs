//! All devices of a node at one moment.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::device::{Device, DeviceId, DeviceKind};

/// A snapshot of the node; two that are equal need no second look.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Inventory {
    /// Counts the changes since the agent started; a reader that saw it has seen everything.
    pub generation: u64,
    /// The profile of a simulated machine; `None` on hardware.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub simulated: Option<String>,
    /// Where the host is a recording of one, by whom it was made and when.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recorded: Option<String>,
    /// Where devices come from, and how each source fares.
    pub sources: BTreeMap<String, SourceState>,
    /// The devices by kind, index and id.
    pub devices: Vec<Device>,
}

/// How one source of devices fares.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "state", content = "detail")]
pub enum SourceState {
    /// Looking for the first time.
    Starting,
    /// It answers; the text says with what, such as a driver version.
    Ready(String),
    /// There is nothing to ask on this node, and why; it is looked for again.
    Absent(String),
    /// It is there and does not work, and why; it is tried again.
    Failing(String),
}

// === impl Inventory ===

impl Inventory {
    /// Puts devices into the order in which everything lists them.
    pub fn sort(&mut self) {
        self.devices.sort_by(|a, b| a.order().cmp(&b.order()));
    }

    /// Whether the devices are those of a machine that runs, and of this one.
    pub fn is_real(&self) -> bool {
        self.simulated.is_none() && self.recorded.is_none()
    }

    /// Whether every source has answered once, if only to say that it is absent.
    pub fn is_complete(&self) -> bool {
        !self.sources.is_empty()
            && self.sources.values().all(|state| *state != SourceState::Starting)
    }

    /// The device of that name.
    pub fn get(&self, id: &str) -> Option<&Device> {
        self.devices.iter().find(|device| device.id.as_str() == id)
    }

    /// The devices of one kind, in order.
    pub fn of_kind(&self, kind: DeviceKind) -> impl Iterator<Item = &Device> {
        self.devices.iter().filter(move |device| device.kind == kind)
    }

    /// The parts of a device.
    pub fn parts_of<'a>(&'a self, id: &'a DeviceId) -> impl Iterator<Item = &'a Device> {
        self.devices.iter().filter(move |device| device.parent.as_ref() == Some(id))
    }

    /// Whether the same world is described, whatever the generation.
    pub fn says_the_same_as(&self, other: &Self) -> bool {
        self.simulated == other.simulated
            && self.recorded == other.recorded
            && self.sources == other.sources
            && self.devices == other.devices
    }
}
