//! Trial of one candidate: check, take, give back.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use windlass_core::selector::Amount;

use super::{Asked, Choice, Search, Step, Stop};
use crate::allocator::{
    Unallocated, candidate::Candidate, capacity, constraint::Asker, place, request, taken::Consumed,
};

// === impl Search ===

impl Search<'_> {
    /// True if a candidate is free, selected, and has the capacity.
    pub(super) fn is_possible(&mut self, asked: Asked, candidate: usize) -> Step {
        if self.is_gone(asked, candidate) {
            return Ok(self.refuse(asked, candidate, "in use"));
        }
        if !self.is_selected(asked, candidate).map_err(Stop::Wrong)? {
            return Ok(self.refuse(asked, candidate, "not selected"));
        }
        if !self.has_capacity(asked, candidate) {
            return Ok(self.refuse(asked, candidate, "without the capacity"));
        }
        Ok(true)
    }

    /// Records the reason of a refusal.
    pub(super) fn refuse(&mut self, asked: Asked, candidate: usize, why: &'static str) -> bool {
        let request = self.alternative(asked).full_name.clone();
        self.refused.entry(request).or_default().entry(why).or_default().insert(candidate);
        false
    }

    /// True if the device is in use. Admin access ignores other claims, and excludes a repeat in its own.
    fn is_gone(&self, asked: Asked, candidate: usize) -> bool {
        let claims = self.allocating.get(&candidate);
        if self.alternative(asked).admin_access {
            return claims.is_some_and(|claims| claims.contains(&asked.claim));
        }
        self.taken.whole.contains(&self.candidates[candidate].id)
            || claims.is_some_and(|claims| !claims.is_empty())
    }

    pub(super) fn is_selected(
        &mut self,
        asked: Asked,
        candidate: usize,
    ) -> Result<bool, Unallocated> {
        if let Some(known) = self.selected.get(&(asked, candidate)) {
            return Ok(*known);
        }
        let Candidate { device, slice, facts, .. } = &self.candidates[candidate];
        let selected = self.alternative(asked).selects(facts)?
            && (!place::is_by_device(slice) || place::device_matches(device, self.node));
        self.selected.insert((asked, candidate), selected);
        Ok(selected)
    }

    pub(super) fn has_capacity(&self, asked: Asked, candidate: usize) -> bool {
        let Candidate { device, id, .. } = &self.candidates[candidate];
        let mut chosen = Consumed::new();
        for (name, amount) in self.sharing.get(&candidate).into_iter().flatten().flatten() {
            let sum = chosen.entry(name.clone()).or_insert(Amount::ZERO);
            *sum = sum.saturating_add(*amount);
        }
        let others = [self.taken.shared.get(id), Some(&chosen)];
        capacity::fits(device, self.alternative(asked).capacity, others)
    }

    pub(super) fn take(&mut self, asked: Asked, candidate: usize) -> Step {
        let Candidate { device, pool, ref id, .. } = self.candidates[candidate];
        let is_shared = device.allow_multiple_allocations == Some(true);
        let id = id.clone();
        if self.is_gone(asked, candidate) {
            return Ok(self.refuse(asked, candidate, "in use"));
        }
        if self.counts(candidate) && !self.counters.take(pool, device) {
            return Ok(self.refuse(asked, candidate, "without enough counters"));
        }
        // A candidate refused below keeps its counters, as upstream.
        if self.alternative(asked).is_kept_away_by(device.taints.as_deref().unwrap_or_default()) {
            return Ok(self.refuse(asked, candidate, "tainted"));
        }
        if !self.add_to_constraints(asked, candidate) {
            if self.everything.contains_key(&asked) {
                let (title, request) =
                    (request::title(&self.claims[asked.claim]), &self.alternative(asked).full_name);
                return Err(Stop::Wrong(Unallocated::Wrong(format!(
                    "claim {title}, request {request}: cannot add device {id} because a claim \
                     constraint would not be satisfied"
                ))));
            }
            return Ok(self.refuse(asked, candidate, "against a constraint"));
        }
        if !self.has_capacity(asked, candidate) {
            return Ok(self.refuse(asked, candidate, "without the capacity"));
        }
        let mut consumed = None;
        if is_shared {
            let amounts = capacity::consumed(device, self.alternative(asked).capacity);
            let of =
                |(name, quantity): (&String, &Quantity)| (name.clone(), capacity::amount(quantity));
            self.sharing.entry(candidate).or_default().push(amounts.iter().map(of).collect());
            consumed = Some(amounts);
        } else {
            self.allocating.entry(candidate).or_default().insert(asked.claim);
        }
        let Asked { claim, request, alternative } = asked;
        self.chosen[claim].push(Choice { candidate, request, alternative, consumed });
        Ok(true)
    }

    /// True if a device consumes counters. Of a shared device only the first share does.
    fn counts(&self, candidate: usize) -> bool {
        let Candidate { device, id, .. } = &self.candidates[candidate];
        let in_use = self.taken.shared.contains_key(id)
            || self.sharing.get(&candidate).is_some_and(|shares| !shares.is_empty());
        let is_shared = device.allow_multiple_allocations == Some(true);
        !(is_shared && in_use) && device.consumes_counters.as_ref().is_some_and(|c| !c.is_empty())
    }

    fn add_to_constraints(&mut self, asked: Asked, candidate: usize) -> bool {
        let Candidate { device, id, .. } = &self.candidates[candidate];
        let request = &self.requests[asked.claim][asked.request];
        let full_name = &request.alternatives[asked.alternative].full_name;
        let whom = Asker { request: request.name, full_name };
        let constraints = &mut self.constraints[asked.claim];
        let refusing = constraints.iter_mut().position(|c| !c.add(whom, device, &id.driver));
        if let Some(refusing) = refusing {
            constraints[..refusing].iter_mut().for_each(|constraint| constraint.remove(whom));
        }
        refusing.is_none()
    }

    pub(super) fn give_back(&mut self, asked: Asked, candidate: usize) {
        let request = &self.requests[asked.claim][asked.request];
        let full_name = &request.alternatives[asked.alternative].full_name;
        let whom = Asker { request: request.name, full_name };
        self.constraints[asked.claim].iter_mut().for_each(|c| c.remove(whom));
        let choice = self.chosen[asked.claim].pop();
        if choice.is_some_and(|choice| choice.consumed.is_some()) {
            self.sharing.get_mut(&candidate).and_then(Vec::pop);
        } else {
            self.allocating.get_mut(&candidate).map(|claims| claims.remove(&asked.claim));
            let Candidate { device, pool, .. } = self.candidates[candidate];
            if device.consumes_counters.as_ref().is_some_and(|c| !c.is_empty()) {
                self.counters.give_back(pool, device);
            }
        }
    }
}
