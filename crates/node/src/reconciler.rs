//! The one task that owns the node's state.
//!
//! ```text
//!  sources, policy, claims, daemons ──> plan (pure) ──> publish
//!                                        ^   │
//!                     what is there ─────┘   └──> what is wanted on the disk (see `disk`)
//! ```
//!
//! The reconciler plans from memory and waits for no disk: what is no longer well is told at once. What is on the disk
//! is one more thing that it plans from, and a device is not offered before its document and its note are there.

mod changes;
mod demands;
mod disk;
mod held;
mod late;
mod look;
mod notes;
mod obstacles;
pub(crate) mod once;
mod phase;
mod tell;

use std::{collections::BTreeSet, pin::pin, sync::Arc, time::Duration};

use tokio::{
    sync::{Notify, watch},
    task::spawn_blocking,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;
use windlass_allocations::{
    Held,
    follow::{Allocations, AllocationsDesk, Following},
    ledger::{Kinship, Ledger},
};
use windlass_cluster::leases::LeaseStates;
use windlass_config::{Config, Policy};
use windlass_core::{
    device::{Device, DeviceId},
    inventory::Inventory,
};
use windlass_host::{deadline, watch::publish};
use windlass_lifecycle::{
    cleanup::{self, Demand, HandoverStates},
    mps::{MpsDemand, MpsStates},
};
use windlass_resources::{
    NodeState, device_info,
    offers::{self, Marked, Methods, Plan, Pools},
};

pub(crate) use self::notes::{FORMAT as DEVICES, were_offered};
use self::{
    disk::{DEADLINE, Disk, DiskDesk, DiskQueue, Found, Wanted},
    held::Holdings,
    late::{is_worse, late},
    obstacles::{Way, lease_trouble},
    once::{Snapshots, merge},
    phase::Phase,
};

/// Owns the node's state.
pub(crate) struct Reconciler {
    sources: Snapshots,
    notices: Notices,
    /// What is wanted; a new policy takes effect together with the wait for its moves.
    policy: Arc<Policy>,
    holdings: Holdings,
    /// How replicas that containers hold were kept apart.
    methods: Methods,
    /// The pools that devices were part of when they were last given away.
    pools: Pools,
    /// What ids stood for when they were given away.
    marked: Marked,
    /// Where a move of devices stands.
    phase: Phase,
    /// How long the kubelet may take to write down an Allocate.
    handover: Duration,
    /// Lives while it matters what containers have.
    following: Option<Following>,
    taken_up: TakenUp,
    disk: DiskDesk,
    /// Until it is started.
    worker: Option<(Disk, DiskQueue)>,
    /// How often documents are looked at without news.
    look_interval: Duration,
    /// The account of claims that the state was made under.
    ledger: Ledger,
    /// Of the devices of the last round.
    kin: Arc<Kinship>,
    outlets: Outlets,
}

/// Where the reconciler publishes.
pub(crate) struct Outlets {
    /// The node's state.
    pub(crate) state: watch::Sender<Arc<NodeState>>,
    /// The devices that need an MPS daemon.
    pub(crate) daemons: watch::Sender<Arc<MpsDemand>>,
    /// The devices that something is done to between containers.
    pub(crate) care: watch::Sender<Arc<Demand>>,
    /// When the reconciler last came round.
    pub(crate) rounds: watch::Sender<Instant>,
}

/// What wakes the reconciler.
pub(crate) struct Notices {
    /// A source has news.
    pub(crate) news: Arc<Notify>,
    /// The devices that containers have.
    pub(crate) allocations: AllocationsDesk,
    /// What is wanted of the devices.
    pub(crate) policy: watch::Receiver<Arc<Policy>>,
    /// How the MPS daemons fare; changes are also `news`.
    pub(crate) mps: watch::Receiver<Arc<MpsStates>>,
    /// Where devices stand that something is done to between containers; changes are also `news`.
    pub(crate) handovers: watch::Receiver<Arc<HandoverStates>>,
    /// Whose the leases of devices are; changes are also `news`.
    pub(crate) leases: watch::Receiver<Arc<LeaseStates>>,
    /// Which claims have devices.
    pub(crate) ledger: watch::Receiver<Ledger>,
}

/// How much of what an earlier life left is taken up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TakenUp {
    /// Nothing: the kubelet's record was not read in this life.
    Nothing,
    /// What containers hold. Daemons that are left are still to be told who wants them, nobody perhaps.
    Holdings,
    /// All of it.
    All,
}

/// Why the state is made anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// Something happened, or nothing for a while: the disk is looked at as well.
    News,
    /// The disk has answered, or is late.
    Disk,
}

/// What one round is made from.
struct Round<'a> {
    known: &'a NodeState,
    inventory: &'a Inventory,
    found: &'a Found,
    ledger: &'a Ledger,
    kin: Arc<Kinship>,
    care: &'a Demand,
}

/// What pods are told of a device that a claim has: whose it is is no business of theirs.
const HELD: &str = "held by another claim";

/// What a device lacks while nobody can tell.
const UNKNOWN: &str = "it is not known what claims have; the agent's log says why";

// === impl Reconciler ===

impl Reconciler {
    pub(crate) fn new(
        config: &Config,
        sources: Snapshots,
        notices: Notices,
        outlets: Outlets,
    ) -> Self {
        let policy = notices.policy.borrow().clone();
        let (disk, queue) = disk::desk();
        Self {
            sources,
            policy,
            notices,
            methods: Methods::new(),
            pools: Pools::new(),
            marked: Marked::new(),
            holdings: Holdings::default(),
            phase: Phase::default(),
            handover: config.session.handover,
            following: None,
            taken_up: TakenUp::Nothing,
            disk,
            worker: Some((
                Disk::new(&config.places, &config.mps, config.policy.delivery.clone()),
                queue,
            )),
            look_interval: config.session.look_interval,
            ledger: Ledger::default(),
            kin: Arc::default(),
            outlets,
        }
    }

    /// Keeps the state until stopped. Ends every reader's stream when it ends.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let (disk, queue) = self.worker.take().expect("a reconciler runs once");
        let living = async move {
            let disk = self.begin(disk).await;
            tokio::join!(self.live(), disk.run(queue));
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = living => {}
        }
    }

    /// Takes up what an earlier agent noted, and what containers have of it. Without the record nobody knows whose
    /// programs would end with a daemon.
    async fn begin(&mut self, mut disk: Disk) -> Disk {
        let policy = self.policy.clone();
        let opening = spawn_blocking(move || {
            let marked = disk.open(&policy);
            (disk, marked)
        });
        let mut opening = pin!(opening);
        let opened = if let Ok(opened) = deadline::timeout(DEADLINE, &mut opening).await {
            opened
        } else {
            tracing::warn!(
                limit = ?DEADLINE,
                "the disk does not answer: nothing is offered before what an earlier agent left is read"
            );
            opening.await
        };
        let (disk, marked) = opened.expect("reading neither panics nor is cancelled");
        self.marked = marked;
        if let Some(held) = self.notices.allocations.read().await.held() {
            self.take_up(held, BTreeSet::new());
        }
        disk
    }

    async fn live(&mut self) {
        let mut allocations = self.notices.allocations.watch();
        let mut cause = Cause::News;
        loop {
            self.refresh(cause);
            self.follow_holders();
            self.outlets.rounds.send_replace(Instant::now());
            cause = Cause::News;
            let busy = self.disk.busy();
            tokio::select! {
                () = self.notices.news.notified() => {}
                Ok(()) = self.notices.policy.changed() => self.adopt(),
                () = claimed(&mut self.notices.ledger, &self.ledger) => {}
                Ok(()) = self.disk.found.changed() => cause = Cause::Disk,
                () = disk::slowness(busy) => cause = Cause::Disk,
                Ok(()) = allocations.changed(), if self.following.is_some() => {
                    let newest = allocations.borrow_and_update().clone();
                    self.took(&newest);
                }
                () = self.phase.settle() => {
                    // A new follower has the record read anew.
                    self.following = Some(self.notices.allocations.follow());
                }
                () = sleep(self.look_interval) => {}
            }
        }
    }

    /// Takes up the newest policy.
    fn adopt(&mut self) {
        let policy = self.notices.policy.borrow_and_update().clone();
        if policy != self.policy {
            self.policy = policy;
            self.hold_moves();
        }
    }

    /// What has to move is given to no one until the kubelet's record is complete. The wait begins
    /// when that is published.
    fn hold_moves(&mut self) {
        let known = self.known();
        self.methods.extend(known.methods());
        self.pools.extend(known.pools());
        self.phase.hold();
    }

    /// Has the kubelet's record read for as long as it matters who let go.
    fn follow_holders(&mut self) {
        let is_wanted = self.taken_up == TakenUp::Nothing
            || !self.holdings.is_empty()
            || matches!(self.phase, Phase::Reading { .. });
        if is_wanted != self.following.is_some() {
            self.following = is_wanted.then(|| self.notices.allocations.follow());
        }
    }

    /// The kubelet's record was read. One that cannot be read releases nothing, and nobody knows who holds what.
    fn took(&mut self, allocations: &Allocations) {
        let Some(held) = allocations.held() else {
            return self.phase.unreadable(allocations.read(), self.handover);
        };
        // By then the kubelet had written down every Allocate that was answered before.
        match self.phase.complete(allocations.read()) {
            Some(there) => self.take_up(held, there),
            None if self.taken_up == TakenUp::Nothing => {
                let there = self.phase.there().cloned().collect();
                self.take_up(held, there);
            }
            // What containers were given since then the offers themselves remember.
            None => self.holdings.retain(held),
        }
    }

    /// Takes up what the record says. What no container holds needs no note if it was gone already when
    /// the wait began; whatever was `there` may have been given away too late for the record.
    fn take_up(&mut self, held: &Held, there: BTreeSet<DeviceId>) {
        self.holdings = Holdings::new(held.clone());
        if self.taken_up == TakenUp::Nothing {
            self.taken_up = TakenUp::Holdings;
        }
        let mut needed = there;
        needed.extend(self.known().given_and_there());
        needed.extend(self.holdings.devices());
        self.marked.retain(|id, _| needed.contains(id));
    }

    fn known(&self) -> Arc<NodeState> {
        self.outlets.state.borrow().clone()
    }

    /// One round: never waits.
    fn refresh(&mut self, cause: Cause) {
        let merged = merge(&self.sources);
        if !merged.is_complete() {
            return;
        }
        if self.notices.policy.has_changed().unwrap_or(false) {
            self.adopt();
        }
        let known = self.known();
        if known.inventory.generation > 0 {
            self.note_changes(&known.inventory, &merged);
        }
        let care = self.want_care(&merged);
        let kin = self.kin(&merged);
        let ledger = self.notices.ledger.borrow().clone();
        self.ledger.clone_from(&ledger);
        let found = self.disk.found.borrow_and_update().clone();
        let round = Round {
            known: &known,
            inventory: &merged,
            found: &found,
            ledger: &ledger,
            kin,
            care: &care,
        };
        // As if all were on the disk: what that takes is wanted there.
        let mut plan = self.plan(&round, &BTreeSet::new());
        self.want_daemons(&plan, &merged, &ledger);
        let wanted = self.want_on_disk(&plan, &merged, cause);
        let late = late(&plan, &known, (&wanted, &found));
        let slow_since = self.disk.slow_since();
        if !late.is_empty() || !found.is_for(&self.policy) {
            if slow_since.is_none() && !is_worse(&known.inventory, &merged) {
                // The disk wakes the reconciler in a moment: what is new comes in one step.
                return;
            }
            plan = self.plan(&round, &late);
        }
        let state = self.state(&round, plan, &late, slow_since);
        self.publish_unless_known(state, &known);
        let known = self.known();
        self.phase.published(self.handover, || known.given_and_there().collect());
    }

    /// Which devices are of the same silicon, looked up anew where devices changed since the last round.
    fn kin(&mut self, inventory: &Inventory) -> Arc<Kinship> {
        if !self.disk.has_been_told_of(&inventory.devices) {
            self.kin = Arc::new(Kinship::of(inventory));
        }
        self.kin.clone()
    }

    fn plan(&self, round: &Round<'_>, late: &BTreeSet<DeviceId>) -> Plan {
        let policy = &self.policy;
        let daemons = self.notices.mps.borrow().clone();
        let handovers = self.notices.handovers.borrow().clone();
        let (looked, untold) = (&round.found.looked, &round.found.untold);
        let lease = self.leases();
        let way = Way { looked, policy, late, lease: &lease };
        offers::plan(offers::Question {
            policy,
            inventory: round.inventory,
            previous: &round.known.offers,
            held: self.holdings.held(),
            methods: &self.methods,
            pools: &self.pools,
            marked: &self.marked,
            moves: self.phase.moves(),
            obstacle: &|device, sharing| {
                let daemon = || demands::daemon_trouble(&daemons, device, sharing);
                let untold = || untold.devices.get(&device.id).map(ToString::to_string);
                let before = || way.of_containers(device).map(|it| it.why).or_else(daemon);
                let left = || looked.daemon_left(device, sharing);
                before().or_else(untold).or_else(|| round.claimed(device)).or_else(left)
            },
            handover: &|id| demands::handover_trouble(&handovers, round.care, id),
        })
    }

    /// What a plan makes of the node.
    fn state(
        &mut self,
        round: &Round<'_>,
        plan: Plan,
        late: &BTreeSet<DeviceId>,
        slow_since: Option<Instant>,
    ) -> NodeState {
        // Moves are over once none waits.
        if !plan.waiting {
            self.phase.rest();
        }
        let handovers = self.notices.handovers.borrow().clone();
        let (policy, looked) = (self.policy.clone(), &round.found.looked);
        let way = Way { looked, policy: &policy, late, lease: &self.leases() };
        let obstacles = way.of_claims(round.inventory);
        let mut inventory = round.inventory.clone();
        inventory.generation = round.known.inventory.generation + 1;
        let mut lacks = looked.lacks.clone();
        lacks.troubles.extend(round.found.untold.trouble());
        NodeState {
            topology: round.known.topology_of(&inventory),
            kin: round.kin.clone(),
            lacks,
            slow_since,
            obstacles,
            unready: cleanup::unready(&handovers, round.care),
            unclean: cleanup::failed(&handovers),
            is_in_doubt: !round.ledger.knows_claims(),
            ..looked.state(inventory, policy.clone(), plan)
        }
    }

    /// What was cut or programmed in another way may have to move, though the policy is the same.
    fn note_changes(&mut self, before: &Inventory, now: &Inventory) {
        if self.phase == Phase::Withholding {
            // The wait for what was found before is still to be published, and counts from this on.
            return;
        }
        if let Some(why) = changes::why_to_move((before, now), &self.policy, &self.marked) {
            tracing::info!("{why}");
            self.hold_moves();
        }
    }

    /// Documents are brought up to date at every look, also when the inventory is unchanged: someone
    /// may have removed one, and nodes that all GPUs share come and go by themselves.
    fn want_on_disk(&mut self, plan: &Plan, inventory: &Inventory, cause: Cause) -> Wanted {
        // What ids stand for is noted before they are offered.
        offers::note(&mut self.marked, plan, inventory, self.holdings.held());
        let wanted = Wanted {
            inventory: inventory.clone(),
            policy: self.policy.clone(),
            infos: device_info::wanted(&plan.offers, inventory),
            marked: self.marked.clone(),
        };
        match cause {
            Cause::News => self.disk.want(wanted.clone()),
            Cause::Disk => self.disk.want_news(wanted.clone()),
        }
        wanted
    }

    fn want_daemons(&mut self, plan: &Plan, inventory: &Inventory, ledger: &Ledger) {
        if !ledger.knows_claims() {
            return;
        }
        let known = self.outlets.daemons.borrow().clone();
        let demand = demands::daemons((plan, inventory), ledger, &self.holdings, &known);
        let is_first = self.taken_up == TakenUp::Holdings;
        if is_first {
            self.taken_up = TakenUp::All;
        }
        if is_first || *known != demand {
            self.outlets.daemons.send_replace(Arc::new(demand));
        }
    }

    /// Says why the lease of a device is in the way.
    fn leases(&self) -> impl Fn(&Device) -> Option<String> + use<> {
        let (leases, policy) = (self.notices.leases.borrow().clone(), self.policy.clone());
        move |device| lease_trouble(&leases, &policy, device)
    }

    fn want_care(&self, inventory: &Inventory) -> Arc<Demand> {
        let care = Arc::new(cleanup::demand(&self.policy, inventory, &self.leases()));
        publish(&self.outlets.care, Arc::clone(&care));
        care
    }

    fn publish_unless_known(&self, state: NodeState, known: &NodeState) {
        if !state.says_the_same_as(known) {
            tell::news(known, &state);
            self.outlets.state.send_replace(Arc::new(state));
        }
    }
}

// === impl Round ===

impl Round<'_> {
    /// Whether a claim has a device, or something of the same silicon.
    fn claimed(&self, device: &Device) -> Option<String> {
        let held = self.ledger.claim(&self.kin.footprint(&device.id)).map(|_| HELD.to_owned());
        held.or_else(|| (!self.ledger.knows_claims()).then(|| UNKNOWN.to_owned()))
    }
}

/// Waits until other claims have devices than are known. What containers get is no news: the kubelet keeps
/// account of it.
async fn claimed(ledger: &mut watch::Receiver<Ledger>, known: &Ledger) {
    fn said(ledger: &Ledger) -> impl PartialEq + '_ {
        (ledger.claims(), ledger.knows_claims())
    }
    let is_news = |ledger: &Ledger| said(ledger) != said(known);
    let is_news = ledger.wait_for(is_news).await.is_ok();
    if !is_news {
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests;
