//! Inventory: all devices of a node at one moment.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::device::{Device, DeviceId, DeviceKind};

/// Snapshot of a node's devices. Equal snapshots cause no work.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Inventory {
    /// Number of changes since the agent started.
    pub generation: u64,
    /// Machine profile of a simulated host; `None` on hardware.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub simulated: Option<String>,
    /// Origin of a recorded host: recording program and time; `None` on a running machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recorded: Option<String>,
    /// State of each device source.
    pub sources: BTreeMap<String, SourceState>,
    /// Devices by kind, index and id.
    pub devices: Vec<Device>,
}

/// State of a device source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "state", content = "detail")]
pub enum SourceState {
    /// First scan is running.
    Starting,
    /// Scanned; the text describes the source, such as its driver version.
    Ready(String),
    /// Nothing to scan on this node, with the reason. Scanned again later.
    Absent(String),
    /// Present but failing, with the reason. Retried.
    Failing(String),
}

// === impl Inventory ===

impl Inventory {
    /// Sorts devices into listing order.
    pub fn sort(&mut self) {
        self.devices.sort_by(|a, b| a.sort_key().cmp(&b.sort_key()));
    }

    /// True on a running machine: neither simulated nor recorded.
    pub fn is_real(&self) -> bool {
        self.simulated.is_none() && self.recorded.is_none()
    }

    /// True once every source was scanned, absent ones included.
    pub fn is_complete(&self) -> bool {
        !self.sources.is_empty()
            && self.sources.values().all(|state| *state != SourceState::Starting)
    }

    /// The device with this id.
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

    /// True if both have the same devices and sources. Ignores the generation.
    pub fn has_same_content(&self, other: &Self) -> bool {
        self.simulated == other.simulated
            && self.recorded == other.recorded
            && self.sources == other.sources
            && self.devices == other.devices
    }
}
