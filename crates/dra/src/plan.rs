//! What a claim gets: a pure function of the claim, the node, and what other claims have.

mod partitions;
pub(super) mod variables;

use std::borrow::Cow;

use windlass_allocations::ledger::{ClaimRef, Footprint, Use, together};
use windlass_cdi::container_edits::{self, Grant, grant};
use windlass_config::{Delivery, DeviceIds, DriverName, Strategy};
use windlass_core::{
    cdi::ContainerEdits,
    device::{Device, DeviceId, Partition},
    resource::{InvalidResourceName, ResourceName},
};
use windlass_lifecycle::{cleanup::HandoverStates, mps::MpsPlaces};
use windlass_resources::NodeState;

use super::{
    catalog::{Catalog, EntryName},
    claim::{Access, Allotted, Claim},
    document,
    opaque::{Configs, OpaqueError},
    record::{Held, Records},
    terms::{Allocation, Terms, TermsError},
    time_slice::Interval,
};

/// What a plan is made from.
pub(crate) struct Ground<'a> {
    pub(crate) driver: &'a DriverName,
    pub(crate) state: &'a NodeState,
    pub(crate) catalog: &'a Catalog,
    /// Where devices stand between two tenants.
    pub(crate) handovers: &'a HandoverStates,
    /// What is prepared.
    pub(crate) records: &'a Records,
    /// Where daemons are that containers are clients of.
    pub(crate) mps: &'a MpsPlaces,
}

/// Why a claim cannot have a device.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("request {request}: pool {pool} has no device {device}{why}")]
    Unknown { request: String, pool: String, device: String, why: &'static str },
    #[error("request {request}: {device} cannot be used: {why}")]
    NotWell { request: String, device: DeviceId, why: String },
    #[error("request {request}: {device} is held by another claim")]
    Taken { request: String, device: String, by: ClaimRef },
    #[error(
        "request {request}: {device} stands at {place} already, and was not made for this claim: it is \
         removed when the agent starts anew and nobody has it"
    )]
    Foreign { request: String, place: Partition, device: DeviceId },
    #[error("request {request}: there is no instance to look at, {place}")]
    NotMade { request: String, place: Partition },
    #[error("request {request}: {device} is for no claim: {why}")]
    NotForClaims { request: String, device: DeviceId, why: &'static str },
    #[error(
        "request {0}: a program has one MPS daemon, and the request got several devices: ask for each in a \
         request of its own"
    )]
    Daemons(String),
    #[error(transparent)]
    Opaque(#[from] OpaqueError),
    #[error(transparent)]
    Terms(#[from] TermsError),
    #[error("request {request} gives no name to a variable")]
    Request { request: String, source: InvalidResourceName },
    #[error("{0}")]
    Document(String),
}

/// A result with what it stands for.
struct Chosen<'a> {
    result: &'a Allotted,
    device: Cow<'a, Device>,
    /// Where it is to be made, or was.
    partition: Option<&'a Partition>,
    terms: Terms,
}

/// What the claim gets, in the order of its results.
pub(crate) fn plan(claim: &Claim, ground: &Ground<'_>) -> Result<Vec<Held>, Refusal> {
    let configs = Configs::read(claim)?;
    let chosen = claim.results.iter().map(|result| {
        let chosen = ground.choose((claim, result), &configs)?;
        ground.check_free(claim, &chosen)?;
        Ok(chosen)
    });
    let chosen = chosen.collect::<Result<Vec<_>, Refusal>>()?;
    check_daemons(&chosen)?;
    let devices: Vec<_> = chosen.iter().map(|it| &*it.device).collect();
    ground.state.check_documents(&devices).map_err(Refusal::Document)?;
    let held = |position| ground.held(claim, &chosen, position);
    (0..chosen.len()).map(held).collect()
}

/// What a refused claim names, as far as it is known what that is.
pub(crate) fn named(claim: &Claim, catalog: &Catalog) -> Vec<Held> {
    let held = |result: &Allotted| Held {
        pool: result.pool.clone(),
        name: result.device.clone(),
        device: catalog.find(&result.pool, &result.device).map(|it| it.device.clone()),
        partition: None,
        usage: Use::Admin,
        interval: Interval::Default,
        requests: vec![result.base_request().to_owned()],
        cdi: Vec::new(),
        share: result.share.clone(),
        consumed: result.consumed.clone(),
        edits: ContainerEdits::default(),
    };
    claim.results.iter().map(held).collect()
}

/// What has to be taken in the ledger for what is held, each device once, as the strongest use wants it.
pub(crate) fn takes(held: &[Held], state: &NodeState) -> Vec<(Footprint, Use)> {
    let uses = together(held.iter().filter_map(|it| Some((it.device.as_ref()?, it.usage))));
    uses.into_iter().map(|(device, usage)| (state.kin.footprint(device), usage)).collect()
}

// === impl Refusal ===

impl Refusal {
    /// The claim that has what is wanted, for the node's own log: its name is no business of the other's.
    pub(super) fn holder(&self) -> Option<&ClaimRef> {
        if let Self::Taken { by, .. } = self { Some(by) } else { None }
    }
}

// === impl Ground ===

impl<'a> Ground<'a> {
    fn choose(
        &self,
        (claim, result): (&Claim, &'a Allotted),
        configs: &Configs<'_>,
    ) -> Result<Chosen<'a>, Refusal> {
        let Allotted { request, pool, device, .. } = result;
        let find = || self.catalog.find(pool, device);
        if let (None, Some((id, why))) = (find(), self.unclaimable(device)) {
            let (request, device) = (request.clone(), id.clone());
            return Err(Refusal::NotForClaims { request, device, why });
        }
        let unknown = |why| Refusal::Unknown {
            request: request.clone(),
            pool: pool.clone(),
            device: device.clone(),
            why,
        };
        let looking = if self.state.inventory.is_complete() { "" } else { " (yet)" };
        let offered = find().ok_or_else(|| unknown(looking))?;
        let partition = offered.partition.as_ref();
        let device = if let Some(place) = partition {
            self.instance((claim, result), (offered, place))?
        } else {
            let found = self.state.inventory.get(offered.device.as_str());
            self.as_a_whole(found.ok_or_else(|| unknown(" any more"))?)
        };
        check_well(result, &device)?;
        self.check_way(result, &device)?;
        let allocation = Allocation { result, offered, device: &device, driver: self.driver };
        let terms = Terms::of(allocation, configs.asked(result, &device)?)?;
        Ok(Chosen { result, device, partition, terms })
    }

    /// The device of a name that is not published, and why it is not.
    fn unclaimable(&self, name: &str) -> Option<(&DeviceId, &'static str)> {
        let mut all = self.state.unclaimable.iter();
        all.find(|(id, _)| EntryName::of(id).as_str() == name).map(|(id, why)| (id, *why))
    }

    /// Whether nothing beside it is in the way, such as a lease that another node holds.
    fn check_way(&self, result: &Allotted, device: &Device) -> Result<(), Refusal> {
        let obstacle = self.state.obstacle(device).filter(|_| result.access != Access::Admin);
        obstacle.map_or(Ok(()), |obstacle| {
            let (request, why) = (result.request.clone(), obstacle.why.clone());
            Err(Refusal::NotWell { request, device: device.id.clone(), why })
        })
    }

    /// Whether no other claim has it by name: the ledger knows devices, and not yet those that the kubelet's
    /// record alone tells of.
    fn check_free(&self, claim: &Claim, chosen: &Chosen<'_>) -> Result<(), Refusal> {
        let (result, usage) = (chosen.result, chosen.terms.usage);
        let others = self.records.values().filter(|other| other.claim.uid != claim.reference.uid);
        let has_it = |held: &Held| {
            let both_share = held.usage.goes_with(usage);
            let is_it = held.pool == result.pool && held.name == result.device;
            is_it && held.usage != Use::Admin && usage != Use::Admin && !both_share
        };
        match { others }.find(|other| other.devices.iter().any(has_it)) {
            None => Ok(()),
            Some(other) => Err(Refusal::Taken {
                request: result.request.clone(),
                device: result.device.clone(),
                by: other.claim.clone(),
            }),
        }
    }

    fn held(&self, claim: &Claim, chosen: &[Chosen<'_>], position: usize) -> Result<Held, Refusal> {
        let Chosen { result, device, terms, .. } = &chosen[position];
        let request = result.base_request();
        if !chosen[position].is_there() {
            return Ok(chosen[position].held());
        }
        let names = self.grant(request, &[device])?.cdi_devices;
        let mut edits = ContainerEdits::default();
        // A container gets all devices of a request, and the request's variables with the last of them.
        let is_of_request = |it: &&Chosen<'_>| it.result.base_request() == request;
        if !chosen[position + 1..].iter().any(|it| is_of_request(&it)) {
            let together = chosen[..=position].iter().filter(is_of_request);
            let together: Vec<_> = together.map(|it| &*it.device).collect();
            let resource = self.resource(request)?;
            let envs = self.grant(request, &together)?.envs;
            edits = variables::of_request(&claim.called, &resource, envs);
        }
        if let Some(limits) = terms.client {
            let client = limits.edits(device, self.mps);
            edits.env.extend(client.env);
            edits.mounts.extend(client.mounts);
        }
        let own = || document::name(&claim.reference.uid, position);
        let own = (!edits.is_empty()).then(own);
        let cdi = names.into_iter().chain(own).collect();
        Ok(Held { cdi, edits, ..chosen[position].held() })
    }

    /// What the device plugin would give, if it gave by CDI.
    fn grant(&self, request: &str, devices: &[&Device]) -> Result<Grant, Refusal> {
        let resource = self.resource(request)?;
        let policy = &self.state.policy;
        let delivery = Delivery {
            strategies: [Strategy::CdiCri].into(),
            ids: DeviceIds::Uuid,
            ..policy.delivery.clone()
        };
        Ok(grant(container_edits::Question {
            resource: &resource,
            devices,
            delivery: &delivery,
            nics: &policy.nics,
            surroundings: &self.state.surroundings,
            mps: None,
            simulated: self.state.inventory.simulated.as_deref(),
        }))
    }

    /// What stands for a resource's name in the variables of a container.
    fn resource(&self, request: &str) -> Result<ResourceName, Refusal> {
        let name = format!("{}/{request}", self.driver).parse();
        name.map_err(|source| Refusal::Request { request: request.to_owned(), source })
    }
}

// === impl Chosen ===

impl Chosen<'_> {
    /// Whether it is not first to be made.
    fn is_there(&self) -> bool {
        self.partition.is_none_or(|place| place.id() != self.device.id)
    }

    /// What is known of it without what containers get.
    fn held(&self) -> Held {
        let Self { result, device, partition, terms } = self;
        let usage = terms.usage;
        Held {
            pool: result.pool.clone(),
            name: result.device.clone(),
            device: Some(partition.map_or_else(|| device.id.clone(), Partition::id)),
            partition: partition.filter(|_| usage != Use::Admin).cloned(),
            usage,
            interval: terms.interval,
            requests: vec![result.base_request().to_owned()],
            cdi: Vec::new(),
            share: result.share.clone(),
            consumed: result.consumed.clone(),
            edits: ContainerEdits::default(),
        }
    }
}

fn check_well(result: &Allotted, device: &Device) -> Result<(), Refusal> {
    if device.health.is_healthy() || result.access == Access::Admin {
        return Ok(());
    }
    let trouble = device.health.trouble().map(ToString::to_string);
    let why = trouble.unwrap_or_else(|| "not probed yet".to_owned());
    Err(Refusal::NotWell { request: result.request.clone(), device: device.id.clone(), why })
}

/// A container that gets what a request got is a client of one daemon at most.
fn check_daemons(chosen: &[Chosen<'_>]) -> Result<(), Refusal> {
    for client in chosen.iter().filter(|it| it.terms.client.is_some()) {
        let request = client.result.base_request();
        if chosen.iter().filter(|it| it.result.base_request() == request).count() > 1 {
            return Err(Refusal::Daemons(request.to_owned()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
