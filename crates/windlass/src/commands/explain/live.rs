//! Current state from the kubelet: devices that containers hold, and allocatable devices.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use windlass_allocations::podresources::{self, Holder, HoldersByDevice};
use windlass_core::{replica::ReplicaId, resource::ResourceName};
use windlass_host::causes;

use super::resource::Member;

/// Answers of the pod resources API; by default all devices are free.
#[derive(Debug, Default)]
pub(super) struct KubeletState {
    holders: HoldersByDevice,
    /// Allocatable ids by resource; `None` if unknown.
    allocatable: Option<BTreeMap<String, BTreeSet<String>>>,
    /// Missing answer, and the resulting assumption.
    caveat: Option<String>,
}

/// Obstacle of a device that the kubelet does not list. The agent may know a fault that a single scan does not show.
const WITHHELD_BY_AGENT: &str = "withheld by the agent";

// === impl KubeletState ===

impl KubeletState {
    pub(super) async fn read(dir: &Path) -> Self {
        let holders = match podresources::holders(dir).await {
            Ok(holders) => holders,
            Err(error) => {
                let reason = causes(&error);
                let caveat =
                    format!("holders unknown, so every healthy device counts as free: {reason}");
                return Self { caveat: Some(caveat), ..Self::default() };
            }
        };
        match podresources::allocatable_ids(dir).await {
            Ok(allocatable) => Self { holders, allocatable: Some(allocatable), caveat: None },
            Err(error) => {
                let reason = causes(&error);
                let caveat = format!("withheld devices unknown: {reason}");
                Self { holders, allocatable: None, caveat: Some(caveat) }
            }
        }
    }

    /// Assumption behind the answer.
    pub(super) fn caveat(&self, resource: &ResourceName) -> Option<String> {
        let is_unlisted =
            |allocatable: &BTreeMap<_, _>| !allocatable.contains_key(resource.as_str());
        let not_allocatable = self.allocatable.as_ref().is_some_and(is_unlisted).then(|| {
            format!(
                "the kubelet has no allocatable {resource} now: the answer assumes a running agent"
            )
        });
        self.caveat.clone().or(not_allocatable)
    }

    /// Reason for which a device or replica is not free.
    pub(super) fn obstacle(
        &self,
        resource: &ResourceName,
        member: &Member<'_>,
        replica: Option<u32>,
    ) -> Option<String> {
        self.holder(member, replica)
            .map(|Holder { namespace, pod, .. }| format!("held by {namespace}/{pod}"))
            .or_else(|| self.withheld_reason(resource, member))
    }

    /// Reason for which the device is withheld, independent of holders.
    pub(super) fn withheld_reason(
        &self,
        resource: &ResourceName,
        member: &Member<'_>,
    ) -> Option<String> {
        let withheld = || self.is_withheld(resource, member).then(|| WITHHELD_BY_AGENT.to_owned());
        member.obstacle.clone().or_else(withheld)
    }

    /// Container that holds the device or replica. A holder of the whole device blocks its replicas, and a holder of a
    /// replica blocks the whole device.
    fn holder(&self, member: &Member<'_>, replica: Option<u32>) -> Option<&Holder> {
        let blocks = |holder: &&Holder| match (holder.replica, replica) {
            (Some(held), Some(requested)) => held == requested,
            _ => true,
        };
        self.holders.get(&member.device.id)?.iter().find(blocks)
    }

    /// True if the kubelet lists the resource without this device.
    fn is_withheld(&self, resource: &ResourceName, member: &Member<'_>) -> bool {
        let device_id = member.device.id.as_str();
        let is_device =
            |id: &String| ReplicaId::split(id).map_or(id.as_str(), |(id, _)| id) == device_id;
        let ids =
            self.allocatable.as_ref().and_then(|allocatable| allocatable.get(resource.as_str()));
        ids.is_some_and(|ids| !ids.iter().any(is_device))
    }
}
