//! The inventory cut into resources, without a device ever having two owners.
//!
//! A device stays with the resource that it was once allocatable through, whatever position the rules
//! find it at later. Only a new policy moves it, in three steps, since the kubelet may be giving it
//! away at this very moment:
//!
//! ```text
//!   kept ──policy changed──> waiting ──every Allocate is in the kubelet's record──> moved
//!                            (listed as unhealthy,                (offered anew; not allocatable
//!                             every Allocate is refused)           while a container holds it)
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use windlass_allocations::{Held, rivals::rivals};
use windlass_config::{DraOffer, Policy, Replicas, Resources, Shared, Sharing, SharingMethod};
use windlass_core::{
    device::{Cuts, Device, DeviceId},
    inventory::Inventory,
    replica::{ReplicaId, device_of, token},
    resource::ResourceName,
};

use super::{
    Allocatable, Marked, Offer, OfferedDevice, Offers, Withdrawn, earlier_ids,
    empty::{Outcome, empty},
    want::{Fit, Target, Want, Wants, present_parts, profile},
};

/// How a device's replicas were kept apart when they were last given away.
pub type Methods = BTreeMap<DeviceId, SharingMethod>;

/// The resource through which a device was last given away as a part of a pool: tokens that are held do
/// not say for which devices they stand.
pub type Pools = BTreeMap<DeviceId, ResourceName>;

/// What a plan is made from.
#[derive(Clone, Copy)]
pub struct Question<'a> {
    /// What is wanted.
    pub policy: &'a Policy,
    /// The devices.
    pub inventory: &'a Inventory,
    /// What the kubelet was told last.
    pub previous: &'a Offers,
    /// What containers hold.
    pub held: &'a Held,
    /// How replicas were kept apart that containers hold, where it is known.
    pub methods: &'a Methods,
    /// The pools that devices were part of, where it is known.
    pub pools: &'a Pools,
    /// What every id stood for that may be in a container's hands.
    pub marked: &'a Marked,
    /// Whether devices may move to another resource.
    pub moves: Moves,
    /// Why a device cannot be handed out although it is healthy.
    pub obstacle: &'a dyn Fn(&Device, Sharing) -> Option<String>,
    /// What has to be done to a device first that may be handed out otherwise.
    pub handover: &'a dyn Fn(&DeviceId) -> Option<String>,
}

impl std::fmt::Debug for Question<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Question").finish_non_exhaustive()
    }
}

/// Whether devices may change from one resource to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moves {
    /// They stay where they are.
    Kept,
    /// The policy is new: those that must move are given to no one for the moment.
    Waiting,
    /// The record says who holds what: the rest moves.
    Allowed,
}

/// The inventory cut into resources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The resources.
    pub offers: Offers,
    /// Devices that are part of no resource though someone might expect it, and why.
    pub withheld: BTreeMap<DeviceId, String>,
    /// Whether a device waits for its move.
    pub waiting: bool,
    /// Devices that are shared by MPS and in no container's hands otherwise.
    pub mps: BTreeMap<DeviceId, Replicas>,
    /// Resources of the configuration that no device of the node is for, and why.
    pub empty: BTreeMap<ResourceName, String>,
    /// Devices that claims may have, and how several claims share one.
    pub claimable: Claimable,
    /// Devices that claims would have by the configuration and cannot have, and why.
    pub unclaimable: Unclaimable,
}

/// Devices that are offered through Dynamic Resource Allocation, and how they are shared.
pub type Claimable = BTreeMap<DeviceId, Sharing>;

/// Devices that would be offered so by the configuration and cannot be, and why.
pub type Unclaimable = BTreeMap<DeviceId, &'static str>;

/// A plan in the making.
struct Planner<'a> {
    question: Question<'a>,
    /// What was given away since the agent started.
    given: BTreeSet<DeviceId>,
    /// The other ids that stood for a device, or for a part of it.
    earlier: BTreeMap<DeviceId, BTreeSet<DeviceId>>,
    offers: BTreeMap<ResourceName, Offer>,
    withheld: BTreeMap<DeviceId, String>,
    waiting: bool,
    mps: BTreeMap<DeviceId, Replicas>,
    claimable: Claimable,
    unclaimable: Unclaimable,
}

/// Under which name and by which kind of id a device is given away. Two claims that differ are two
/// accounts of the kubelet's, which knows nothing of the other.
#[derive(Clone, Debug, PartialEq)]
struct Claim {
    name: ResourceName,
    form: Form,
}

/// By which kind of id a device goes. Replicas that are kept apart in another way are others, though
/// their ids are the same; of those that were held when the agent started the way is not known.
#[derive(Clone, Copy, Debug)]
enum Form {
    Whole,
    Replicas(Option<SharingMethod>),
    Tokens,
}

impl PartialEq for Form {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Replicas(Some(one)), Self::Replicas(Some(other))) => one == other,
            (Self::Whole, Self::Whole)
            | (Self::Replicas(_), Self::Replicas(_))
            | (Self::Tokens, Self::Tokens) => true,
            _ => false,
        }
    }
}

/// Cuts the inventory into resources.
pub fn plan(question: Question<'_>) -> Plan {
    let wants = Wants::new(question.policy, question.inventory);
    let (offers, withheld, mps, claimable, unclaimable) = Default::default();
    let given = question.previous.values().flat_map(|offer| offer.given()).collect();
    let earlier = earlier_ids(question.marked, question.inventory);
    let waiting = false;
    let mut planner = Planner {
        question,
        given,
        earlier,
        offers,
        withheld,
        waiting,
        mps,
        claimable,
        unclaimable,
    };
    let mut wanted: Vec<_> =
        question.inventory.devices.iter().map(|device| (device, wants.of(device))).collect();
    planner.withhold_rivals(&mut wanted);
    for (device, want) in wanted {
        let want = planner.leave_to_claims(device, want, wants.fit(device));
        planner.place(device, want);
    }
    planner.keep_what_was_given();
    planner.keep_what_is_held();
    planner.finish()
}

// === impl Planner ===

impl Planner<'_> {
    /// A thing that two sources found is offered once. What a container has from an earlier life of the
    /// agent was given away as well.
    fn withhold_rivals(&self, wanted: &mut [(&Device, Want)]) {
        let held = self.question.held.values().flatten().filter_map(|id| device_of(id));
        let given = held.chain(self.given.iter().cloned()).collect();
        let claiming = wanted.iter().filter(|(device, want)| self.has_claim(&device.id, want));
        let mut rivals = rivals(claiming.map(|(device, _)| *device), &given);
        for (device, want) in wanted {
            if let Some(why) = rivals.remove(&device.id) {
                *want = Want::Unfit(why);
            }
        }
    }

    /// Whether a device is to be offered, or was and has not moved yet: whatever is wanted of it by now, a
    /// container may have it.
    fn has_claim(&self, id: &DeviceId, want: &Want) -> bool {
        match want {
            Want::Offered(_) => true,
            Want::Withheld(_) | Want::Nothing if self.question.moves == Moves::Allowed => false,
            Want::Withheld(_) | Want::Unfit(_) | Want::Nothing => self.owner(id).is_some(),
        }
    }

    /// What is left for the device plugin of a device that claims may have.
    fn leave_to_claims(&mut self, device: &Device, want: Want, fit: Fit) -> Want {
        let policy = &self.question.policy.dra;
        let is_taken = policy.takes(device, profile(device));
        let is_cut = self.is_cut_for_claims(device);
        if device.health.has_vanished() {
            // No resource is made for what is gone; what was given away as one stays listed.
            let is_left = is_cut || (is_taken && policy.offer == DraOffer::Instead);
            return if is_left { Want::Nothing } else { want };
        }
        if is_cut {
            return Want::Withheld(CUT_FOR_CLAIMS.to_owned());
        }
        let sharing = match &want {
            Want::Offered(target) => target.sharing,
            Want::Nothing if fit == Fit::Usable => Sharing::Exclusive,
            Want::Nothing | Want::Withheld(_) | Want::Unfit(_) => return want,
        };
        if !is_taken {
            return want;
        }
        if sharing.is_by_mps() {
            // The daemon is of a resource's containers: published, it would be chosen and always refused.
            self.unclaimable.insert(device.id.clone(), SHARED_BY_MPS);
            return want;
        }
        self.claimable.insert(device.id.clone(), sharing);
        match policy.offer {
            DraOffer::Instead => Want::Withheld(LEFT_TO_CLAIMS.to_owned()),
            DraOffer::Beside | DraOffer::Off => want,
        }
    }

    /// Whether instances are made for claims on this GPU, or on the one that this is an instance of.
    fn is_cut_for_claims(&self, device: &Device) -> bool {
        let Question { policy, inventory, .. } = self.question;
        let whole = device.parent.as_ref().and_then(|id| inventory.get(id.as_str()));
        policy.cuts_for_claims(whole.unwrap_or(device))
    }

    fn place(&mut self, device: &Device, want: Want) {
        let owner = self.owner(&device.id);
        let moves = self.question.moves;
        match (want, owner) {
            (Want::Offered(target), Some(owner)) if owner.claim() == target.claim() => {
                self.offer(device, &target);
            }
            (Want::Unfit(why), Some(owner)) => self.hold_back(device, &owner, why),
            (Want::Nothing, Some(_)) if device.partitioned && moves != Moves::Waiting => {}
            (_, Some(owner)) if moves == Moves::Kept => self.offer(device, &owner),
            (want, Some(owner)) if moves == Moves::Waiting => {
                self.waiting = true;
                self.hold_back(device, &owner, why_it_moves(want));
            }
            (Want::Offered(target), _) => self.offer(device, &target),
            (Want::Withheld(why) | Want::Unfit(why), _) => {
                self.withheld.insert(device.id.clone(), why);
            }
            (Want::Nothing, _) => {}
        }
    }

    /// Where the device was allocatable since the agent started.
    fn owner(&self, id: &DeviceId) -> Option<Target> {
        self.question.previous.iter().find_map(|(name, offer)| {
            let device = offer.devices.get(id).filter(|device| device.given)?;
            Some(Target { name: name.clone(), sharing: device.sharing })
        })
    }

    fn offer(&mut self, device: &Device, target: &Target) {
        let owner = self.owner(&device.id);
        let state = self.state(device, target);
        let given = owner.is_some_and(|owner| owner.claim() == target.claim());
        self.insert(device, target, given || state == Allocatable::Yes, state);
    }

    /// The device stays listed, and is given to no one.
    fn hold_back(&mut self, device: &Device, owner: &Target, why: String) {
        self.insert(device, owner, true, Allocatable::No(why));
    }

    fn insert(&mut self, device: &Device, target: &Target, given: bool, state: Allocatable) {
        let (sharing, numa_node) = (target.sharing, self.numa_hint(device));
        let offered = OfferedDevice { state, sharing, numa_node, given };
        let offer = self.offers.entry(target.name.clone()).or_default();
        offer.devices.insert(device.id.clone(), offered);
    }

    /// The NUMA node that the kubelet is told of.
    fn numa_hint(&self, device: &Device) -> Option<u32> {
        let is_told = !device.kind.is_network() || self.question.policy.nics.numa_hints;
        device.place.numa_node.filter(|_| is_told)
    }

    fn state(&mut self, device: &Device, target: &Target) -> Allocatable {
        let conflict = self.conflict(device, target);
        if let (None, Sharing::Shared(Shared { method: SharingMethod::Mps, replicas, .. })) =
            (&conflict, target.sharing)
        {
            self.mps.insert(device.id.clone(), replicas);
        }
        let why = match device.health.trouble() {
            _ if device.health.is_healthy() => conflict
                .or_else(|| self.trouble_of_a_part(device))
                .or_else(|| (self.question.obstacle)(device, target.sharing)),
            Some(trouble) => Some(trouble.to_string()),
            None => Some("not probed yet".to_owned()),
        };
        match why {
            Some(why) => Allocatable::No(why),
            None => {
                (self.question.handover)(&device.id).map_or(Allocatable::Yes, Allocatable::NotYet)
            }
        }
    }

    /// A GPU that is offered whole though it is cut is as well as its parts are.
    fn trouble_of_a_part(&self, device: &Device) -> Option<String> {
        let parts = present_parts(self.question.inventory, &device.id);
        let troubles =
            parts.filter_map(|part| Some(format!("{}: {}", part.id, part.health.trouble()?)));
        device.partitioned.then_some(troubles)?.next()
    }

    /// Who else has the device, its whole, or one of its parts.
    fn conflict(&mut self, device: &Device, target: &Target) -> Option<String> {
        if self.question.moves == Moves::Waiting && self.was_given_otherwise(device) {
            self.waiting = true;
            return Some("moves from another resource".to_owned());
        }
        let claim = target.claim();
        let itself = self.claims(&device.id).find(|held| *held != claim);
        let mut relatives = self.kin(device).chain(self.earlier(device));
        let held = itself.or_else(|| relatives.find_map(|id| self.claims(id).next()));
        held.map(|held| format!("a container holds it as {}", held.name))
    }

    /// Whether a container may have been given a part of the device under another id. A whole or a part
    /// that is here and was withdrawn has moved already; what went by an earlier id cannot say so.
    fn was_given_otherwise(&self, device: &Device) -> bool {
        self.kin(device).any(|id| self.owner(id).is_some())
            || self.earlier(device).any(|id| self.given.contains(id))
    }

    /// Its whole, and its parts.
    fn kin<'a>(&'a self, device: &'a Device) -> impl Iterator<Item = &'a DeviceId> {
        let parts = self.question.inventory.parts_of(&device.id).map(|part| &part.id);
        device.parent.iter().chain(parts)
    }

    /// The ids that stood for it, or for a part of it: what is gone may have a container still.
    fn earlier(&self, device: &Device) -> impl Iterator<Item = &DeviceId> {
        self.earlier.get(&device.id).into_iter().flatten()
    }

    /// How containers hold a device.
    fn claims<'a>(&'a self, id: &'a DeviceId) -> impl Iterator<Item = Claim> + 'a {
        let is_replica =
            move |held: &String| held.parse().is_ok_and(|replica: ReplicaId| replica.device == *id);
        self.question.held.iter().flat_map(move |(name, ids)| {
            let whole = ids.contains(id.as_str()).then_some(Form::Whole);
            let method = self.question.methods.get(id).copied();
            let replicas = ids.iter().any(is_replica).then_some(Form::Replicas(method));
            let pooled = self.question.pools.get(id) == Some(name);
            let has_tokens = pooled && ids.iter().any(|id| token(id).is_some());
            let claim = |form| Claim { name: name.clone(), form };
            let tokens = has_tokens.then_some(Form::Tokens);
            whole.into_iter().chain(replicas).chain(tokens).map(claim)
        })
    }

    /// Ids that were allocatable stay listed for the agent's life.
    fn keep_what_was_given(&mut self) {
        for (name, before) in self.question.previous {
            let given = before.devices.iter().filter(|(_, device)| device.given);
            let ids = given.flat_map(|(id, device)| device.list(id).map(|listed| listed.id));
            let withdrawn = before.withdrawn.iter().filter(|(_, entry)| entry.given);
            let withdrawn = withdrawn.map(|(id, _)| id.clone());
            for id in ids.map(String::from).chain(before.given_tokens()).chain(withdrawn) {
                self.keep(name, id, true);
            }
        }
    }

    /// Ids that containers hold are listed, if anything of that name is.
    fn keep_what_is_held(&mut self) {
        for (name, ids) in self.question.held {
            for id in
                ids.iter().filter(|_| self.offers.contains_key(name)).cloned().collect::<Vec<_>>()
            {
                self.keep(name, id, false);
            }
        }
    }

    fn keep(&mut self, name: &ResourceName, id: String, given: bool) {
        let inventory = self.question.inventory;
        let offer = self.offers.entry(name.clone()).or_default();
        if offer.find(&id).is_some() {
            return;
        }
        let base = id.parse::<ReplicaId>().map(|replica| replica.device.to_string());
        let device = inventory.get(base.as_deref().unwrap_or(&id));
        let still_here = base.is_ok_and(|base| offer.devices.contains_key(base.as_str()))
            || offer.devices.contains_key(id.as_str());
        let why = match device {
            _ if still_here || offer.pool().is_some() => "shared in another way by now",
            None if token(&id).is_some() => "no longer offered as this resource",
            Some(device) if device.partitioned => match device.family().cuts {
                Cuts::Mig => "cut into MIG instances",
                Cuts::Parts | Cuts::Never => "cut into parts",
            },
            Some(_) => "no longer offered as this resource",
            None => "no longer on this node",
        };
        let numa_node = device.and_then(|device| device.place.numa_node);
        let state = Allocatable::No(why.to_owned());
        offer.withdrawn.insert(id, Withdrawn { state, numa_node, given });
    }

    fn finish(self) -> Plan {
        let previous = self.question.previous;
        let Question { policy, inventory, .. } = self.question;
        let empty = match &policy.resources {
            Resources::Default => BTreeMap::new(),
            Resources::Rules(rules) => {
                let (offers, withheld) = (&self.offers, &self.withheld);
                empty(rules, Outcome { inventory, offers, withheld })
            }
        };
        let offers = self.offers.into_iter().map(|(name, offer)| share(name, offer, previous));
        Plan {
            offers: offers.collect(),
            withheld: self.withheld,
            waiting: self.waiting,
            mps: self.mps,
            empty,
            claimable: self.claimable,
            unclaimable: self.unclaimable,
        }
    }
}

/// What is told of a device that the device plugin has no longer.
const LEFT_TO_CLAIMS: &str = "offered through Dynamic Resource Allocation instead";

/// What is told of a device that stays with the device plugin, whatever claims are offered.
const SHARED_BY_MPS: &str = "it is shared by MPS among the containers of its resource, and claims have no part \
    in that: name it under dra.shares instead of the resource's sharing";

/// What is told of a GPU on which instances are made for claims, and of those instances.
const CUT_FOR_CLAIMS: &str =
    "MIG instances are made on this GPU for claims: dra.partitions is onDemand";

fn why_it_moves(want: Want) -> String {
    match want {
        Want::Offered(target) => format!("moves to {}", target.name),
        Want::Withheld(why) | Want::Unfit(why) => why,
        Want::Nothing => "other devices are offered in its place".to_owned(),
    }
}

/// An offer that did not change stays the same allocation, so that comparing it costs nothing.
fn share(name: ResourceName, offer: Offer, previous: &Offers) -> (ResourceName, Arc<Offer>) {
    let unchanged = previous.get(&name).filter(|earlier| ***earlier == offer);
    let offer = unchanged.cloned().unwrap_or_else(|| Arc::new(offer));
    (name, offer)
}

// === impl Target ===

impl Target {
    fn claim(&self) -> Claim {
        let form = match self.sharing {
            Sharing::Exclusive => Form::Whole,
            Sharing::Shared(shared) => Form::Replicas(Some(shared.method)),
            Sharing::Pooled(_) => Form::Tokens,
        };
        Claim { name: self.name.clone(), form }
    }
}
