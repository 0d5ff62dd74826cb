//! Choice of a share's GPU, and the decision by the pod's annotations.

use windlass_cluster::BoundPod;
use windlass_core::{annotation::PodPlacement, device::DeviceId};
use windlass_host::causes;

/// Choice of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// The decided one.
    Decided,
    /// Another one than decided, for this reason.
    Corrected { decided: DeviceId, why: String },
    /// The agent's, since nothing was decided.
    Own,
}

// === impl Choice ===

impl Choice {
    pub(super) fn of(device: &DeviceId, decided: Option<&DeviceId>, why: Option<String>) -> Self {
        match decided {
            Some(decided) if decided == device => Self::Decided,
            Some(decided) => Self::Corrected {
                decided: decided.clone(),
                why: why.unwrap_or_else(|| "its pod has another GPU already".to_owned()),
            },
            None => Self::Own,
        }
    }

    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::Decided => "decided",
            Self::Corrected { .. } => "corrected",
            Self::Own => "own",
        }
    }
}

/// GPU of a pod by its annotations: the agent's correction, else the decision. Anybody may have written them, so a
/// damaged one decides nothing.
pub(super) fn decided(pod: &BoundPod) -> Option<DeviceId> {
    PodPlacement::texts(&pod.annotations).find_map(|text| the_one(pod, text))
}

/// GPU of a placement on one GPU.
fn the_one(pod: &BoundPod, text: &str) -> Option<DeviceId> {
    let name = || format!("{}/{}", pod.namespace, pod.name);
    match PodPlacement::from_annotation(text) {
        Ok(PodPlacement { devices }) if devices.len() == 1 => {
            devices.into_iter().next().map(|it| it.id)
        }
        Ok(PodPlacement { devices }) => {
            let gpus = devices.len();
            tracing::warn!(pod = name(), gpus, "placement not of one GPU: the agent chooses a GPU");
            None
        }
        Err(error) => {
            let error = causes(&error);
            tracing::warn!(pod = name(), error, "placement unreadable: the agent chooses a GPU");
            None
        }
    }
}
