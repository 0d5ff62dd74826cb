//! Counted shares of a device, all of one size, and their limit over several claims.

use serde::{Deserialize, Serialize};

use super::{ClaimUse, Conflict, Ledger, Overlap};

/// Counted shares of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Shares {
    /// Number of shares.
    pub count: u32,
    /// Number of shares of the whole device.
    pub of: u32,
}

// === impl Shares ===

impl Shares {
    /// The sum of both.
    pub(super) fn plus(self, other: Self) -> Self {
        Self { count: self.count.saturating_add(other.count), ..self }
    }
}

// === impl Ledger ===

impl Ledger {
    /// Fails if other claims leave too few shares. The scheduler counts too, but a pod that was deleted by force may
    /// outlive its claim in the API server.
    pub(super) fn check_shares(
        &self,
        overlap: &Overlap,
        requested: Shares,
        uid: &str,
    ) -> Result<(), Conflict> {
        let others = self.holds(&overlap.device).filter(|hold| hold.claim.uid != uid);
        let used_counts = others.map(|hold| match hold.usage {
            ClaimUse::Shares(shares) => shares.count,
            // Only the kubelet's checkpoint names this claim, without a number: it has at least one.
            ClaimUse::UnsizedShare => 1,
            _ => 0,
        });
        let used_count = used_counts.fold(0, u32::saturating_add);
        let left = requested.of.saturating_sub(used_count);
        if requested.count <= left {
            return Ok(());
        }
        Err(Conflict::NoShareLeft { device: overlap.device.clone(), requested, left })
    }
}
