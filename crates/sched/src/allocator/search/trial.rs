//! Trial of one candidate: check it, take it, give it back.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use windlass_core::selector::Amount;

use super::{AlternativeIx, Choice, Search, Step, Stop};
use crate::allocator::{
    Unallocated, capacity,
    constraint::Asker,
    taken::{Consumed, Holding},
};

// === impl Search ===

impl<'a> Search<'a> {
    /// True if a candidate is free, selected, and has the capacity.
    pub(super) fn is_possible(&mut self, ix: AlternativeIx, candidate: usize) -> Step {
        if self.is_in_use(ix, candidate) {
            return Ok(self.refuse(ix, candidate, "in use"));
        }
        if !self.is_selected(ix, candidate).map_err(Stop::Wrong)? {
            return Ok(self.refuse(ix, candidate, "not selected"));
        }
        if !self.has_capacity(ix, candidate) {
            return Ok(self.refuse(ix, candidate, "without the capacity"));
        }
        Ok(true)
    }

    /// True if the device is in use. Admin access ignores other claims, but may not choose a device twice in its own.
    fn is_in_use(&self, ix: AlternativeIx, candidate: usize) -> bool {
        let claims = self.allocating.get(&candidate);
        if self.alternative(ix).admin_access {
            return claims.is_some_and(|claims| claims.contains(&ix.claim));
        }
        self.holding(candidate).is_some_and(|holding| holding.whole > 0)
            || claims.is_some_and(|claims| !claims.is_empty())
    }

    /// The other claims' hold on the device.
    fn holding(&self, candidate: usize) -> Option<&'a Holding> {
        let candidate = &self.pools.candidates[candidate];
        self.holdings[candidate.pool]?.get(&candidate.device().name)
    }

    pub(super) fn is_selected(
        &mut self,
        ix: AlternativeIx,
        candidate: usize,
    ) -> Result<bool, Unallocated> {
        let signature = self.signatures.map_or(candidate, |numbers| numbers[candidate] as usize);
        if let Some(known) = self.selections.0.get(&(ix, signature)) {
            return Ok(*known);
        }
        let device = &self.pools.candidates[candidate];
        let selected = self.alternative(ix).selects(device.facts())? && device.is_here;
        self.selections.0.insert((ix, signature), selected);
        Ok(selected)
    }

    pub(super) fn has_capacity(&self, ix: AlternativeIx, candidate: usize) -> bool {
        let mut chosen = Consumed::new();
        for (name, amount) in self.sharing.get(&candidate).into_iter().flatten().flatten() {
            let sum = chosen.entry(name.clone()).or_insert(Amount::ZERO);
            *sum = sum.saturating_add(*amount);
        }
        let others = [self.holding(candidate).map(|holding| &holding.consumed), Some(&chosen)];
        let device = self.pools.candidates[candidate].device();
        capacity::fits(device, self.alternative(ix).capacity.as_ref(), others)
    }

    pub(super) fn take(&mut self, ix: AlternativeIx, candidate: usize) -> Step {
        let alternative = self.alternative(ix);
        let device = &self.pools.candidates[candidate];
        if self.is_in_use(ix, candidate) {
            return Ok(self.refuse(ix, candidate, "in use"));
        }
        if self.consumes_counters(candidate) && !self.counters.take(device.pool, &device.draws) {
            return Ok(self.refuse(ix, candidate, "without enough counters"));
        }
        // A candidate refused below keeps its counters, as upstream.
        if alternative.is_kept_away_by(device.taints()) {
            return Ok(self.refuse(ix, candidate, "tainted"));
        }
        if !self.add_to_constraints(ix, candidate) {
            if self.all_devices.contains_key(&ix) {
                let (title, request) = (&self.claims[ix.claim].title, &alternative.full_name);
                let id = device.facts().id();
                return Err(Stop::Wrong(Unallocated::Wrong(format!(
                    "claim {title}, request {request}: cannot add device {id} because a claim \
                     constraint would not be satisfied"
                ))));
            }
            return Ok(self.refuse(ix, candidate, "against a constraint"));
        }
        if !self.has_capacity(ix, candidate) {
            return Ok(self.refuse(ix, candidate, "without the capacity"));
        }
        let mut consumed = None;
        if device.is_shared() {
            let amounts = capacity::consumed(device.device(), alternative.capacity.as_ref());
            let of =
                |(name, quantity): (&String, &Quantity)| (name.clone(), capacity::amount(quantity));
            self.sharing.entry(candidate).or_default().push(amounts.iter().map(of).collect());
            consumed = Some(amounts);
        } else {
            self.allocating.entry(candidate).or_default().insert(ix.claim);
        }
        let AlternativeIx { claim, request, alternative } = ix;
        self.chosen[claim].push(Choice { candidate, request, alternative, consumed });
        Ok(true)
    }

    /// True if taking the device consumes counters. For a shared device only the first share does.
    fn consumes_counters(&self, candidate: usize) -> bool {
        let device = &self.pools.candidates[candidate];
        let in_use = self.holding(candidate).is_some_and(|holding| holding.shares > 0)
            || self.sharing.get(&candidate).is_some_and(|shares| !shares.is_empty());
        !(device.draws.is_empty() || device.is_shared() && in_use)
    }

    fn add_to_constraints(&mut self, ix: AlternativeIx, candidate: usize) -> bool {
        let asker = self.asker(ix);
        let candidate = &self.pools.candidates[candidate];
        let (device, driver) = (candidate.device(), candidate.driver());
        let constraints = &mut self.constraints[ix.claim];
        let refusing = constraints.iter_mut().position(|c| !c.add(asker, device, driver));
        if let Some(refusing) = refusing {
            constraints[..refusing].iter_mut().for_each(|constraint| constraint.remove(asker));
        }
        refusing.is_none()
    }

    pub(super) fn give_back(&mut self, ix: AlternativeIx, candidate: usize) {
        let asker = self.asker(ix);
        self.constraints[ix.claim].iter_mut().for_each(|c| c.remove(asker));
        let choice = self.chosen[ix.claim].pop();
        if choice.is_some_and(|choice| choice.consumed.is_some()) {
            self.sharing.get_mut(&candidate).and_then(Vec::pop);
        } else {
            self.allocating.get_mut(&candidate).map(|claims| claims.remove(&ix.claim));
            let device = &self.pools.candidates[candidate];
            self.counters.give_back(device.pool, &device.draws);
        }
    }

    fn asker(&self, ix: AlternativeIx) -> Asker<'a> {
        let request = &self.claims[ix.claim].requests[ix.request];
        Asker { request: &request.name, full_name: &self.alternative(ix).full_name }
    }
}
