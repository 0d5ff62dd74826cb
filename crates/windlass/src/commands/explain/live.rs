//! What the kubelet tells of now: which devices containers hold, and which it may give away.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use windlass_allocations::podresources::{self, ByDevice, Holder};
use windlass_core::{replica::ReplicaId, resource::ResourceName};
use windlass_host::causes;

use super::resource::Member;

/// What the kubelet tells, as far as it does; by default nothing, and nobody holds anything.
#[derive(Debug, Default)]
pub(super) struct Kubelet {
    held: ByDevice,
    /// Ids by resource; `None` where it was not told.
    allocatable: Option<BTreeMap<String, BTreeSet<String>>>,
    /// What it does not tell, and what is taken for granted therefore.
    caveat: Option<String>,
}

/// The agent may know of trouble that one look does not show, such as a fault of a moment ago.
const KEPT_BACK: &str = "kept back by the agent";

// === impl Kubelet ===

impl Kubelet {
    pub(super) async fn ask(dir: &Path) -> Self {
        let held = match podresources::ask(dir).await {
            Ok(held) => held,
            Err(error) => {
                let why = causes(&error);
                let caveat =
                    format!("nobody says who holds what, so all that is healthy is free: {why}");
                return Self { caveat: Some(caveat), ..Self::default() };
            }
        };
        match podresources::allocatable(dir).await {
            Ok(allocatable) => Self { held, allocatable: Some(allocatable), caveat: None },
            Err(error) => {
                let why = causes(&error);
                let caveat = format!("what the agent keeps back is not known: {why}");
                Self { held, allocatable: None, caveat: Some(caveat) }
            }
        }
    }

    /// What the answer takes for granted.
    pub(super) fn caveat(&self, resource: &ResourceName) -> Option<String> {
        let unknown = |told: &BTreeMap<_, _>| !told.contains_key(resource.as_str());
        let nothing = self.allocatable.as_ref().is_some_and(unknown).then(|| {
            format!("the kubelet may give away no {resource} now: this is what it would be with an agent")
        });
        self.caveat.clone().or(nothing)
    }

    /// Why a device, or its replica, is not free.
    pub(super) fn obstacle(
        &self,
        resource: &ResourceName,
        member: &Member<'_>,
        replica: Option<u32>,
    ) -> Option<String> {
        self.holder(member, replica)
            .map(|Holder { namespace, pod, .. }| format!("held by {namespace}/{pod}"))
            .or_else(|| self.trouble(resource, member))
    }

    /// Why a device is given to nobody, whoever holds it.
    pub(super) fn trouble(&self, resource: &ResourceName, member: &Member<'_>) -> Option<String> {
        let kept_back = || self.is_kept_back(resource, member).then(|| KEPT_BACK.to_owned());
        member.obstacle.clone().or_else(kept_back)
    }

    /// A container that has the whole device is in the way of each replica, and the other way round.
    fn holder(&self, member: &Member<'_>, replica: Option<u32>) -> Option<&Holder> {
        let in_the_way = |holder: &&Holder| match (holder.replica, replica) {
            (Some(held), Some(wanted)) => held == wanted,
            _ => true,
        };
        self.held.get(&member.device.id)?.iter().find(in_the_way)
    }

    /// Whether the kubelet knows the resource, and may not give this device away.
    fn is_kept_back(&self, resource: &ResourceName, member: &Member<'_>) -> bool {
        let own = member.device.id.as_str();
        let is_it = |id: &String| ReplicaId::split(id).map_or(id.as_str(), |(id, _)| id) == own;
        let ids = self.allocatable.as_ref().and_then(|told| told.get(resource.as_str()));
        ids.is_some_and(|ids| !ids.iter().any(is_it))
    }
}
