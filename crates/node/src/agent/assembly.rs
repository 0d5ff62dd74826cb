//! Wiring of the agent's tasks: channels and start order.

use std::{path::PathBuf, sync::Arc, time::Duration};

use prometheus_client::registry::Registry;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use windlass_allocations::{
    follow::{AllocationsReader, CheckpointFollower, FollowerInputs},
    ledger::SharedLedger,
    podresources::{self, PodResourcesCache},
};
use windlass_cdi::memory_limits::ReplicaLimits;
use windlass_cluster::{
    Client,
    leases::{self, LeaseStates},
};
use windlass_config::{Config, Policy};
use windlass_core::labels::Labels;
use windlass_deviceplugin::{PluginSupervisor, RecentAllocations, history, shares::ShareHandle};
use windlass_discovery::{
    HostWatch, Source, live_driver::LiveDriver, mig::MigHandle, telemetry::TelemetryReceiver,
};
use windlass_dra::{Driver, MemoryExcesses, RecoveredClaims};
use windlass_host::{Roots, clock::Clock, state_folder};
use windlass_lifecycle::{
    cleanup::{self, Cleanup, CleanupHandle},
    mps::{Mps, MpsClients, MpsDemand, MpsFolders, MpsStates},
};
use windlass_resources::NodeState;

use super::tasks::TaskSet;
use crate::{
    admin::{self, Listeners},
    decisions,
    labels::{Labeller, devices},
    metrics::{Instruments, SharedGpus},
    nv_fractions::{FractionLimits, Fractions},
    reconciler::{Inputs, Outputs, Reconciler, dry_run::Snapshots, were_offered},
    shares::{self, Shares},
    terminating_clients,
    watchdog::{self, Watchdog},
};

/// Dependencies that are checked and bound before any task runs.
pub(super) struct Deps {
    /// Device plugin folder of the kubelet.
    pub(super) dir: PathBuf,
    /// Counter of events in that folder. Each event is counted after the check of the node's lock.
    pub(super) directory: watch::Receiver<u64>,
    /// Listeners for health and metrics.
    pub(super) listeners: Listeners,
    /// API server client.
    pub(super) cluster: Option<Client>,
    pub(super) policy: watch::Receiver<Arc<Policy>>,
    /// Allocation ledger, with claims restored from the previous agent.
    pub(super) ledger: SharedLedger,
    pub(super) clock: Clock,
}

/// Starts every task, sources first. Returns the node's state and the handle for MIG instances.
pub(super) fn assemble(
    config: &Config,
    deps: Deps,
    registry: Registry,
    instruments: Instruments,
    tasks: &mut TaskSet,
) -> (watch::Receiver<Arc<NodeState>>, MigHandle) {
    let recovered =
        windlass_dra::restore_claims(&config.places, &config.policy.dra.driver, &deps.ledger);
    let Deps { dir, directory, listeners, cluster, policy, ledger, clock } = deps;
    let roots = config.places.roots();
    let mps = MpsFolders::new(&config.places, &config.mps);
    let wake = Arc::default();
    let wiring =
        Wiring { config, roots, mps, instruments: &instruments, directory, policy, ledger, clock };
    wiring.watch_state_folder(tasks);
    let discovered = wiring.start_discovery(&wake, tasks);
    let handles = wiring.start_reconciler(
        discovered.snapshots,
        &discovered.partitions,
        &discovered.driver,
        cluster.clone(),
        wake,
        tasks,
    );
    wiring.serve_plugins(dir, &handles, cluster.clone(), tasks);
    wiring.terminate_mps_clients(&handles, &discovered.driver, cluster.clone(), tasks);
    let fractions = wiring.serve_fractions(&handles.state, cluster.clone(), tasks);
    let (memory, excesses) =
        wiring.watch_shared_gpus(&handles, discovered.driver, fractions, cluster.clone(), tasks);
    let partitions = discovered.partitions.clone();
    wiring.serve_claims(recovered, &handles, partitions, excesses, cluster.clone(), tasks);
    let labels = wiring.start_labeller(&handles.state, tasks);
    if let Some(client) = cluster {
        wiring.report_to_cluster(&client, &handles.state, labels, tasks);
    }
    let (state, holds) = (handles.state.clone(), wiring.ledger.watch());
    if !listeners.is_empty() {
        let deps = admin::Deps {
            clock,
            state: handles.state,
            last_round: handles.last_round,
            telemetry: discovered.telemetry,
            holders: handles.holders,
            memory,
            registry,
            instruments,
            disclosed: config.disclose.clone(),
            ledger: holds,
            node: windlass_cluster::node_name(config.cluster.node_name.as_deref()),
        };
        tasks.spawn("HTTP server", admin::run(listeners, deps, tasks.stop_token()));
    }
    (state, discovered.partitions)
}

/// Starts the sources; returns their snapshots by name.
pub(super) fn start_sources(sources: Vec<Source>, tasks: &mut TaskSet) -> Snapshots {
    let start = |source: Source| {
        tasks.spawn(source.name, source.run);
        (source.name, source.snapshots)
    };
    sources.into_iter().map(start).collect()
}

/// Dependencies that several tasks share.
struct Wiring<'a> {
    config: &'a Config,
    roots: Roots,
    mps: MpsFolders,
    instruments: &'a Instruments,
    directory: watch::Receiver<u64>,
    policy: watch::Receiver<Arc<Policy>>,
    ledger: SharedLedger,
    clock: Clock,
}

/// Handles of the running sources.
struct DiscoveryHandles {
    snapshots: Snapshots,
    telemetry: Vec<TelemetryReceiver>,
    partitions: MigHandle,
    driver: LiveDriver,
}

/// Handles of the reconciler and of the tasks in its loops.
struct ReconcilerHandles {
    state: watch::Receiver<Arc<NodeState>>,
    /// End of the reconciler's last round, for the liveness probe.
    last_round: watch::Receiver<Instant>,
    holders: PodResourcesCache,
    allocations: AllocationsReader,
    cleanup: CleanupHandle,
    daemons: watch::Receiver<Arc<MpsStates>>,
}

// === impl Wiring ===

impl Wiring<'_> {
    /// Checks regularly that the state folder is writable.
    fn watch_state_folder(&self, tasks: &mut TaskSet) {
        let folder = self.config.places.state_dir.clone();
        let writable = self.instruments.state_writable.clone();
        let interval = self.config.kubelet_limits.check_interval;
        let watch = state_folder::watch(folder, writable, interval, tasks.stop_token());
        tasks.spawn("state folder", watch);
    }

    /// Starts the sources of devices.
    fn start_discovery(&self, wake: &Arc<Notify>, tasks: &mut TaskSet) -> DiscoveryHandles {
        let (watch, changes) = HostWatch::new(&self.roots.host, self.policy.clone());
        tasks.spawn("watch of the host", watch.run(tasks.stop_token()));
        let mut sources = windlass_discovery::sources(
            &self.config.places,
            &self.roots.host,
            &self.policy,
            &changes,
            self.clock,
            wake,
            &tasks.stop_token(),
        );
        for store in sources.iter_mut().filter_map(|source| source.persist.take()) {
            tasks.spawn("health records", store);
        }
        let telemetry = sources.iter_mut().filter_map(|source| source.telemetry.take()).collect();
        let partitions = sources.iter_mut().find_map(|source| source.mig.take());
        let partitions = partitions.expect("NVIDIA's source is built in");
        let driver = sources.iter_mut().find_map(|source| source.driver.take());
        let driver = driver.expect("NVIDIA's source is built in");
        DiscoveryHandles { snapshots: start_sources(sources, tasks), telemetry, partitions, driver }
    }

    /// Starts the reconciler and the tasks of its feedback loops.
    fn start_reconciler(
        &self,
        snapshots: Snapshots,
        partitions: &MigHandle,
        driver: &LiveDriver,
        cluster: Option<Client>,
        wake: Arc<Notify>,
        tasks: &mut TaskSet,
    ) -> ReconcilerHandles {
        let Self { config, policy, ledger, clock, .. } = self;
        let (state_sender, state) = watch::channel(Arc::new(NodeState::default()));

        let (mps_demand, demand) = watch::channel(Arc::new(MpsDemand::default()));
        let (supervisor, daemons) = Mps::new(&config.places, &config.mps, demand, &wake);
        tasks.spawn("MPS daemons", supervisor.run(tasks.stop_token()));

        let (poller, holders) =
            podresources::PodResourcesPoller::new(&config.places.kubelet_dir, ledger.clone());
        tasks.spawn("pod resources", poller.run(tasks.stop_token()));

        let allocations = self.follow_checkpoint(&state, &holders, tasks);
        let (cleanup_demand, plans) = watch::channel(Arc::default());
        let deps = cleanup::Deps {
            plans,
            allocations: allocations.clone(),
            ledger: ledger.watch(),
            mig: partitions.clone(),
            wake: wake.clone(),
        };
        let (worker, cleanup, cleanup_states) = Cleanup::new(
            &config.places,
            config.cleanup_limits,
            deps,
            *clock,
            self.instruments.cleanup.clone(),
        );
        tasks.spawn("cleanup", worker.run(tasks.stop_token()));

        let leases = self.maintain_leases(cluster, &state, &wake, tasks);
        let inputs = Inputs {
            wake,
            leases,
            allocations: allocations.clone(),
            policy: policy.clone(),
            mps: daemons.clone(),
            cleanup_states,
            ledger: ledger.watch(),
            driver: Some(driver.clone()),
        };
        let (round_sender, last_round) = watch::channel(Instant::now());
        let outputs = Outputs {
            state: state_sender,
            daemons: mps_demand,
            cleanup_demand,
            last_round: round_sender,
        };
        let reconciler = Reconciler::new(config, snapshots, inputs, outputs);
        tasks.spawn("reconciler", reconciler.run(tasks.stop_token()));
        ReconcilerHandles { state, last_round, holders, allocations, cleanup, daemons }
    }

    /// Starts the leases of devices. Without an API server no lease is ever held.
    fn maintain_leases(
        &self,
        cluster: Option<Client>,
        state: &watch::Receiver<Arc<NodeState>>,
        wake: &Arc<Notify>,
        tasks: &mut TaskSet,
    ) -> watch::Receiver<Arc<LeaseStates>> {
        let Some(client) = cluster else {
            return watch::channel(Arc::default()).1;
        };
        let (leases, renewal) =
            leases::maintain(client, state.clone(), self.clock, wake.clone(), tasks.stop_token());
        tasks.spawn("leases", renewal);
        leases
    }

    /// Starts the only reader of the kubelet's checkpoint. All tasks share its snapshots.
    fn follow_checkpoint(
        &self,
        state: &watch::Receiver<Arc<NodeState>>,
        holders: &PodResourcesCache,
        tasks: &mut TaskSet,
    ) -> AllocationsReader {
        let (places, limits) = (&self.config.places, self.config.kubelet_limits);
        // The kubelet may not have written an earlier agent's last Allocate into its checkpoint yet.
        let catch_up_delay =
            if were_offered(places) { limits.checkpoint_delay } else { Duration::ZERO };
        let inputs = FollowerInputs {
            policy: self.policy.clone(),
            state: state.clone(),
            devices_of_pool: NodeState::devices_of_pool,
            catch_up_delay,
            kubelet_writes: self.directory.clone(),
            holders: holders.clone(),
        };
        let (follower, allocations) =
            CheckpointFollower::new(places, limits, self.ledger.clone(), inputs);
        tasks.spawn("reader of the kubelet's checkpoint", follower.run(tasks.stop_token()));
        allocations
    }

    /// Serves the device plugin API.
    fn serve_plugins(
        &self,
        dir: PathBuf,
        handles: &ReconcilerHandles,
        cluster: Option<Client>,
        tasks: &mut TaskSet,
    ) {
        let (shares, requests) = ShareHandle::new();
        let recovered = shares::restore(&self.config.places, &self.ledger);
        let deps = shares::Deps {
            policy: self.policy.clone(),
            state: handles.state.clone(),
            allocations: handles.allocations.clone(),
            ledger: self.ledger.clone(),
            cleanup: handles.cleanup.clone(),
            cluster: cluster.clone(),
            requests,
            metrics: self.instruments.shares.clone(),
        };
        let binder = Shares::new(&self.config.places, recovered, deps);
        tasks.spawn("shares", binder.run(tasks.stop_token()));
        let (decided_sets, decisions) = watch::channel(Arc::default());
        if let Some(cluster) = cluster {
            let deps = decisions::Deps {
                policy: self.policy.clone(),
                state: handles.state.clone(),
                allocations: handles.allocations.clone(),
                cluster,
                metrics: self.instruments.shares.clone(),
                decided_sets,
            };
            tasks.spawn("decisions", decisions::run(deps, tasks.stop_token()));
        }
        let (writer, choices) = history::history_channel(&self.config.places.state_dir, self.clock);
        tasks.spawn("allocation history", writer.run(tasks.stop_token()));
        let plugins = PluginSupervisor {
            roots: self.roots.clone(),
            mps: self.mps.clone(),
            replica_limits: ReplicaLimits::new(&self.config.places.state_dir),
            limits: self.config.kubelet_limits,
            state: handles.state.clone(),
            metrics: self.instruments.plugins.clone(),
            choices,
            recent: RecentAllocations::default(),
            cleanup: handles.cleanup.clone(),
            ledger: self.ledger.clone(),
            holders: handles.holders.clone(),
            directory: self.directory.clone(),
            dir,
            shares,
            decisions,
        };
        tasks.spawn("device plugin", plugins.run(tasks.stop_token()));
    }

    /// Serves the DRA driver and publishes ResourceSlices.
    fn serve_claims(
        &self,
        recovered: RecoveredClaims,
        handles: &ReconcilerHandles,
        partitions: MigHandle,
        excesses: watch::Receiver<Arc<MemoryExcesses>>,
        cluster: Option<Client>,
        tasks: &mut TaskSet,
    ) {
        let config = self.config;
        if let Some(client) = cluster.clone() {
            let slices = windlass_dra::publish::run(
                handles.state.clone(),
                self.ledger.watch(),
                client,
                config.policy.dra.driver.clone(),
                self.instruments.dra.clone(),
                tasks.stop_token(),
            );
            tasks.spawn("resource slices", slices);
        }
        let deps = windlass_dra::Deps {
            clock: self.clock,
            cluster,
            ledger: self.ledger.clone(),
            recovered,
            cleanup: handles.cleanup.clone(),
            metrics: self.instruments.claims.clone(),
            daemons: handles.daemons.clone(),
            partitions,
            policy: self.policy.clone(),
            state: handles.state.clone(),
            mps: self.mps.clone(),
            excesses,
        };
        let driver =
            Driver::new(&config.places, &config.policy.dra.driver, config.kubelet_limits, deps);
        tasks.spawn("DRA driver", driver.run(tasks.stop_token()));
    }

    /// Terminates the MPS clients of terminating pods before their containers are killed. Needs an API server.
    fn terminate_mps_clients(
        &self,
        handles: &ReconcilerHandles,
        driver: &LiveDriver,
        cluster: Option<Client>,
        tasks: &mut TaskSet,
    ) {
        let Some(cluster) = cluster else { return };
        let deps = terminating_clients::Deps {
            daemons: handles.daemons.clone(),
            clients: MpsClients::new(&self.config.places, &self.config.mps),
            driver: driver.clone(),
            cluster,
            clock: self.clock,
        };
        tasks.spawn(
            "termination of MPS clients",
            terminating_clients::run(deps, tasks.stop_token()),
        );
    }

    /// Enforces GPU fractions at the container runtime, if configured. Returns their limits.
    fn serve_fractions(
        &self,
        state: &watch::Receiver<Arc<NodeState>>,
        cluster: Option<Client>,
        tasks: &mut TaskSet,
    ) -> watch::Receiver<Arc<FractionLimits>> {
        let settings = &self.config.nv_fractions;
        if !settings.enabled {
            return watch::channel(Arc::default()).1;
        }
        let state_dir = &self.config.places.state_dir;
        let (fractions, limits) = Fractions::new(settings, state_dir, state.clone());
        if let Some(client) = cluster {
            let writer = fractions.condition(client, self.clock);
            tasks.spawn("condition of the Node", writer.run(tasks.stop_token()));
        }
        tasks.spawn("GPU fractions", fractions.run(tasks.stop_token()));
        limits
    }

    /// Watches the memory of pods on shared GPUs.
    fn watch_shared_gpus(
        &self,
        handles: &ReconcilerHandles,
        driver: LiveDriver,
        fractions: watch::Receiver<Arc<FractionLimits>>,
        cluster: Option<Client>,
        tasks: &mut TaskSet,
    ) -> (watch::Receiver<Arc<SharedGpus>>, watch::Receiver<Arc<MemoryExcesses>>) {
        let (gpus_sender, memory) = watch::channel(Arc::default());
        let (excess_sender, excesses) = watch::channel(Arc::default());
        let deps = watchdog::Deps {
            policy: self.policy.clone(),
            ledger: self.ledger.clone(),
            state: handles.state.clone(),
            allocations: handles.allocations.clone(),
            fractions,
            driver,
            mps: MpsClients::new(&self.config.places, &self.config.mps),
            state_dir: self.config.places.state_dir.clone(),
            cluster,
            clock: self.clock,
            metrics: self.instruments.watchdog.clone(),
            shared_gpus: gpus_sender,
            excesses: excess_sender,
        };
        tasks.spawn("watchdog", Watchdog::new(deps).run(tasks.stop_token()));
        (memory, excesses)
    }

    /// Computes node labels and writes the feature file.
    fn start_labeller(
        &self,
        state: &watch::Receiver<Arc<NodeState>>,
        tasks: &mut TaskSet,
    ) -> watch::Receiver<Arc<Labels>> {
        let (labeller, labels) =
            Labeller::new(self.roots.host.clone(), self.clock, state.clone(), self.policy.clone());
        tasks.spawn("labels", labeller.run(tasks.stop_token()));
        labels
    }

    /// Writes labels and events to the API server.
    fn report_to_cluster(
        &self,
        client: &Client,
        state: &watch::Receiver<Arc<NodeState>>,
        labels: watch::Receiver<Arc<Labels>>,
        tasks: &mut TaskSet,
    ) {
        if self.config.cluster.events {
            let stop = tasks.stop_token();
            let events = windlass_cluster::events::run(state.clone(), client.clone(), stop);
            tasks.spawn("events", events);
        }
        let policy = self.policy.clone();
        let apply =
            windlass_cluster::labels::run(labels, policy, client.clone(), tasks.stop_token());
        tasks.spawn("labels in the cluster", apply);
        let (sender, devices) = watch::channel(Arc::default());
        tasks.spawn("devices of the Node", devices::run(state.clone(), sender, tasks.stop_token()));
        let (policy, stop) = (self.policy.clone(), tasks.stop_token());
        let apply =
            windlass_cluster::labels::run_annotations(devices, policy, client.clone(), stop);
        tasks.spawn("devices in the cluster", apply);
    }
}
