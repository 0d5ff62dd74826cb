//! What happens in the demo of claims, as data: one JSON object each, or the source of the text.

use std::collections::BTreeMap;

use serde::Serialize;

use super::super::event::Gets;

/// One thing that happened. Times are milliseconds since the step began.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub(super) enum Event {
    /// The cluster has the slices, and the kubelet the driver.
    Published { driver: String, devices: Vec<Published>, took_ms: f64 },
    /// What is shown next.
    Chapter { title: &'static str },
    /// Pods got their devices, and their containers started.
    PodRuns(PodRuns),
    /// The scheduler found no node, as it had to.
    NotScheduled { pod: String, asks: Vec<String>, reason: String },
    /// Something cannot be shown on this machine.
    NotShown { what: &'static str, why: String },
    /// A fault was injected into a device.
    Fault { device: String, fault: String },
    /// The device is given to no claim for the moment; who has it is told. Without a taint it is not
    /// published at all.
    Withheld { device: String, taint: Option<String>, held_by: String, took_ms: f64 },
    /// The fault is gone; the device must stay quiet before it is trusted again.
    Waiting { device: String, end: &'static str, quiet_ms: f64 },
    /// The device may be given away again.
    GivenAgain { device: String, took_ms: f64 },
    /// The kubelet restarted; it deleted the slices at its start, and they are there again.
    KubeletRestarted { slices: usize, claims: usize, took_ms: f64 },
    /// Somebody deleted the slices, and they are there again.
    Republished { slices: usize, devices: usize, took_ms: f64 },
    /// All pods were deleted, and nothing is left of their claims.
    Released { pods: usize, claims: usize, took_ms: f64 },
    /// The end.
    Finished { steps: usize, pods: usize, took_ms: f64 },
}

/// A device as it is published.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Published {
    pub(super) pool: String,
    pub(super) device: String,
    /// The name that people have for it: `GPU0`.
    pub(super) name: String,
    pub(super) kind: String,
    pub(super) attributes: BTreeMap<String, String>,
    /// `key=value:effect`.
    pub(super) taints: Vec<String>,
    /// Whether several claims may have it.
    pub(super) is_shared: bool,
}

/// A pod that runs.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PodRuns {
    pub(super) pod: String,
    /// What its specification and claims say.
    pub(super) asks: Vec<String>,
    pub(super) devices: Vec<Given>,
    pub(super) containers: Vec<Container>,
    pub(super) took_ms: f64,
}

/// A device of a claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Given {
    pub(super) claim: String,
    pub(super) request: String,
    pub(super) pool: String,
    pub(super) device: String,
    pub(super) name: String,
}

/// What a container got.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Container {
    pub(super) name: String,
    #[serde(flatten)]
    pub(super) gets: Gets,
}
