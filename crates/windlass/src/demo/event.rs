//! Events of the demo: printed as JSON or as text.

use std::{collections::BTreeMap, path::PathBuf};

use serde::Serialize;
use windlass_core::inventory::Inventory;

use super::runtime::Edits;
use crate::commands::Topology;

/// Event. Times are milliseconds since the step began.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub(super) enum Event {
    /// Machine, kubelet and agent are set up.
    Started { machine: String, description: String, simulated: bool, dir: PathBuf },
    /// The agent's inventory is complete.
    Discovered { inventory: Inventory, took_ms: f64 },
    /// Connections of the devices.
    Topology(Topology),
    /// The kubelet has the device list of every resource.
    Registered { resources: Vec<Arrival> },
    /// A pod was admitted and its containers started.
    PodAdmitted { pod: String, containers: Vec<Container>, took_ms: f64 },
    /// A pod was refused, as expected.
    PodRefused { pod: String, reason: String, message: String },
    /// Cleanup steps before a container ran, on boards that need them.
    HandedOver { pod: String, done: Vec<String> },
    /// A pod was deleted; its devices are cleaned once the kubelet reports it.
    Deleted { pod: String },
    /// The devices of a deleted pod were cleaned.
    CleanedUp { pod: String, done: Vec<String>, took_ms: f64 },
    /// A fault was injected.
    Fault { device: String, fault: String },
    /// No fault can be simulated for a device.
    NoFault { device: String },
    /// The kubelet has received the failure of a device.
    Unhealthy(Failure),
    /// The fault has ended, and the quiet period begins.
    Waiting { device: String, end: &'static str, quiet_ms: f64 },
    /// The kubelet has received the recovery of the device.
    Recovered { device: String, counts: ResourceCounts, took_ms: f64 },
    /// The kubelet restarted, and all allocations are unchanged.
    KubeletRestarted { resources: usize, pods: usize, devices_held: usize, took_ms: f64 },
    /// All steps are done.
    Finished { steps: usize, pods: usize, took_ms: f64 },
    /// All parts keep running until Ctrl-C.
    Kept { paths: BTreeMap<&'static str, PathBuf>, commands: Vec<String> },
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Arrival {
    #[serde(flatten)]
    pub(super) counts: ResourceCounts,
    /// Time since the start of the agent.
    pub(super) took_ms: f64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Failure {
    pub(super) device: String,
    pub(super) why: String,
    pub(super) counts: ResourceCounts,
    pub(super) held_by: String,
    pub(super) took_ms: f64,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ResourceCounts {
    pub(super) resource: String,
    pub(super) capacity: usize,
    pub(super) allocatable: usize,
}

/// Best set of devices that was not chosen.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Alternative {
    /// Short names, in order.
    pub(super) devices: Vec<String>,
    pub(super) why_not: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Container {
    pub(super) name: String,
    pub(super) resource: String,
    /// Short names, such as `GPU0`, in order.
    pub(super) devices: Vec<String>,
    pub(super) ids: Vec<String>,
    pub(super) why: String,
    /// Second best set, if the kubelet requested a preference among several.
    pub(super) alternative: Option<Alternative>,
    #[serde(flatten)]
    pub(super) grant: ResolvedGrant,
}

/// CDI devices with the edits that a runtime derives from them.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ResolvedGrant {
    /// Qualified names, in the order of the devices.
    pub(super) cdi_devices: Vec<String>,
    pub(super) env: Vec<String>,
    pub(super) device_nodes: Vec<String>,
    /// Number of driver files by type.
    pub(super) files: BTreeMap<&'static str, usize>,
}

// === impl ResolvedGrant ===

impl ResolvedGrant {
    /// Puts the environment variables of the allocation before those of the edits.
    pub(super) fn new(cdi_devices: Vec<String>, edits: Edits, envs: Vec<String>) -> Self {
        let files = edits.files();
        let env = envs.into_iter().chain(edits.env).collect();
        Self { cdi_devices, env, device_nodes: edits.device_nodes, files }
    }
}
