//! Shares of a GPU by amounts: how much there is to be had, and how much an allocation has.

use windlass_allocations::ledger::Portion;
use windlass_config::{
    DraPolicy, DriverName, Replicas, ShareLimits, ShareManner, ShareMethod, Sharing,
};
use windlass_core::{
    attribute::{AttributeName, Capacities, Quantity},
    device::Device,
    selector::Amount,
};
use windlass_lifecycle::mps::MpsWant;

use super::claim::Allotted;

/// What there is to be had of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Portions {
    pub(super) manner: ShareManner,
    /// Its memory, in mebibytes.
    pub(super) memory: u64,
    /// The least that a claim has: no more claims fit on a GPU than one MPS daemon serves.
    pub(super) least: u64,
}

/// Why an allocation cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PortionError {
    #[error("its allocation has no amount of {0} that can be read")]
    Unreadable(AttributeName),
    #[error(
        "nothing keeps its containers to {amount} of {name}: the device is shared by {by}; ask for all \
         of it, share it by mps, or configure limits: advisory"
    )]
    Unenforced { amount: String, name: String, by: &'static str },
}

/// The name under which NVIDIA's driver, too, publishes it.
pub(super) const MEMORY: AttributeName = AttributeName::new("gpu.nvidia.com", "memory");

/// Compute is given in percent.
pub(super) const WHOLE: u64 = 100;

const MIB: u64 = 1 << 20;

/// A program that uses CUDA at all has about as much, in mebibytes.
const LEAST: u64 = 256;

/// What a claim asks for of a GPU's multiprocessors.
pub(super) fn compute_of(driver: &DriverName) -> AttributeName {
    AttributeName::published(driver.as_str(), "compute")
}

// === impl Portions ===

impl Portions {
    /// What there is of a device, if claims share it by amounts.
    pub(super) fn of(device: &Device, sharing: Sharing, policy: &DraPolicy) -> Option<Self> {
        let manner = policy.shares_of(device).filter(|_| sharing == Sharing::Exclusive)?;
        let want = MpsWant::new(device, Replicas::ONE);
        let memory = want.memory_bytes? / MIB;
        let (clients, _) = want.most_clients();
        let least = memory.div_ceil(clients.into()).max(LEAST).min(memory);
        (memory > 0).then_some(Self { manner, memory, least })
    }

    /// Capacities in place of what the device has of them.
    pub(super) fn capacity(&self, driver: &DriverName) -> Capacities {
        let memory = Quantity::Bytes(self.memory * MIB);
        [(MEMORY, memory), (compute_of(driver), Quantity::Count(WHOLE))].into()
    }

    /// How much an allocation has.
    pub(super) fn portion(
        &self,
        result: &Allotted,
        driver: &DriverName,
    ) -> Result<Portion, PortionError> {
        let compute = compute_of(driver);
        let amount = |name: &AttributeName| {
            let text = result.consumed.get(&name.to_string());
            let amount = text.and_then(|text| whole(text));
            amount.ok_or_else(|| PortionError::Unreadable(name.clone()))
        };
        let portion = Portion {
            method: self.manner.method,
            shares: 1,
            memory: amount(&MEMORY)?.div_ceil(MIB),
            of: self.memory,
            compute: amount(&compute)?,
        };
        self.check_enforced(result, &compute, &portion)?;
        Ok(portion)
    }

    /// Only MPS keeps programs to anything, and only to memory and compute.
    fn check_enforced(
        &self,
        result: &Allotted,
        compute: &AttributeName,
        portion: &Portion,
    ) -> Result<(), PortionError> {
        let by = match self.manner {
            ShareManner { limits: ShareLimits::Advisory, .. } => return Ok(()),
            ShareManner { method: ShareMethod::Mps, .. } => "mps, which limits memory and compute",
            ShareManner { method: ShareMethod::TimeSlicing, .. } => "time slices",
        };
        let is_kept = |name: &str| {
            let is_of_mps = name == MEMORY.to_string() || name == compute.to_string();
            is_of_mps && (self.manner.method == ShareMethod::Mps || portion.is_whole())
        };
        let asked = |amount: &str| whole(amount).is_some_and(|amount| amount > 0);
        let mut asked = result.consumed.iter().filter(|(_, amount)| asked(amount));
        match asked.find(|(name, _)| !is_kept(name)) {
            None => Ok(()),
            Some((name, amount)) => {
                let (name, amount) = (name.clone(), amount.clone());
                Err(PortionError::Unenforced { amount, name, by })
            }
        }
    }
}

/// The least whole number that is no less.
pub(super) fn whole(text: &str) -> Option<u64> {
    u64::try_from(Amount::parse(text)?.rounded_up()).ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::claim::Access;

    fn portion(manner: ShareManner, consumed: &[(&str, &str)]) -> Result<Portion, String> {
        let portions = Portions { manner, memory: 81_559, least: 1_700 };
        let [request, pool, device] = ["a", "n1/nvidia", "gpu-0"].map(ToOwned::to_owned);
        let consumed = consumed.iter().map(|(name, amount)| (*name, *amount));
        let consumed: BTreeMap<_, _> =
            consumed.map(|(name, amount)| (name.to_owned(), amount.to_owned())).collect();
        let share = Some("s".to_owned());
        let result = Allotted { request, pool, device, access: Access::Usual, share, consumed };
        portions.portion(&result, &DriverName::default()).map_err(|error| error.to_string())
    }

    const MPS: ShareManner =
        ShareManner { method: ShareMethod::Mps, limits: ShareLimits::Enforced };

    const SLICES: ShareManner =
        ShareManner { method: ShareMethod::TimeSlicing, limits: ShareLimits::Enforced };

    #[test]
    fn an_allocation_says_how_much_a_claim_has() {
        let consumed = [("gpu.nvidia.com/memory", "20Gi"), ("windlass.dev/compute", "25")];
        let portion = portion(MPS, &consumed).expect("enforced");
        assert_eq!((portion.memory, portion.of, portion.compute), (20_480, 81_559, 25));
    }

    #[test]
    fn what_nothing_keeps_containers_to_is_refused_unless_they_are_trusted() {
        let part = [("gpu.nvidia.com/memory", "20Gi"), ("windlass.dev/compute", "0")];
        let all = [("gpu.nvidia.com/memory", "81559Mi"), ("windlass.dev/compute", "0")];
        let other = [part[0], part[1], ("gpu.nvidia.com/decoders", "2")];
        let advisory = |manner| ShareManner { limits: ShareLimits::Advisory, ..manner };
        for (manner, consumed, refused) in [
            (SLICES, &part[..], Some("20Gi of gpu.nvidia.com/memory")),
            (SLICES, &all, None),
            (advisory(SLICES), &part, None),
            (MPS, &other, Some("2 of gpu.nvidia.com/decoders")),
            (advisory(MPS), &other, None),
            (MPS, &part[1..], Some("no amount of gpu.nvidia.com/memory")),
        ] {
            let why = portion(manner, consumed).err();
            let is_expected = match (&why, refused) {
                (None, None) => true,
                (Some(why), Some(refused)) => why.contains(refused),
                _ => false,
            };
            assert!(is_expected, "{manner:?} {consumed:?}: {why:?}");
        }
    }
}
