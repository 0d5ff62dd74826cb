//! Gangs: pods that start together or not at all.
//!
//! ```text
//!   filter: all members exist, and fit at the same time
//!     │
//!   bind of the first: it waits, and devices for the others are reserved
//!     │                              │
//!   binds of the others              └─ not all arrive in time ─> all reservations end, all members are retried
//!     │
//!   bind of the last: all Bindings are written
//! ```
//!
//! A member *arrives* when kube-scheduler calls bind for it and it has a placement. A member is bound to its reserved
//! node. If kube-scheduler does not offer that node, all members that have not arrived are planned again, without their
//! reservations. The index is locked meanwhile, so no other pod can take the reserved devices.

mod plan;

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::{sync::watch, time::Instant};
use windlass_sched::request::Request;

use super::{AssumedPlacement, Index, PlacementDecision, Refusal, current_node, node_set::NodeSet};
use crate::facts::{Gang, GangError, MAX_WAITING, PodFacts};

/// Members of all gangs, the gangs that wait at bind, and the history of failed attempts.
#[derive(Debug, Default)]
pub(super) struct Gangs {
    members: BTreeMap<GangKey, BTreeSet<String>>,
    waiting: BTreeMap<GangKey, WaitingGang>,
    /// By request: all nodes that kube-scheduler offered since the gang's current attempt began. One offer is too
    /// small: it omits the nodes that kube-scheduler has assigned to members with a bind in flight.
    offers: BTreeMap<GangKey, Offers>,
    /// Number of failed attempts of a gang by domain: the value of the node label that its nodes must share.
    failed_attempts: BTreeMap<GangKey, BTreeMap<String, u32>>,
    backoffs: BTreeMap<GangKey, Backoff>,
}

/// Back-off of a gang that was given up. Other pods can use the GPUs during the back-off.
#[derive(Clone, Copy, Debug)]
struct Backoff {
    until: Instant,
    duration: Duration,
}

/// Longest back-off of a gang.
const MAX_BACKOFF: Duration = Duration::from_secs(120);

/// Namespace, name and scheduler of a gang.
type GangKey = (String, String, String);

/// Nodes that kube-scheduler offered for a request.
type Offers = BTreeMap<Request, NodeSet>;

/// A gang whose first members have arrived and wait for the other members.
#[derive(Debug)]
struct WaitingGang {
    arrived: BTreeSet<String>,
    /// Number of members that must arrive, the first included.
    members: usize,
    is_complete: watch::Sender<bool>,
}

/// Wait of one member for the others.
#[derive(Clone, Debug)]
pub struct GangWait {
    key: GangKey,
    /// Becomes true once all members have arrived; closed once the gang is given up.
    is_complete: watch::Receiver<bool>,
}

/// The point in time at which an arrived pod may be bound.
#[derive(Clone, Debug)]
pub enum Arrival {
    /// Now: the pod waits for no other pod.
    Single,
    /// Once the other members of its gang have arrived.
    Waiting(GangWait),
    /// Now, with all members that waited for this last one.
    Last,
}

/// The other members of a pod's gang.
#[derive(Default)]
struct OtherMembers {
    /// Members that are bound, or whose bind is being written.
    bound: Vec<String>,
    /// Members that have arrived and wait.
    arrived: Vec<String>,
    /// The oldest of the remaining members, as many as the gang still needs.
    awaited: Vec<PodFacts>,
}

// === impl GangWait ===

impl GangWait {
    /// Name of the gang.
    pub fn gang(&self) -> &str {
        &self.key.1
    }

    /// Waits for the other members. Returns false if the gang is given up.
    pub async fn all_arrived(&mut self) -> bool {
        self.is_complete.wait_for(|is_complete| *is_complete).await.is_ok()
    }

    /// True once all members have arrived.
    pub fn is_complete(&self) -> bool {
        *self.is_complete.borrow()
    }
}

// === impl Gangs ===

impl Gangs {
    /// Adds or updates a pod. Returns false if it has left its former gang.
    pub(super) fn set(&mut self, previous: Option<&PodFacts>, pod: &PodFacts) -> bool {
        let key = key(pod);
        let has_left = |previous: &&PodFacts| self::key(previous).is_some_and(|it| Some(it) != key);
        let former = previous.filter(has_left);
        if let Some(former) = former {
            self.remove(former);
        }
        if let Some(key) = key {
            self.members.entry(key).or_default().insert(pod.uid.clone());
        }
        former.is_none()
    }

    /// Removes a pod.
    pub(super) fn remove(&mut self, pod: &PodFacts) {
        let Some(key) = key(pod) else { return };
        if let Some(waiting) = self.waiting.get_mut(&key) {
            waiting.arrived.remove(&pod.uid);
        }
        if let Some(members) = self.members.get_mut(&key) {
            members.remove(&pod.uid);
            if members.is_empty() {
                self.members.remove(&key);
                self.forget_attempts(&key);
            }
        }
    }

    /// Removes the history of earlier attempts to start a gang.
    fn forget_attempts(&mut self, key: &GangKey) {
        self.offers.remove(key);
        self.failed_attempts.remove(key);
        self.backoffs.remove(key);
    }

    fn has_arrived(&self, key: &GangKey, uid: &str) -> bool {
        self.waiting.get(key).is_some_and(|waiting| waiting.arrived.contains(uid))
    }
}

fn key(pod: &PodFacts) -> Option<GangKey> {
    Some(key_of(pod, pod.gang.as_ref()?.as_ref().ok()?))
}

fn key_of(pod: &PodFacts, gang: &Gang) -> GangKey {
    (pod.namespace.clone(), gang.name.clone(), gang.scheduler.clone())
}

/// Order of creation, as in kube-scheduler's queue for pods of one priority.
pub(super) fn by_age(a: &PodFacts, b: &PodFacts) -> Ordering {
    (a.created, &a.uid).cmp(&(b.created, &b.uid))
}

// === impl Index ===

impl Index {
    /// Like [`place`](Self::place). A pod of a gang then waits for the other members, for which devices are reserved.
    ///
    /// # Errors
    ///
    /// As [`place`](Self::place), or the gang no longer fits. The index is unchanged.
    pub fn arrive(
        &mut self,
        pod: &PodFacts,
        node: &str,
    ) -> Result<(PlacementDecision, Arrival), Refusal> {
        // A bind whose outcome is unknown has been written, so all members had arrived.
        let is_bind_pending = self.assumed_node(&pod.uid).is_some();
        let gang = match pod.gang.clone().transpose()? {
            Some(gang) if !is_bind_pending => gang,
            _ => return Ok((self.place(pod, node)?, Arrival::Single)),
        };
        let key = key_of(pod, &gang);
        let others = self.others(pod, &gang)?;
        self.rebuild_changed();
        let decision = if let Some(decision) = self.use_reservation(pod, &others, node) {
            decision
        } else {
            let reservations = self.take_reservations(&key, &pod.uid);
            let decision = self.place_and_reserve(pod, &gang, &others, node);
            decision.inspect_err(|_| self.reserve(reservations))?
        };
        let arrival = self.complete_arrival(pod, key, &others)?;
        Ok((decision, arrival))
    }

    /// Gives up an incomplete gang and ends its reservations. Returns false if the gang's wait had already ended.
    pub fn give_up(&mut self, wait: &GangWait) -> bool {
        let is_waiting = self.is_in_progress(wait);
        if is_waiting {
            self.count_failed_attempt(&wait.key);
            self.release_gang(&wait.key);
        }
        is_waiting
    }

    /// True if the gang still waits, in the same attempt as `wait`.
    fn is_in_progress(&self, wait: &GangWait) -> bool {
        let waiting = self.gangs.waiting.get(&wait.key);
        waiting.is_some_and(|it| it.is_complete.subscribe().same_channel(&wait.is_complete))
    }

    /// Gives up all waiting gangs and returns their number.
    pub fn give_up_all(&mut self) -> usize {
        let keys: Vec<_> = self.gangs.waiting.keys().cloned().collect();
        for key in &keys {
            self.release_gang(key);
        }
        keys.len()
    }

    /// Withdraws the arrival of one member after kube-scheduler has cancelled its bind call. Its devices stay reserved
    /// while other members wait.
    pub fn withdraw(&mut self, uid: &str, decision_id: u64, wait: &GangWait) {
        if !self.is_in_progress(wait) {
            return;
        }
        let is_current = self.is_current_decision(uid, decision_id);
        let Some(waiting) = self.gangs.waiting.get_mut(&wait.key) else { return };
        if is_current {
            waiting.arrived.remove(uid);
        }
        if waiting.arrived.is_empty() {
            self.release_gang(&wait.key);
        }
    }

    /// Remaining back-off of the pod's gang after it was given up, if any.
    pub fn remaining_backoff(&self, pod: &PodFacts, now: Instant) -> Option<Duration> {
        let backoff = self.gangs.backoffs.get(&key(pod)?)?;
        backoff.until.checked_duration_since(now).filter(|remaining| !remaining.is_zero())
    }

    /// Starts the back-off of a gang that was given up. It lasts `initial`, and doubles with each further failure up to
    /// `MAX_BACKOFF`. If the last back-off ended `MAX_BACKOFF` ago or earlier, the next one lasts `initial`.
    pub fn start_backoff(&mut self, wait: &GangWait, initial: Duration, now: Instant) {
        if self.gangs.members.contains_key(&wait.key) {
            let previous = self.gangs.backoffs.get(&wait.key);
            let previous = previous.filter(|backoff| now < backoff.until + MAX_BACKOFF);
            let duration = previous.map_or(initial, |it| (it.duration * 2).min(MAX_BACKOFF));
            let backoff = Backoff { until: now + duration, duration };
            self.gangs.backoffs.insert(wait.key.clone(), backoff);
        }
    }

    /// Number of members of all waiting gangs, including those that have not arrived.
    fn waiting_count(&self) -> usize {
        self.gangs.waiting.values().map(|waiting| waiting.members).sum()
    }

    /// Adds the nodes that kube-scheduler offers for a member of a gang. Members with the same request are planned on
    /// these nodes too: only kube-scheduler knows taints, cordons and selectors.
    pub fn add_offer(&mut self, pod: &PodFacts, names: &[String]) {
        let Some(key) = key(pod).filter(|key| self.gangs.members.contains_key(key)) else { return };
        let Ok(request) = pod.resources.request(self.view.catalog()) else { return };
        let nodes = names.iter().filter_map(|name| self.nodes.get(name)).copied();
        self.gangs.offers.entry(key).or_default().entry(request).or_default().extend(nodes);
    }

    /// The node, among the named ones, on which the gang's plan places the pod. `None` if no plan is needed: the pod
    /// has no gang or is bound, or no other member is awaited or waits and the gang has no domain.
    pub(super) fn gang_node(
        &mut self,
        pod: &PodFacts,
        names: &[String],
    ) -> Result<Option<String>, Refusal> {
        let gang = match pod.gang.clone().transpose()? {
            Some(gang) if pod.node.is_none() => gang,
            _ => return Ok(None),
        };
        let others = self.others(pod, &gang)?;
        if others.awaited.is_empty() && others.arrived.is_empty() && gang.topology_key.is_none() {
            return Ok(None);
        }
        if let Some(node) = self.reserved_node(&pod.uid)
            && names.contains(node)
            && self.has_valid_reservation(&pod.uid)
        {
            return Ok(Some(node.clone()));
        }
        let key = key_of(pod, &gang);
        self.check_waiting_limit(&key, &others)?;
        let reservations = self.take_reservations(&key, &pod.uid);
        let offered_nodes = names.iter().filter_map(|name| self.nodes.get(name)).copied().collect();
        let plan = self.plan(pod, &gang, &others, Some(&offered_nodes));
        self.reserve(reservations);
        self.rebuild_changed();
        let (placement, _) = plan?;
        Ok(Some(self.name_of(placement.node).to_owned()))
    }

    /// Turns the pod's reservation on this node into its placement, if all members that have not arrived have
    /// reservations too.
    fn use_reservation(
        &mut self,
        pod: &PodFacts,
        others: &OtherMembers,
        node: &str,
    ) -> Option<PlacementDecision> {
        let are_reserved = others.awaited.iter().all(|it| self.reserved_node(&it.uid).is_some());
        let is_on_node = self.reserved_node(&pod.uid).is_some_and(|it| it == node);
        if !are_reserved || !is_on_node || !self.has_valid_reservation(&pod.uid) {
            return None;
        }
        let (decision_id, node) = (self.next_decision_id(), *self.nodes.get(node)?);
        let assumed = self.pods.get_mut(&pod.uid)?.assumed.as_mut()?;
        (assumed.is_reserved, assumed.decision_id) = (false, decision_id);
        let part = assumed.part;
        self.record_pod_change(&pod.uid);
        Some(self.decision(node, pod, part, decision_id))
    }

    /// Makes a placed member wait for the members that have not arrived, or ends the wait if all have arrived.
    ///
    /// # Errors
    ///
    /// A node can no longer serve its member: all reservations of the gang end. Or too many pods wait already.
    fn complete_arrival(
        &mut self,
        pod: &PodFacts,
        key: GangKey,
        others: &OtherMembers,
    ) -> Result<Arrival, Refusal> {
        if !others.awaited.is_empty() {
            if let Err(refusal) = self.check_waiting_limit(&key, others) {
                self.forget_pod(&pod.uid);
                drop(self.take_reservations(&key, &pod.uid));
                return Err(refusal);
            }
            self.set_reserved(&pod.uid, true);
            let members = others.awaited.len() + 1;
            let waiting = self.gangs.waiting.entry(key.clone()).or_insert_with(|| WaitingGang {
                arrived: BTreeSet::new(),
                members,
                is_complete: watch::Sender::new(false),
            });
            waiting.arrived.insert(pod.uid.clone());
            let is_complete = waiting.is_complete.subscribe();
            return Ok(Arrival::Waiting(GangWait { key, is_complete }));
        }
        self.rebuild_changed();
        if let Some(lost_uid) = others.arrived.iter().find(|uid| !self.has_valid_reservation(uid)) {
            let node = self.reserved_node(lost_uid).cloned().unwrap_or_default();
            self.forget_pod(&pod.uid);
            self.release_gang(&key);
            return Err(Refusal::GangLostNode(node));
        }
        for uid in &others.arrived {
            self.set_reserved(uid, false);
        }
        // A gang may have more pods than its size. Excess pods are bound one by one, without a reservation.
        drop(self.take_reservations(&key, &pod.uid));
        self.gangs.forget_attempts(&key);
        Ok(match self.gangs.waiting.remove(&key) {
            None => Arrival::Single,
            Some(waiting) => {
                waiting.is_complete.send_replace(true);
                Arrival::Last
            }
        })
    }

    /// Fails if this gang is not waiting yet and its members would exceed the limit of waiting members.
    fn check_waiting_limit(&self, key: &GangKey, others: &OtherMembers) -> Result<(), Refusal> {
        let is_new = !self.gangs.waiting.contains_key(key);
        let count = self.waiting_count() + others.awaited.len() + 1;
        if is_new && count > MAX_WAITING {
            Err(Refusal::TooManyWaiting(MAX_WAITING))
        } else {
            Ok(())
        }
    }

    /// The other members of a pod's gang. If one is bound, the gang has started, and the result has no awaited members.
    ///
    /// # Errors
    ///
    /// Fewer members exist than must start together, or members describe the gang differently.
    fn others(&self, pod: &PodFacts, gang: &Gang) -> Result<OtherMembers, Refusal> {
        let key = key_of(pod, gang);
        let (mut others, mut absent) = (OtherMembers::default(), Vec::new());
        for uid in self.gangs.members.get(&key).into_iter().flatten() {
            let Some(entry) = self.pods.get(uid).filter(|_| *uid != pod.uid) else { continue };
            if !matches!(&entry.facts.gang, Some(Ok(other)) if other == gang) {
                let other = entry.facts.name.clone();
                return Err(GangError::Differs { gang: gang.name.clone(), other }.into());
            }
            let is_written = entry.assumed.as_ref().is_some_and(|it| !it.is_reserved);
            if entry.facts.node.is_some() || is_written {
                others.bound.push(uid.clone());
            } else if self.gangs.has_arrived(&key, uid) {
                others.arrived.push(uid.clone());
            } else {
                absent.push(&entry.facts);
            }
        }
        if !others.bound.is_empty() {
            return Ok(others);
        }
        let missing = gang.size.saturating_sub(others.arrived.len() + 1);
        if absent.len() < missing {
            let existing = gang.size - missing + absent.len();
            return Err(Refusal::GangIncomplete {
                gang: gang.name.clone(),
                existing,
                size: gang.size,
            });
        }
        absent.sort_by(|a, b| by_age(a, b));
        others.awaited = absent.into_iter().take(missing).cloned().collect();
        Ok(others)
    }

    /// Removes and returns the reservations of this pod and of all members that have not arrived.
    fn take_reservations(&mut self, key: &GangKey, uid: &str) -> Vec<(String, AssumedPlacement)> {
        let members = self.gangs.members.get(key).into_iter().flatten();
        let absent = members.filter(|it| *it != uid && !self.gangs.has_arrived(key, it));
        let mut uids: Vec<_> = absent.cloned().collect();
        uids.push(uid.to_owned());
        self.take_reserved(uids)
    }

    /// Removes and returns the reservations of these pods.
    fn take_reserved(&mut self, uids: Vec<String>) -> Vec<(String, AssumedPlacement)> {
        let mut reservations = Vec::new();
        for uid in uids {
            let entry = self.pods.get_mut(&uid);
            let assumed = entry.and_then(|it| it.assumed.take_if(|assumed| assumed.is_reserved));
            if let Some(assumed) = assumed {
                self.move_pod(&uid, Some(&assumed.node), None);
                reservations.push((uid, assumed));
            }
        }
        reservations
    }

    fn reserve(&mut self, reservations: Vec<(String, AssumedPlacement)>) {
        for (uid, assumed) in reservations {
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

    fn reserved_node(&self, uid: &str) -> Option<&String> {
        let assumed = self.pods.get(uid)?.assumed.as_ref().filter(|it| it.is_reserved)?;
        Some(&assumed.node)
    }

    /// True if the pod still holds its reserved devices, and they are usable. A claim, or an agent's correction of
    /// another pod's placement, may take them.
    fn has_valid_reservation(&self, uid: &str) -> bool {
        let assumed = self.pods.get(uid).and_then(|entry| entry.assumed.as_ref());
        let Some(assumed) = assumed.filter(|assumed| assumed.is_reserved) else { return false };
        let Some(node) = self.nodes.get(&assumed.node) else { return false };
        let entry = &self.entries[node.0 as usize];
        let is_usable = |position: usize| {
            entry.facts.gpus.get(position).is_some_and(|gpu| gpu.obstacle.is_none())
        };
        entry.has_object
            && entry.occupancy.part(uid) == Some(assumed.part)
            && assumed.part.gpus.iter().all(is_usable)
    }

    /// Ends the wait of a gang and the reservations of all its members.
    fn release_gang(&mut self, key: &GangKey) {
        self.gangs.waiting.remove(key);
        self.gangs.offers.remove(key);
        let members = self.gangs.members.get(key).into_iter().flatten().cloned().collect();
        drop(self.take_reserved(members));
    }

    /// Counts a failed attempt in the gang's domain, so that the next attempt prefers another one.
    fn count_failed_attempt(&mut self, key: &GangKey) {
        let first_uid = self.gangs.waiting.get(key).and_then(|waiting| waiting.arrived.first());
        let Some(entry) = first_uid.and_then(|uid| self.pods.get(uid)) else { return };
        let Some(Ok(Gang { topology_key: Some(label), .. })) = &entry.facts.gang else { return };
        let node = current_node(Some(entry)).and_then(|name| self.nodes.get(&name).copied());
        let value = node.and_then(|it| self.entries[it.0 as usize].object.labels.get(label));
        if let Some(value) = value.cloned() {
            *self
                .gangs
                .failed_attempts
                .entry(key.clone())
                .or_default()
                .entry(value)
                .or_default() += 1;
        }
    }
}
