//! A container's request for its share. The kubelet's checkpoint names its pod.

use std::collections::BTreeSet;

use windlass_allocations::follow::ContainerIds;
use windlass_core::{replica::token_number, resource::ResourceName};
use windlass_deviceplugin::shares::share_name;
use windlass_resources::NodeState;

use super::{
    error::BindError,
    hold::{Amounts, HeldGpu, Hold},
};

/// A container's request, and its pod.
pub(super) struct ContainerRequest {
    pub(super) resource: ResourceName,
    /// Name of the share's CDI document.
    pub(super) name: String,
    /// UID of the pod.
    pub(super) uid: String,
    pub(super) tokens: Tokens,
    /// True if the container gets its GPU through its resource of memory, so that this one adds variables only.
    pub(super) variables_only: bool,
}

/// Device ids that the kubelet allocated, as tokens of an amount or of a virtual GPU.
pub(super) enum Tokens {
    /// Amounts of one GPU, for all containers of the pod.
    Amounts(Amounts),
    /// Virtual GPUs. Their amounts are in the pod's specification.
    VirtualGpus {
        /// Tokens of the container.
        container: BTreeSet<u32>,
        /// Tokens of all containers of the pod. Tokens of an init container are reused by later containers.
        pod: BTreeSet<u32>,
    },
}

// === impl ContainerRequest ===

impl ContainerRequest {
    pub(super) fn of(
        resource: &ResourceName,
        ids: &BTreeSet<String>,
        containers: &[ContainerIds],
        state: &NodeState,
    ) -> Result<Self, BindError> {
        let resources = &state.policy.shares;
        if !resources.names().any(|name| name == resource) {
            return Err(BindError::NotShared);
        }
        let is_container =
            |container: &&ContainerIds| container.resource == *resource && container.ids == *ids;
        let holders: Vec<_> = containers.iter().filter(is_container).collect();
        let uids: BTreeSet<_> = holders.iter().map(|holder| &holder.pod).collect();
        let [uid] = uids.iter().copied().collect::<Vec<_>>()[..] else {
            return Err(BindError::NoPod);
        };
        let has_memory = |holder: &&ContainerIds| {
            containers.iter().any(|container| {
                resources.memory.as_ref().is_some_and(|name| container.resource == *name)
                    && (&container.pod, &container.container) == (&holder.pod, &holder.container)
            })
        };
        let amounts = Amounts::from_tokens(containers, uid, resources);
        let virtual_gpus = containers.iter().filter(|container| {
            container.pod == *uid
                && resources.gpus.as_ref().is_some_and(|name| container.resource == *name)
        });
        let pod_tokens: BTreeSet<_> =
            virtual_gpus.flat_map(|container| token_numbers(&container.ids)).collect();
        let tokens = match (pod_tokens.is_empty(), amounts == Amounts::default()) {
            (true, _) => Tokens::Amounts(amounts),
            (false, true) => {
                Tokens::VirtualGpus { container: token_numbers(ids).collect(), pod: pod_tokens }
            }
            (false, false) => return Err(BindError::MixedResources),
        };
        Ok(Self {
            resource: resource.clone(),
            name: share_name(resource.as_str(), ids),
            uid: uid.clone(),
            tokens,
            variables_only: resources.memory.as_ref() != Some(resource)
                && holders.iter().all(has_memory),
        })
    }

    /// True if the pod's share serves the container.
    pub(super) fn is_served_by(&self, hold: &Hold) -> bool {
        match &self.tokens {
            Tokens::Amounts(amounts) => amounts.is_within(hold.first.amounts),
            Tokens::VirtualGpus { .. } => self.own_gpus(hold).is_some(),
        }
    }

    /// GPUs of the container. Each token of whole GPUs stands for one of them; shares come from the first GPUs for
    /// every container. `None` if there are too few.
    pub(super) fn own_gpus<'a>(&self, hold: &'a Hold) -> Option<Vec<&'a HeldGpu>> {
        let gpus: Vec<_> = hold.gpus().collect();
        match &self.tokens {
            Tokens::Amounts(_) => Some(gpus),
            // Shares may add up to whole GPUs.
            Tokens::VirtualGpus { container: container_tokens, pod: pod_tokens }
                if hold.first.is_whole() && gpus.len() == pod_tokens.len() =>
            {
                let position = |number| pod_tokens.iter().position(|token| token == number);
                container_tokens.iter().map(|number| gpus.get(position(number)?).copied()).collect()
            }
            Tokens::VirtualGpus { container: container_tokens, .. } => {
                gpus.get(..container_tokens.len()).map(<[_]>::to_vec)
            }
        }
    }
}

fn token_numbers(ids: &BTreeSet<String>) -> impl Iterator<Item = u32> {
    ids.iter().filter_map(|id| token_number(id))
}
