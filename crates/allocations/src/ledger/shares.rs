//! Shares of a device that are all alike, as replicas are: whether a claim's are left by all others.

use serde::{Deserialize, Serialize};

use super::{Conflict, Footprint, Ledger, Use};

/// How many shares a claim has of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Shares {
    /// How many there are.
    pub count: u32,
    /// How many the device has.
    pub of: u32,
}

// === impl Shares ===

impl Shares {
    /// Both together.
    pub(super) fn and(self, other: Self) -> Self {
        Self { count: self.count.saturating_add(other.count), ..self }
    }
}

// === impl Ledger ===

impl Ledger {
    /// Whether the shares that a claim wants are left of a device by all others. The scheduler counts those of
    /// the claims that it knows; a pod that was deleted by force may run on after its claim.
    pub(super) fn has_shares_left(
        &self,
        it: &Footprint,
        wanted: Shares,
        uid: &str,
    ) -> Result<(), Conflict> {
        let others = self.holds(&it.device).filter(|hold| hold.claim.uid != uid);
        let had = others.map(|hold| match hold.usage {
            Use::Shares(shares) => shares.count,
            // How many it has is not known, as of what the kubelet's record alone tells; one at least.
            Use::Share => 1,
            _ => 0,
        });
        let had = had.fold(0, u32::saturating_add);
        let left = wanted.of.saturating_sub(had);
        if wanted.count <= left {
            return Ok(());
        }
        Err(Conflict::NoShareLeft { device: it.device.clone(), wanted, left })
    }
}
