//! Reconciler: the single task that owns the node's state.
//!
//! ```text
//!  sources, policy, claims, daemons ──> plan (pure) ──> publish
//!                                        ^   │
//!                        disk state ─────┘   └──> desired files (see `disk`)
//! ```
//!
//! The reconciler plans from memory and never waits for the disk, so that degraded devices are published at once.
//! The state of the disk is one of its inputs: a device is offered once its document and its fingerprint are
//! written.

mod changes;
mod demands;
mod disk;
mod disk_check;
mod disk_wait;
pub(crate) mod dry_run;
mod fingerprints;
mod holdings;
mod log;
mod obstacles;
mod phase;

use std::{
    collections::{BTreeMap, BTreeSet},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::{Notify, watch},
    task::spawn_blocking,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;
use windlass_allocations::{
    HeldIds,
    follow::{Allocations, AllocationsReader, FollowGuard},
    ledger::{Ledger, Overlaps},
};
use windlass_cluster::leases::LeaseStates;
use windlass_config::{Config, Policy, Sharing};
use windlass_core::{
    device::{Device, DeviceId},
    inventory::Inventory,
};
use windlass_discovery::live_driver::LiveDriver;
use windlass_host::{
    deadline,
    watch::{publish_if_changed, until},
};
use windlass_lifecycle::{
    cleanup::{self, CleanupPlans, CleanupStates},
    mps::{MpsDemand, MpsStates},
};
use windlass_resources::{
    NodeState, device_info,
    offers::{self, Fingerprint, Fingerprints, Plan, Pools, ReplicaKinds},
};

pub(crate) use self::fingerprints::{FORMAT as DEVICES, were_offered};
use self::{
    disk::{DEADLINE, DesiredFiles, Disk, DiskChannels, DiskHandle, DiskState},
    disk_check::DiskCheck,
    disk_wait::{has_lost_health, waiting_for_disk},
    dry_run::{Snapshots, merge},
    holdings::Holdings,
    obstacles::{ObstacleChecks, lease_obstacle},
    phase::Phase,
};

/// Owns the node's state.
pub(crate) struct Reconciler {
    sources: Snapshots,
    inputs: Inputs,
    /// Policy in force. A new one takes effect when the migration of its devices starts.
    policy: Arc<Policy>,
    holdings: Holdings,
    /// Kind of the replicas that containers hold.
    replica_kinds: ReplicaKinds,
    /// Pool of each device at its last allocation.
    pools: Pools,
    /// Fingerprint of the hardware behind each id when the id was allocated.
    allocated_hardware: Fingerprints,
    /// Phase of a device migration.
    phase: Phase,
    /// Longest time until the kubelet has written an Allocate to its checkpoint.
    checkpoint_delay: Duration,
    /// Subscription to the kubelet's checkpoint, while allocations matter.
    subscription: Option<FollowGuard>,
    restored: RestoreProgress,
    disk: DiskHandle,
    /// Disk worker; `run` takes it.
    worker: Option<(Disk, DiskChannels)>,
    /// Interval of checks without a trigger.
    check_interval: Duration,
    /// Ledger of the latest round.
    ledger: Ledger,
    /// Overlaps of the latest devices.
    overlaps: Arc<Overlaps>,
    outputs: Outputs,
}

/// Channels that the reconciler publishes to.
pub(crate) struct Outputs {
    pub(crate) state: watch::Sender<Arc<NodeState>>,
    /// Devices that need an MPS daemon.
    pub(crate) daemons: watch::Sender<Arc<MpsDemand>>,
    /// Devices that need cleanup between tenants.
    pub(crate) cleanup_demand: watch::Sender<Arc<CleanupPlans>>,
    /// Time of the latest round.
    pub(crate) last_round: watch::Sender<Instant>,
}

pub(crate) struct Inputs {
    /// Change of a source.
    pub(crate) wake: Arc<Notify>,
    /// Devices that containers hold.
    pub(crate) allocations: AllocationsReader,
    pub(crate) policy: watch::Receiver<Arc<Policy>>,
    /// States of the MPS daemons; changes notify `wake` too.
    pub(crate) mps: watch::Receiver<Arc<MpsStates>>,
    /// Cleanup states of devices; changes notify `wake` too.
    pub(crate) cleanup_states: watch::Receiver<Arc<CleanupStates>>,
    /// Lease states of devices; changes notify `wake` too.
    pub(crate) leases: watch::Receiver<Arc<LeaseStates>>,
    /// Devices that claims hold.
    pub(crate) ledger: watch::Receiver<Ledger>,
    /// NVIDIA's driver, which may limit the memory of shares.
    pub(crate) driver: Option<LiveDriver>,
}

/// Progress of restoring the previous agent's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RestoreProgress {
    /// The kubelet's checkpoint was not read yet.
    None,
    /// Allocations of containers are restored. The MPS supervisor does not know yet which daemons to keep.
    Allocations,
    /// The MPS supervisor knows its daemons too.
    All,
}

/// Reason for a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trigger {
    /// A change, or the regular interval: the disk is checked too.
    Change,
    /// The disk has answered or is late.
    Disk,
}

/// Inputs of one round.
struct Round<'a> {
    /// State published by an earlier round.
    published: &'a NodeState,
    inventory: &'a Inventory,
    on_disk: &'a DiskState,
    ledger: &'a Ledger,
    overlaps: Arc<Overlaps>,
    cleanup_demand: &'a CleanupPlans,
}

/// Obstacle of a device that a claim holds. Pods must not learn which claim.
const HELD_BY_CLAIM: &str = "held by a claim";

/// Obstacle of a device that pods share by amounts of memory and compute.
const SHARED_BY_PODS: &str = "pods hold shares of it by amounts";

/// Obstacle of shares by amounts: another kind of holder.
const HELD_BY_OTHER_KIND: &str = "held by a container or a claim";

/// Obstacle of a device while claims are unknown.
const CLAIMS_UNKNOWN: &str = "devices of claims are unknown: see the agent's log";

// === impl Reconciler ===

impl Reconciler {
    pub(crate) fn new(
        config: &Config,
        sources: Snapshots,
        inputs: Inputs,
        outputs: Outputs,
    ) -> Self {
        let policy = inputs.policy.borrow().clone();
        let (disk, channels) = disk::channel();
        let (delivery, driver) = (config.policy.delivery.clone(), inputs.driver.clone());
        let check = DiskCheck::new(&config.places, &config.mps, delivery, driver);
        Self {
            sources,
            policy,
            inputs,
            replica_kinds: ReplicaKinds::new(),
            pools: Pools::new(),
            allocated_hardware: Fingerprints::new(),
            holdings: Holdings::default(),
            phase: Phase::default(),
            checkpoint_delay: config.kubelet_limits.checkpoint_delay,
            subscription: None,
            restored: RestoreProgress::None,
            disk,
            worker: Some((Disk::new(&config.places, check), channels)),
            check_interval: config.kubelet_limits.check_interval,
            ledger: Ledger::default(),
            overlaps: Arc::default(),
            outputs,
        }
    }

    /// Runs until stopped. Its end closes the streams of all readers.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let (disk, channels) = self.worker.take().expect("a reconciler runs once");
        let running = async move {
            let disk = self.open_disk(disk).await;
            tokio::join!(self.run_rounds(), disk.run(channels));
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = running => {}
        }
    }

    /// Restores the previous agent's fingerprints and the allocations of containers. MPS daemons run until the
    /// checkpoint is read: stopping one kills its clients.
    async fn open_disk(&mut self, mut disk: Disk) -> Disk {
        let policy = self.policy.clone();
        let open_task = spawn_blocking(move || {
            let allocated_hardware = disk.open(&policy);
            (disk, allocated_hardware)
        });
        let mut open_task = pin!(open_task);
        let result = if let Ok(result) = deadline::timeout(DEADLINE, &mut open_task).await {
            result
        } else {
            tracing::warn!(
                limit = ?DEADLINE,
                "disk not responding: devices are offered once the previous agent's state is read"
            );
            open_task.await
        };
        let (disk, allocated_hardware) = result.expect("reading neither panics nor is cancelled");
        self.allocated_hardware = allocated_hardware;
        if let Some(held_ids) = self.inputs.allocations.read().await.held_ids() {
            self.restore(held_ids, BTreeSet::new());
        }
        disk
    }

    async fn run_rounds(&mut self) {
        let mut allocations = self.inputs.allocations.watch();
        let mut trigger = Trigger::Change;
        loop {
            self.refresh(trigger);
            self.update_subscription();
            self.outputs.last_round.send_replace(Instant::now());
            trigger = Trigger::Change;
            let busy = self.disk.busy_since();
            tokio::select! {
                () = self.inputs.wake.notified() => {}
                Ok(()) = self.inputs.policy.changed() => self.apply_policy(),
                () = holders_changed(&mut self.inputs.ledger, &self.ledger, &self.policy) => {}
                Ok(()) = self.disk.on_disk.changed() => trigger = Trigger::Disk,
                () = disk::wait_until_slow(busy) => trigger = Trigger::Disk,
                Ok(()) = allocations.changed(), if self.subscription.is_some() => {
                    let newest = allocations.borrow_and_update().clone();
                    self.handle_checkpoint(&newest);
                }
                () = self.phase.settle() => {
                    // A new subscription makes the follower read the checkpoint again.
                    self.subscription = Some(self.inputs.allocations.follow());
                }
                () = sleep(self.check_interval) => {}
            }
        }
    }

    /// Puts the latest policy in force.
    fn apply_policy(&mut self) {
        let policy = self.inputs.policy.borrow_and_update().clone();
        if policy != self.policy {
            self.policy = policy;
            self.start_migration();
        }
    }

    /// Withholds devices that have to move until the kubelet's checkpoint is complete. The wait begins with the next
    /// published state.
    fn start_migration(&mut self) {
        let published = self.published();
        self.replica_kinds.extend(published.replica_kinds());
        self.pools.extend(published.pools());
        self.phase.start();
    }

    /// Follows the kubelet's checkpoint while releases matter.
    fn update_subscription(&mut self) {
        let is_needed = self.restored == RestoreProgress::None
            || !self.holdings.is_empty()
            || matches!(self.phase, Phase::Reading { .. });
        if is_needed != self.subscription.is_some() {
            self.subscription = is_needed.then(|| self.inputs.allocations.follow());
        }
    }

    /// Handles a checkpoint. An unreadable one releases nothing.
    fn handle_checkpoint(&mut self, allocations: &Allocations) {
        let Some(held_ids) = allocations.held_ids() else {
            return self.phase.restart_wait(allocations.read_at(), self.checkpoint_delay);
        };
        // A checkpoint that completes the phase contains every earlier Allocate.
        match self.phase.complete(allocations.read_at()) {
            Some(allocatable) => self.restore(held_ids, allocatable),
            None if self.restored == RestoreProgress::None => {
                let allocatable = self.phase.allocatable().cloned().collect();
                self.restore(held_ids, allocatable);
            }
            // The offers already contain the ids that were allocated later.
            None => self.holdings.retain(held_ids),
        }
    }

    /// Restores allocations from the checkpoint. Fingerprints are kept for held devices, and for devices that were
    /// allocatable when the wait began: their allocation may be missing in the checkpoint.
    fn restore(&mut self, held_ids: &HeldIds, allocatable: BTreeSet<DeviceId>) {
        self.holdings = Holdings::new(held_ids.clone());
        if self.restored == RestoreProgress::None {
            self.restored = RestoreProgress::Allocations;
        }
        let mut needed = allocatable;
        needed.extend(self.published().present_once_allocatable());
        needed.extend(self.holdings.devices());
        self.allocated_hardware.retain(|id, _| needed.contains(id));
    }

    fn published(&self) -> Arc<NodeState> {
        self.outputs.state.borrow().clone()
    }

    /// Runs one round without waiting.
    fn refresh(&mut self, trigger: Trigger) {
        let inventory = merge(&self.sources);
        if !inventory.is_complete() {
            return;
        }
        if self.inputs.policy.has_changed().unwrap_or(false) {
            self.apply_policy();
        }
        let published = self.published();
        if published.inventory.generation > 0 {
            self.detect_migration(&published.inventory, &inventory);
        }
        let cleanup_demand = self.request_cleanup(&inventory);
        let overlaps = self.overlaps(&inventory);
        let ledger = self.inputs.ledger.borrow().clone();
        self.ledger.clone_from(&ledger);
        let on_disk = self.disk.on_disk.borrow_and_update().clone();
        let round = Round {
            published: &published,
            inventory: &inventory,
            on_disk: &on_disk,
            ledger: &ledger,
            overlaps,
            cleanup_demand: &cleanup_demand,
        };
        // This plan assumes that every file is written, so it determines the desired files.
        let mut plan = self.plan(&round, &BTreeSet::new());
        self.request_daemons(&plan, &inventory, &ledger);
        let desired = self.request_files(&plan, &inventory, trigger);
        let waiting_devices = waiting_for_disk(&plan, &published, (&desired, &on_disk));
        let slow_since = self.disk.slow_since();
        if !waiting_devices.is_empty() || !on_disk.matches(&self.policy) {
            if slow_since.is_none() && !has_lost_health(&published.inventory, &inventory) {
                // The disk triggers the next round soon, so that new devices appear in one step.
                return;
            }
            plan = self.plan(&round, &waiting_devices);
        }
        let state = self.state(&round, plan, &waiting_devices, slow_since);
        self.publish_if_changed(state, &published);
        let published = self.published();
        self.phase
            .start_wait(self.checkpoint_delay, || published.present_once_allocatable().collect());
    }

    /// Overlaps of the devices, computed again if the devices changed.
    fn overlaps(&mut self, inventory: &Inventory) -> Arc<Overlaps> {
        if !self.disk.has_requested(&inventory.devices) {
            self.overlaps = Arc::new(Overlaps::from_inventory(inventory));
        }
        self.overlaps.clone()
    }

    fn plan(&self, round: &Round<'_>, waiting_for_disk: &BTreeSet<DeviceId>) -> Plan {
        let policy = &self.policy;
        let daemons = self.inputs.mps.borrow().clone();
        let cleanup_states = self.inputs.cleanup_states.borrow().clone();
        let (check_result, outdated) = (&round.on_disk.check_result, &round.on_disk.outdated);
        let lease = self.lease_obstacles();
        let checks = ObstacleChecks { check_result, policy, waiting_for_disk, lease: &lease };
        offers::plan(offers::OfferInputs {
            policy,
            inventory: round.inventory,
            previous: &round.published.offers,
            held: self.holdings.ids(),
            replica_kinds: &self.replica_kinds,
            pools: &self.pools,
            fingerprints: &self.allocated_hardware,
            move_permission: self.phase.moves(),
            obstacle: &|device, sharing| {
                let daemon = || demands::daemon_obstacle(&daemons, device, sharing);
                let outdated = || outdated.devices.get(&device.id).map(ToString::to_string);
                let container_obstacle =
                    || checks.of_containers(device).map(|obstacle| obstacle.reason).or_else(daemon);
                let leftover_daemon = || check_result.daemon_obstacle(device, sharing);
                container_obstacle()
                    .or_else(outdated)
                    .or_else(|| round.claim_obstacle(device))
                    .or_else(leftover_daemon)
            },
            share_obstacle: &|device| {
                let obstacle = checks.of_shares(device).map(|obstacle| obstacle.reason);
                let leftover_daemon = || check_result.daemon_obstacle(device, Sharing::Exclusive);
                obstacle.or_else(|| round.share_obstacle(device)).or_else(leftover_daemon)
            },
            cleanup: &|id| demands::cleanup_obstacle(&cleanup_states, round.cleanup_demand, id),
        })
    }

    /// State of the node under a plan.
    fn state(
        &mut self,
        round: &Round<'_>,
        plan: Plan,
        waiting_for_disk: &BTreeSet<DeviceId>,
        slow_since: Option<Instant>,
    ) -> NodeState {
        // A migration ends when no device waits.
        if !plan.has_pending_moves {
            self.phase.finish();
        }
        let cleanup_states = self.inputs.cleanup_states.borrow().clone();
        let (policy, check_result) = (&self.policy, &round.on_disk.check_result);
        let lease = self.lease_obstacles();
        let checks = ObstacleChecks { check_result, policy, waiting_for_disk, lease: &lease };
        let mut inventory = round.inventory.clone();
        inventory.generation = round.published.inventory.generation + 1;
        let mut missing_parts = check_result.missing_parts.clone();
        missing_parts.problems.extend(round.on_disk.outdated.summary());
        NodeState {
            topology: round.published.topology_of(&inventory),
            overlaps: round.overlaps.clone(),
            missing_parts,
            disk_slow_since: slow_since,
            claim_obstacles: checks.of_claims(round.inventory),
            pending_cleanups: cleanup::unready_devices(&cleanup_states, round.cleanup_demand),
            failed_cleanups: cleanup::failed_devices(&cleanup_states),
            claims_may_be_missing: !round.ledger.knows_claims(),
            replica_memory: self.replica_memory(),
            ..check_result.state(inventory, policy.clone(), plan)
        }
    }

    /// Memory of the replicas that containers have or may get.
    fn replica_memory(&self) -> BTreeMap<DeviceId, u64> {
        let memory = |(id, hardware): (&DeviceId, &Fingerprint)| {
            Some((id.clone(), hardware.replica_memory()?))
        };
        self.allocated_hardware.iter().filter_map(memory).collect()
    }

    /// Starts a migration if devices were repartitioned or reprogrammed.
    fn detect_migration(&mut self, previous: &Inventory, current: &Inventory) {
        if self.phase == Phase::Withholding {
            // The wait begins with the next published state, so it covers this change too.
            return;
        }
        if let Some(reason) =
            changes::migration_reason((previous, current), &self.policy, &self.allocated_hardware)
        {
            tracing::info!("{reason}");
            self.start_migration();
        }
    }

    /// Requests the desired files, even for an unchanged inventory: a document may have been deleted, and device nodes
    /// that all GPUs share come and go independently.
    fn request_files(
        &mut self,
        plan: &Plan,
        inventory: &Inventory,
        trigger: Trigger,
    ) -> DesiredFiles {
        // Fingerprints are written before ids are offered.
        offers::record(&mut self.allocated_hardware, plan, inventory, self.holdings.ids());
        let desired = DesiredFiles {
            inventory: inventory.clone(),
            policy: self.policy.clone(),
            infos: device_info::desired_files(&plan.offers, inventory),
            allocated_hardware: self.allocated_hardware.clone(),
            replica_sizes: offers::replica_sizes(&plan.offers, &self.allocated_hardware),
        };
        match trigger {
            Trigger::Change => self.disk.request(desired.clone()),
            Trigger::Disk => self.disk.request_if_changed(desired.clone()),
        }
        desired
    }

    fn request_daemons(&mut self, plan: &Plan, inventory: &Inventory, ledger: &Ledger) {
        if !ledger.knows_claims() {
            return;
        }
        let published = self.outputs.daemons.borrow().clone();
        let demand = demands::mps_demand((plan, inventory), ledger, &self.holdings, &published);
        let is_first = self.restored == RestoreProgress::Allocations;
        if is_first {
            self.restored = RestoreProgress::All;
        }
        if is_first || *published != demand {
            self.outputs.daemons.send_replace(Arc::new(demand));
        }
    }

    fn lease_obstacles(&self) -> impl Fn(&Device) -> Option<String> + use<> {
        let (leases, policy) = (self.inputs.leases.borrow().clone(), self.policy.clone());
        move |device| lease_obstacle(&leases, &policy, device)
    }

    fn request_cleanup(&self, inventory: &Inventory) -> Arc<CleanupPlans> {
        let cleanup_demand =
            Arc::new(cleanup::plans(&self.policy, inventory, &self.lease_obstacles()));
        publish_if_changed(&self.outputs.cleanup_demand, Arc::clone(&cleanup_demand));
        cleanup_demand
    }

    fn publish_if_changed(&self, state: NodeState, published: &NodeState) {
        if !state.has_same_content(published) {
            log::changes(published, &state);
            self.outputs.state.send_replace(Arc::new(state));
        }
    }
}

// === impl Round ===

impl Round<'_> {
    /// Obstacle of a device whose holder excludes shares by amounts.
    fn share_obstacle(&self, device: &Device) -> Option<String> {
        let is_held = self.ledger.excludes_shares(&self.overlaps.overlap(&device.id));
        let unknown = || (!self.ledger.knows_claims()).then(|| CLAIMS_UNKNOWN.to_owned());
        is_held.then(|| HELD_BY_OTHER_KIND.to_owned()).or_else(unknown)
    }

    /// Obstacle of a device that a claim holds, itself or by overlap.
    fn claim_obstacle(&self, device: &Device) -> Option<String> {
        let claim = self.ledger.claim_holder(&self.overlaps.overlap(&device.id));
        let held_obstacle = claim
            .map(|claim| if claim.is_share() { SHARED_BY_PODS } else { HELD_BY_CLAIM }.to_owned());
        held_obstacle.or_else(|| (!self.ledger.knows_claims()).then(|| CLAIMS_UNKNOWN.to_owned()))
    }
}

/// Waits until the claims in the ledger change, or, with shares by amounts, the containers. Without such shares the
/// kubelet alone accounts for the devices of containers.
async fn holders_changed(ledger: &mut watch::Receiver<Ledger>, previous: &Ledger, policy: &Policy) {
    fn claims(ledger: &Ledger) -> impl PartialEq + '_ {
        (ledger.claims(), ledger.knows_claims())
    }
    let is_changed = |ledger: &Ledger| {
        let has_new_containers = !ledger.container_devices().eq(previous.container_devices());
        (policy.shares.is_enabled() && has_new_containers) || claims(ledger) != claims(previous)
    };
    until(ledger, is_changed).await;
}

#[cfg(test)]
mod tests;
