//! The wiring: which part reads what from which.

use std::{path::PathBuf, sync::Arc, time::Duration};

use prometheus_client::registry::Registry;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use windlass_allocations::{
    follow::{AllocationsDesk, Follower, Sources},
    ledger::LedgerDesk,
    podresources::{self, HoldersDesk},
};
use windlass_cluster::{Client, leases};
use windlass_config::{Config, Policy};
use windlass_core::labels::Labels;
use windlass_deviceplugin::{Plugins, Together, history};
use windlass_discovery::{HostWatch, Source, mig::PartitionDesk, telemetry::TelemetryReceiver};
use windlass_dra::{Driver, Left, Surroundings};
use windlass_host::{Roots, clock::Clock, state_folder};
use windlass_lifecycle::{
    cleanup::{HandoverDesk, Handovers, Tidings},
    mps::{Mps, MpsDemand, MpsPlaces, MpsStates},
};
use windlass_resources::NodeState;

use super::parts::Parts;
use crate::{
    admin::{self, Doors, Seen},
    labels::Labeller,
    metrics::Instruments,
    reconciler::{Notices, Outlets, Reconciler, once::Snapshots, were_offered},
};

/// What was taken and checked before anything runs.
pub(super) struct Ground {
    /// The kubelet's folder for plugins.
    pub(super) dir: PathBuf,
    /// Counts the notices from that folder, once it is known that it is this agent's.
    pub(super) directory: watch::Receiver<u64>,
    /// Where health and metrics are served.
    pub(super) doors: Doors,
    /// The way to the API server.
    pub(super) cluster: Option<Client>,
    /// What is wanted of the devices.
    pub(super) policy: watch::Receiver<Arc<Policy>>,
    /// Who holds what; claims that have devices since an earlier life are in it already.
    pub(super) ledger: LedgerDesk,
    /// The time.
    pub(super) clock: Clock,
}

/// Starts every part, sources first. Gives the state that they make together, and how GPUs are cut.
pub(super) fn assemble(
    config: &Config,
    ground: Ground,
    registry: Registry,
    instruments: Instruments,
    parts: &mut Parts,
) -> (watch::Receiver<Arc<NodeState>>, PartitionDesk) {
    let left = windlass_dra::restore(&config.places, &config.dra_driver, &ground.ledger);
    let Ground { dir, directory, doors, cluster, policy, ledger, clock } = ground;
    let roots = config.places.roots();
    let mps = MpsPlaces::new(&config.places, &config.mps);
    let news = Arc::default();
    let wiring =
        Wiring { config, roots, mps, instruments: &instruments, directory, policy, ledger, clock };
    wiring.watch_state_folder(parts);
    let found = wiring.discover(&news, parts);
    let heart = wiring.reconcile(found.snapshots, &found.partitions, cluster.clone(), news, parts);
    wiring.serve_plugins(dir, &heart, parts);
    wiring.serve_claims(left, &heart, found.partitions.clone(), cluster.clone(), parts);
    let labels = wiring.label(&heart.state, parts);
    if let Some(client) = cluster {
        wiring.tell_the_cluster(&client, &heart.state, labels, parts);
    }
    let state = heart.state.clone();
    if !doors.is_none() {
        let seen = Seen {
            clock,
            state: heart.state,
            rounds: heart.rounds,
            telemetry: found.telemetry,
            holders: heart.holders,
            registry,
            instruments,
            disclosed: config.disclose.clone(),
        };
        parts.add("HTTP server", admin::run(doors, seen, parts.token()));
    }
    (state, found.partitions)
}

/// Starts every source of devices.
pub(super) fn start(sources: Vec<Source>, parts: &mut Parts) -> Snapshots {
    let start = |source: Source| {
        parts.add(source.name, source.run);
        (source.name, source.snapshots)
    };
    sources.into_iter().map(start).collect()
}

/// Inputs that several parts share.
struct Wiring<'a> {
    config: &'a Config,
    roots: Roots,
    mps: MpsPlaces,
    instruments: &'a Instruments,
    directory: watch::Receiver<u64>,
    policy: watch::Receiver<Arc<Policy>>,
    ledger: LedgerDesk,
    clock: Clock,
}

/// The sources of devices, running.
struct Found {
    snapshots: Snapshots,
    telemetry: Vec<TelemetryReceiver>,
    partitions: PartitionDesk,
}

/// The parts that make the state, and what else they tell.
struct Heart {
    state: watch::Receiver<Arc<NodeState>>,
    rounds: watch::Receiver<Instant>,
    holders: HoldersDesk,
    handovers: HandoverDesk,
    daemons: watch::Receiver<Arc<MpsStates>>,
}

// === impl Wiring ===

impl Wiring<'_> {
    /// Says when the state folder cannot be written.
    fn watch_state_folder(&self, parts: &mut Parts) {
        let folder = self.config.places.state_dir.clone();
        let writable = self.instruments.state_writable();
        let interval = self.config.session.look_interval;
        let watching = state_folder::watch(folder, writable, interval, parts.token());
        parts.add("state folder", watching);
    }

    /// Starts the sources of devices.
    fn discover(&self, news: &Arc<Notify>, parts: &mut Parts) -> Found {
        let (watch, changes) = HostWatch::new(&self.roots.host, self.policy.clone());
        parts.add("watch of the host", watch.run(parts.token()));
        let mut sources = windlass_discovery::sources(
            &self.config.places,
            &self.roots.host,
            &self.policy,
            &changes,
            self.clock,
            news,
            &parts.token(),
        );
        for keep in sources.iter_mut().filter_map(|source| source.keep.take()) {
            parts.add("record of health", keep);
        }
        let telemetry = sources.iter_mut().filter_map(|source| source.telemetry.take()).collect();
        let partitions = sources.iter_mut().find_map(|source| source.partitions.take());
        let partitions = partitions.expect("NVIDIA's is built in");
        Found { snapshots: start(sources, parts), telemetry, partitions }
    }

    /// Starts the reconciler, and the parts that its loops go through.
    fn reconcile(
        &self,
        snapshots: Snapshots,
        partitions: &PartitionDesk,
        cluster: Option<Client>,
        news: Arc<Notify>,
        parts: &mut Parts,
    ) -> Heart {
        let Self { config, policy, ledger, clock, .. } = self;
        let (publish, state) = watch::channel(Arc::new(NodeState::default()));

        let (want_daemons, wanted) = watch::channel(Arc::new(MpsDemand::default()));
        let (supervisor, daemons) = Mps::new(&config.places, &config.mps, wanted, &news);
        parts.add("MPS daemons", supervisor.run(parts.token()));

        let (inquirer, holders) = podresources::inquiry(&config.places.kubelet_dir, ledger.clone());
        parts.add("pod resources", inquirer.run(parts.token()));

        let allocations = self.follow_the_kubelet(&state, &holders, parts);
        let (care, demand) = watch::channel(Arc::default());
        let tidings = Tidings {
            demand,
            allocations: allocations.clone(),
            ledger: ledger.watch(),
            gpus: partitions.clone(),
            news: news.clone(),
        };
        let (part, desk, handovers) = Handovers::new(
            &config.places,
            config.handover,
            tidings,
            *clock,
            self.instruments.handover(),
        );
        parts.add("hand-overs", part.run(parts.token()));

        // Without a way to the API server no lease is ever held.
        let leases = cluster.map_or_else(
            || watch::channel(Arc::default()).1,
            |client| {
                let stop = parts.token();
                let (leases, run) = leases::keep(client, state.clone(), *clock, news.clone(), stop);
                parts.add("leases", run);
                leases
            },
        );
        let notices = Notices {
            news,
            leases,
            allocations,
            policy: policy.clone(),
            mps: daemons.clone(),
            handovers,
            ledger: ledger.watch(),
        };
        let (stamp, rounds) = watch::channel(Instant::now());
        let outlets = Outlets { state: publish, daemons: want_daemons, care, rounds: stamp };
        let reconciler = Reconciler::new(config, snapshots, notices, outlets);
        parts.add("reconciler", reconciler.run(parts.token()));
        Heart { state, rounds, holders, handovers: desk, daemons }
    }

    /// Reads the kubelet's record for the ledger and all others.
    fn follow_the_kubelet(
        &self,
        state: &watch::Receiver<Arc<NodeState>>,
        holders: &HoldersDesk,
        parts: &mut Parts,
    ) -> AllocationsDesk {
        let (places, limits) = (&self.config.places, self.config.session);
        let sources = Sources {
            policy: self.policy.clone(),
            state: state.clone(),
            devices_of_pool: NodeState::devices_of_pool,
            doubt: if were_offered(places) { limits.handover } else { Duration::ZERO },
            kubelet_writes: self.directory.clone(),
            holders: holders.clone(),
        };
        let (follower, allocations) = Follower::new(places, limits, self.ledger.clone(), sources);
        parts.add("follower of the kubelet's record", follower.run(parts.token()));
        allocations
    }

    /// Serves the device plugin API.
    fn serve_plugins(&self, dir: PathBuf, heart: &Heart, parts: &mut Parts) {
        let (memory, choices) = history::memory(&self.config.places.state_dir, self.clock);
        parts.add("memory of choices", memory.run(parts.token()));
        let plugins = Plugins {
            roots: self.roots.clone(),
            mps: self.mps.clone(),
            limits: self.config.session,
            state: heart.state.clone(),
            metrics: self.instruments.plugins(),
            choices,
            company: Together::default(),
            handovers: heart.handovers.clone(),
            ledger: self.ledger.clone(),
            holders: heart.holders.clone(),
            directory: self.directory.clone(),
            dir,
        };
        parts.add("device plugin", plugins.run(parts.token()));
    }

    /// Serves the DRA driver, and publishes the devices that claims may have.
    fn serve_claims(
        &self,
        left: Left,
        heart: &Heart,
        partitions: PartitionDesk,
        cluster: Option<Client>,
        parts: &mut Parts,
    ) {
        let config = self.config;
        if let Some(client) = cluster.clone() {
            let slices = windlass_dra::publish::run(
                heart.state.clone(),
                self.ledger.watch(),
                client,
                config.dra_driver.clone(),
                self.instruments.dra(),
                parts.token(),
            );
            parts.add("resource slices", slices);
        }
        let surroundings = Surroundings {
            clock: self.clock,
            cluster,
            ledger: self.ledger.clone(),
            left,
            handovers: heart.handovers.clone(),
            metrics: self.instruments.claims(),
            daemons: heart.daemons.clone(),
            partitions,
            policy: self.policy.clone(),
            state: heart.state.clone(),
            mps: self.mps.clone(),
        };
        let driver = Driver::new(&config.places, &config.dra_driver, config.session, surroundings);
        parts.add("DRA driver", driver.run(parts.token()));
    }

    /// Computes the node's labels, and writes them to files.
    fn label(
        &self,
        state: &watch::Receiver<Arc<NodeState>>,
        parts: &mut Parts,
    ) -> watch::Receiver<Arc<Labels>> {
        let (labeller, labels) =
            Labeller::new(self.roots.host.clone(), self.clock, state.clone(), self.policy.clone());
        parts.add("labels", labeller.run(parts.token()));
        labels
    }

    /// Tells the API server of labels and events.
    fn tell_the_cluster(
        &self,
        client: &Client,
        state: &watch::Receiver<Arc<NodeState>>,
        labels: watch::Receiver<Arc<Labels>>,
        parts: &mut Parts,
    ) {
        if self.config.cluster.events {
            let stop = parts.token();
            let events = windlass_cluster::events::run(state.clone(), client.clone(), stop);
            parts.add("events", events);
        }
        let policy = self.policy.clone();
        let apply = windlass_cluster::labels::run(labels, policy, client.clone(), parts.token());
        parts.add("labels in the cluster", apply);
    }
}
