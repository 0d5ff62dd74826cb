//! What happens in the demo, as data: one JSON object each, or the source of the text.

use std::{collections::BTreeMap, path::PathBuf};

use serde::Serialize;
use windlass_core::inventory::Inventory;

use super::runtime::Edits;
use crate::commands::Topology;

/// One thing that happened. Times are milliseconds since the step began.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub(super) enum Event {
    /// The stage is set.
    Started { machine: String, description: String, simulated: bool, dir: PathBuf },
    /// The agent knows every device.
    Discovered { inventory: Inventory, took_ms: f64 },
    /// How the devices are connected.
    Topology(Topology),
    /// The kubelet has the device list of every resource.
    Registered { resources: Vec<Arrival> },
    /// A pod was admitted and its containers started.
    PodAdmitted { pod: String, containers: Vec<Container>, took_ms: f64 },
    /// A pod was refused, as it had to be.
    PodRefused { pod: String, reason: String, message: String },
    /// Steps between two containers were done, on boards that need them.
    HandedOver { pod: String, done: Vec<String> },
    /// A pod is deleted; what it held is cleaned once the kubelet says so.
    Deleted { pod: String },
    /// A pod was deleted, and what it held was cleaned for the next.
    CleanedUp { pod: String, done: Vec<String>, took_ms: f64 },
    /// A fault was injected into a device.
    Fault { device: String, fault: String },
    /// No fault can be simulated for a device.
    NoFault { device: String },
    /// The kubelet knows that a device failed.
    Unhealthy(Failure),
    /// The fault is gone; the device must stay quiet before it is trusted again.
    Waiting { device: String, end: &'static str, quiet_ms: f64 },
    /// The kubelet knows that the device works again.
    Recovered { device: String, counts: Counts, took_ms: f64 },
    /// The kubelet restarted, and everything is as it was.
    KubeletRestarted { resources: usize, pods: usize, devices_held: usize, took_ms: f64 },
    /// The end.
    Finished { steps: usize, pods: usize, took_ms: f64 },
    /// Everything stays until Ctrl-C.
    Kept { paths: BTreeMap<&'static str, PathBuf>, commands: Vec<String> },
}

/// A resource that the kubelet knows now.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Arrival {
    #[serde(flatten)]
    pub(super) counts: Counts,
    /// Since the agent started.
    pub(super) took_ms: f64,
}

/// A device that failed, and whom that concerns.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Failure {
    pub(super) device: String,
    pub(super) why: String,
    pub(super) counts: Counts,
    /// The pod that holds the device.
    pub(super) held_by: String,
    pub(super) took_ms: f64,
}

/// What a resource has.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Counts {
    pub(super) resource: String,
    pub(super) capacity: usize,
    pub(super) allocatable: usize,
}

/// The best set that was not chosen.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Alternative {
    /// Short names, in order.
    pub(super) devices: Vec<String>,
    pub(super) why_not: String,
}

/// What a container got.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Container {
    pub(super) name: String,
    pub(super) resource: String,
    /// Short names, `GPU0`, in order.
    pub(super) devices: Vec<String>,
    pub(super) ids: Vec<String>,
    /// How the devices are connected.
    pub(super) why: String,
    /// What came second, if the kubelet asked and there was another choice.
    pub(super) alternative: Option<Alternative>,
    #[serde(flatten)]
    pub(super) gets: Gets,
}

/// CDI devices, and what a runtime makes of them.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Gets {
    /// In the order of the devices.
    pub(super) cdi_devices: Vec<String>,
    pub(super) env: Vec<String>,
    pub(super) device_nodes: Vec<String>,
    /// How many files of the driver, by what they are.
    pub(super) files: BTreeMap<&'static str, usize>,
}

// === impl Gets ===

impl Gets {
    /// With the container's own variables first.
    pub(super) fn new(cdi_devices: Vec<String>, edits: Edits, own: Vec<String>) -> Self {
        let files = edits.files();
        let env = own.into_iter().chain(edits.env).collect();
        Self { cdi_devices, env, device_nodes: edits.device_nodes, files }
    }
}
