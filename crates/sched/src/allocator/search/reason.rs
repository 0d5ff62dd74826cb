//! Reason for a failed search, as one line of text.

use std::collections::{BTreeMap, BTreeSet};

use super::{AlternativeIndex, Search};
use crate::allocator::{
    pool::{Pool, State},
    request::DeviceCount,
};

/// Devices found for the requests of one name.
struct Shortage {
    device_count: DeviceCount,
    found: usize,
    refused: Refusals,
}

/// Refused candidates, by reason.
pub(super) type Refusals = BTreeMap<&'static str, BTreeSet<usize>>;

// === impl Search ===

impl Search<'_> {
    /// Records the number of devices found for an alternative.
    pub(super) fn record_found(&mut self, index: AlternativeIndex, count: usize) {
        let most = self.most_found.entry(index).or_default();
        *most = count.max(*most);
    }

    /// Records why a candidate is refused. Returns false.
    pub(super) fn refuse(
        &mut self,
        index: AlternativeIndex,
        candidate: usize,
        reason: &'static str,
    ) -> bool {
        // A search by signatures computes a rank, for which reasons are not needed.
        if self.signatures.is_none() {
            self.refusals.entry(index).or_default().entry(reason).or_default().insert(candidate);
        }
        false
    }

    /// Number of devices found for each unsatisfied request, and the pools that were skipped.
    pub(super) fn reason(&self) -> String {
        let total = self.pools.len();
        let pools = self.pools.members.iter().filter_map(|Pool { id, state }| match state {
            State::Ready(_) => None,
            State::Incomplete => Some(format!("pool {id} is incomplete")),
            State::Invalid(reason) => Some(format!("pool {id} is invalid: {reason}")),
        });
        let shortages = self.shortages();
        let unsatisfied =
            shortages.iter().filter(|(_, it)| it.device_count != DeviceCount::Exactly(it.found));
        let unsatisfied = unsatisfied.map(|(request, shortage)| shortage.describe(request, total));
        unsatisfied.chain(pools).collect::<Vec<_>>().join("; ")
    }

    /// Devices found, by request name. Requests of several claims may have the same name: these are merged.
    fn shortages(&self) -> BTreeMap<&str, Shortage> {
        let mut shortages = BTreeMap::new();
        for (index, found) in &self.most_found {
            let alternative = self.alternative(*index);
            let empty = || Shortage {
                device_count: alternative.device_count,
                found: 0,
                refused: Refusals::new(),
            };
            let shortage: &mut Shortage =
                shortages.entry(alternative.full_name.as_str()).or_insert_with(empty);
            shortage.found = shortage.found.max(*found);
            for (reason, candidates) in self.refusals.get(index).into_iter().flatten() {
                shortage.refused.entry(reason).or_default().extend(candidates);
            }
        }
        shortages
    }
}

// === impl Shortage ===

impl Shortage {
    fn describe(&self, request: &str, total: usize) -> String {
        let Self { device_count, found, refused } = self;
        let requested = match device_count {
            DeviceCount::Exactly(count) => count.to_string(),
            DeviceCount::All => "all".to_owned(),
        };
        let reasons: Vec<_> = refused
            .iter()
            .map(|(reason, candidates)| format!("{} {reason}", candidates.len()))
            .collect();
        let reasons =
            if reasons.is_empty() { String::new() } else { format!(" ({})", reasons.join(", ")) };
        format!("request {request} found {found} of {requested} among {total} devices{reasons}")
    }
}
