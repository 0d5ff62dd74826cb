//! Partitions in a claim's plan: the MIG instance at the allocated placement, or the full GPU. Before an instance is
//! made, the plan uses a prospective device.

use std::borrow::Cow;

use windlass_allocations::ledger::ClaimRef;
use windlass_core::{
    device::{Device, DeviceId, Partition},
    partition::{instance_at, prospective_device, with_mig_off},
};

use super::{PlanInputs, Refusal};
use crate::{
    catalog::CatalogEntry,
    claim::{Access, AllocatedDevice, Claim},
    record::PreparedClaim,
};

impl<'a> PlanInputs<'a> {
    /// The instance at a placement. An existing instance belongs to the claim only if the claim's record says so: other
    /// instances must not be removed with the claim.
    pub(super) fn instance(
        &self,
        claim: &Claim,
        result: &AllocatedDevice,
        entry: &CatalogEntry,
        placement: &Partition,
    ) -> Result<Cow<'a, Device>, Refusal> {
        let request = || result.request.clone();
        match instance_at(&self.state.inventory, placement) {
            Some(device)
                if result.access == Access::Admin || self.is_recorded(claim, placement) =>
            {
                Ok(Cow::Borrowed(device))
            }
            Some(device) => Err(match self.holder(placement) {
                Some(by) => Refusal::HeldByClaim {
                    request: request(),
                    device: result.device.clone(),
                    holder: by.clone(),
                },
                None => Refusal::ForeignInstance {
                    request: request(),
                    placement: placement.clone(),
                    device: device.id.clone(),
                },
            }),
            None if result.access == Access::Admin => {
                Err(Refusal::MissingInstance { request: request(), placement: placement.clone() })
            }
            None => {
                self.check_clean(result, &placement.gpu)?;
                let gpu = self.state.inventory.get(placement.gpu.as_str());
                let possible = |gpu: &Device| {
                    let possible =
                        gpu.partitions.iter().find(|possible| possible.partition == *placement)?;
                    Some(prospective_device(gpu, possible))
                };
                let vanished = || Refusal::UnknownDevice {
                    request: request(),
                    pool: result.pool.clone(),
                    device: entry.name.to_string(),
                    suffix: " any more",
                };
                gpu.and_then(possible).map(Cow::Owned).ok_or_else(vanished)
            }
        }
    }

    /// The full GPU with MIG mode off, if the driver switches its MIG mode for claims; else the device itself.
    pub(super) fn full_device(&self, device: &'a Device) -> Cow<'a, Device> {
        if self.state.policy.switches_mig_for_claims(device) {
            Cow::Owned(with_mig_off(device))
        } else {
            Cow::Borrowed(device)
        }
    }

    /// Fails if the GPU is not clean after its last full use. Cleanup states exist for devices, not for
    /// placements.
    fn check_clean(&self, result: &AllocatedDevice, gpu: &DeviceId) -> Result<(), Refusal> {
        let unusable = |reason: &'static str| Refusal::UnusableDevice {
            request: result.request.clone(),
            device: gpu.clone(),
            reason: format!("{reason} after its last user"),
        };
        let reason = match self.cleanup_states.get(gpu) {
            Some(state) => state.unready(),
            None => self.state.pending_cleanups.get(gpu).copied(),
        };
        reason.map_or(Ok(()), |reason| Err(unusable(reason)))
    }

    /// True if the record says that the instance is made for this claim.
    fn is_recorded(&self, claim: &Claim, placement: &Partition) -> bool {
        self.records.get(&claim.reference.uid).is_some_and(|record| is_made_for(record, placement))
    }

    /// The claim for which the instance was made, by the records.
    fn holder(&self, placement: &Partition) -> Option<&'a ClaimRef> {
        let record = self.records.values().find(|record| is_made_for(record, placement));
        record.map(|record| &record.claim)
    }
}

fn is_made_for(record: &PreparedClaim, placement: &Partition) -> bool {
    record.devices.iter().any(|device| device.partition.as_ref() == Some(placement))
}
