//! Reason of a failed search, in one line.

use std::collections::{BTreeMap, BTreeSet};

use super::{AlternativeIx, Search};
use crate::allocator::{
    pool::{Pool, State},
    request::HowMany,
};

/// Devices that requests of one name found.
struct Shortage {
    how_many: HowMany,
    found: usize,
    refused: Refusals,
}

/// Refused candidates, by reason.
pub(super) type Refusals = BTreeMap<&'static str, BTreeSet<usize>>;

// === impl Search ===

impl Search<'_> {
    /// Records the number of devices that a request found.
    pub(super) fn note_reached(&mut self, ix: AlternativeIx, number: usize) {
        let best = self.reached.entry(ix).or_default();
        *best = number.max(*best);
    }

    /// Records the reason of a refusal.
    pub(super) fn refuse(
        &mut self,
        ix: AlternativeIx,
        candidate: usize,
        why: &'static str,
    ) -> bool {
        // A search by signatures is for a rank, and nobody reads its reasons.
        if self.signatures.is_none() {
            self.refused.entry(ix).or_default().entry(why).or_default().insert(candidate);
        }
        false
    }

    /// Devices that each request found, and the pools that were skipped.
    pub(super) fn reason(&self) -> String {
        let there = self.pools.len();
        let pools = self.pools.all.iter().filter_map(|Pool { id, state }| match state {
            State::Ready(_) => None,
            State::Incomplete => Some(format!("pool {id} is incomplete")),
            State::Invalid(why) => Some(format!("pool {id} is invalid: {why}")),
        });
        let shortages = self.shortages();
        let short = shortages.iter().filter(|(_, it)| it.how_many != HowMany::Exactly(it.found));
        let short = short.map(|(request, shortage)| shortage.describe(request, there));
        short.chain(pools).collect::<Vec<_>>().join("; ")
    }

    /// By name, since requests of several claims may have the same.
    fn shortages(&self) -> BTreeMap<&str, Shortage> {
        let mut shortages = BTreeMap::new();
        for (ix, found) in &self.reached {
            let alternative = self.alternative(*ix);
            let first =
                || Shortage { how_many: alternative.how_many, found: 0, refused: Refusals::new() };
            let shortage: &mut Shortage =
                shortages.entry(alternative.full_name.as_str()).or_insert_with(first);
            shortage.found = shortage.found.max(*found);
            for (why, candidates) in self.refused.get(ix).into_iter().flatten() {
                shortage.refused.entry(why).or_default().extend(candidates);
            }
        }
        shortages
    }
}

// === impl Shortage ===

impl Shortage {
    fn describe(&self, request: &str, there: usize) -> String {
        let Self { how_many, found, refused } = self;
        let wanted = match how_many {
            HowMany::Exactly(count) => count.to_string(),
            HowMany::All => "all".to_owned(),
        };
        let whys: Vec<_> =
            refused.iter().map(|(why, who)| format!("{} {why}", who.len())).collect();
        let whys = if whys.is_empty() { String::new() } else { format!(" ({})", whys.join(", ")) };
        format!("request {request} found {found} of {wanted} among {there} devices{whys}")
    }
}
