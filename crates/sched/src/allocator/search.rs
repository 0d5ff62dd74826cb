//! Depth-first search: for each device of each request it takes the first candidate that fits, and backtracks.

mod reason;
mod trial;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use self::reason::Refusals;
use super::{
    AllocationError, MAX_RESULTS,
    allocated_devices::{AllocatedDevices, Consumed, Holdings},
    claims::Claim,
    constraint::Constraint,
    counters::Counters,
    pool::{Pool, State},
    pools::Pools,
    request::{Alternative, ClaimRequest, DeviceCount},
};

/// State of a search.
#[derive(Debug)]
pub(super) struct Search<'a> {
    pub(super) claims: &'a [Claim],
    pub(super) pools: &'a Pools,
    /// Chosen devices, by claim.
    pub(super) chosen: Vec<Vec<Choice>>,
    /// Index of the chosen alternative, by claim and request.
    pub(super) alternatives: BTreeMap<(usize, usize), usize>,
    constraints: Vec<Vec<Constraint>>,
    /// Devices that other claims hold, by pool.
    holdings: Vec<Option<&'a Holdings>>,
    counters: Counters,
    /// By candidate: the claims for which the search has chosen the whole device.
    chosen_whole: BTreeMap<usize, BTreeSet<usize>>,
    /// By shared candidate: the capacity that each share chosen by the search consumes.
    chosen_shares: BTreeMap<usize, Vec<Consumed>>,
    /// By candidate: the number of its signature. With `None` the expressions are evaluated for each candidate.
    signatures: Option<&'a [u32]>,
    selections: &'a mut Selections,
    /// By alternative with the allocation mode `All`: its candidates.
    all_devices: BTreeMap<AlternativeIndex, Vec<usize>>,
    /// By alternative: the largest number of devices that the search has found for it.
    most_found: BTreeMap<AlternativeIndex, usize>,
    refusals: BTreeMap<AlternativeIndex, Refusals>,
}

/// Cached results of selectors, by request and device signature.
#[derive(Debug, Default)]
pub struct Selections(HashMap<(AlternativeIndex, usize), bool>);

/// Maximum number of cached results.
const MAX_SELECTIONS: usize = 1 << 16;

/// A device chosen by the search.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    pub(super) candidate: usize,
    pub(super) request: usize,
    pub(super) alternative: usize,
    /// Capacity that the choice consumes of a shared device.
    pub(super) consumed: Option<BTreeMap<String, Quantity>>,
}

/// Indices of a claim, its request and the alternative.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct AlternativeIndex {
    claim: usize,
    request: usize,
    alternative: usize,
}

/// Reason to abandon a branch of the search.
enum Abort {
    Error(AllocationError),
    /// The claim would exceed its limit of devices.
    TooMany,
}

/// `Ok(true)` if a step succeeded, `Ok(false)` if the search must backtrack.
type Step = Result<bool, Abort>;

// === impl Search ===

impl<'a> Search<'a> {
    pub(super) fn new(
        claims: &'a [Claim],
        pools: &'a Pools,
        allocated: &'a AllocatedDevices,
        (signatures, selections): (Option<&'a [u32]>, &'a mut Selections),
    ) -> Result<Self, AllocationError> {
        if selections.0.len() > MAX_SELECTIONS {
            selections.0.clear();
        }
        let holdings = allocated.of_pools(&pools.members);
        let mut search = Self {
            claims,
            pools,
            chosen: vec![Vec::new(); claims.len()],
            alternatives: BTreeMap::new(),
            constraints: claims.iter().map(|claim| claim.constraints.clone()).collect(),
            counters: Counters::of(&pools.members, &holdings),
            holdings,
            chosen_whole: BTreeMap::new(),
            chosen_shares: BTreeMap::new(),
            signatures,
            selections,
            all_devices: BTreeMap::new(),
            most_found: BTreeMap::new(),
            refusals: BTreeMap::new(),
        };
        search.find_all_devices()?;
        Ok(search)
    }

    /// Runs the search. The returned value has the first solution.
    pub(super) fn run(mut self) -> Result<Self, AllocationError> {
        match self.place_request(0, 0) {
            Ok(true) => Ok(self),
            Ok(false) => Err(AllocationError::NoFit(self.reason())),
            Err(Abort::TooMany) => {
                let reason = format!("a claim would have more than {MAX_RESULTS} devices");
                Err(AllocationError::NoFit(reason))
            }
            Err(Abort::Error(error)) => Err(error),
        }
    }

    /// Finds the candidates of requests for all devices. Fails if a claim requests more than [`MAX_RESULTS`] devices.
    fn find_all_devices(&mut self) -> Result<(), AllocationError> {
        for (claim, Claim { namespaced_name, requests, .. }) in self.claims.iter().enumerate() {
            let mut min_count = 0_usize;
            for (request, ClaimRequest { alternatives, .. }) in requests.iter().enumerate() {
                let mut min_request_count = usize::MAX;
                for alternative in 0..alternatives.len() {
                    let index = AlternativeIndex { claim, request, alternative };
                    min_request_count = min_request_count.min(self.count(index)?);
                }
                min_count = min_count.saturating_add(min_request_count);
            }
            if min_count > MAX_RESULTS {
                return Err(AllocationError::Invalid(format!(
                    "claim {namespaced_name}: number of requested devices {min_count} exceeds the claim limit of \
                     {MAX_RESULTS}"
                )));
            }
        }
        Ok(())
    }

    fn count(&mut self, index: AlternativeIndex) -> Result<usize, AllocationError> {
        if let DeviceCount::Exactly(count) = self.alternative(index).device_count {
            return Ok(count);
        }
        for Pool { id, state } in &self.pools.members {
            let state = match state {
                State::Ready(_) => continue,
                State::Incomplete => "being updated",
                State::Invalid(_) => "invalid",
            };
            let claim = &self.claims[index.claim].namespaced_name;
            let request = &self.alternative(index).full_name;
            return Err(AllocationError::Invalid(format!(
                "claim {claim}, request {request}: asks for all devices, but resource pool \
                 {id} is currently {state}"
            )));
        }
        let mut candidates = Vec::new();
        for candidate in 0..self.pools.len() {
            if self.is_selected(index, candidate)? && self.has_capacity(index, candidate) {
                candidates.push(candidate);
            }
        }
        let count = candidates.len();
        self.all_devices.insert(index, candidates);
        Ok(count)
    }

    fn alternative(&self, index: AlternativeIndex) -> &'a Alternative {
        &self.claims[index.claim].requests[index.request].alternatives[index.alternative]
    }

    /// Places a request and all requests after it.
    fn place_request(&mut self, claim: usize, request: usize) -> Step {
        let Some(Claim { requests, .. }) = self.claims.get(claim) else { return Ok(true) };
        let Some(ClaimRequest { alternatives, .. }) = requests.get(request) else {
            return match self.place_request(claim + 1, 0) {
                Err(Abort::TooMany) => Ok(false),
                step => step,
            };
        };
        let count = alternatives.len();
        let mut too_many = true;
        for alternative in 0..count {
            match self.place_device(AlternativeIndex { claim, request, alternative }, 0, 0) {
                Err(Abort::TooMany) if count > 1 => {}
                Ok(true) => {
                    self.alternatives.insert((claim, request), alternative);
                    return Ok(true);
                }
                Ok(false) => too_many = false,
                step => return step,
            }
        }
        if too_many && count > 0 { Err(Abort::TooMany) } else { Ok(false) }
    }

    /// Places the request's device with this number and all later devices. Tries the candidates from position `start`
    /// on.
    fn place_device(&mut self, index: AlternativeIndex, number: usize, start: usize) -> Step {
        let all_devices = self.all_devices.get(&index).cloned();
        self.record_found(index, number);
        let count = match (&all_devices, self.alternative(index).device_count) {
            (Some(all_devices), _) if all_devices.is_empty() => {
                for candidate in 0..self.pools.len() {
                    self.refuse(index, candidate, "not selected");
                }
                return Ok(false);
            }
            (Some(all_devices), _) => all_devices.len(),
            (None, DeviceCount::Exactly(count)) => count,
            (None, DeviceCount::All) => unreachable!("find_all_devices ran first"),
        };
        if number >= count {
            return self.place_request(index.claim, index.request + 1);
        }
        if self.chosen[index.claim].len() + count - number > MAX_RESULTS {
            return Err(Abort::TooMany);
        }
        if let Some(all_devices) = all_devices {
            return self.try_candidate(index, (number, all_devices[number]));
        }
        for candidate in start..self.pools.len() {
            if self.is_possible(index, candidate)?
                && self.try_candidate(index, (number, candidate))?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Chooses a candidate and continues with the next device. Releases the candidate if a later device fails.
    fn try_candidate(
        &mut self,
        index: AlternativeIndex,
        (number, candidate): (usize, usize),
    ) -> Step {
        if !self.choose(index, candidate)? {
            return Ok(false);
        }
        let step = self.place_device(index, number + 1, candidate + 1);
        if !matches!(step, Ok(true)) {
            self.release(index, candidate);
        }
        step
    }
}
