//! On which terms a claim has a device: how it goes with other claims, and what its containers are kept to.
//!
//! A program has one MPS daemon, and so under MPS one device, which it knows as its first.

use windlass_allocations::ledger::{Shares, Use};
use windlass_config::DriverName;
use windlass_core::device::Device;
use windlass_lifecycle::mps::is_older_than_volta;

use super::{
    catalog::{Entry, shares_of},
    claim::{Access, Allotted},
    limits::Limits,
    opaque::{Asked, OpaqueError, Sharing},
    portions::{PortionError, whole},
    time_slice::Interval,
};

/// On which terms a claim has a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    pub(super) usage: Use,
    /// What its containers are limited to as clients of an MPS daemon, if they are.
    pub(super) client: Option<Limits>,
    /// How long its programs' turns on the device are.
    pub(super) interval: Interval,
}

/// What terms follow from.
#[derive(Clone, Copy)]
pub(super) struct Allocation<'a> {
    pub(super) result: &'a Allotted,
    pub(super) offered: &'a Entry,
    pub(super) device: &'a Device,
    pub(super) driver: &'a DriverName,
}

/// Why a device cannot be had so.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TermsError {
    #[error("request {request}: {device}: {source}")]
    Portion { request: String, device: String, source: PortionError },
    #[error(transparent)]
    Opaque(#[from] OpaqueError),
}

// === impl Terms ===

impl Terms {
    /// What follows from the allocation, and from what is said about it.
    pub(super) fn of(
        allocation: Allocation<'_>,
        asked: Option<Asked<'_>>,
    ) -> Result<Self, TermsError> {
        let terms = allocation.terms()?;
        let Some(asked) = asked else { return Ok(terms) };
        Ok(terms.with(asked, allocation)?)
    }

    fn with(self, asked: Asked<'_>, allocation: Allocation<'_>) -> Result<Self, OpaqueError> {
        let impossible = |why| Err(asked.impossible(&allocation.result.device, why));
        match (asked.sharing, self.usage, self.client) {
            (Sharing::TimeSlicing(_), _, Some(_)) => impossible("claims share it by MPS"),
            (Sharing::TimeSlicing(interval), usage, None) => {
                match no_interval(usage, allocation.device).filter(|_| !interval.is_default()) {
                    Some(why) => impossible(why),
                    None => Ok(Self { interval, ..self }),
                }
            }
            (Sharing::Mps(limits), _, Some(known)) => {
                Ok(Self { client: Some(known.and(limits)), ..self })
            }
            (Sharing::Mps(_), Use::Admin, _) => impossible("the claim only looks at it"),
            (Sharing::Mps(_), Use::Share | Use::Shares(_), _) => {
                impossible("claims share it otherwise")
            }
            (Sharing::Mps(_), Use::Portion(portion), _) if !portion.is_whole() => {
                impossible("claims share it by time slices")
            }
            (Sharing::Mps(limits), ..) => match no_mps(allocation.device) {
                Some(why) => impossible(why),
                None => Ok(Self { usage: Use::Served, client: Some(limits), ..self }),
            },
        }
    }
}

/// Why the length of turns on a device cannot be set for a claim that has it so: it is the whole GPU's.
fn no_interval(usage: Use, device: &Device) -> Option<&'static str> {
    match usage {
        Use::Admin => Some("the claim only looks at it"),
        Use::Share | Use::Shares(_) => Some("other claims share it"),
        Use::Portion(portion) if !portion.is_whole() => Some("other claims share it"),
        _ => {
            let old = "no interval can be set on a GPU before Volta";
            let is_old = || is_older_than_volta(device).then_some(old);
            not_whole(device, "it is a MIG instance, and an interval is a whole GPU's")
                .or_else(is_old)
        }
    }
}

/// Why a device has no MPS daemon.
fn no_mps(device: &Device) -> Option<&'static str> {
    not_whole(device, "a MIG instance is not shared by MPS")
}

/// Why a device is no whole GPU that its driver manages; `part` says so of a MIG instance.
fn not_whole(device: &Device, part: &'static str) -> Option<&'static str> {
    if !device.family().is_managed {
        Some("it is no GPU of NVIDIA's")
    } else if device.kind.is_instance() {
        Some(part)
    } else {
        device.partitioned.then_some("it is in MIG mode")
    }
}

// === impl Allocation ===

impl Allocation<'_> {
    fn terms(self) -> Result<Terms, TermsError> {
        let usage = match (self.result.access, &self.result.share, &self.offered.portions) {
            (Access::Admin, ..) => Use::Admin,
            (Access::Usual, None, _) => Use::Alone,
            (Access::Usual, Some(_), None) => self.shares()?.map_or(Use::Share, Use::Shares),
            (Access::Usual, Some(_), Some(portions)) => {
                let portion = portions.portion(self.result, self.driver);
                Use::Portion(portion.map_err(|source| self.refused(source))?)
            }
        };
        let client = match usage {
            Use::Portion(portion) if usage.needs_daemon() => Some(Limits::of(portion)),
            _ => None,
        };
        Ok(Terms { usage, client, interval: Interval::Default })
    }

    /// How many of the device's shares. One that is not shared any more has none to count by.
    fn shares(self) -> Result<Option<Shares>, TermsError> {
        let Some(of) = self.offered.sharing.replicas() else { return Ok(None) };
        let name = shares_of(self.driver);
        let count = match self.result.consumed.get(&name.to_string()) {
            None => Some(1),
            Some(text) => whole(text).and_then(|count| u32::try_from(count).ok()),
        };
        let count = count.ok_or_else(|| self.refused(PortionError::Unreadable(name)))?;
        Ok(Some(Shares { count, of: of.get() }))
    }

    fn refused(self, source: PortionError) -> TermsError {
        let Allotted { request, device, .. } = self.result;
        TermsError::Portion { request: request.clone(), device: device.clone(), source }
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
    fn an_interval_is_for_who_has_a_whole_gpu_that_can_have_one() {
        let cut = Device { partitioned: true, ..gpu("9.0.0") };
        let part = Device { kind: DeviceKind::Mig, ..gpu("9.0.0") };
        for (usage, device, refused) in [
            (Use::Alone, gpu("7.0.0"), None),
            (Use::Alone, gpu("6.1.0"), Some("before Volta")),
            (Use::Alone, cut, Some("in MIG mode")),
            (Use::Alone, part, Some("a MIG instance")),
            (Use::Share, gpu("9.0.0"), Some("other claims share it")),
            (Use::Admin, gpu("9.0.0"), Some("only looks at it")),
        ] {
            let why = no_interval(usage, &device);
            let is_expected = match (why, refused) {
                (None, None) => true,
                (Some(why), Some(refused)) => why.contains(refused),
                _ => false,
            };
            assert!(is_expected, "{usage:?} of {device:?}: {why:?}");
        }
    }
}
