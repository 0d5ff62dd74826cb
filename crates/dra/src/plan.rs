//! Plan for a claim: its devices and their container edits. A pure function of the claim, the node and other claims.

mod partitions;
pub(super) mod variables;

use std::borrow::Cow;

use windlass_allocations::ledger::{ClaimRef, ClaimUse, Overlap, Portion, combined};
use windlass_cdi::{
    container_edits::{self, AllocationEdits, allocation_edits},
    memory_limits::{GpuMemory, HookLimit, WeakLimitError},
};
use windlass_config::{Delivery, DeviceIdStrategy, DeviceListStrategy, DriverName};
use windlass_core::{
    cdi::ContainerEdits,
    device::{Device, DeviceId, Partition},
    enforcement::Enforcement,
    memory_limit::MemoryLimitRecord,
    resource::{InvalidResourceName, ResourceName},
};
use windlass_lifecycle::{cleanup::CleanupStates, mps::MpsFolders};
use windlass_resources::NodeState;

use super::{
    catalog::{Catalog, DeviceName},
    claim::{Access, AllocatedDevice, Claim},
    constraints::{self, ConstraintError, Constraints},
    document::{self, ClaimDocuments},
    opaque::{Configs, OpaqueError},
    record::{PreparedDevice, Records},
    time_slice::Interval,
};

pub(crate) struct PlanInputs<'a> {
    pub(crate) driver: &'a DriverName,
    pub(crate) state: &'a NodeState,
    pub(crate) catalog: &'a Catalog,
    /// Cleanup states of devices.
    pub(crate) cleanup_states: &'a CleanupStates,
    pub(crate) records: &'a Records,
    /// Folders of the MPS daemons.
    pub(crate) mps: &'a MpsFolders,
    pub(crate) documents: &'a ClaimDocuments,
}

/// Planned devices in the order of the allocation, and the memory limits that the hook sets.
pub(crate) struct Plan {
    pub(crate) devices: Vec<PreparedDevice>,
    pub(crate) limits: Option<MemoryLimitRecord>,
}

/// Reason to refuse a claim.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("request {request}: pool {pool} has no device {device}{suffix}")]
    UnknownDevice { request: String, pool: String, device: String, suffix: &'static str },
    #[error("request {request}: {device} cannot be used: {reason}")]
    UnusableDevice { request: String, device: DeviceId, reason: String },
    #[error("request {request}: {device} is held by another claim")]
    HeldByClaim { request: String, device: String, holder: ClaimRef },
    #[error(
        "request {request}: {device} exists at {placement} already, and was not made for this claim: the agent \
         removes it at its next start, if it has no holder"
    )]
    ForeignInstance { request: String, placement: Partition, device: DeviceId },
    #[error(
        "request {request}: no MIG instance exists at {placement}, and admin access makes none"
    )]
    MissingInstance { request: String, placement: Partition },
    #[error("request {request}: {device} is not offered to claims: {reason}")]
    NotClaimable { request: String, device: DeviceId, reason: &'static str },
    #[error(
        "request {0}: a program has one MPS daemon, and the request got several devices: ask for each in a \
         request of its own"
    )]
    MultipleDaemons(String),
    #[error(transparent)]
    Opaque(#[from] OpaqueError),
    #[error(transparent)]
    Constraints(#[from] ConstraintError),
    #[error("request {request}: its name cannot be part of a variable's name")]
    Request { request: String, source: InvalidResourceName },
    #[error(transparent)]
    WeakLimit(#[from] WeakLimitError),
    #[error("{0}")]
    Document(String),
}

/// An allocated device, found on the node.
struct ChosenDevice<'a> {
    result: &'a AllocatedDevice,
    device: Cow<'a, Device>,
    /// Placement of the MIG instance that is made for the claim.
    partition: Option<&'a Partition>,
    constraints: Constraints,
}

/// Plans the devices of a claim.
pub(crate) fn plan(claim: &Claim, inputs: &PlanInputs<'_>) -> Result<Plan, Refusal> {
    let configs = Configs::read(claim)?;
    let chosen = claim.results.iter().map(|result| {
        let chosen = inputs.choose(claim, result, &configs)?;
        inputs.check_free(claim, &chosen)?;
        Ok(chosen)
    });
    let chosen = chosen.collect::<Result<Vec<_>, Refusal>>()?;
    check_daemons(&chosen)?;
    let devices: Vec<_> = chosen.iter().map(|chosen| &*chosen.device).collect();
    inputs.state.check_documents(&devices).map_err(Refusal::Document)?;
    let limit = inputs.limit(claim, &chosen)?;
    let prepared = |position| inputs.prepared(claim, &chosen, position, limit.as_ref());
    let devices = (0..chosen.len()).map(prepared).collect::<Result<_, _>>()?;
    Ok(Plan { devices, limits: limit.map(|limit| limit.record) })
}

/// Devices that a refused claim names, for its status.
pub(crate) fn named_devices(claim: &Claim, catalog: &Catalog) -> Vec<PreparedDevice> {
    let named = |result: &AllocatedDevice| PreparedDevice {
        pool: result.pool.clone(),
        name: result.device.clone(),
        device: catalog.find(&result.pool, &result.device).map(|entry| entry.device.clone()),
        partition: None,
        usage: ClaimUse::Admin,
        interval: Interval::Default,
        requests: vec![result.base_request().to_owned()],
        cdi: Vec::new(),
        share: result.share.clone(),
        consumed: result.consumed.clone(),
        edits: ContainerEdits::default(),
    };
    claim.results.iter().map(named).collect()
}

/// Uses to record in the ledger: each device once, with its strongest use.
pub(crate) fn ledger_uses(
    devices: &[PreparedDevice],
    state: &NodeState,
) -> Vec<(Overlap, ClaimUse)> {
    let uses =
        combined(devices.iter().filter_map(|device| Some((device.device.as_ref()?, device.usage))));
    uses.into_iter().map(|(device, usage)| (state.overlaps.overlap(device), usage)).collect()
}

// === impl Refusal ===

impl Refusal {
    /// The claim that holds the device, for the node's own log. Other tenants must not learn its name.
    pub(super) fn holder(&self) -> Option<&ClaimRef> {
        if let Self::HeldByClaim { holder: by, .. } = self { Some(by) } else { None }
    }
}

// === impl PlanInputs ===

impl<'a> PlanInputs<'a> {
    fn choose(
        &self,
        claim: &Claim,
        result: &'a AllocatedDevice,
        configs: &Configs<'_>,
    ) -> Result<ChosenDevice<'a>, Refusal> {
        let AllocatedDevice { request, pool, device, .. } = result;
        let find = || self.catalog.find(pool, device);
        if let (None, Some((id, reason))) = (find(), self.unclaimable(device)) {
            let (request, device) = (request.clone(), id.clone());
            return Err(Refusal::NotClaimable { request, device, reason });
        }
        let unknown = |suffix| Refusal::UnknownDevice {
            request: request.clone(),
            pool: pool.clone(),
            device: device.clone(),
            suffix,
        };
        let suffix = if self.state.inventory.is_complete() { "" } else { " (yet)" };
        let entry = find().ok_or_else(|| unknown(suffix))?;
        let partition = entry.partition.as_ref();
        let device = if let Some(placement) = partition {
            self.instance(claim, result, entry, placement)?
        } else {
            let full_gpu = self.state.inventory.get(entry.device.as_str());
            self.full_device(full_gpu.ok_or_else(|| unknown(" any more"))?)
        };
        check_health(result, &device)?;
        self.check_obstacles(result, &device)?;
        let inputs =
            constraints::ConstraintInputs { result, entry, device: &device, driver: self.driver };
        let constraints = Constraints::of(inputs, configs.requested_sharing(result, &device)?)?;
        Ok(ChosenDevice { result, device, partition, constraints })
    }

    /// Device of this name that is not offered to claims, with the reason.
    fn unclaimable(&self, name: &str) -> Option<(&DeviceId, &'static str)> {
        let mut unclaimable = self.state.unclaimable.iter();
        unclaimable
            .find(|(id, _)| DeviceName::of(id).as_str() == name)
            .map(|(id, reason)| (id, *reason))
    }

    /// Fails if the device has an obstacle, such as another node's Lease.
    fn check_obstacles(&self, result: &AllocatedDevice, device: &Device) -> Result<(), Refusal> {
        let obstacle = self.state.obstacle(device).filter(|_| result.access != Access::Admin);
        obstacle.map_or(Ok(()), |obstacle| {
            let (request, reason) = (result.request.clone(), obstacle.reason.clone());
            Err(Refusal::UnusableDevice { request, device: device.id.clone(), reason })
        })
    }

    /// Fails if another claim holds the device under the same name. The ledger cannot tell: it lacks a device that only
    /// the kubelet's checkpoint names, under a name that the agent does not know.
    fn check_free(&self, claim: &Claim, chosen: &ChosenDevice<'_>) -> Result<(), Refusal> {
        let (result, usage) = (chosen.result, chosen.constraints.usage);
        let mut others =
            self.records.values().filter(|other| other.claim.uid != claim.reference.uid);
        let conflicts = |device: &PreparedDevice| {
            let both_share = device.usage.is_compatible_with(usage);
            let is_same_name = device.pool == result.pool && device.name == result.device;
            is_same_name
                && device.usage != ClaimUse::Admin
                && usage != ClaimUse::Admin
                && !both_share
        };
        match others.find(|other| other.devices.iter().any(conflicts)) {
            None => Ok(()),
            Some(other) => Err(Refusal::HeldByClaim {
                request: result.request.clone(),
                device: result.device.clone(),
                holder: other.claim.clone(),
            }),
        }
    }

    fn prepared(
        &self,
        claim: &Claim,
        chosen: &[ChosenDevice<'_>],
        position: usize,
        limit: Option<&HookLimit>,
    ) -> Result<PreparedDevice, Refusal> {
        let ChosenDevice { result, device, constraints, .. } = &chosen[position];
        let request = result.base_request();
        if !chosen[position].exists() {
            return Ok(chosen[position].without_edits());
        }
        let names = self.grant(request, &[device])?.cdi_devices;
        let mut edits = ContainerEdits::default();
        // A container gets all devices of a request, and the request's variables with the last device.
        let is_of_request =
            |chosen_device: &&ChosenDevice<'_>| chosen_device.result.base_request() == request;
        if !chosen[position + 1..].iter().any(|chosen_device| is_of_request(&chosen_device)) {
            let of_request = chosen[..=position].iter().filter(is_of_request);
            let devices: Vec<_> = of_request.map(|chosen_device| &*chosen_device.device).collect();
            let resource = self.resource(request)?;
            let envs = self.grant(request, &devices)?.envs;
            edits = variables::request_variables(&claim.pod_claim_name, &resource, envs);
        }
        if let Some(limits) = constraints.mps_limits {
            let client = limits.edits(device, self.mps);
            edits.env.extend(client.env);
            edits.mounts.extend(client.mounts);
        }
        let limit = limit.filter(|limit| limit.limits_gpu(&device.id));
        edits.hooks.extend(limit.map(HookLimit::hook));
        let claim_device = || document::qualified_cdi_name(&claim.reference.uid, position);
        let claim_device = (!edits.is_empty()).then(claim_device);
        let cdi = names.into_iter().chain(claim_device).collect();
        Ok(PreparedDevice { cdi, edits, ..chosen[position].without_edits() })
    }

    /// Memory limit of the claim's containers by the driver or the kernel: for each GPU, the sum of the claim's shares.
    fn limit(
        &self,
        claim: &Claim,
        chosen: &[ChosenDevice<'_>],
    ) -> Result<Option<HookLimit>, Refusal> {
        let uses =
            combined(chosen.iter().map(|chosen| (&chosen.device.id, chosen.constraints.usage)));
        let gpus = uses.into_iter().filter_map(|(device, usage)| {
            let Portion { memory: limit_mib, of: total_mib, method, .. } = usage.portion()?;
            let gpu = chosen.iter().find(|chosen| chosen.device.id == *device)?;
            Some(GpuMemory {
                device: device.clone(),
                limit_mib,
                total_mib,
                is_by_mps: method.is_mps(),
                required: method.required_enforcement(),
                drm_address: gpu.device.drm_pci_address(),
            })
        });
        let path = self.documents.limits(&claim.reference.uid);
        let gpus: Vec<_> = gpus.collect();
        Ok(self.state.limit_rules().limit(&gpus, Enforcement::None, &path)?)
    }

    /// Container edits, the same as those of the device plugin with CDI.
    fn grant(&self, request: &str, devices: &[&Device]) -> Result<AllocationEdits, Refusal> {
        let resource = self.resource(request)?;
        let policy = &self.state.policy;
        let delivery = Delivery {
            strategies: [DeviceListStrategy::CdiCri].into(),
            ids: DeviceIdStrategy::Uuid,
            ..policy.delivery.clone()
        };
        Ok(allocation_edits(container_edits::AllocationRequest {
            resource: &resource,
            devices,
            delivery: &delivery,
            nics: &policy.nics,
            node_extras: &self.state.node_extras,
            mps: None,
            limits: &[],
            simulated: self.state.inventory.simulated.as_deref(),
        }))
    }

    /// Resource name for the variables of a container.
    fn resource(&self, request: &str) -> Result<ResourceName, Refusal> {
        let name = format!("{}/{request}", self.driver).parse();
        name.map_err(|source| Refusal::Request { request: request.to_owned(), source })
    }
}

// === impl ChosenDevice ===

impl ChosenDevice<'_> {
    /// False if its MIG instance is still to be made.
    fn exists(&self) -> bool {
        self.partition.is_none_or(|placement| placement.id() != self.device.id)
    }

    /// The device's entry in the claim's record, without container edits.
    fn without_edits(&self) -> PreparedDevice {
        let Self { result, device, partition, constraints } = self;
        let usage = constraints.usage;
        PreparedDevice {
            pool: result.pool.clone(),
            name: result.device.clone(),
            device: Some(partition.map_or_else(|| device.id.clone(), Partition::id)),
            partition: partition.filter(|_| usage != ClaimUse::Admin).cloned(),
            usage,
            interval: constraints.interval,
            requests: vec![result.base_request().to_owned()],
            cdi: Vec::new(),
            share: result.share.clone(),
            consumed: result.consumed.clone(),
            edits: ContainerEdits::default(),
        }
    }
}

fn check_health(result: &AllocatedDevice, device: &Device) -> Result<(), Refusal> {
    if device.health.is_healthy() || result.access == Access::Admin {
        return Ok(());
    }
    let failure = device.health.failure().map(ToString::to_string);
    let reason = failure.unwrap_or_else(|| "not probed yet".to_owned());
    Err(Refusal::UnusableDevice {
        request: result.request.clone(),
        device: device.id.clone(),
        reason,
    })
}

/// Fails if a request with an MPS client got several devices: a container is a client of one daemon.
fn check_daemons(chosen: &[ChosenDevice<'_>]) -> Result<(), Refusal> {
    for client in chosen.iter().filter(|chosen| chosen.constraints.mps_limits.is_some()) {
        let request = client.result.base_request();
        if chosen.iter().filter(|chosen| chosen.result.base_request() == request).count() > 1 {
            return Err(Refusal::MultipleDaemons(request.to_owned()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
