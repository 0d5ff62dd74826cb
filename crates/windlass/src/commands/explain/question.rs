//! Placement request as the kubelet would send it, current or recorded.

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
pub(super) struct Question {
    pub(super) resource: ResourceName,
    pub(super) policy: Policy,
    pub(super) size: usize,
    #[serde(flatten)]
    pub(super) stock: Stock,
}

/// Candidates of a request.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Stock {
    /// Exclusive devices.
    Devices { available: Vec<DeviceId>, required: Vec<DeviceId>, near: Vec<DeviceId> },
    /// Replicas of shared devices.
    Replicas { span: Span, near: Vec<DeviceId>, pools: Vec<ReplicaPool> },
}

/// Answer with its comparison.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Answer {
    Devices(Box<Explanation>),
    Replicas(ShareExplanation),
}

/// Request without an answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoAnswer {
    #[error(transparent)]
    Devices(#[from] PlacementError),
    #[error(transparent)]
    Replicas(#[from] ShareError),
}

// === impl Question ===

impl Question {
    /// Request behind a recorded choice.
    pub(super) fn of(then: &RecordedChoice) -> Self {
        let stock = match then.candidates.clone() {
            Candidates::Devices { available, required, near, .. } => {
                Stock::Devices { available, required, near }
            }
            Candidates::Replicas { span, near, pools } => Stock::Replicas { span, near, pools },
        };
        let RecordedChoice { policy, size, .. } = *then;
        Self { resource: then.resource.clone(), policy, size, stock }
    }

    pub(super) fn explain(&self, topology: &Topology) -> Result<Answer, NoAnswer> {
        match &self.stock {
            Stock::Devices { available, required, near } => {
                let (available, required, near) = (texts(available), texts(required), texts(near));
                let request = Request {
                    available: &available,
                    required: &required,
                    near: &near,
                    size: self.size,
                    policy: self.policy,
                };
                Ok(Answer::Devices(Box::new(placement::explain(topology, request)?)))
            }
            Stock::Replicas { span, near, pools } => {
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
            near: &texts(near),
            size,
            policy,
            span,
        };
        Ok(Answer::Replicas(shares::explain(topology, request)?))
    }
}

pub(super) fn texts(ids: &[DeviceId]) -> Vec<&str> {
    ids.iter().map(DeviceId::as_str).collect()
}

// === impl Stock ===

impl Stock {
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
            Self::Devices(why) => why.choice.devices.iter().map(ToString::to_string).collect(),
            Self::Replicas(why) => why.choice.replicas.iter().map(ToString::to_string).collect(),
        }
    }

    /// Reason against the alternative.
    pub(super) fn verdict(&self) -> Option<String> {
        match self {
            Self::Devices(why) => why.verdict(),
            Self::Replicas(_) => None,
        }
    }
}
