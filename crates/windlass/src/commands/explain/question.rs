//! A question as the kubelet asks it, of now or of then, and what placement says to it.

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
use windlass_deviceplugin::history::{Among, Pool, Remembered};

/// So many of a resource, of what there is.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Question {
    pub(super) resource: ResourceName,
    pub(super) policy: Policy,
    pub(super) size: usize,
    #[serde(flatten)]
    pub(super) stock: Stock,
}

/// What there is to choose from.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Stock {
    /// Devices that serve one container each.
    Devices { available: Vec<DeviceId>, required: Vec<DeviceId>, near: Vec<DeviceId> },
    /// Replicas of devices that serve several.
    Replicas { span: Span, near: Vec<DeviceId>, pools: Vec<Pool> },
}

/// The answer, and what it was compared with.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Answer {
    Devices(Box<Explanation>),
    Replicas(ShareExplanation),
}

/// Why there is none.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoAnswer {
    #[error(transparent)]
    Devices(#[from] PlacementError),
    #[error(transparent)]
    Replicas(#[from] ShareError),
}

// === impl Question ===

impl Question {
    /// The question that a remembered choice was the answer to.
    pub(super) fn of(then: &Remembered) -> Self {
        let stock = match then.among.clone() {
            Among::Devices { available, required, near, .. } => {
                Stock::Devices { available, required, near }
            }
            Among::Replicas { span, near, pools } => Stock::Replicas { span, near, pools },
        };
        let Remembered { policy, size, .. } = *then;
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
                Ok(self.explain_shares(topology, *span, (near, pools))?)
            }
        }
    }

    fn explain_shares(
        &self,
        topology: &Topology,
        span: Span,
        (near, pools): (&[DeviceId], &[Pool]),
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
    /// The devices that the answer must hold, where that is not said with the devices themselves.
    pub(super) fn required(&self) -> &[DeviceId] {
        match self {
            Self::Devices { required, .. } => required,
            Self::Replicas { .. } => &[],
        }
    }

    /// Every device that the question is about.
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
    /// The ids that the kubelet is told.
    pub(super) fn ids(&self) -> BTreeSet<String> {
        match self {
            Self::Devices(why) => why.choice.devices.iter().map(ToString::to_string).collect(),
            Self::Replicas(why) => why.choice.replicas.iter().map(ToString::to_string).collect(),
        }
    }

    /// Why the alternative lost, where there is one.
    pub(super) fn verdict(&self) -> Option<String> {
        match self {
            Self::Devices(why) => why.verdict(),
            Self::Replicas(_) => None,
        }
    }
}
