//! The search: for each claim, request and device of it the first candidate that fits, and back where
//! that leads nowhere.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{
    api::{
        core::v1::Node,
        resource::v1::{AllocationResult, Device, ResourceClaim, ResourceSlice},
    },
    apimachinery::pkg::api::resource::Quantity,
};
use windlass_core::{
    attribute::{AttributeName, AttributeValue},
    selector::{Amount, PublishedDevice},
};

use super::{
    DeviceId, MAX_RESULTS, Supply, Unallocated, capacity,
    constraint::{Asker, Constraint},
    counters::Counters,
    place,
    pool::{self, Pool, State},
    request::{self, Alternative, HowMany, Request},
    taken::{Consumed, Taken},
};

/// A search with all it knows and has chosen so far.
#[derive(Debug)]
pub(super) struct Search<'a> {
    pub(super) node: &'a Node,
    pub(super) claims: &'a [ResourceClaim],
    pub(super) requests: Vec<Vec<Request<'a>>>,
    pub(super) candidates: Vec<Candidate<'a>>,
    /// What was chosen, by claim.
    pub(super) chosen: Vec<Vec<Choice>>,
    /// Which alternative, by claim and request.
    pub(super) alternatives: BTreeMap<(usize, usize), usize>,
    pools: Vec<Pool<'a>>,
    constraints: Vec<Vec<Constraint<'a>>>,
    taken: Taken,
    counters: Counters,
    /// Devices that the search has chosen, by the claims that they are for.
    allocating: BTreeMap<usize, BTreeSet<usize>>,
    /// What the search has chosen of shared devices.
    sharing: BTreeMap<usize, Vec<Consumed>>,
    selected: BTreeMap<(Asked, usize), bool>,
    everything: BTreeMap<Asked, Vec<usize>>,
    /// By request, how many of how many devices were found at best.
    reached: BTreeMap<String, (usize, String)>,
    refused: BTreeMap<String, Refusals>,
}

/// Candidates by why they do not do.
type Refusals = BTreeMap<&'static str, BTreeSet<usize>>;

/// A device of a pool that is ready.
#[derive(Debug)]
pub(super) struct Candidate<'a> {
    pub(super) id: DeviceId,
    pub(super) device: &'a Device,
    pub(super) slice: &'a ResourceSlice,
    pool: usize,
    facts: PublishedDevice,
}

/// A device that was chosen.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    pub(super) candidate: usize,
    pub(super) request: usize,
    pub(super) alternative: usize,
    /// What it takes of a device that others may have too.
    pub(super) consumed: Option<BTreeMap<String, Quantity>>,
}

/// Which alternative of which request of which claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Asked {
    claim: usize,
    request: usize,
    alternative: usize,
}

/// Why a branch of the search ends at once.
enum Stop {
    Wrong(Unallocated),
    /// A claim would have too many devices.
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
        let candidates = candidates(&pools);
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

    /// What "all devices" are, and whether claims can have what they ask for at all.
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

    /// Finds devices for a request and all that come after it.
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

    /// Finds the device of a number, from a candidate on, and all that come after it.
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

    /// Whether a candidate is free, selected, and has the capacity.
    fn is_possible(&mut self, asked: Asked, candidate: usize) -> Step {
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

    /// Notes why a candidate does not do.
    fn refuse(&mut self, asked: Asked, candidate: usize, why: &'static str) -> bool {
        let request = self.alternative(asked).full_name.clone();
        self.refused.entry(request).or_default().entry(why).or_default().insert(candidate);
        false
    }

    /// Who only looks may look at what others have, but not twice in one claim.
    fn is_gone(&self, asked: Asked, candidate: usize) -> bool {
        let claims = self.allocating.get(&candidate);
        if self.alternative(asked).admin_access {
            return claims.is_some_and(|claims| claims.contains(&asked.claim));
        }
        self.taken.whole.contains(&self.candidates[candidate].id)
            || claims.is_some_and(|claims| !claims.is_empty())
    }

    fn is_selected(&mut self, asked: Asked, candidate: usize) -> Result<bool, Unallocated> {
        if let Some(known) = self.selected.get(&(asked, candidate)) {
            return Ok(*known);
        }
        let Candidate { device, slice, facts, .. } = &self.candidates[candidate];
        let selected = self.alternative(asked).selects(facts)?
            && (!place::is_by_device(slice) || place::device_matches(device, self.node));
        self.selected.insert((asked, candidate), selected);
        Ok(selected)
    }

    fn has_capacity(&self, asked: Asked, candidate: usize) -> bool {
        let Candidate { device, id, .. } = &self.candidates[candidate];
        let mut chosen = Consumed::new();
        for (name, amount) in self.sharing.get(&candidate).into_iter().flatten().flatten() {
            let sum = chosen.entry(name.clone()).or_insert(Amount::ZERO);
            *sum = sum.saturating_add(*amount);
        }
        let others = [self.taken.shared.get(id), Some(&chosen)];
        capacity::fits(device, self.alternative(asked).capacity, others)
    }

    /// Takes a candidate, goes on, and gives it back if that leads nowhere.
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

    fn take(&mut self, asked: Asked, candidate: usize) -> Step {
        let Candidate { device, pool, ref id, .. } = self.candidates[candidate];
        let is_shared = device.allow_multiple_allocations == Some(true);
        let id = id.clone();
        if self.is_gone(asked, candidate) {
            return Ok(self.refuse(asked, candidate, "in use"));
        }
        if self.counts(candidate) && !self.counters.take(pool, device) {
            return Ok(self.refuse(asked, candidate, "without enough counters"));
        }
        // From here on what is refused keeps its counters, as upstream.
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

    /// Whether a device takes counters: the first share of a shared one does for all.
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

    fn give_back(&mut self, asked: Asked, candidate: usize) {
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

    fn note_reached(&mut self, asked: Asked, number: usize) {
        let Alternative { full_name, how_many, .. } = self.alternative(asked);
        let wanted = match how_many {
            HowMany::Exactly(count) => count.to_string(),
            HowMany::All => "all".to_owned(),
        };
        let best = self.reached.entry(full_name.clone()).or_insert((number, wanted));
        best.0 = best.0.max(number);
    }

    /// Why nothing fits, in a line: what each request found, and which pools were not looked at.
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

fn candidates<'a>(pools: &[Pool<'a>]) -> Vec<Candidate<'a>> {
    let mut candidates = Vec::new();
    for (pool, Pool { state, .. }) in pools.iter().enumerate() {
        let State::Ready(contents) = state else { continue };
        for slice in &contents.here {
            let devices = slice.spec.devices.iter().flatten();
            candidates.extend(devices.map(|device| Candidate::of(pool, slice, device)));
        }
    }
    candidates
}

// === impl Candidate ===

impl<'a> Candidate<'a> {
    fn of(pool: usize, slice: &'a ResourceSlice, device: &'a Device) -> Self {
        let driver = &slice.spec.driver;
        let id = DeviceId {
            driver: driver.clone(),
            pool: slice.spec.pool.name.clone(),
            device: device.name.clone(),
        };
        let name = |name: &String| AttributeName::published(driver, name);
        let attributes = device.attributes.iter().flatten().filter_map(|(key, value)| {
            let string = value.string.clone().map(AttributeValue::String);
            let version = || value.version.clone().map(AttributeValue::Version);
            let int = || value.int.map(AttributeValue::Int);
            let bool = || value.bool.map(AttributeValue::Bool);
            Some((name(key), string.or_else(version).or_else(int).or_else(bool)?))
        });
        let capacities = device.capacity.iter().flatten();
        let facts = PublishedDevice {
            id: id.to_string(),
            driver: driver.clone(),
            attributes: attributes.collect(),
            capacity: capacities.map(|(k, c)| (name(k), capacity::amount(&c.value))).collect(),
            allow_multiple_allocations: device.allow_multiple_allocations == Some(true),
        };
        Self { id, device, slice, pool, facts }
    }
}
