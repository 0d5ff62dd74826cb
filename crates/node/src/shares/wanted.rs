//! Request for the share of a container, and its pod by the kubelet's checkpoint.

use std::{collections::BTreeSet, path::PathBuf};

use windlass_allocations::follow::ContainerIds;
use windlass_cluster::BoundPod;
use windlass_core::{cdi::Kind, device::DeviceId, resource::ResourceName};
use windlass_deviceplugin::shares::share_name;
use windlass_resources::NodeState;

use super::{
    error::BindError,
    hold::{Amounts, Hold, Pod},
};

/// A container's request, and its pod.
pub(super) struct Wanted {
    pub(super) resource: ResourceName,
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) amounts: Amounts,
    /// True if the container has its GPU by another resource.
    pub(super) is_second: bool,
    /// Document of GPUs.
    pub(super) gpus: PathBuf,
}

const GPU: Kind = Kind::new("gpu");

// === impl Wanted ===

impl Wanted {
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
        let is_it = |it: &&ContainerIds| it.resource == *resource && it.ids == *ids;
        let holders: Vec<_> = containers.iter().filter(is_it).collect();
        let uids: BTreeSet<_> = holders.iter().map(|it| &it.pod).collect();
        let [uid] = uids.iter().copied().collect::<Vec<_>>()[..] else {
            return Err(BindError::NoPod);
        };
        let has_memory = |holder: &&ContainerIds| {
            containers.iter().any(|it| {
                resources.memory.as_ref().is_some_and(|name| it.resource == *name)
                    && (&it.pod, &it.container) == (&holder.pod, &holder.container)
            })
        };
        Ok(Self {
            resource: resource.clone(),
            name: share_name(resource.as_str(), ids),
            uid: uid.clone(),
            amounts: Amounts::of(containers, uid, resources),
            is_second: resources.memory.as_ref() != Some(resource)
                && holders.iter().all(has_memory),
            gpus: state.documents.get(&GPU).ok_or(BindError::NoGpus)?.clone(),
        })
    }

    pub(super) fn hold(&self, device: DeviceId, pod: &BoundPod, state: &NodeState) -> Hold {
        let gpu = state.shareable.get(&device);
        Hold {
            of_mib: gpu.map_or(self.amounts.memory_mib, |gpu| gpu.memory_mib),
            device,
            amounts: self.amounts,
            pod: Pod {
                namespace: pod.namespace.clone(),
                name: pod.name.clone(),
                uid: pod.uid.clone(),
            },
        }
    }
}
