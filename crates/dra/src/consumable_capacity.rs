//! Consumable capacity of a GPU: total memory and compute, and the amounts that an allocation consumes.

use windlass_allocations::ledger::{FULL_COMPUTE_PERCENT, Portion};
use windlass_config::{DriverName, Replicas, ShareLimits, ShareMethod, ShareSettings, Sharing};
use windlass_core::{
    attribute::{AttributeName, Capacities, Quantity},
    device::Device,
    enforcement::Enforcement,
    selector::Amount,
};
use windlass_lifecycle::mps::MpsSpec;
use windlass_resources::NodeState;

use super::{claim::AllocatedDevice, published::published_name};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConsumableCapacity {
    pub(super) settings: ShareSettings,
    /// Capacity name of the memory.
    pub(super) memory_name: AttributeName,
    /// Memory in mebibytes.
    pub(super) memory_mib: u64,
    /// Smallest share of memory in mebibytes. With it, one MPS daemon can serve all claims that fit.
    pub(super) min_memory_mib: u64,
    /// True if the driver or the kernel limits the memory of containers.
    pub(super) is_memory_limited: bool,
}

/// Reason to refuse an allocation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CapacityError {
    #[error("its allocation has no amount of {0} that can be read")]
    Unreadable(AttributeName),
    #[error(
        "no method enforces {amount} of {name}: the device is shared by {method}; request all \
         of it, share it by mps, or configure limits: advisory"
    )]
    Unenforced { amount: String, name: String, method: &'static str },
}

const MIB: u64 = 1 << 20;

/// Memory that the smallest program needs on a GPU, in mebibytes.
const MIN_MEMORY_MIB: u64 = 256;

/// Capacity name of the compute, in percent of a GPU's multiprocessors.
pub(super) fn compute_capacity_name(driver: &DriverName) -> AttributeName {
    AttributeName::from_slice_name(driver.as_str(), "compute")
}

// === impl ConsumableCapacity ===

impl ConsumableCapacity {
    /// Consumable capacity of a device, if claims share it by amounts.
    pub(super) fn of(device: &Device, sharing: Sharing, state: &NodeState) -> Option<Self> {
        let is_memory_limited = state.limit_rules().strongest_for(device) >= Enforcement::Dmem;
        let settings =
            state.policy.dra.share_settings(device).filter(|_| sharing == Sharing::Exclusive)?;
        let (name, bytes) = device.memory_capacity()?;
        let (memory_name, memory_mib) = (published_name(name), bytes / MIB);
        let clients = MpsSpec::new(device, Replicas::ONE).max_clients().0;
        let by_clients =
            if device.family().has_nvml { memory_mib.div_ceil(clients.into()) } else { 0 };
        let min_memory_mib = by_clients.max(MIN_MEMORY_MIB).min(memory_mib);
        (memory_mib > 0).then_some(Self {
            settings,
            memory_name,
            memory_mib,
            min_memory_mib,
            is_memory_limited,
        })
    }

    /// Capacities that replace the device's own.
    pub(super) fn capacity(&self, driver: &DriverName) -> Capacities {
        let memory = Quantity::Bytes(self.memory_mib * MIB);
        [
            (self.memory_name.clone(), memory),
            (compute_capacity_name(driver), Quantity::Count(FULL_COMPUTE_PERCENT)),
        ]
        .into()
    }

    /// Share of the GPU that an allocation consumes.
    pub(super) fn portion(
        &self,
        result: &AllocatedDevice,
        driver: &DriverName,
    ) -> Result<Portion, CapacityError> {
        let compute = compute_capacity_name(driver);
        let amount = |name: &AttributeName| {
            let text = result.consumed.get(&name.to_string());
            let amount = text.and_then(|text| rounded_up(text));
            amount.ok_or_else(|| CapacityError::Unreadable(name.clone()))
        };
        let portion = Portion {
            method: self.settings.method,
            shares: 1,
            memory: amount(&self.memory_name)?.div_ceil(MIB),
            of: self.memory_mib,
            compute: amount(&compute)?,
        };
        self.check_enforced(result, &compute, &portion)?;
        Ok(portion)
    }

    /// Fails if nothing enforces a requested amount. MPS enforces memory and compute. With time slices the driver or
    /// the kernel may enforce memory.
    fn check_enforced(
        &self,
        result: &AllocatedDevice,
        compute: &AttributeName,
        portion: &Portion,
    ) -> Result<(), CapacityError> {
        let method = match self.settings {
            ShareSettings { limits: ShareLimits::Advisory, .. } => return Ok(()),
            ShareSettings { method: ShareMethod::Mps, .. } => {
                "mps, which limits memory and compute"
            }
            ShareSettings { .. } if self.is_memory_limited => {
                "time slices, with memory limited alone"
            }
            ShareSettings { .. } => {
                "time slices, without a limit by the driver or the kernel (memoryLimits.hook)"
            }
        };
        let is_enforced = |name: &str| {
            let is_memory = name == self.memory_name.to_string();
            let is_compute = name == compute.to_string();
            let enforces_all = self.settings.method.is_mps() || portion.is_whole();
            is_memory && (enforces_all || self.is_memory_limited) || is_compute && enforces_all
        };
        let is_requested = |amount: &str| rounded_up(amount).is_some_and(|amount| amount > 0);
        let mut requested = result.consumed.iter().filter(|(_, amount)| is_requested(amount));
        match requested.find(|(name, _)| !is_enforced(name)) {
            None => Ok(()),
            Some((name, amount)) => {
                let (name, amount) = (name.clone(), amount.clone());
                Err(CapacityError::Unenforced { amount, name, method })
            }
        }
    }
}

/// The amount, rounded up to a whole number.
pub(super) fn rounded_up(text: &str) -> Option<u64> {
    u64::try_from(Amount::parse(text)?.ceil()).ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::claim::Access;

    fn portion(settings: ShareSettings, consumed: &[(&str, &str)]) -> Result<Portion, String> {
        let capacity = ConsumableCapacity {
            settings,
            memory_name: AttributeName::new("gpu.nvidia.com", "memory"),
            memory_mib: 81_559,
            min_memory_mib: 1_700,
            is_memory_limited: false,
        };
        let [request, pool, device] = ["a", "n1/nvidia", "gpu-0"].map(ToOwned::to_owned);
        let consumed = consumed.iter().map(|(name, amount)| (*name, *amount));
        let consumed: BTreeMap<_, _> =
            consumed.map(|(name, amount)| (name.to_owned(), amount.to_owned())).collect();
        let share = Some("s".to_owned());
        let result =
            AllocatedDevice { request, pool, device, access: Access::Regular, share, consumed };
        capacity.portion(&result, &DriverName::default()).map_err(|error| error.to_string())
    }

    const MPS: ShareSettings =
        ShareSettings { method: ShareMethod::Mps, limits: ShareLimits::Enforced };

    const SLICES: ShareSettings =
        ShareSettings { method: ShareMethod::TimeSlicing, limits: ShareLimits::Enforced };

    #[test]
    fn the_share_of_a_claim_is_its_consumed_capacity() {
        let consumed = [("gpu.nvidia.com/memory", "20Gi"), ("windlass.dev/compute", "25")];
        let portion = portion(MPS, &consumed).expect("enforced");
        assert_eq!((portion.memory, portion.of, portion.compute), (20_480, 81_559, 25));
    }

    #[test]
    fn an_amount_that_nothing_enforces_is_refused_unless_limits_are_advisory() {
        let partial = [("gpu.nvidia.com/memory", "20Gi"), ("windlass.dev/compute", "0")];
        let all = [("gpu.nvidia.com/memory", "81559Mi"), ("windlass.dev/compute", "0")];
        let other = [partial[0], partial[1], ("gpu.nvidia.com/decoders", "2")];
        let advisory = |settings| ShareSettings { limits: ShareLimits::Advisory, ..settings };
        let unreadable = "its allocation has no amount of gpu.nvidia.com/memory that can be read";
        for (settings, consumed, refused) in [
            (SLICES, &partial[..], Some("no method enforces 20Gi of gpu.nvidia.com/memory")),
            (SLICES, &all, None),
            (advisory(SLICES), &partial, None),
            (MPS, &other, Some("no method enforces 2 of gpu.nvidia.com/decoders")),
            (advisory(MPS), &other, None),
            (MPS, &partial[1..], Some(unreadable)),
        ] {
            let error = portion(settings, consumed).err();
            let reason = error.as_deref().and_then(|error| error.split(':').next());
            assert_eq!(reason, refused, "{settings:?} {consumed:?}");
        }
    }
}
