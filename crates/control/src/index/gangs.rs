//! Gangs: pods that start together or not at all.
//!
//! ```text
//!   filter: all members are there, and have places side by side
//!     │
//!   bind of the first: it waits, and places for those that have not come are reserved
//!     │                              │
//!   binds of the others              └─ not all come in time ─> all places are free again, all members are tried anew
//!     │
//!   the last has come: each is written
//! ```
//!
//! A filter plans for the members that have not come for their bind yet, as if their places were free. The bind of a
//! member plans once more and reserves. So the places follow kube-scheduler where it refuses a node for a reason of its
//! own, and no other pod gets one of them meanwhile.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet, HashMap},
};

use tokio::sync::watch;
use windlass_sched::{
    gang::{Member, places},
    request::Request,
    view::{NodeIx, Placement},
};

use super::{Assumed, Index, Placed, Refusal, known_node, node_set::NodeSet};
use crate::facts::{Gang, GpuWish, PodFacts, SharedBy};

/// Members of all gangs, and the gangs whose members wait for each other.
#[derive(Debug, Default)]
pub(super) struct Gangs {
    /// Pods that have not ended.
    members: BTreeMap<GangKey, BTreeSet<String>>,
    gatherings: BTreeMap<GangKey, Gathered>,
    /// Nodes that kube-scheduler offered for members with such a request since the gang was tried anew. It leaves those
    /// out that it keeps for members whose bind is on its way, so the last offer alone would be too small.
    offers: BTreeMap<GangKey, Offers>,
    begun: u64,
}

/// Namespace and name of a gang.
type GangKey = (String, String);

/// Nodes that kube-scheduler offered for a request.
type Offers = BTreeMap<Request, NodeSet>;

/// A request, and the names by which it asks for shares.
type Kind = (Request, Option<SharedBy>);

/// Members of a gang that have come for their bind and wait.
#[derive(Debug)]
struct Gathered {
    number: u64,
    pods: BTreeSet<String>,
    is_whole: watch::Sender<bool>,
}

/// The wait of one member for the others.
#[derive(Clone, Debug)]
pub struct Gathering {
    key: GangKey,
    number: u64,
    /// Becomes true once all members have come; closed once they are given up.
    is_whole: watch::Receiver<bool>,
}

/// The moment at which a placed pod may be bound.
#[derive(Clone, Debug)]
pub enum Turn {
    /// Now: it needs nobody.
    Alone,
    /// Once the other members of its gang have come.
    Waits(Gathering),
    /// Now, with all members that waited for it.
    Last,
}

/// The other members of a pod's gang.
#[derive(Default)]
struct Others {
    /// Those that are bound, or whose bind is being written.
    bound: Vec<String>,
    /// Those that have come for their bind and wait.
    come: Vec<String>,
    /// The oldest of the rest, as many as the gang lacks.
    awaited: Vec<PodFacts>,
}

/// A pod and the members that have not come, which need places side by side.
struct Wanted {
    gang: Gang,
    /// The oldest first. Members are asked for one after the other, maybe before a bind, so all questions need one plan.
    pods: Vec<PodFacts>,
    /// Position of the pod in question.
    position: usize,
    /// Members that have their places.
    present: Vec<String>,
}

// === impl Wanted ===

impl Wanted {
    fn of(pod: &PodFacts, gang: Gang, others: Others) -> Self {
        let Others { bound, come, awaited: mut pods } = others;
        pods.push(pod.clone());
        pods.sort_by(by_age);
        let position = pods.iter().position(|it| it.uid == pod.uid).expect("pushed above");
        Self { gang, pods, position, present: [bound, come].concat() }
    }
}

// === impl Gathering ===

impl Gathering {
    /// Name of the gang.
    pub fn gang(&self) -> &str {
        &self.key.1
    }

    /// Waits for the other members; false once they are given up.
    pub async fn is_whole(&mut self) -> bool {
        self.is_whole.wait_for(|is_whole| *is_whole).await.is_ok()
    }
}

// === impl Gangs ===

impl Gangs {
    /// Notes a pod that is new or has changed.
    pub(super) fn set(&mut self, before: Option<&PodFacts>, pod: &PodFacts) {
        let key = key(pod);
        if let Some(before) = before.filter(|before| self::key(before) != key) {
            self.remove(before);
        }
        if let Some(key) = key {
            self.members.entry(key).or_default().insert(pod.uid.clone());
        }
    }

    /// Notes that a pod is gone.
    pub(super) fn remove(&mut self, pod: &PodFacts) {
        let Some(key) = key(pod) else { return };
        if let Some(gathered) = self.gatherings.get_mut(&key) {
            gathered.pods.remove(&pod.uid);
        }
        if let Some(members) = self.members.get_mut(&key) {
            members.remove(&pod.uid);
            if members.is_empty() {
                self.members.remove(&key);
                self.offers.remove(&key);
            }
        }
    }

    /// Members that have not come for their bind.
    fn absent(&self, key: &GangKey) -> Vec<String> {
        let come = self.gatherings.get(key).map(|it| &it.pods);
        let all = self.members.get(key).into_iter().flatten();
        all.filter(|uid| come.is_none_or(|come| !come.contains(*uid))).cloned().collect()
    }
}

fn key(pod: &PodFacts) -> Option<GangKey> {
    Some(key_of(pod, pod.gang.as_ref()?.as_ref().ok()?))
}

fn key_of(pod: &PodFacts, gang: &Gang) -> GangKey {
    (pod.namespace.clone(), gang.name.clone())
}

// === impl Index ===

impl Index {
    /// As [`place`](Self::place). A pod of a gang then waits for the other members, for which places are reserved.
    ///
    /// # Errors
    ///
    /// As [`place`](Self::place), or the gang does not fit any more. Nothing has changed.
    pub fn arrive(&mut self, pod: &PodFacts, node: &str) -> Result<(Placed, Turn), Refusal> {
        let Some(gang) = pod.gang.clone().transpose()? else {
            return Ok((self.place(pod, node)?, Turn::Alone));
        };
        let key = key_of(pod, &gang);
        let reserved = self.take_reservations(&key, &pod.uid);
        match self.place_beside_the_others(pod, &gang, node) {
            Ok(placed) => Ok((placed, self.gather(pod, &gang, key))),
            Err(refusal) => {
                self.reserve(reserved);
                Err(refusal)
            }
        }
    }

    /// Gives up a gang of which not all members came: their places are free. False if its wait was over before.
    pub fn give_up(&mut self, gathering: &Gathering) -> bool {
        let Gathering { key, number, .. } = gathering;
        let is_waiting = self.gangs.gatherings.get(key).is_some_and(|it| it.number == *number);
        if is_waiting {
            self.disperse(key);
        }
        is_waiting
    }

    /// Gives up all gangs that wait.
    pub fn give_up_all(&mut self) {
        for key in self.gangs.gatherings.keys().cloned().collect::<Vec<_>>() {
            self.disperse(&key);
        }
    }

    /// Notes the nodes that kube-scheduler offers for a member of a gang. Others like it are planned on these nodes too: only
    /// kube-scheduler knows taints, cordons and selectors.
    pub fn note_offer(&mut self, pod: &PodFacts, names: &[String]) {
        let Some(key) = key(pod).filter(|key| self.gangs.members.contains_key(key)) else { return };
        let Ok(request) = pod.wish.request(self.view.catalog()) else { return };
        let nodes = names.iter().filter_map(|name| self.nodes.get(name)).copied();
        self.gangs.offers.entry(key).or_default().entry(request).or_default().extend(nodes);
    }

    /// The node of a pod whose gang has places side by side; none for a pod that may go by itself.
    ///
    /// Only the named nodes may serve the pod, and others like it.
    pub(super) fn gang_node(
        &mut self,
        pod: &PodFacts,
        names: &[String],
    ) -> Result<Option<String>, Refusal> {
        let Some(gang) = pod.gang.clone().transpose()? else { return Ok(None) };
        if pod.node.is_some() {
            return Ok(None);
        }
        let others = self.others(pod, &gang)?;
        if others.awaited.is_empty() && others.come.is_empty() && gang.within.is_none() {
            return Ok(None);
        }
        let (key, wanted) = (key_of(pod, &gang), Wanted::of(pod, gang, others));
        let reserved = self.take_reservations(&key, &pod.uid);
        let offered = names.iter().filter_map(|name| self.nodes.get(name)).copied().collect();
        let planned = self.plan(&wanted, &self.offers(&key), Some(&offered));
        self.reserve(reserved);
        self.settle();
        let place = planned?[wanted.position];
        Ok(Some(self.entries[place.node.0 as usize].object.name.clone()))
    }

    /// Places the pod, and reserves places for the members that have not come.
    fn place_beside_the_others(
        &mut self,
        pod: &PodFacts,
        gang: &Gang,
        name: &str,
    ) -> Result<Placed, Refusal> {
        self.settle();
        if let Some(placed) = self.known_placement(pod, name)? {
            return Ok(placed);
        }
        let node = *self.nodes.get(name).ok_or_else(|| Refusal::UnknownNode(name.to_owned()))?;
        let wanted = Wanted::of(pod, gang.clone(), self.others(pod, gang)?);
        let offers = self.offers(&key_of(pod, gang));
        // The plan of the filter, as long as nothing has changed since.
        let planned = self.plan(&wanted, &offers, None).ok();
        let plan = match planned.filter(|plan| plan[wanted.position].node == node) {
            Some(plan) => plan,
            None => self.plan(&wanted, &offers, Some(&NodeSet::from_iter([node])))?,
        };
        let placed = self.assume(pod, plan[wanted.position]);
        let others =
            wanted.pods.into_iter().zip(plan).filter(|(other, _)| other.uid != pod.uid).map(
                |(other, place)| {
                    let node = self.entries[place.node.0 as usize].object.name.clone();
                    (other.uid, Assumed { node, part: place.part, is_reserved: true })
                },
            );
        let others = others.collect();
        self.reserve(others);
        Ok(placed)
    }

    /// Counts a member that was placed among those that wait, or ends the wait of all.
    fn gather(&mut self, pod: &PodFacts, gang: &Gang, key: GangKey) -> Turn {
        let Ok(others) = self.others(pod, gang) else { return Turn::Alone };
        if others.bound.len() + others.come.len() + 1 < gang.size {
            self.set_reserved(&pod.uid, true);
            let gangs = &mut self.gangs;
            let gathered = gangs.gatherings.entry(key.clone()).or_insert_with(|| {
                gangs.begun += 1;
                let is_whole = watch::Sender::new(false);
                Gathered { number: gangs.begun, pods: BTreeSet::new(), is_whole }
            });
            gathered.pods.insert(pod.uid.clone());
            let (number, is_whole) = (gathered.number, gathered.is_whole.subscribe());
            return Turn::Waits(Gathering { key, number, is_whole });
        }
        for uid in &others.come {
            self.set_reserved(uid, false);
        }
        // Of a gang with more pods than its size some may not have come. They go by themselves.
        drop(self.take_reservations(&key, &pod.uid));
        self.gangs.offers.remove(&key);
        match self.gangs.gatherings.remove(&key) {
            None => Turn::Alone,
            Some(gathered) => {
                gathered.is_whole.send_replace(true);
                Turn::Last
            }
        }
    }

    /// The other members of a pod's gang.
    ///
    /// # Errors
    ///
    /// There are fewer than start together.
    fn others(&self, pod: &PodFacts, gang: &Gang) -> Result<Others, Refusal> {
        let key = key_of(pod, gang);
        let come = self.gangs.gatherings.get(&key).map(|it| &it.pods);
        let mut others = Others::default();
        for uid in self.gangs.members.get(&key).into_iter().flatten() {
            let Some(entry) = self.pods.get(uid).filter(|_| *uid != pod.uid) else { continue };
            let is_written = entry.assumed.as_ref().is_some_and(|it| !it.is_reserved);
            if entry.facts.node.is_some() || is_written {
                others.bound.push(uid.clone());
            } else if come.is_some_and(|come| come.contains(uid)) {
                others.come.push(uid.clone());
            } else {
                others.awaited.push(entry.facts.clone());
            }
        }
        let lacking = gang.size.saturating_sub(others.bound.len() + others.come.len() + 1);
        let there = gang.size - lacking + others.awaited.len();
        if others.awaited.len() < lacking {
            return Err(Refusal::GangIncomplete {
                gang: gang.name.clone(),
                there,
                size: gang.size,
            });
        }
        others.awaited.sort_by(by_age);
        others.awaited.truncate(lacking);
        Ok(others)
    }

    fn offers(&self, key: &GangKey) -> Offers {
        self.gangs.offers.get(key).cloned().unwrap_or_default()
    }

    /// A place for each pod, on the nodes that were offered for pods like it; for the pod in question on those alone.
    fn plan(
        &mut self,
        wanted: &Wanted,
        offers: &Offers,
        only: Option<&NodeSet>,
    ) -> Result<Vec<Placement>, Refusal> {
        self.settle();
        let Wanted { gang, pods, .. } = wanted;
        let requests = pods.iter().map(|pod| pod.wish.request(self.view.catalog()));
        let requests = requests.collect::<Result<Vec<_>, _>>()?;
        for domain in self.domains(gang, &wanted.present) {
            let lists = self.node_lists(pods, &requests, offers, &domain);
            let list = |at: usize| &lists[&(requests[at], shared_by(&pods[at]))];
            let few: Vec<_> = only.map_or_else(Vec::new, |only| {
                list(wanted.position).iter().filter(|node| only.contains(**node)).copied().collect()
            });
            let members = (0..pods.len()).map(|at| {
                let is_restricted = only.is_some() && at == wanted.position;
                let nodes = if is_restricted { &few } else { list(at) };
                Member { request: requests[at], nodes }
            });
            let members: Vec<_> = members.collect();
            if let Some(found) = places(&mut self.view, &mut self.scheduler, &members) {
                return Ok(found);
            }
        }
        Err(Refusal::GangDoesNotFit {
            gang: gang.name.clone(),
            pods: pods.len(),
            within: gang.within.clone(),
        })
    }

    /// The parts of the cluster in which the gang may be, those with the least idle GPUs first; of each its nodes in the order
    /// of their names.
    fn domains(&self, gang: &Gang, present: &[String]) -> Vec<Vec<NodeIx>> {
        let all = self.present().into_iter().map(|(_, node)| node);
        let Some(label) = &gang.within else { return vec![all.collect()] };
        let value = |node: NodeIx| self.entries[node.0 as usize].object.labels.get(label);
        let here = present.first().map(|uid| {
            let node = known_node(self.pods.get(uid)).and_then(|it| self.nodes.get(&it).copied());
            node.and_then(value)
        });
        let mut domains: BTreeMap<&String, Vec<NodeIx>> = BTreeMap::new();
        for node in all {
            if let Some(value) = value(node).filter(|it| here.is_none_or(|here| here == Some(it))) {
                domains.entry(value).or_default().push(node);
            }
        }
        let mut domains: Vec<_> = domains.into_values().collect();
        domains.sort_by_cached_key(|nodes| {
            let idle = nodes.iter().map(|node| u64::from(self.view.node(*node).idle_milli()));
            idle.sum::<u64>()
        });
        domains
    }

    /// The nodes of a domain that may serve pods of each kind.
    fn node_lists(
        &self,
        pods: &[PodFacts],
        requests: &[Request],
        offers: &Offers,
        domain: &[NodeIx],
    ) -> HashMap<Kind, Vec<NodeIx>> {
        let mut lists = HashMap::new();
        for (pod, request) in pods.iter().zip(requests) {
            lists.entry((*request, shared_by(pod))).or_insert_with(|| {
                let offered = offers.get(request);
                let may_serve = |node: &&NodeIx| {
                    offered.is_none_or(|offered| offered.contains(**node))
                        && self.serves(pod, **node).is_ok()
                };
                domain.iter().filter(may_serve).copied().collect()
            });
        }
        lists
    }

    /// Takes back the places that are reserved for members that have not come, and for this pod.
    fn take_reservations(&mut self, key: &GangKey, uid: &str) -> Vec<(String, Assumed)> {
        let mut uids = self.gangs.absent(key);
        uids.push(uid.to_owned());
        let mut taken = Vec::new();
        for uid in uids {
            let entry = self.pods.get_mut(&uid);
            let assumed = entry.and_then(|it| it.assumed.take_if(|assumed| assumed.is_reserved));
            if let Some(assumed) = assumed {
                self.move_pod(&uid, Some(&assumed.node), None);
                taken.push((uid, assumed));
            }
        }
        taken
    }

    fn reserve(&mut self, places: Vec<(String, Assumed)>) {
        for (uid, assumed) in places {
            if let Some(entry) = self.pods.get_mut(&uid) {
                let node = assumed.node.clone();
                entry.assumed = Some(assumed);
                self.move_pod(&uid, None, Some(&node));
            }
        }
    }

    fn set_reserved(&mut self, uid: &str, is_reserved: bool) {
        if let Some(assumed) = self.pods.get_mut(uid).and_then(|it| it.assumed.as_mut()) {
            assumed.is_reserved = is_reserved;
        }
    }

    /// Ends the wait of a gang: the places of all of its members that are not bound are free.
    fn disperse(&mut self, key: &GangKey) {
        self.gangs.gatherings.remove(key);
        self.gangs.offers.remove(key);
        for uid in self.gangs.absent(key) {
            if self.pods[&uid].assumed.as_ref().is_some_and(|it| it.is_reserved) {
                self.forget(&uid);
            }
        }
    }
}

/// The oldest first, as kube-scheduler takes pods of one priority.
fn by_age(a: &PodFacts, b: &PodFacts) -> Ordering {
    (a.created, &a.uid).cmp(&(b.created, &b.uid))
}

/// The names by which a pod asks for shares, which decide whether a node serves them.
fn shared_by(pod: &PodFacts) -> Option<SharedBy> {
    match pod.wish.gpus {
        Ok(GpuWish::Share { by, .. }) => Some(by),
        _ => None,
    }
}
