//! Placement request, current or recorded, as the kubelet would send it.

use std::collections::BTreeSet;

use serde::Serialize;
use windlass_core::{
    device::DeviceId,
    placement::{
        self, Explanation, PlacementError, Policy, Request, Topology,
        shares::{self, ShareError, ShareExplanation, ShareRequest, SharedDevice, Span},
    },
    replica::ReplicaId,
    resource::ResourceName,
};
use windlass_deviceplugin::history::{Candidates, RecordedChoice, ReplicaPool};

/// Request with its candidates.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PlacementRequest {
    pub(super) resource: ResourceName,
    pub(super) policy: Policy,
    pub(super) size: usize,
    #[serde(flatten)]
    pub(super) candidates: CandidateSet,
}

/// Candidates of a request.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum CandidateSet {
    /// Exclusive devices.
    Devices { available: Vec<DeviceId>, required: Vec<DeviceId>, near: Vec<DeviceId> },
    /// Replicas of shared devices.
    Replicas { span: Span, near: Vec<DeviceId>, pools: Vec<ReplicaPool> },
}

/// Answer, with a comparison to alternatives.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Answer {
    Devices(Box<Explanation>),
    Replicas(ShareExplanation),
}

/// Reason why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExplainError {
    #[error(transparent)]
    Devices(#[from] PlacementError),
    #[error(transparent)]
    Replicas(#[from] ShareError),
}

// === impl PlacementRequest ===

impl PlacementRequest {
    /// Request behind a recorded choice.
    pub(super) fn of(choice: &RecordedChoice) -> Self {
        let candidates = match choice.candidates.clone() {
            Candidates::Devices { available, required, near, .. } => {
                CandidateSet::Devices { available, required, near }
            }
            Candidates::Replicas { span, near, pools } => {
                CandidateSet::Replicas { span, near, pools }
            }
        };
        let RecordedChoice { policy, size, .. } = *choice;
        Self { resource: choice.resource.clone(), policy, size, candidates }
    }

    pub(super) fn explain(&self, topology: &Topology) -> Result<Answer, ExplainError> {
        match &self.candidates {
            CandidateSet::Devices { available, required, near } => {
                let (available, required, near) =
                    (id_strs(available), id_strs(required), id_strs(near));
                let request = Request {
                    available: &available,
                    required: &required,
                    near: &near,
                    size: self.size,
                    policy: self.policy,
                };
                Ok(Answer::Devices(Box::new(placement::explain(topology, request)?)))
            }
            CandidateSet::Replicas { span, near, pools } => {
                Ok(self.explain_shares(topology, *span, near, pools)?)
            }
        }
    }

    fn explain_shares(
        &self,
        topology: &Topology,
        span: Span,
        near: &[DeviceId],
        pools: &[ReplicaPool],
    ) -> Result<Answer, ShareError> {
        let free: Vec<Vec<u32>> = pools.iter().map(|pool| pool.free.iter().collect()).collect();
        let devices = pools.iter().zip(&free).map(|(pool, free)| SharedDevice {
            id: pool.device.as_str(),
            free,
            in_use: pool.in_use,
        });
        let devices: Vec<_> = devices.collect();
        let required: Vec<ReplicaId> =
            pools.iter().flat_map(|pool| pool.replicas(&pool.required)).collect();
        let Self { size, policy, .. } = *self;
        let request = ShareRequest {
            devices: &devices,
            required: &required,
            near: &id_strs(near),
            size,
            policy,
            span,
        };
        Ok(Answer::Replicas(shares::explain(topology, request)?))
    }
}

pub(super) fn id_strs(ids: &[DeviceId]) -> Vec<&str> {
    ids.iter().map(DeviceId::as_str).collect()
}

// === impl CandidateSet ===

impl CandidateSet {
    /// Required devices; empty for replicas, whose pools list them.
    pub(super) fn required(&self) -> &[DeviceId] {
        match self {
            Self::Devices { required, .. } => required,
            Self::Replicas { .. } => &[],
        }
    }

    pub(super) fn devices(&self) -> Vec<&DeviceId> {
        match self {
            Self::Devices { available, near, .. } => available.iter().chain(near).collect(),
            Self::Replicas { near, pools, .. } => {
                pools.iter().map(|pool| &pool.device).chain(near).collect()
            }
        }
    }
}

// === impl Answer ===

impl Answer {
    pub(super) fn ids(&self) -> BTreeSet<String> {
        match self {
            Self::Devices(explanation) => {
                explanation.choice.devices.iter().map(ToString::to_string).collect()
            }
            Self::Replicas(explanation) => {
                explanation.choice.replicas.iter().map(ToString::to_string).collect()
            }
        }
    }

    /// Reason why the second-best choice lost; `None` without one.
    pub(super) fn verdict(&self) -> Option<String> {
        match self {
            Self::Devices(explanation) => explanation.deciding_difference(),
            Self::Replicas(_) => None,
        }
    }
}
