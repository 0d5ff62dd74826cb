//! The one task that owns the node's state.
//!
//! The keeper merges what the sources publish into an inventory, writes the CDI documents for it,
//! cuts it into offers, and only then publishes: whoever is offered a device finds its document.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;
use windlass_core::{
    device::{Device, DeviceId, DeviceKind},
    inventory::Inventory,
};
use windlass_kubelet_api::{checkpoint, deviceplugin};

use super::{
    NodeState,
    held::{self, Holdings},
    look::{Look, Looked},
    notes::Notes,
    obstacles::{Way, lease_trouble},
    tell,
};
use crate::{
    attended::{self, Deadline},
    cluster::leases::LeaseStates,
    config::{Config, Policy, Replicas, Shared, Sharing, SharingMethod},
    device_info::{self, DeviceInfoFiles, DeviceInfos, Untold},
    discovery::SourceSnapshot,
    handover::{self, Demand, HandoverStates},
    holders::HoldersDesk,
    host::Host,
    ledger::{ClaimHolds, Kinship, Ledger},
    mps::{MpsDemand, MpsState, MpsStates, MpsWant, MpsWants},
    offer::{self, Held, Marked, Methods, Moves, Plan, Pools},
};

/// The newest snapshot of each source.
pub(crate) type Snapshots = Vec<(&'static str, watch::Receiver<SourceSnapshot>)>;

/// Owns the node's state.
pub(crate) struct Keeper {
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
    notes: Notes,
    moves: Moves,
    /// Once it has passed, the kubelet's record has every Allocate that was answered before the policy changed.
    settling: Option<Deadline>,
    /// What could be given away when the wait for it began.
    there: BTreeSet<DeviceId>,
    handover: Duration,
    kubelet_checkpoint: PathBuf,
    /// Lent to a thread while it looks.
    look: Option<Look>,
    /// How often is looked without news at documents, and at who let go.
    look_interval: Duration,
    /// Likewise, while it writes.
    device_info: Option<DeviceInfoFiles>,
    /// What CNI plugins could not be told when it was last tried.
    untold: Untold,
    /// The claims that the state was made under.
    claims: ClaimHolds,
    /// Whether these were all.
    knows_claims: bool,
    /// The kubelet is asked who holds what, which may have to wait for a better moment.
    asking: JoinSet<()>,
    daemons: watch::Sender<Arc<MpsDemand>>,
    /// Whether daemons that an earlier agent left are still to be told who wants them, nobody perhaps.
    unsaid: bool,
    /// Whether the kubelet's record was read in this life.
    is_taken_up: bool,
    care: watch::Sender<Arc<Demand>>,
    publish: watch::Sender<Arc<NodeState>>,
}

/// Says which claim has a device, or something of the same silicon.
type Claimed<'a> = &'a dyn Fn(&Device) -> Option<String>;

/// Where the keeper publishes.
pub(crate) struct Outlets {
    /// The node's state.
    pub(crate) state: watch::Sender<Arc<NodeState>>,
    /// The devices that need an MPS daemon.
    pub(crate) daemons: watch::Sender<Arc<MpsDemand>>,
    /// The devices that something is done to between containers.
    pub(crate) care: watch::Sender<Arc<Demand>>,
}

/// What wakes the keeper.
pub(crate) struct Notices {
    /// A source has news.
    pub(crate) news: Arc<Notify>,
    /// Counts the changes of the folder in which the kubelet keeps its record.
    pub(crate) kubelet_writes: watch::Receiver<u64>,
    /// What is wanted of the devices.
    pub(crate) policy: watch::Receiver<Arc<Policy>>,
    /// How the MPS daemons fare; changes are also `news`.
    pub(crate) mps: watch::Receiver<Arc<MpsStates>>,
    /// Where devices stand that something is done to between containers; changes are also `news`.
    pub(crate) handovers: watch::Receiver<Arc<HandoverStates>>,
    /// Whose the leases of devices are; changes are also `news`.
    pub(crate) leases: watch::Receiver<Arc<LeaseStates>>,
    /// Who holds what, as the kubelet tells when asked.
    pub(crate) holders: HoldersDesk,
    /// Which claims have devices.
    pub(crate) ledger: watch::Receiver<Ledger>,
}

/// What pods are told of a device that a claim has: whose it is is no business of theirs.
const HELD: &str = "held by another claim";

/// What a device lacks while nobody can tell.
const UNKNOWN: &str = "it is not known what claims have; the agent's log says why";

// === impl Keeper ===

impl Keeper {
    pub(crate) fn new(
        config: &Config,
        sources: Snapshots,
        notices: Notices,
        outlets: Outlets,
    ) -> Self {
        let plugins = config.kubelet_dir.join(deviceplugin::PLUGIN_DIR);
        let policy = notices.policy.borrow().clone();
        Self {
            sources,
            policy,
            notices,
            methods: Methods::new(),
            pools: Pools::new(),
            notes: Notes::new(config),
            holdings: Holdings::default(),
            moves: Moves::Kept,
            settling: None,
            there: BTreeSet::new(),
            handover: config.session.handover,
            kubelet_checkpoint: plugins.join(checkpoint::FILE),
            look: Some(Look::new(config)),
            look_interval: config.session.look_interval,
            device_info: Some(DeviceInfoFiles::new(config)),
            untold: Untold::default(),
            claims: ClaimHolds::new(),
            knows_claims: true,
            asking: JoinSet::new(),
            daemons: outlets.daemons,
            unsaid: false,
            is_taken_up: false,
            care: outlets.care,
            publish: outlets.state,
        }
    }

    /// Keeps the state until stopped. Ends every reader's stream when it ends.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        self.warm_up().await;
        self.notes.load(&self.policy.delivery).await;
        self.take_up_record().await;
        loop {
            self.refresh().await;
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.notices.news.notified() => {}
                Ok(()) = self.notices.policy.changed() => self.adopt(),
                () = claimed(&mut self.notices.ledger, (&self.claims, self.knows_claims)) => {}
                Some(_) = self.asking.join_next() => self.told(),
                Ok(()) = self.notices.kubelet_writes.changed(), if !self.holdings.is_empty() => {
                    self.release().await;
                }
                () = attended::passed(&mut self.settling) => {
                    self.allow_moves().await;
                }
                () = sleep(self.look_interval) => {
                    if !self.is_taken_up {
                        self.take_up_record().await;
                    }
                    if !self.holdings.is_empty() {
                        self.release().await;
                    }
                }
            }
        }
    }

    /// Takes up what containers held before this agent. Without the record nobody knows whose programs would end
    /// with a daemon.
    async fn take_up_record(&mut self) {
        if let Some(held) = self.read_held().await {
            self.take_up(held);
        }
    }

    /// Finds the driver's files while the sources find its devices.
    async fn warm_up(&mut self) {
        let mut look = self.look.take().expect("one look at a time");
        let policy = self.policy.clone();
        let warm = move || {
            look.warm_up(&policy);
            look
        };
        let done = tokio::task::spawn_blocking(warm).await;
        self.look = Some(done.expect("looking neither panics nor is cancelled"));
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
        let known = self.publish.borrow().clone();
        self.methods.extend(known.methods());
        self.pools.extend(known.pools());
        self.moves = Moves::Waiting;
        self.settling = None;
    }

    /// By now the kubelet has written down every Allocate that was answered before.
    async fn allow_moves(&mut self) {
        match self.read_held().await {
            Some(held) => {
                self.take_up(held);
                self.moves = Moves::Allowed;
                self.settling = None;
            }
            // Without the record no one knows who holds what.
            None => self.settling = Some(Deadline::after(self.handover)),
        }
    }

    /// Takes up what the record says. What no container holds needs no note if it was gone already when
    /// the wait began; whatever was there may have been given away too late for the record.
    fn take_up(&mut self, held: Held) {
        self.holdings = Holdings::new(held);
        self.unsaid |= !std::mem::replace(&mut self.is_taken_up, true);
        let mut needed = std::mem::take(&mut self.there);
        needed.extend(self.publish.borrow().given_and_there());
        needed.extend(self.holdings.devices());
        self.notes.retain(|id| needed.contains(id));
    }

    /// Forgets what containers held and have released since, and asks about the rest. What they were given
    /// since then the offers themselves remember.
    async fn release(&mut self) {
        // A record that cannot be read releases nothing.
        let Some(recorded) = self.read_held().await else { return };
        self.holdings.retain_recorded(&recorded);
        // The record keeps a pod that is gone until the next Allocate, which may never come while its
        // devices are kept back.
        if self.asking.is_empty() {
            let desk = self.notices.holders.clone();
            self.asking.spawn(async move { desk.refresh().await });
        }
    }

    /// Forgets what the kubelet does not tell of any more.
    fn told(&mut self) {
        let holders = self.notices.holders.holders().borrow().clone();
        self.holdings.retain_told(&holders, Instant::now(), self.look_interval);
    }

    async fn read_held(&self) -> Option<Held> {
        let path = self.kubelet_checkpoint.clone();
        let read = tokio::task::spawn_blocking(move || held::read(&path));
        read.await.expect("reading neither panics nor is cancelled")
    }

    /// Documents are brought up to date at every look, also when the inventory is unchanged: someone
    /// may have removed one, and nodes that all GPUs share come and go by themselves.
    async fn refresh(&mut self) {
        let merged = merge(&self.sources);
        if !merged.is_complete() {
            return;
        }
        if self.notices.policy.has_changed().unwrap_or(false) {
            self.adopt();
        }
        let known = self.publish.borrow().clone();
        if known.inventory.generation > 0 {
            self.note_changes(&known.inventory, &merged);
        }
        let policy = self.policy.clone();
        let (merged, looked) = self.look_at_disk(merged, policy.clone()).await;
        let care = self.want_care(&merged);
        let kin = kin(&known, &merged);
        let ledger = self.notices.ledger.borrow().clone();
        (self.claims, self.knows_claims) = (ledger.claims().clone(), ledger.knows_claims());
        let claimed = |device: &Device| {
            let held = ledger.claim(&kin.footprint(&device.id)).map(|_| HELD.to_owned());
            held.or_else(|| (!ledger.knows_claims()).then(|| UNKNOWN.to_owned()))
        };
        let mut plan = self.plan(&known, &merged, (&looked, &claimed), &care);
        // Which files are wanted does not depend on which of them can be written.
        if self.tell_cni_plugins(device_info::wanted(&plan.offers, &merged)).await {
            plan = self.plan(&known, &merged, (&looked, &claimed), &care);
        }
        self.note_moves(&plan);
        // What ids stand for is noted before they are offered.
        self.notes.note(&plan, &merged, self.holdings.held());
        self.notes.write().await;
        self.want_daemons(&plan, &merged, &ledger);
        let handovers = self.notices.handovers.borrow().clone();
        let unclean = handover::failed(&handovers);
        let unready = handover::unready(&handovers, &care);
        let way = Way { looked: &looked, policy: &policy, lease: &self.leases() };
        let obstacles = way.of_claims(&merged);
        let found = looked.state(merged, policy, plan);
        let is_in_doubt = !ledger.knows_claims();
        let mut state = NodeState { kin, obstacles, unready, unclean, is_in_doubt, ..found };
        state.lacks.troubles.extend(self.untold.trouble());
        self.publish_unless_known(state, &known);
        if self.moves == Moves::Waiting && self.settling.is_none() {
            self.there = self.publish.borrow().given_and_there().collect();
            self.settling = Some(Deadline::after(self.handover));
        }
    }

    fn plan(
        &self,
        known: &NodeState,
        inventory: &Inventory,
        (looked, claimed): (&Looked, Claimed<'_>),
        care: &Demand,
    ) -> Plan {
        let policy = &self.policy;
        let daemons = self.notices.mps.borrow().clone();
        let handovers = self.notices.handovers.borrow().clone();
        let lease = self.leases();
        let way = Way { looked, policy, lease: &lease };
        offer::plan(offer::Question {
            policy,
            inventory,
            previous: &known.offers,
            held: self.holdings.held(),
            methods: &self.methods,
            pools: &self.pools,
            marked: self.notes.marked(),
            moves: self.moves,
            obstacle: &|device, sharing| {
                let daemon = || daemon_trouble(&daemons, device, sharing);
                let untold = || self.untold.devices.get(&device.id).map(ToString::to_string);
                let before = || way.of_containers(device).map(|it| it.why).or_else(daemon);
                let left = || looked.daemon_left(device, sharing);
                before().or_else(untold).or_else(|| claimed(device)).or_else(left)
            },
            handover: &|id| handover_trouble(&handovers, care, id),
        })
    }

    /// What was cut or programmed in another way may have to move, though the policy is the same.
    fn note_changes(&mut self, before: &Inventory, now: &Inventory) {
        if shapes(now) != shapes(before) {
            tracing::info!("GPUs are cut in another way; what changes waits for its holders");
            self.hold_moves();
        } else if offer::is_something_else(&self.policy, before, now) {
            tracing::info!("devices are something else by now; what changes waits for its holders");
            self.hold_moves();
        } else if offer::reveals(self.notes.marked(), before, now) {
            tracing::info!("devices go by other ids now; what changes waits for its holders");
            self.hold_moves();
        }
    }

    /// Moves are over once none waits.
    fn note_moves(&mut self, plan: &Plan) {
        if !plan.waiting {
            self.moves = Moves::Kept;
            self.settling = None;
        }
    }

    /// A daemon stays while the device fails, while containers hold replicas of a device that is to be
    /// shared no longer, and while claims may have shares of it: its end is the end of their programs.
    fn want_daemons(&mut self, plan: &Plan, inventory: &Inventory, ledger: &Ledger) {
        if !ledger.knows_claims() {
            return;
        }
        let known = self.daemons.borrow().clone();
        let wanted = plan.mps.iter().filter_map(|(id, replicas)| {
            Some((id.clone(), MpsWant::new(inventory.get(id.as_str())?, *replicas)))
        });
        let by_claims = Ledger::daemons(&self.claims);
        let want = |id: &DeviceId| {
            Some((id.clone(), MpsWant::new(inventory.get(id.as_str())?, Replicas::ONE)))
        };
        let wanted: MpsWants = by_claims.surely.iter().filter_map(want).chain(wanted).collect();
        let mut kept = self.holdings.shared_devices();
        kept.extend(by_claims.surely.into_iter().chain(by_claims.perhaps));
        if ledger.is_hearsay() {
            kept.extend(self.claims.keys().cloned());
        }
        if plan.waiting {
            kept.extend(known.wanted.keys().chain(&known.kept).cloned());
        }
        kept.retain(|id| !wanted.contains_key(id));
        let demand = MpsDemand { wanted, kept };
        if std::mem::take(&mut self.unsaid) || *known != demand {
            self.daemons.send_replace(Arc::new(demand));
        }
    }

    /// Says why the lease of a device is in the way.
    fn leases(&self) -> impl Fn(&Device) -> Option<String> + use<> {
        let (leases, policy) = (self.notices.leases.borrow().clone(), self.policy.clone());
        move |device| lease_trouble(&leases, &policy, device)
    }

    fn want_care(&self, inventory: &Inventory) -> Arc<Demand> {
        let care = Arc::new(handover::demand(&self.policy, inventory, &self.leases()));
        self.care.send_if_modified(|known| {
            let news = *known != care;
            known.clone_from(&care);
            news
        });
        care
    }

    fn publish_unless_known(&self, mut state: NodeState, known: &NodeState) {
        if state.says_the_same_as(known) {
            return;
        }
        state.find_topology(known);
        tell::news(known, &state);
        state.inventory.generation = known.inventory.generation + 1;
        self.publish.send_replace(Arc::new(state));
    }

    /// What CNI plugins read of a device is there before it is given away. Gives whether other devices have
    /// to be kept back for that than before.
    async fn tell_cni_plugins(&mut self, wanted: DeviceInfos) -> bool {
        let mut files = self.device_info.take().expect("one writes at a time");
        let (files, untold) = if files.is_idle(&wanted) {
            (files, Untold::default())
        } else {
            let keep = move || {
                let untold = files.keep(&wanted);
                (files, untold)
            };
            let done = tokio::task::spawn_blocking(keep).await;
            done.expect("writing neither panics nor is cancelled")
        };
        self.device_info = Some(files);
        let is_news = untold.devices != self.untold.devices;
        self.untold = untold;
        is_news
    }

    /// Files wait for the disk, which requests must not.
    async fn look_at_disk(
        &mut self,
        inventory: Inventory,
        policy: Arc<Policy>,
    ) -> (Inventory, Looked) {
        let mut look = self.look.take().expect("one look at a time");
        let look = move || {
            let looked = look.run(&inventory, &policy);
            (look, inventory, looked)
        };
        let done = tokio::task::spawn_blocking(look).await;
        let (look, inventory, looked) = done.expect("looking neither panics nor is cancelled");
        self.look = Some(look);
        (inventory, looked)
    }
}

/// The state as an agent that starts now would publish it, without writing anything.
pub(crate) fn look_once(config: &Config, sources: &Snapshots) -> NodeState {
    let (mut inventory, policy) = (merge(sources), Arc::new(config.policy.clone()));
    inventory.recorded = Host::new(&config.host_root, &config.host_root_on_node).recorded();
    let looked = Look::new(config).without_writing(&inventory, &policy);
    let (handovers, care) =
        (handover::left(config), handover::demand(&policy, &inventory, &|_| None));
    let way = Way { looked: &looked, policy: &policy, lease: &|_| None };
    let question = offer::Question {
        policy: &policy,
        inventory: &inventory,
        previous: &offer::Offers::new(),
        held: &Held::new(),
        methods: &Methods::new(),
        pools: &Pools::new(),
        marked: &Marked::new(),
        moves: Moves::Kept,
        obstacle: &|device, _| way.of_containers(device).map(|it| it.why),
        handover: &|id| handovers.get(id).filter(|_| care.contains_key(id))?.trouble(),
    };
    let (plan, obstacles) = (offer::plan(question), way.of_claims(&inventory));
    let mut state = NodeState { obstacles, ..looked.state(inventory, policy.clone(), plan) };
    state.find_topology(&NodeState::default());
    state
}

/// Which devices are of the same silicon, looked up anew where devices changed.
fn kin(known: &NodeState, inventory: &Inventory) -> Arc<Kinship> {
    if known.inventory.devices == inventory.devices {
        return known.kin.clone();
    }
    Arc::new(Kinship::of(inventory))
}

/// Waits until other claims have devices than are known. What containers get is no news: the kubelet keeps
/// account of it.
async fn claimed(ledger: &mut watch::Receiver<Ledger>, (known, are_known): (&ClaimHolds, bool)) {
    let is_news = |ledger: &Ledger| (ledger.claims(), ledger.knows_claims()) != (known, are_known);
    let is_news = ledger.wait_for(is_news).await.is_ok();
    if !is_news {
        std::future::pending::<()>().await;
    }
}

/// Why a device that is shared by MPS has no daemon to serve it.
fn daemon_trouble(daemons: &MpsStates, device: &Device, sharing: Sharing) -> Option<String> {
    match sharing {
        Sharing::Shared(Shared { method: SharingMethod::Mps, .. }) => {
            daemons.get(&device.id).unwrap_or(&MpsState::Starting).trouble()
        }
        Sharing::Shared(_) | Sharing::Pooled(_) | Sharing::Exclusive => None,
    }
}

/// Why a device is not to be given away before something is done to it.
fn handover_trouble(states: &HandoverStates, care: &Demand, id: &DeviceId) -> Option<String> {
    care.get(id)?;
    match states.get(id) {
        Some(state) => state.trouble(),
        None => Some("hand-over: what was left on it is being looked up".to_owned()),
    }
}

/// How GPUs are cut: which have MIG on, and which instances are there.
fn shapes(inventory: &Inventory) -> BTreeMap<&DeviceId, (bool, BTreeSet<&DeviceId>)> {
    let gpus = inventory.of_kind(DeviceKind::Gpu);
    let shapes = gpus.map(|gpu| {
        let parts = offer::present_parts(inventory, &gpu.id).map(|part| &part.id);
        (&gpu.id, (gpu.partitioned, parts.collect::<BTreeSet<_>>()))
    });
    shapes.filter(|(_, (on, parts))| *on || !parts.is_empty()).collect()
}

/// Puts the sources' newest snapshots together.
pub(crate) fn merge(sources: &Snapshots) -> Inventory {
    let mut inventory = Inventory::default();
    for (_, snapshots) in sources {
        let snapshot = snapshots.borrow();
        let states = snapshot.states.iter();
        inventory.sources.extend(states.map(|(name, state)| (name.to_string(), state.clone())));
        inventory.simulated = inventory.simulated.or_else(|| snapshot.simulated.clone());
        inventory.devices.extend(snapshot.devices.iter().cloned());
    }
    inventory.sort();
    inventory
}
