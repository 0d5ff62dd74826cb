//! Wiring of the agent's parts: channels and start order.

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

use super::parts::TaskSet;
use crate::{
    admin::{self, Listeners},
    decisions, ending_clients,
    labels::{Labeller, devices},
    metrics::{Instruments, SharedGpus},
    nv_fractions::{FractionLimits, Fractions},
    reconciler::{Inputs, Outputs, Reconciler, dry_run::Snapshots, were_offered},
    shares::{self, Shares},
    watchdog::{self, Watchdog},
};

/// Dependencies that are checked and bound before any part runs.
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

/// Starts every part, sources first. Returns the node's state and the handle for MIG instances.
pub(super) fn assemble(
    config: &Config,
    deps: Deps,
    registry: Registry,
    instruments: Instruments,
    parts: &mut TaskSet,
) -> (watch::Receiver<Arc<NodeState>>, MigHandle) {
    let recovered =
        windlass_dra::restore_claims(&config.places, &config.policy.dra.driver, &deps.ledger);
    let Deps { dir, directory, listeners, cluster, policy, ledger, clock } = deps;
    let roots = config.places.roots();
    let mps = MpsFolders::new(&config.places, &config.mps);
    let wake = Arc::default();
    let wiring =
        Wiring { config, roots, mps, instruments: &instruments, directory, policy, ledger, clock };
    wiring.watch_state_folder(parts);
    let discovered = wiring.discover(&wake, parts);
    let handles = wiring.reconcile(
        discovered.snapshots,
        &discovered.partitions,
        &discovered.driver,
        cluster.clone(),
        wake,
        parts,
    );
    wiring.serve_plugins(dir, &handles, cluster.clone(), parts);
    wiring.end_mps_clients(&handles, &discovered.driver, cluster.clone(), parts);
    let fractions = wiring.serve_fractions(&handles.state, cluster.clone(), parts);
    let (memory, excesses) =
        wiring.watch_shared_gpus(&handles, discovered.driver, fractions, cluster.clone(), parts);
    let partitions = discovered.partitions.clone();
    wiring.serve_claims(recovered, &handles, partitions, excesses, cluster.clone(), parts);
    let labels = wiring.label(&handles.state, parts);
    if let Some(client) = cluster {
        wiring.report_to_cluster(&client, &handles.state, labels, parts);
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
        parts.spawn("HTTP server", admin::run(listeners, deps, parts.token()));
    }
    (state, discovered.partitions)
}

/// Starts the sources; returns their snapshots by name.
pub(super) fn start_sources(sources: Vec<Source>, parts: &mut TaskSet) -> Snapshots {
    let start = |source: Source| {
        parts.spawn(source.name, source.run);
        (source.name, source.snapshots)
    };
    sources.into_iter().map(start).collect()
}

/// Dependencies that several parts share.
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
struct Discovered {
    snapshots: Snapshots,
    telemetry: Vec<TelemetryReceiver>,
    partitions: MigHandle,
    driver: LiveDriver,
}

/// Handles of the reconciler and of the parts in its loops.
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
    fn watch_state_folder(&self, parts: &mut TaskSet) {
        let folder = self.config.places.state_dir.clone();
        let writable = self.instruments.state_writable.clone();
        let interval = self.config.kubelet_limits.check_interval;
        let watching = state_folder::watch(folder, writable, interval, parts.token());
        parts.spawn("state folder", watching);
    }

    /// Starts the sources of devices.
    fn discover(&self, wake: &Arc<Notify>, parts: &mut TaskSet) -> Discovered {
        let (watch, changes) = HostWatch::new(&self.roots.host, self.policy.clone());
        parts.spawn("watch of the host", watch.run(parts.token()));
        let mut sources = windlass_discovery::sources(
            &self.config.places,
            &self.roots.host,
            &self.policy,
            &changes,
            self.clock,
            wake,
            &parts.token(),
        );
        for store in sources.iter_mut().filter_map(|source| source.persist.take()) {
            parts.spawn("health records", store);
        }
        let telemetry = sources.iter_mut().filter_map(|source| source.telemetry.take()).collect();
        let partitions = sources.iter_mut().find_map(|source| source.mig.take());
        let partitions = partitions.expect("NVIDIA's source is built in");
        let driver = sources.iter_mut().find_map(|source| source.driver.take());
        let driver = driver.expect("NVIDIA's source is built in");
        Discovered { snapshots: start_sources(sources, parts), telemetry, partitions, driver }
    }

    /// Starts the reconciler and the parts of its feedback loops.
    fn reconcile(
        &self,
        snapshots: Snapshots,
        partitions: &MigHandle,
        driver: &LiveDriver,
        cluster: Option<Client>,
        wake: Arc<Notify>,
        parts: &mut TaskSet,
    ) -> ReconcilerHandles {
        let Self { config, policy, ledger, clock, .. } = self;
        let (publish, state) = watch::channel(Arc::new(NodeState::default()));

        let (mps_demand, demanded) = watch::channel(Arc::new(MpsDemand::default()));
        let (supervisor, daemons) = Mps::new(&config.places, &config.mps, demanded, &wake);
        parts.spawn("MPS daemons", supervisor.run(parts.token()));

        let (poller, holders) =
            podresources::PodResourcesPoller::new(&config.places.kubelet_dir, ledger.clone());
        parts.spawn("pod resources", poller.run(parts.token()));

        let allocations = self.follow_checkpoint(&state, &holders, parts);
        let (cleanup_demand, demand) = watch::channel(Arc::default());
        let deps = cleanup::Deps {
            plans: demand,
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
        parts.spawn("cleanup", worker.run(parts.token()));

        let leases = self.maintain_leases(cluster, &state, &wake, parts);
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
        let (publish_round, last_round) = watch::channel(Instant::now());
        let outputs = Outputs {
            state: publish,
            daemons: mps_demand,
            cleanup_demand,
            last_round: publish_round,
        };
        let reconciler = Reconciler::new(config, snapshots, inputs, outputs);
        parts.spawn("reconciler", reconciler.run(parts.token()));
        ReconcilerHandles { state, last_round, holders, allocations, cleanup, daemons }
    }

    /// Starts the leases of devices. Without an API server no lease is ever held.
    fn maintain_leases(
        &self,
        cluster: Option<Client>,
        state: &watch::Receiver<Arc<NodeState>>,
        wake: &Arc<Notify>,
        parts: &mut TaskSet,
    ) -> watch::Receiver<Arc<LeaseStates>> {
        let Some(client) = cluster else {
            return watch::channel(Arc::default()).1;
        };
        let (leases, run) =
            leases::maintain(client, state.clone(), self.clock, wake.clone(), parts.token());
        parts.spawn("leases", run);
        leases
    }

    /// Starts the only reader of the kubelet's checkpoint. All parts share its snapshots.
    fn follow_checkpoint(
        &self,
        state: &watch::Receiver<Arc<NodeState>>,
        holders: &PodResourcesCache,
        parts: &mut TaskSet,
    ) -> AllocationsReader {
        let (places, limits) = (&self.config.places, self.config.kubelet_limits);
        // The kubelet may not have written an earlier agent's last Allocate into its checkpoint yet.
        let settling = if were_offered(places) { limits.checkpoint_delay } else { Duration::ZERO };
        let sources = FollowerInputs {
            policy: self.policy.clone(),
            state: state.clone(),
            devices_of_pool: NodeState::devices_of_pool,
            catch_up_delay: settling,
            kubelet_writes: self.directory.clone(),
            holders: holders.clone(),
        };
        let (follower, allocations) =
            CheckpointFollower::new(places, limits, self.ledger.clone(), sources);
        parts.spawn("reader of the kubelet's checkpoint", follower.run(parts.token()));
        allocations
    }

    /// Serves the device plugin API.
    fn serve_plugins(
        &self,
        dir: PathBuf,
        handles: &ReconcilerHandles,
        cluster: Option<Client>,
        parts: &mut TaskSet,
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
        parts.spawn("shares", binder.run(parts.token()));
        let (publish, decided) = watch::channel(Arc::default());
        if let Some(cluster) = cluster {
            let deps = decisions::Deps {
                policy: self.policy.clone(),
                state: handles.state.clone(),
                allocations: handles.allocations.clone(),
                cluster,
                metrics: self.instruments.shares.clone(),
                decided_sets: publish,
            };
            parts.spawn("decisions", decisions::run(deps, parts.token()));
        }
        let (writer, choices) = history::history_channel(&self.config.places.state_dir, self.clock);
        parts.spawn("allocation history", writer.run(parts.token()));
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
            decisions: decided,
        };
        parts.spawn("device plugin", plugins.run(parts.token()));
    }

    /// Serves the DRA driver and publishes ResourceSlices.
    fn serve_claims(
        &self,
        recovered: RecoveredClaims,
        handles: &ReconcilerHandles,
        partitions: MigHandle,
        excesses: watch::Receiver<Arc<MemoryExcesses>>,
        cluster: Option<Client>,
        parts: &mut TaskSet,
    ) {
        let config = self.config;
        if let Some(client) = cluster.clone() {
            let slices = windlass_dra::publish::run(
                handles.state.clone(),
                self.ledger.watch(),
                client,
                config.policy.dra.driver.clone(),
                self.instruments.dra.clone(),
                parts.token(),
            );
            parts.spawn("resource slices", slices);
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
        parts.spawn("DRA driver", driver.run(parts.token()));
    }

    /// Terminates the MPS clients of ending pods before their containers are killed. Needs an API server.
    fn end_mps_clients(
        &self,
        handles: &ReconcilerHandles,
        driver: &LiveDriver,
        cluster: Option<Client>,
        parts: &mut TaskSet,
    ) {
        let Some(cluster) = cluster else { return };
        let deps = ending_clients::Deps {
            daemons: handles.daemons.clone(),
            clients: MpsClients::new(&self.config.places, &self.config.mps),
            driver: driver.clone(),
            cluster,
            clock: self.clock,
        };
        parts.spawn("MPS clients of ending pods", ending_clients::run(deps, parts.token()));
    }

    /// Enforces GPU fractions at the container runtime, if configured. Returns their limits.
    fn serve_fractions(
        &self,
        state: &watch::Receiver<Arc<NodeState>>,
        cluster: Option<Client>,
        parts: &mut TaskSet,
    ) -> watch::Receiver<Arc<FractionLimits>> {
        let settings = &self.config.nv_fractions;
        if !settings.enabled {
            return watch::channel(Arc::default()).1;
        }
        let state_dir = &self.config.places.state_dir;
        let (fractions, limits) = Fractions::new(settings, state_dir, state.clone());
        if let Some(client) = cluster {
            let writer = fractions.condition(client, self.clock);
            parts.spawn("condition of the Node", writer.run(parts.token()));
        }
        parts.spawn("GPU fractions", fractions.run(parts.token()));
        limits
    }

    /// Watches the memory of pods on shared GPUs.
    fn watch_shared_gpus(
        &self,
        handles: &ReconcilerHandles,
        driver: LiveDriver,
        fractions: watch::Receiver<Arc<FractionLimits>>,
        cluster: Option<Client>,
        parts: &mut TaskSet,
    ) -> (watch::Receiver<Arc<SharedGpus>>, watch::Receiver<Arc<MemoryExcesses>>) {
        let (publish, memory) = watch::channel(Arc::default());
        let (publish_excesses, excesses) = watch::channel(Arc::default());
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
            shared_gpus: publish,
            excesses: publish_excesses,
        };
        parts.spawn("watchdog", Watchdog::new(deps).run(parts.token()));
        (memory, excesses)
    }

    /// Computes node labels and writes the feature file.
    fn label(
        &self,
        state: &watch::Receiver<Arc<NodeState>>,
        parts: &mut TaskSet,
    ) -> watch::Receiver<Arc<Labels>> {
        let (labeller, labels) =
            Labeller::new(self.roots.host.clone(), self.clock, state.clone(), self.policy.clone());
        parts.spawn("labels", labeller.run(parts.token()));
        labels
    }

    /// Writes labels and events to the API server.
    fn report_to_cluster(
        &self,
        client: &Client,
        state: &watch::Receiver<Arc<NodeState>>,
        labels: watch::Receiver<Arc<Labels>>,
        parts: &mut TaskSet,
    ) {
        if self.config.cluster.events {
            let stop = parts.token();
            let events = windlass_cluster::events::run(state.clone(), client.clone(), stop);
            parts.spawn("events", events);
        }
        let policy = self.policy.clone();
        let apply = windlass_cluster::labels::run(labels, policy, client.clone(), parts.token());
        parts.spawn("labels in the cluster", apply);
        let (publish, devices) = watch::channel(Arc::default());
        parts.spawn("devices of the Node", devices::run(state.clone(), publish, parts.token()));
        let (policy, stop) = (self.policy.clone(), parts.token());
        let apply =
            windlass_cluster::labels::run_annotations(devices, policy, client.clone(), stop);
        parts.spawn("devices in the cluster", apply);
    }
}
