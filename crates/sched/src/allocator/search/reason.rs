//! Reason for a failed search, as one line of text.

use std::collections::{BTreeMap, BTreeSet};

use super::{AlternativeIx, Search};
use crate::allocator::{
    pool::{Pool, State},
    request::HowMany,
};

/// Result of the requests of one name.
struct Shortage {
    how_many: HowMany,
    found: usize,
    refused: Refusals,
}

/// Refused candidates, by reason.
pub(super) type Refusals = BTreeMap<&'static str, BTreeSet<usize>>;

// === impl Search ===

impl Search<'_> {
    /// Records the number of devices found for a request.
    pub(super) fn note_reached(&mut self, ix: AlternativeIx, number: usize) {
        let best = self.reached.entry(ix).or_default();
        *best = number.max(*best);
    }

    /// Records the reason against a candidate. Returns false.
    pub(super) fn refuse(
        &mut self,
        ix: AlternativeIx,
        candidate: usize,
        reason: &'static str,
    ) -> bool {
        // A search by signatures serves a rank, for which reasons are not needed.
        if self.signatures.is_none() {
            self.refused.entry(ix).or_default().entry(reason).or_default().insert(candidate);
        }
        false
    }

    /// Number of devices found for each unsatisfied request, and the pools that were skipped.
    pub(super) fn reason(&self) -> String {
        let total = self.pools.len();
        let pools = self.pools.all.iter().filter_map(|Pool { id, state }| match state {
            State::Ready(_) => None,
            State::Incomplete => Some(format!("pool {id} is incomplete")),
            State::Invalid(reason) => Some(format!("pool {id} is invalid: {reason}")),
        });
        let shortages = self.shortages();
        let short = shortages.iter().filter(|(_, it)| it.how_many != HowMany::Exactly(it.found));
        let short = short.map(|(request, shortage)| shortage.describe(request, total));
        short.chain(pools).collect::<Vec<_>>().join("; ")
    }

    /// Results by request name, merged over claims, because requests of several claims may have the same name.
    fn shortages(&self) -> BTreeMap<&str, Shortage> {
        let mut shortages = BTreeMap::new();
        for (ix, found) in &self.reached {
            let alternative = self.alternative(*ix);
            let first =
                || Shortage { how_many: alternative.how_many, found: 0, refused: Refusals::new() };
            let shortage: &mut Shortage =
                shortages.entry(alternative.full_name.as_str()).or_insert_with(first);
            shortage.found = shortage.found.max(*found);
            for (reason, candidates) in self.refused.get(ix).into_iter().flatten() {
                shortage.refused.entry(reason).or_default().extend(candidates);
            }
        }
        shortages
    }
}

// === impl Shortage ===

impl Shortage {
    fn describe(&self, request: &str, total: usize) -> String {
        let Self { how_many, found, refused } = self;
        let wanted = match how_many {
            HowMany::Exactly(count) => count.to_string(),
            HowMany::All => "all".to_owned(),
        };
        let reasons: Vec<_> = refused
            .iter()
            .map(|(reason, candidates)| format!("{} {reason}", candidates.len()))
            .collect();
        let reasons =
            if reasons.is_empty() { String::new() } else { format!(" ({})", reasons.join(", ")) };
        format!("request {request} found {found} of {wanted} among {total} devices{reasons}")
    }
}
