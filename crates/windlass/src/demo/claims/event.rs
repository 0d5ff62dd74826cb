//! Events of the claims demo: printed as JSON or as text.

use std::collections::BTreeMap;

use serde::Serialize;

use super::super::event::ResolvedGrant;

/// Event. Times are milliseconds since the step began.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub(super) enum ClaimEvent {
    /// The slices reached the cluster, and the driver registered with the kubelet.
    Published { driver: String, devices: Vec<Published>, took_ms: f64 },
    /// Heading of the next section.
    Chapter { title: &'static str },
    /// A pod was scheduled and its containers started.
    PodRuns(PodRuns),
    /// The scheduler found no node, as expected.
    NotScheduled { pod: String, asks: Vec<String>, reason: String },
    /// A step is skipped, because this machine lacks a requirement of it.
    NotShown { what: &'static str, why: String },
    /// A fault was injected.
    Fault { device: String, fault: String },
    /// A device is withheld from claims. `taint` is `None` if the device is not published at all.
    Withheld { device: String, taint: Option<String>, held_by: String, took_ms: f64 },
    /// The fault has ended, and the quiet period begins.
    Waiting { device: String, end: &'static str, quiet_ms: f64 },
    /// The device is allocatable again.
    GivenAgain { device: String, took_ms: f64 },
    /// The kubelet restarted and deleted the slices; the driver published them again.
    KubeletRestarted { slices: usize, claims: usize, took_ms: f64 },
    /// The slices were deleted and published again.
    Republished { slices: usize, devices: usize, took_ms: f64 },
    /// All pods and claims were deleted.
    Released { pods: usize, claims: usize, took_ms: f64 },
    /// All steps are done.
    Finished { steps: usize, pods: usize, took_ms: f64 },
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Published {
    pub(super) pool: String,
    pub(super) device: String,
    /// Short name: `GPU0`.
    pub(super) name: String,
    pub(super) kind: String,
    pub(super) attributes: BTreeMap<String, String>,
    /// Format: `key=value:effect`.
    pub(super) taints: Vec<String>,
    /// True if several claims may share the device.
    pub(super) is_shared: bool,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PodRuns {
    pub(super) pod: String,
    /// Requests of the pod's specification and claims, as text.
    pub(super) asks: Vec<String>,
    pub(super) devices: Vec<AllocatedDevice>,
    pub(super) containers: Vec<ClaimContainer>,
    pub(super) took_ms: f64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AllocatedDevice {
    pub(super) claim: String,
    pub(super) request: String,
    pub(super) pool: String,
    pub(super) device: String,
    pub(super) name: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ClaimContainer {
    pub(super) name: String,
    #[serde(flatten)]
    pub(super) grant: ResolvedGrant,
}
