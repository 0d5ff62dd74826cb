//! A share of a device by amounts: whether those of several claims fit on it, and which need an MPS daemon.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use windlass_config::ShareMethod;
use windlass_core::device::DeviceId;

use super::{ClaimHold, ClaimHolds, Conflict, Footprint, Ledger, Use};

/// How much a claim has of a device that is shared by amounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Portion {
    /// How the shares are kept apart.
    pub method: ShareMethod,
    /// How many shares that is.
    pub shares: u32,
    /// Memory, in mebibytes.
    pub memory: u64,
    /// The memory of the device, in mebibytes.
    pub of: u64,
    /// In percent of the device; 0 is no wish, and no limit.
    pub compute: u64,
}

/// The devices that claims use through MPS daemons.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Daemons {
    /// By claims of which it is known.
    pub surely: BTreeSet<DeviceId>,
    /// Perhaps: the kubelet's record alone tells of a share.
    pub perhaps: BTreeSet<DeviceId>,
}

/// What all claims on a device have of compute together, in percent.
const ALL: u64 = 100;

/// What one claim has of each device, of which it may have several shares.
pub fn together<'a>(
    uses: impl IntoIterator<Item = (&'a DeviceId, Use)>,
) -> BTreeMap<&'a DeviceId, Use> {
    let mut together = BTreeMap::new();
    for (device, usage) in uses {
        let known = together.get(device).map_or(usage, |known: &Use| known.and(usage));
        together.insert(device, known);
    }
    together
}

// === impl Portion ===

impl Portion {
    /// Whether it is one share, and that is all of the device.
    pub fn is_whole(&self) -> bool {
        self.shares == 1 && self.memory >= self.of && (self.compute == 0 || self.compute >= ALL)
    }

    /// Both together.
    fn and(self, other: Self) -> Self {
        Self {
            shares: self.shares + other.shares,
            memory: self.memory + other.memory,
            compute: self.compute + other.compute,
            ..self
        }
    }

    fn fits(&self) -> bool {
        self.memory <= self.of && self.compute <= ALL
    }
}

// === impl Use ===

impl Use {
    /// Whether claims may have one device so at the same time. Programs under MPS keep all others away.
    pub fn goes_with(self, other: Self) -> bool {
        match (self, other) {
            (Self::Share | Self::Shares(_), Self::Share | Self::Shares(_)) => true,
            (Self::Portion(one), Self::Portion(other)) => one.method == other.method,
            _ => false,
        }
    }

    /// What one claim has of a device that it has in both ways.
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Portion(one), Self::Portion(other)) => Self::Portion(one.and(other)),
            (Self::Shares(one), Self::Shares(other)) => Self::Shares(one.and(other)),
            _ => self.max(other),
        }
    }

    /// Whether the containers are clients of an MPS daemon.
    pub fn needs_daemon(self) -> bool {
        match self {
            Self::Portion(portion) => portion.method == ShareMethod::Mps && !portion.is_whole(),
            Self::Served => true,
            Self::Admin | Self::Share | Self::Shares(_) | Self::Alone => false,
        }
    }
}

// === impl Ledger ===

impl Ledger {
    /// The devices that claims use through MPS daemons.
    pub fn daemons(claims: &ClaimHolds) -> Daemons {
        let having = |is_meant: fn(&ClaimHold) -> bool| {
            let is_had = move |holds: &super::HoldsByUid| holds.values().any(is_meant);
            let devices = claims.iter().filter(move |(_, holds)| is_had(holds));
            devices.map(|(id, _)| id.clone()).collect()
        };
        Daemons {
            surely: having(|hold| hold.usage.needs_daemon()),
            perhaps: having(|hold| hold.usage == Use::Share),
        }
    }

    /// Whether what a claim wants of a device is left of it by all others.
    pub(super) fn has_left(
        &self,
        it: &Footprint,
        wanted: Portion,
        uid: &str,
    ) -> Result<(), Conflict> {
        let others = self.holds(&it.device).filter(|hold| hold.claim.uid != uid);
        let had = others.filter_map(|hold| match hold.usage {
            Use::Portion(portion) => Some(portion),
            _ => None,
        });
        let Some(had) = had.reduce(Portion::and) else { return Ok(()) };
        if wanted.and(had).fits() {
            return Ok(());
        }
        let (device, left) = (it.device.clone(), wanted.of.saturating_sub(had.memory));
        let compute_left = ALL.saturating_sub(had.compute);
        Err(Conflict::Exceeded { device, wanted, left, compute_left })
    }
}
