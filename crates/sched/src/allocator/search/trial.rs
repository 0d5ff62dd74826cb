//! Trial of one candidate: check, allocate, release.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use windlass_core::selector::Amount;

use super::{Abort, AlternativeIndex, Choice, Search, Step};
use crate::allocator::{
    AllocationError,
    allocated_devices::{Consumed, Holding},
    capacity,
    constraint::RequestName,
};

// === impl Search ===

impl<'a> Search<'a> {
    /// True if a candidate is free, selected, and has the capacity.
    pub(super) fn is_possible(&mut self, index: AlternativeIndex, candidate: usize) -> Step {
        if self.is_in_use(index, candidate) {
            return Ok(self.refuse(index, candidate, "in use"));
        }
        if !self.is_selected(index, candidate).map_err(Abort::Error)? {
            return Ok(self.refuse(index, candidate, "not selected"));
        }
        if !self.has_capacity(index, candidate) {
            return Ok(self.refuse(index, candidate, "without the capacity"));
        }
        Ok(true)
    }

    /// True if the device is in use. Admin access ignores other claims, but one claim may not choose a device twice.
    fn is_in_use(&self, index: AlternativeIndex, candidate: usize) -> bool {
        let claims = self.chosen_whole.get(&candidate);
        if self.alternative(index).admin_access {
            return claims.is_some_and(|claims| claims.contains(&index.claim));
        }
        self.holding(candidate).is_some_and(|holding| holding.whole > 0)
            || claims.is_some_and(|claims| !claims.is_empty())
    }

    /// Allocations of the device by other claims.
    fn holding(&self, candidate: usize) -> Option<&'a Holding> {
        let candidate = &self.pools.candidates[candidate];
        self.holdings[candidate.pool]?.get(&candidate.device().name)
    }

    pub(super) fn is_selected(
        &mut self,
        index: AlternativeIndex,
        candidate: usize,
    ) -> Result<bool, AllocationError> {
        let signature = self.signatures.map_or(candidate, |numbers| numbers[candidate] as usize);
        if let Some(cached) = self.selections.0.get(&(index, signature)) {
            return Ok(*cached);
        }
        let device = &self.pools.candidates[candidate];
        let is_selected =
            self.alternative(index).selects(device.cel_device())? && device.is_on_node;
        self.selections.0.insert((index, signature), is_selected);
        Ok(is_selected)
    }

    pub(super) fn has_capacity(&self, index: AlternativeIndex, candidate: usize) -> bool {
        let mut consumed_by_choices = Consumed::new();
        for (name, amount) in self.chosen_shares.get(&candidate).into_iter().flatten().flatten() {
            let sum = consumed_by_choices.entry(name.clone()).or_insert(Amount::ZERO);
            *sum = sum.saturating_add(*amount);
        }
        let others =
            [self.holding(candidate).map(|holding| &holding.consumed), Some(&consumed_by_choices)];
        let device = self.pools.candidates[candidate].device();
        capacity::fits(device, self.alternative(index).capacity.as_ref(), others)
    }

    pub(super) fn choose(&mut self, index: AlternativeIndex, candidate: usize) -> Step {
        let alternative = self.alternative(index);
        let device = &self.pools.candidates[candidate];
        if self.is_in_use(index, candidate) {
            return Ok(self.refuse(index, candidate, "in use"));
        }
        if self.consumes_counters(candidate)
            && !self.counters.consume(device.pool, &device.consumptions)
        {
            return Ok(self.refuse(index, candidate, "without enough counters"));
        }
        // Like upstream, a candidate refused below keeps its counters until the search ends.
        if alternative.is_excluded_by(device.taints()) {
            return Ok(self.refuse(index, candidate, "tainted"));
        }
        if !self.add_to_constraints(index, candidate) {
            if self.all_devices.contains_key(&index) {
                let (claim_name, request) =
                    (&self.claims[index.claim].namespaced_name, &alternative.full_name);
                let id = device.cel_device().id();
                return Err(Abort::Error(AllocationError::Invalid(format!(
                    "claim {claim_name}, request {request}: cannot add device {id} because a claim \
                     constraint would not be satisfied"
                ))));
            }
            return Ok(self.refuse(index, candidate, "against a constraint"));
        }
        if !self.has_capacity(index, candidate) {
            return Ok(self.refuse(index, candidate, "without the capacity"));
        }
        let mut consumed = None;
        if device.is_shared() {
            let amounts = capacity::consumed(device.device(), alternative.capacity.as_ref());
            let parsed =
                |(name, quantity): (&String, &Quantity)| (name.clone(), capacity::amount(quantity));
            self.chosen_shares
                .entry(candidate)
                .or_default()
                .push(amounts.iter().map(parsed).collect());
            consumed = Some(amounts);
        } else {
            self.chosen_whole.entry(candidate).or_default().insert(index.claim);
        }
        let AlternativeIndex { claim, request, alternative } = index;
        self.chosen[claim].push(Choice { candidate, request, alternative, consumed });
        Ok(true)
    }

    /// True if an allocation of the device consumes counters. Of a shared device only the first share consumes
    /// counters.
    fn consumes_counters(&self, candidate: usize) -> bool {
        let device = &self.pools.candidates[candidate];
        let has_shares = self.holding(candidate).is_some_and(|holding| holding.shares > 0)
            || self.chosen_shares.get(&candidate).is_some_and(|shares| !shares.is_empty());
        !(device.consumptions.is_empty() || device.is_shared() && has_shares)
    }

    fn add_to_constraints(&mut self, index: AlternativeIndex, candidate: usize) -> bool {
        let names = self.names(index);
        let candidate = &self.pools.candidates[candidate];
        let (device, driver) = (candidate.device(), candidate.driver());
        let constraints = &mut self.constraints[index.claim];
        let violated =
            constraints.iter_mut().position(|constraint| !constraint.add(names, device, driver));
        if let Some(violated) = violated {
            constraints[..violated].iter_mut().for_each(|constraint| constraint.remove(names));
        }
        violated.is_none()
    }

    pub(super) fn release(&mut self, index: AlternativeIndex, candidate: usize) {
        let names = self.names(index);
        self.constraints[index.claim].iter_mut().for_each(|constraint| constraint.remove(names));
        let choice = self.chosen[index.claim].pop();
        if choice.is_some_and(|choice| choice.consumed.is_some()) {
            self.chosen_shares.get_mut(&candidate).and_then(Vec::pop);
        } else {
            self.chosen_whole.get_mut(&candidate).map(|claims| claims.remove(&index.claim));
            let device = &self.pools.candidates[candidate];
            self.counters.release(device.pool, &device.consumptions);
        }
    }

    fn names(&self, index: AlternativeIndex) -> RequestName<'a> {
        let request = &self.claims[index.claim].requests[index.request];
        RequestName { request: &request.name, full_name: &self.alternative(index).full_name }
    }
}
