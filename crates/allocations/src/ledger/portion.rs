//! Shares of a device by amounts: their sum over several claims, and the devices that need an MPS daemon.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use windlass_config::ShareMethod;
use windlass_core::device::DeviceId;

use super::{ClaimHold, ClaimHolds, ClaimUse, Conflict, Ledger, Overlap};

/// A claim's share of a device, by amounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Portion {
    /// Method of sharing.
    pub method: ShareMethod,
    /// Number of shares in this sum.
    pub shares: u32,
    /// Memory, in mebibytes.
    pub memory: u64,
    /// Memory of the whole device, in mebibytes.
    pub of: u64,
    /// Compute in percent of the device; 0 is no request and no limit.
    pub compute: u64,
}

/// Devices that claims use through MPS daemons.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MpsDevices {
    /// Devices that certainly need one: of claims with known shares.
    pub required: BTreeSet<DeviceId>,
    /// Devices that may need one: of claims that only the kubelet's checkpoint names.
    pub possible: BTreeSet<DeviceId>,
}

/// Compute of a whole device, in percent.
pub const FULL_COMPUTE_PERCENT: u64 = 100;

/// Total use of each device by one claim, which may have several shares of it.
pub fn combined<'a>(
    uses: impl IntoIterator<Item = (&'a DeviceId, ClaimUse)>,
) -> BTreeMap<&'a DeviceId, ClaimUse> {
    let mut combined = BTreeMap::new();
    for (device, usage) in uses {
        combined
            .entry(device)
            .and_modify(|total: &mut ClaimUse| *total = total.plus(usage))
            .or_insert(usage);
    }
    combined
}

// === impl Portion ===

impl Portion {
    /// True for a single share of the whole device.
    pub fn is_whole(&self) -> bool {
        self.shares == 1
            && self.memory >= self.of
            && (self.compute == 0 || self.compute >= FULL_COMPUTE_PERCENT)
    }

    /// The sum of both.
    fn plus(self, other: Self) -> Self {
        Self {
            shares: self.shares + other.shares,
            memory: self.memory + other.memory,
            compute: self.compute + other.compute,
            ..self
        }
    }

    fn fits(&self) -> bool {
        self.memory <= self.of && self.compute <= FULL_COMPUTE_PERCENT
    }
}

// === impl ClaimUse ===

impl ClaimUse {
    /// True if two claims may use one device in these ways at the same time. Programs under MPS exclude all others.
    pub fn is_compatible_with(self, other: Self) -> bool {
        match (self, other) {
            (Self::UnsizedShare | Self::Shares(_), Self::UnsizedShare | Self::Shares(_)) => true,
            (Self::Portion(one), Self::Portion(other)) => one.method == other.method,
            _ => false,
        }
    }

    /// The share, if it is one by amounts.
    pub fn portion(self) -> Option<Portion> {
        match self {
            Self::Portion(portion) => Some(portion),
            _ => None,
        }
    }

    /// Total use by one claim.
    fn plus(self, other: Self) -> Self {
        match (self, other) {
            (Self::Portion(one), Self::Portion(other)) => Self::Portion(one.plus(other)),
            (Self::Shares(one), Self::Shares(other)) => Self::Shares(one.plus(other)),
            _ => self.max(other),
        }
    }

    /// True if the containers are clients of an MPS daemon.
    pub fn needs_daemon(self) -> bool {
        match self {
            Self::Portion(portion) => portion.method.is_mps() && !portion.is_whole(),
            Self::ExclusiveMps => true,
            Self::Admin | Self::UnsizedShare | Self::Shares(_) | Self::Exclusive => false,
        }
    }
}

// === impl Ledger ===

impl Ledger {
    /// Devices that claims use through MPS daemons.
    pub fn mps_devices(claims: &ClaimHolds) -> MpsDevices {
        let devices_with = |matches: fn(&ClaimHold) -> bool| {
            let devices = claims.iter().filter(|(_, holds)| holds.values().any(matches));
            devices.map(|(id, _)| id.clone()).collect()
        };
        MpsDevices {
            required: devices_with(|hold| hold.usage.needs_daemon()),
            possible: devices_with(|hold| hold.usage == ClaimUse::UnsizedShare),
        }
    }

    /// Sum of the shares of all claims but one.
    pub(super) fn others_portion(&self, id: &DeviceId, uid: &str) -> Option<Portion> {
        let others = self.holds(id).filter(|hold| hold.claim.uid != uid);
        let portions = others.filter_map(ClaimHold::portion);
        portions.reduce(Portion::plus)
    }

    /// Fails if other claims leave too little of the device.
    pub(super) fn check_portion(
        &self,
        overlap: &Overlap,
        requested: Portion,
        uid: &str,
    ) -> Result<(), Conflict> {
        let Some(others_portion) = self.others_portion(&overlap.device, uid) else { return Ok(()) };
        if requested.plus(others_portion).fits() {
            return Ok(());
        }
        let (device, left) =
            (overlap.device.clone(), requested.of.saturating_sub(others_portion.memory));
        let compute_left = FULL_COMPUTE_PERCENT.saturating_sub(others_portion.compute);
        Err(Conflict::AmountExceeded { device, requested, left, compute_left })
    }
}
