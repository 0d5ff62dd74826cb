//! Request from the command line: resolves names and determines free devices.

use anyhow::{Result, anyhow};
use serde::Serialize;
use windlass_core::{device::DeviceId, resource::ResourceName};
use windlass_deviceplugin::history::{ReplicaNumbers, ReplicaPool};
use windlass_resources::NodeState;

use super::{
    live::KubeletState,
    names::{self, NamedDevice},
    placement_request::{CandidateSet, PlacementRequest},
    resource::{Member, Resource},
};
use crate::{cli::RequestArgs, commands::short_name, exit::UsageError};

/// Request, with the devices that are not free.
pub(super) struct ExplainRequest {
    pub(super) request: PlacementRequest,
    pub(super) unavailable: Vec<Unavailable>,
    /// Assumption behind the answer.
    pub(super) caveat: Option<String>,
    /// Reason for refusal.
    pub(super) refusal: Option<String>,
}

/// Device of the resource that is not free.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Unavailable {
    pub(super) device: DeviceId,
    pub(super) why: String,
}

/// Set of free devices.
enum FreeDevices<'a> {
    /// Devices named by `--free`.
    Named(Vec<NamedDevice<'a>>),
    /// Devices without holder or obstacle.
    Observed(&'a KubeletState),
}

/// Reason for a device that `--free` leaves out.
pub(super) const NOT_IN_FREE_LIST: &str = "--free does not name it";

pub(super) fn read_request(
    node: &NodeState,
    kubelet: &KubeletState,
    args: &RequestArgs,
) -> Result<ExplainRequest> {
    let resource = Resource::find(node, args.resource.as_ref())?;
    if let Some(kind) = resource.non_gpu_kind().filter(|_| args.nics.is_some()) {
        let problem = anyhow!("{} consists of {kind}; use --size alone", resource.name);
        return Err(usage_error("--nics", problem).into());
    }
    let free = match &args.free {
        Some(words) => FreeDevices::Named(resource.resolve("--free", words)?),
        None => FreeDevices::Observed(kubelet),
    };
    let required = resource.resolve("--require", &args.require)?;
    let candidates = match resource.shared() {
        None => exclusive_candidates(&resource, &free, &required, near(node, &args.near)?),
        Some(shared) if shared.pool => {
            let problem = anyhow!(
                "{} is a pool: every token represents all its devices, so there is no choice",
                resource.name
            );
            return Err(usage_error("--resource", problem).into());
        }
        Some(shared) => {
            let pools = replica_pools(&resource, &free, &required)?;
            CandidateSet::Replicas {
                span: shared.method.span(shared.memory_mib),
                near: near(node, &args.near)?,
                pools,
            }
        }
    };
    let refusal = required.iter().find_map(|named| resource.refusal(&free, named));
    let policy = args.policy.unwrap_or_else(|| node.placement(&resource.name));
    let size = args.size.expect("clap requires --size, except with flags that exclude a request");
    let request = PlacementRequest { resource: resource.name.clone(), policy, size, candidates };
    let (caveat, unavailable) = match &free {
        FreeDevices::Named(_) => (None, Vec::new()),
        FreeDevices::Observed(kubelet) => {
            (kubelet.caveat(&resource.name), unavailable(&resource, kubelet))
        }
    };
    Ok(ExplainRequest { request, unavailable, caveat, refusal })
}

/// Devices of `--near`: the answer should be close to them.
fn near(node: &NodeState, words: &[String]) -> Result<Vec<DeviceId>> {
    let devices: Vec<_> = node.inventory.devices.iter().collect();
    let near = names::resolve(&devices, words).map_err(|error| usage_error("--near", error))?;
    Ok(names::unique_ids(near))
}

fn exclusive_candidates(
    resource: &Resource<'_>,
    free: &FreeDevices<'_>,
    required: &[NamedDevice<'_>],
    near: Vec<DeviceId>,
) -> CandidateSet {
    let is_free = |member: &&Member<'_>| free.contains(&resource.name, member, None);
    let available = resource.members.iter().filter(is_free).map(|member| member.device.id.clone());
    CandidateSet::Devices {
        available: available.collect(),
        required: names::unique_ids(required.iter().map(|named| named.device)),
        near,
    }
}

fn replica_pools(
    resource: &Resource<'_>,
    free: &FreeDevices<'_>,
    required: &[NamedDevice<'_>],
) -> Result<Vec<ReplicaPool>> {
    if let Some(NamedDevice { device, .. }) = required.iter().find(|named| named.replica.is_none())
    {
        let name = short_name(device);
        let problem = anyhow!("name a replica of {name}, such as {name}::0");
        return Err(usage_error("--require", problem).into());
    }
    let pool = |member: &Member<'_>| {
        let id = &member.device.id;
        let numbers = 0..member.shared.map_or(0, |shared| shared.replicas);
        let is_free = |number: &u32| free.contains(&resource.name, member, Some(*number));
        let free: ReplicaNumbers = numbers.clone().filter(is_free).collect();
        let required = required.iter().filter(|named| named.device.id == *id);
        ReplicaPool {
            device: id.clone(),
            in_use: numbers.len() - free.iter().count(),
            free,
            required: required.filter_map(|named| named.replica).collect(),
            chosen: ReplicaNumbers::default(),
        }
    };
    let members = resource.members.iter().filter(|member| free.offers(&resource.name, member));
    Ok(members.map(pool).collect())
}

/// Devices that are not free. A shared device counts only if it is withheld: the answer shows the usage of the others.
fn unavailable(resource: &Resource<'_>, kubelet: &KubeletState) -> Vec<Unavailable> {
    let entry = |member: &Member<'_>| {
        let reason = match member.shared {
            None => kubelet.obstacle(&resource.name, member, None),
            Some(_) => kubelet.withheld_reason(&resource.name, member),
        };
        Some(Unavailable { device: member.device.id.clone(), why: reason? })
    };
    resource.members.iter().filter_map(entry).collect()
}

/// Message for a required device that is not free.
pub(super) fn not_free_error(name: impl std::fmt::Display, reason: &str) -> String {
    format!("{name} is required and not free: {reason}")
}

fn usage_error(flag: &'static str, error: impl Into<anyhow::Error>) -> UsageError {
    UsageError(error.into().context(flag))
}

// === impl Resource ===

impl<'a> Resource<'a> {
    /// Resolves names to devices or replicas of this resource.
    fn resolve(&self, flag: &'static str, words: &[String]) -> Result<Vec<NamedDevice<'a>>> {
        let named_devices = names::resolve_in_resource(&self.devices(), &self.name, words);
        let named_devices = named_devices.map_err(|error| usage_error(flag, error))?;
        for NamedDevice { device, replica } in &named_devices {
            let member = self.members.iter().find(|member| member.device.id == device.id);
            let replicas =
                member.and_then(|member| member.shared).map_or(0, |shared| shared.replicas);
            if replica.is_some_and(|number| number >= replicas) {
                let problem =
                    anyhow!("{} has {replicas} replicas in {}", short_name(device), self.name);
                return Err(usage_error(flag, problem).into());
            }
        }
        Ok(named_devices)
    }

    /// Reason why a required device is not free.
    fn refusal(&self, free: &FreeDevices<'_>, required: &NamedDevice<'_>) -> Option<String> {
        let member = self.members.iter().find(|member| member.device.id == required.device.id)?;
        let reason = free.obstacle(&self.name, member, required.replica)?;
        Some(not_free_error(required, &reason))
    }
}

// === impl FreeDevices ===

impl FreeDevices<'_> {
    /// True if the device may be allocated, free or in use.
    fn offers(&self, resource: &ResourceName, member: &Member<'_>) -> bool {
        match self {
            Self::Named(_) => true,
            Self::Observed(kubelet) => kubelet.withheld_reason(resource, member).is_none(),
        }
    }

    fn contains(&self, resource: &ResourceName, member: &Member<'_>, replica: Option<u32>) -> bool {
        self.obstacle(resource, member, replica).is_none()
    }

    /// Reason why a device or replica is not free.
    fn obstacle(
        &self,
        resource: &ResourceName,
        member: &Member<'_>,
        replica: Option<u32>,
    ) -> Option<String> {
        let is_member = |named: &NamedDevice<'_>| {
            named.device.id == member.device.id
                && (named.replica.is_none() || named.replica == replica)
        };
        match self {
            Self::Named(named) => {
                (!named.iter().any(is_member)).then(|| NOT_IN_FREE_LIST.to_owned())
            }
            Self::Observed(kubelet) => kubelet.obstacle(resource, member, replica),
        }
    }
}
