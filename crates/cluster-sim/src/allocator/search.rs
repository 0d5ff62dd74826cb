//! Depth-first search: for each device of each request it takes the first candidate that fits, and backtracks.

mod trial;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{
    api::{
        core::v1::Node,
        resource::v1::{AllocationResult, ResourceClaim},
    },
    apimachinery::pkg::api::resource::Quantity,
};

use super::{
    MAX_RESULTS, Supply, Unallocated,
    candidate::{self, Candidate},
    constraint::Constraint,
    counters::Counters,
    pool::{self, Pool, State},
    request::{self, Alternative, HowMany, Request},
    taken::{Consumed, Taken},
};

/// State of a search.
#[derive(Debug)]
pub(super) struct Search<'a> {
    pub(super) node: &'a Node,
    pub(super) claims: &'a [ResourceClaim],
    pub(super) requests: Vec<Vec<Request<'a>>>,
    pub(super) candidates: Vec<Candidate<'a>>,
    /// Chosen devices, by claim.
    pub(super) chosen: Vec<Vec<Choice>>,
    /// Index of the chosen alternative, by claim and request.
    pub(super) alternatives: BTreeMap<(usize, usize), usize>,
    pools: Vec<Pool<'a>>,
    constraints: Vec<Vec<Constraint<'a>>>,
    taken: Taken,
    counters: Counters,
    /// Claims of each candidate that the search has chosen.
    allocating: BTreeMap<usize, BTreeSet<usize>>,
    /// Capacity of shared candidates that the search has consumed.
    sharing: BTreeMap<usize, Vec<Consumed>>,
    selected: BTreeMap<(Asked, usize), bool>,
    everything: BTreeMap<Asked, Vec<usize>>,
    /// By request, the most devices found, and the number wanted.
    reached: BTreeMap<String, (usize, String)>,
    refused: BTreeMap<String, Refusals>,
}

/// Refused candidates, by reason.
type Refusals = BTreeMap<&'static str, BTreeSet<usize>>;

/// Chosen device.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    pub(super) candidate: usize,
    pub(super) request: usize,
    pub(super) alternative: usize,
    /// Capacity that it consumes of a shared device.
    pub(super) consumed: Option<BTreeMap<String, Quantity>>,
}

/// Indices of a claim, its request and the alternative.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Asked {
    claim: usize,
    request: usize,
    alternative: usize,
}

/// Reason to end a branch of the search.
enum Stop {
    Wrong(Unallocated),
    /// The claim would exceed its limit of devices.
    TooMany,
}

type Step = Result<bool, Stop>;

// === impl Search ===

impl<'a> Search<'a> {
    pub(super) fn new(
        claims: &'a [ResourceClaim],
        supply: Supply<'a>,
        node: &'a Node,
    ) -> Result<Self, Unallocated> {
        let pools = pool::gather(supply.slices, node);
        let candidates = candidate::candidates(&pools);
        let read = |claim| request::requests(claim, supply.classes);
        let requests = claims.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        let taken = Taken::of(supply.claims);
        let counters = Counters::of(&pools, &taken);
        let constraints = claims.iter().map(constraints).collect::<Result<Vec<_>, _>>()?;
        let mut search = Self {
            node,
            claims,
            requests,
            candidates,
            chosen: vec![Vec::new(); claims.len()],
            alternatives: BTreeMap::new(),
            pools,
            constraints,
            taken,
            counters,
            allocating: BTreeMap::new(),
            sharing: BTreeMap::new(),
            selected: BTreeMap::new(),
            everything: BTreeMap::new(),
            reached: BTreeMap::new(),
            refused: BTreeMap::new(),
        };
        search.find_everything()?;
        Ok(search)
    }

    pub(super) fn run(mut self) -> Result<Vec<AllocationResult>, Unallocated> {
        match self.place_request(0, 0) {
            Ok(true) => Ok((0..self.claims.len()).map(|claim| self.result(claim)).collect()),
            Ok(false) => Err(Unallocated::NoFit(self.reason())),
            Err(Stop::TooMany) => {
                let reason = format!("a claim would have more than {MAX_RESULTS} devices");
                Err(Unallocated::NoFit(reason))
            }
            Err(Stop::Wrong(wrong)) => Err(wrong),
        }
    }

    /// Finds the devices of requests for all devices. Rejects claims whose requests exceed the limit of devices.
    fn find_everything(&mut self) -> Result<(), Unallocated> {
        for claim in 0..self.claims.len() {
            let mut least = 0;
            for request in 0..self.requests[claim].len() {
                let mut least_of_request = usize::MAX;
                for alternative in 0..self.requests[claim][request].alternatives.len() {
                    let asked = Asked { claim, request, alternative };
                    least_of_request = least_of_request.min(self.count(asked)?);
                }
                least += least_of_request;
            }
            if least > MAX_RESULTS {
                let title = request::title(&self.claims[claim]);
                return Err(Unallocated::Wrong(format!(
                    "claim {title}: number of requested devices {least} exceeds the claim limit of \
                     {MAX_RESULTS}"
                )));
            }
        }
        Ok(())
    }

    fn count(&mut self, asked: Asked) -> Result<usize, Unallocated> {
        if let HowMany::Exactly(count) = self.alternative(asked).how_many {
            return Ok(count);
        }
        for Pool { driver, name, state } in &self.pools {
            let state = match state {
                State::Ready(_) => continue,
                State::Incomplete => "being updated",
                State::Invalid(_) => "invalid",
            };
            let title = request::title(&self.claims[asked.claim]);
            let request = &self.alternative(asked).full_name;
            return Err(Unallocated::Wrong(format!(
                "claim {title}, request {request}: asks for all devices, but resource pool \
                 {driver}/{name} is currently {state}"
            )));
        }
        let mut all = Vec::new();
        for candidate in 0..self.candidates.len() {
            if self.is_selected(asked, candidate)? && self.has_capacity(asked, candidate) {
                all.push(candidate);
            }
        }
        let count = all.len();
        self.everything.insert(asked, all);
        Ok(count)
    }

    fn alternative(&self, asked: Asked) -> &Alternative<'a> {
        &self.requests[asked.claim][asked.request].alternatives[asked.alternative]
    }

    /// Places a request and all requests after it.
    fn place_request(&mut self, claim: usize, request: usize) -> Step {
        let Some(requests) = self.requests.get(claim) else { return Ok(true) };
        let Some(wanted) = requests.get(request) else {
            return match self.place_request(claim + 1, 0) {
                Err(Stop::TooMany) => Ok(false),
                step => step,
            };
        };
        let count = wanted.alternatives.len();
        let mut too_many = true;
        for alternative in 0..count {
            match self.place_device(Asked { claim, request, alternative }, 0, 0) {
                Err(Stop::TooMany) if count > 1 => {}
                Ok(true) => {
                    self.alternatives.insert((claim, request), alternative);
                    return Ok(true);
                }
                Ok(false) => too_many = false,
                stop => return stop,
            }
        }
        if too_many && count > 0 { Err(Stop::TooMany) } else { Ok(false) }
    }

    /// Places the device with this number, from a candidate on, and everything after it.
    fn place_device(&mut self, asked: Asked, number: usize, from: usize) -> Step {
        let all = self.everything.get(&asked).cloned();
        self.note_reached(asked, number);
        let wanted = match (&all, self.alternative(asked).how_many) {
            (Some(all), _) if all.is_empty() => {
                for candidate in 0..self.candidates.len() {
                    self.refuse(asked, candidate, "not selected");
                }
                return Ok(false);
            }
            (Some(all), _) => all.len(),
            (None, HowMany::Exactly(count)) => count,
            (None, HowMany::All) => unreachable!("found before the search began"),
        };
        if number >= wanted {
            return self.place_request(asked.claim, asked.request + 1);
        }
        if self.chosen[asked.claim].len() + wanted - number > MAX_RESULTS {
            return Err(Stop::TooMany);
        }
        if let Some(all) = all {
            return self.try_candidate(asked, (number, all[number]));
        }
        for candidate in from..self.candidates.len() {
            if self.is_possible(asked, candidate)?
                && self.try_candidate(asked, (number, candidate))?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Takes a candidate and continues. Gives the candidate back if the search fails.
    fn try_candidate(&mut self, asked: Asked, (number, candidate): (usize, usize)) -> Step {
        if !self.take(asked, candidate)? {
            return Ok(false);
        }
        let step = self.place_device(asked, number + 1, candidate + 1);
        if !matches!(step, Ok(true)) {
            self.give_back(asked, candidate);
        }
        step
    }

    fn note_reached(&mut self, asked: Asked, number: usize) {
        let Alternative { full_name, how_many, .. } = self.alternative(asked);
        let wanted = match how_many {
            HowMany::Exactly(count) => count.to_string(),
            HowMany::All => "all".to_owned(),
        };
        let best = self.reached.entry(full_name.clone()).or_insert((number, wanted));
        best.0 = best.0.max(number);
    }

    /// Diagnostic in one line: the devices that each request found, and the pools that were skipped.
    fn reason(&self) -> String {
        let there = self.candidates.len();
        let of_request = |(request, (found, wanted)): (&String, &(usize, String))| {
            let whys = self.refused.get(request).into_iter().flatten();
            let whys: Vec<_> = whys.map(|(why, who)| format!("{} {why}", who.len())).collect();
            let whys =
                if whys.is_empty() { String::new() } else { format!(" ({})", whys.join(", ")) };
            format!("request {request} found {found} of {wanted} among {there} devices{whys}")
        };
        let pools = self.pools.iter().filter_map(|Pool { driver, name, state }| match state {
            State::Ready(_) => None,
            State::Incomplete => Some(format!("pool {driver}/{name} is incomplete")),
            State::Invalid(why) => Some(format!("pool {driver}/{name} is invalid: {why}")),
        });
        let is_short =
            |(_, (found, wanted)): &(&String, &(usize, String))| found.to_string() != *wanted;
        let short = self.reached.iter().filter(is_short).map(of_request);
        short.chain(pools).collect::<Vec<_>>().join("; ")
    }
}

fn constraints(claim: &ResourceClaim) -> Result<Vec<Constraint<'_>>, Unallocated> {
    let all = claim.spec.devices.iter().flat_map(|devices| devices.constraints.iter().flatten());
    let read = |(index, constraint)| {
        Constraint::of(constraint).ok_or_else(|| {
            let title = request::title(claim);
            Unallocated::Wrong(format!(
                "claim {title}, constraint #{index}: empty constraint (unsupported constraint type?)"
            ))
        })
    };
    all.enumerate().map(read).collect()
}
