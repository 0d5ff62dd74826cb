//! Constraints on a claim's device: compatibility with other claims, and limits of its containers.
//!
//! A program is a client of one MPS daemon, so it has one device under MPS, and CUDA numbers that device 0.

use windlass_allocations::ledger::{ClaimUse, Shares};
use windlass_config::DriverName;
use windlass_core::device::Device;
use windlass_lifecycle::mps::is_older_than_volta;

use super::{
    catalog::{CatalogEntry, shares_capacity_name},
    claim::{Access, AllocatedDevice},
    consumable_capacity::{CapacityError, rounded_up},
    limits::MpsLimits,
    opaque::{OpaqueError, Sharing, SharingRequest},
    time_slice::Interval,
};

/// Constraints on a claim's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Constraints {
    pub(super) usage: ClaimUse,
    /// Limits of its containers, if they are clients of an MPS daemon.
    pub(super) mps_limits: Option<MpsLimits>,
    /// Time slice of its programs.
    pub(super) interval: Interval,
}

#[derive(Clone, Copy)]
pub(super) struct ConstraintInputs<'a> {
    pub(super) result: &'a AllocatedDevice,
    pub(super) entry: &'a CatalogEntry,
    pub(super) device: &'a Device,
    pub(super) driver: &'a DriverName,
}

/// Reason why a device cannot be prepared with these constraints.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConstraintError {
    #[error("request {request}: {device}: {source}")]
    Capacity { request: String, device: String, source: CapacityError },
    #[error(transparent)]
    Opaque(#[from] OpaqueError),
}

// === impl Constraints ===

impl Constraints {
    /// Constraints that follow from the allocation and the parameters.
    pub(super) fn of(
        inputs: ConstraintInputs<'_>,
        requested: Option<SharingRequest<'_>>,
    ) -> Result<Self, ConstraintError> {
        let constraints = inputs.constraints()?;
        let Some(requested) = requested else { return Ok(constraints) };
        Ok(constraints.with_sharing(requested, inputs)?)
    }

    fn with_sharing(
        self,
        requested: SharingRequest<'_>,
        inputs: ConstraintInputs<'_>,
    ) -> Result<Self, OpaqueError> {
        let impossible = |reason| Err(requested.impossible(&inputs.result.device, reason));
        match (requested.sharing, self.usage, self.mps_limits) {
            (Sharing::TimeSlicing(_), _, Some(_)) => impossible("claims share it by MPS"),
            (Sharing::TimeSlicing(interval), usage, None) => {
                match time_slice_obstacle(usage, inputs.device).filter(|_| !interval.is_default()) {
                    Some(reason) => impossible(reason),
                    None => Ok(Self { interval, ..self }),
                }
            }
            (Sharing::Mps(limits), _, Some(own_limits)) => {
                Ok(Self { mps_limits: Some(own_limits.stricter(limits)), ..self })
            }
            (Sharing::Mps(_), ClaimUse::Admin, _) => impossible("the claim has admin access only"),
            (Sharing::Mps(_), ClaimUse::UnsizedShare | ClaimUse::Shares(_), _) => {
                impossible("claims share it by another method")
            }
            (Sharing::Mps(_), ClaimUse::Portion(portion), _) if !portion.is_whole() => {
                impossible("claims share it by time slices")
            }
            (Sharing::Mps(limits), ..) => match mps_obstacle(inputs.device) {
                Some(reason) => impossible(reason),
                None => {
                    Ok(Self { usage: ClaimUse::ExclusiveMps, mps_limits: Some(limits), ..self })
                }
            },
        }
    }
}

/// Reason not to set a time slice, which applies to the whole GPU.
fn time_slice_obstacle(usage: ClaimUse, device: &Device) -> Option<&'static str> {
    match usage {
        ClaimUse::Admin => Some("the claim has admin access only"),
        ClaimUse::UnsizedShare | ClaimUse::Shares(_) => Some("other claims share it"),
        ClaimUse::Portion(portion) if !portion.is_whole() => Some("other claims share it"),
        _ => {
            let reason = "no interval can be set on a GPU before Volta";
            let is_old = || is_older_than_volta(device).then_some(reason);
            partial_gpu_reason(device, "it is a MIG instance, and an interval is a whole GPU's")
                .or_else(is_old)
        }
    }
}

/// Reason not to run an MPS daemon.
fn mps_obstacle(device: &Device) -> Option<&'static str> {
    partial_gpu_reason(device, "a MIG instance is not shared by MPS")
}

/// Reason why a device is not a full GPU under NVIDIA's driver; `mig_reason` is the reason for a MIG instance.
fn partial_gpu_reason(device: &Device, mig_reason: &'static str) -> Option<&'static str> {
    if !device.family().has_nvml {
        Some("it is not an NVIDIA GPU")
    } else if device.kind.is_mig_instance() {
        Some(mig_reason)
    } else {
        device.partitioned.then_some("it is in MIG mode")
    }
}

// === impl ConstraintInputs ===

impl ConstraintInputs<'_> {
    fn constraints(self) -> Result<Constraints, ConstraintError> {
        let usage = match (self.result.access, &self.result.share, &self.entry.consumable) {
            (Access::Admin, ..) => ClaimUse::Admin,
            (Access::Regular, None, _) => ClaimUse::Exclusive,
            (Access::Regular, Some(_), None) => {
                self.shares()?.map_or(ClaimUse::UnsizedShare, ClaimUse::Shares)
            }
            (Access::Regular, Some(_), Some(consumable)) => {
                let portion = consumable.portion(self.result, self.driver);
                ClaimUse::Portion(portion.map_err(|source| self.capacity_error(source))?)
            }
        };
        let mps_limits = match usage {
            ClaimUse::Portion(portion) if usage.needs_daemon() => Some(MpsLimits::of(portion)),
            _ => None,
        };
        Ok(Constraints { usage, mps_limits, interval: Interval::Default })
    }

    /// Number of shares; `None` if the device is no longer shared by count.
    fn shares(self) -> Result<Option<Shares>, ConstraintError> {
        let Some(share_count) = self.entry.sharing.replicas() else { return Ok(None) };
        let name = shares_capacity_name(self.driver);
        let count = match self.result.consumed.get(&name.to_string()) {
            None => Some(1),
            Some(text) => rounded_up(text).and_then(|count| u32::try_from(count).ok()),
        };
        let count = count.ok_or_else(|| self.capacity_error(CapacityError::Unreadable(name)))?;
        Ok(Some(Shares { count, of: share_count.get() }))
    }

    fn capacity_error(self, source: CapacityError) -> ConstraintError {
        let AllocatedDevice { request, device, .. } = self.result;
        ConstraintError::Capacity { request: request.clone(), device: device.clone(), source }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use windlass_core::{
        attribute::{AttributeName, AttributeValue},
        device::{DeviceKind, SourceName},
    };

    use super::*;

    fn gpu(capability: &str) -> Device {
        let id = "GPU-0".parse().expect("an id");
        let mut gpu = Device::new(id, DeviceKind::Gpu, SourceName::NVIDIA, Timestamp::UNIX_EPOCH);
        let name = AttributeName::new("nvidia.com", "cudaComputeCapability");
        gpu.attributes.insert(name, AttributeValue::version(capability));
        gpu
    }

    #[test]
    fn an_interval_needs_a_whole_gpu_that_supports_it() {
        let gpu_in_mig_mode = Device { partitioned: true, ..gpu("9.0.0") };
        let mig_instance = Device { kind: DeviceKind::Mig, ..gpu("9.0.0") };
        let before_volta = "no interval can be set on a GPU before Volta";
        let instance = "it is a MIG instance, and an interval is a whole GPU's";
        for (usage, device, refused) in [
            (ClaimUse::Exclusive, gpu("7.0.0"), None),
            (ClaimUse::Exclusive, gpu("6.1.0"), Some(before_volta)),
            (ClaimUse::Exclusive, gpu_in_mig_mode, Some("it is in MIG mode")),
            (ClaimUse::Exclusive, mig_instance, Some(instance)),
            (ClaimUse::UnsizedShare, gpu("9.0.0"), Some("other claims share it")),
            (ClaimUse::Admin, gpu("9.0.0"), Some("the claim has admin access only")),
        ] {
            assert_eq!(time_slice_obstacle(usage, &device), refused, "{usage:?} of {device:?}");
        }
    }
}
