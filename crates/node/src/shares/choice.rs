//! GPUs that a pod's annotations decide, and their comparison with the GPUs of its share.

use windlass_cluster::BoundPod;
use windlass_core::{annotation::PodPlacement, device::DeviceId};
use windlass_host::{abbreviate::first_few, causes};

use super::MAX_LOGGED_IDS;

/// Origin of a share's GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// The share is on the decided GPUs.
    Decided,
    /// The agent chose other GPUs than `decided`, because of `reason`.
    Corrected { decided: String, reason: String },
    /// The agent chose the GPUs, because none was decided.
    Undecided,
}

// === impl Choice ===

impl Choice {
    pub(super) fn of(devices: &[DeviceId], decided: &[DeviceId], reason: Option<String>) -> Self {
        if decided.is_empty() {
            return Self::Undecided;
        }
        if devices.iter().all(|device| decided.contains(device)) {
            return Self::Decided;
        }
        Self::Corrected {
            decided: first_few(decided, MAX_LOGGED_IDS),
            reason: reason.unwrap_or_else(|| "its pod has another GPU already".to_owned()),
        }
    }

    pub(super) fn as_str(&self) -> &'static str {
        match self {
            Self::Decided => "decided",
            Self::Corrected { .. } => "corrected",
            Self::Undecided => "own",
        }
    }
}

/// The `count` GPUs that a pod's annotations decide: the agent's correction, else the cluster half's placement. Empty
/// if neither is usable: any client that can update the pod may have written them.
pub(super) fn decided(pod: &BoundPod, count: usize) -> Vec<DeviceId> {
    if let Some(manager) = &pod.forging_manager {
        tracing::warn!(
            pod = pod.namespaced_name(),
            manager,
            "placement not written by a Binding: the agent chooses a GPU"
        );
    }
    let mut values = PodPlacement::annotation_values(&pod.annotations);
    values.find_map(|text| parse_placement(pod, text, count)).unwrap_or_default()
}

/// GPUs of a placement, if it has `count` of them.
fn parse_placement(pod: &BoundPod, text: &str, count: usize) -> Option<Vec<DeviceId>> {
    match PodPlacement::from_annotation(text) {
        Ok(PodPlacement { devices }) if devices.len() == count => {
            Some(devices.into_iter().map(|gpu| gpu.id).collect())
        }
        Ok(PodPlacement { devices }) => {
            let gpus = devices.len();
            tracing::warn!(
                pod = pod.namespaced_name(),
                gpus,
                requested = count,
                "placement of another number of GPUs: the agent chooses the GPU"
            );
            None
        }
        Err(error) => {
            let error = causes(&error);
            tracing::warn!(
                pod = pod.namespaced_name(),
                error,
                "placement unreadable: the agent chooses a GPU"
            );
            None
        }
    }
}
