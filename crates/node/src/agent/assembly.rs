//! The wiring: which part reads what from which.

use std::{path::PathBuf, sync::Arc, time::Duration};

use prometheus_client::registry::Registry;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use windlass_allocations::{
    follow::{Follower, Sources},
    ledger::LedgerDesk,
    podresources::{self, HoldersDesk},
};
use windlass_cluster::{
    Client,
    leases::{self, LeaseStates},
};
use windlass_config::{Config, Policy};
use windlass_deviceplugin::{Plugins, Together, history};
use windlass_discovery::{HostWatch, Source, mig::PartitionDesk, telemetry::TelemetryReceiver};
use windlass_dra::metrics::DraMetrics;
use windlass_host::{Host, clock::Clock, state_folder};
use windlass_lifecycle::{
    cleanup::{HandoverDesk, Handovers, Tidings, metrics::HandoverMetrics},
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

/// The parts that make the state, and what else they tell.
struct Heart {
    state: watch::Receiver<Arc<NodeState>>,
    rounds: watch::Receiver<Instant>,
    telemetry: Vec<TelemetryReceiver>,
    holders: HoldersDesk,
    handovers: HandoverDesk,
    partitions: PartitionDesk,
    daemons: watch::Receiver<Arc<MpsStates>>,
}

/// Starts every part, sources first. Gives the state that they make together, and how GPUs are cut.
pub(super) fn assemble(
    config: &Config,
    ground: Ground,
    (registry, instruments): (Registry, Instruments),
    parts: &mut Parts,
) -> (watch::Receiver<Arc<NodeState>>, PartitionDesk) {
    let (policy, clock, ledger) = (ground.policy, ground.clock, ground.ledger);
    let directory = ground.directory;
    let outside = (clock, ground.cluster.clone(), instruments.handover());
    watch_state_folder(config, &instruments, parts);
    let left = windlass_dra::restore(config, &ledger);
    let roots = config.roots();
    let heart = keep((config, &roots.host), (&policy, &directory, &ledger), outside, parts);
    let (state, partitions) = (heart.state.clone(), heart.partitions.clone());
    let choices = remember(config, clock, parts);
    let plugins = Plugins {
        roots: roots.clone(),
        mps: MpsPlaces::new(config),
        limits: config.session,
        state: state.clone(),
        metrics: instruments.plugins(),
        choices,
        company: Together::default(),
        handovers: heart.handovers.clone(),
        ledger: ledger.clone(),
        holders: heart.holders.clone(),
        directory,
        dir: ground.dir,
    };
    parts.add("device plugin", plugins.run(parts.token()));
    if let Some(client) = ground.cluster.clone() {
        publish(config, client, (&state, &ledger), instruments.dra(), parts);
    }
    let surroundings = windlass_dra::Surroundings {
        clock,
        cluster: ground.cluster.clone(),
        ledger,
        left,
        handovers: heart.handovers.clone(),
        metrics: instruments.claims(),
        daemons: heart.daemons.clone(),
        partitions: partitions.clone(),
        policy: policy.clone(),
        state: state.clone(),
    };
    parts.add("DRA driver", windlass_dra::Driver::new(config, surroundings).run(parts.token()));
    tell((config, roots.host), (&state, &policy), ground.cluster, clock, parts);
    if !ground.doors.is_none() {
        let Heart { state, rounds, telemetry, holders, .. } = heart;
        let disclosed = config.disclose.clone();
        let seen =
            Seen { clock, state, rounds, telemetry, holders, registry, instruments, disclosed };
        parts.add("HTTP server", admin::run(ground.doors, seen, parts.token()));
    }
    (state, partitions)
}

/// What the account of containers is kept from.
fn of_containers(
    config: &Config,
    policy: &watch::Receiver<Arc<Policy>>,
    state: &watch::Receiver<Arc<NodeState>>,
    directory: &watch::Receiver<u64>,
    holders: &HoldersDesk,
) -> Sources<NodeState> {
    Sources {
        policy: policy.clone(),
        state: state.clone(),
        devices_of_pool: NodeState::devices_of_pool,
        doubt: if were_offered(config) { config.session.handover } else { Duration::ZERO },
        kubelet_writes: directory.clone(),
        holders: holders.clone(),
    }
}

/// Starts the sources, the daemons and the hand-overs that devices need, and the reconciler.
fn keep(
    (config, host): (&Config, &Host),
    (policy, directory, ledger): (
        &watch::Receiver<Arc<Policy>>,
        &watch::Receiver<u64>,
        &LedgerDesk,
    ),
    (clock, cluster, metrics): (Clock, Option<Client>, HandoverMetrics),
    parts: &mut Parts,
) -> Heart {
    let news = Arc::new(Notify::new());
    let (watch, changes) = HostWatch::new(host, policy.clone());
    parts.add("watch of the host", watch.run(parts.token()));
    let mut sources = windlass_discovery::sources(
        (config, host),
        (policy, &changes),
        clock,
        &news,
        &parts.token(),
    );
    for keep in sources.iter_mut().filter_map(|source| source.keep.take()) {
        parts.add("record of health", keep);
    }
    let telemetry = sources.iter_mut().filter_map(|source| source.telemetry.take()).collect();
    let partitions = sources.iter_mut().find_map(|source| source.partitions.take());
    let partitions = partitions.expect("NVIDIA's is built in");
    let snapshots = start(sources, parts);
    let (daemons, mps) = supervise(config, &news, parts);
    let (inquirer, holders) = podresources::inquiry(&config.kubelet_dir, ledger.clone());
    parts.add("pod resources", inquirer.run(parts.token()));

    let (care, demand) = watch::channel(Arc::default());
    let tidings = Tidings {
        demand,
        kubelet_writes: directory.clone(),
        holders: holders.clone(),
        ledger: ledger.watch(),
        gpus: partitions.clone(),
        news: news.clone(),
    };
    let (part, desk, handovers) = Handovers::new(config, tidings, (clock, metrics));
    parts.add("hand-overs", part.run(parts.token()));

    let (publish, state) = watch::channel(Arc::new(NodeState::default()));
    let sources = of_containers(config, policy, &state, directory, &holders);
    parts.add("ledger", Follower::new(config, ledger.clone(), sources).run(parts.token()));
    let leases = lease(cluster, (&state, &news), clock, parts);
    let notices = Notices {
        news,
        leases,
        kubelet_writes: directory.clone(),
        policy: policy.clone(),
        mps: mps.clone(),
        handovers,
        holders: holders.clone(),
        ledger: ledger.watch(),
    };
    let (stamp, rounds) = watch::channel(Instant::now());
    let outlets = Outlets { state: publish, daemons, care, rounds: stamp };
    let reconciler = Reconciler::new(config, snapshots, notices, outlets);
    parts.add("reconciler", reconciler.run(parts.token()));
    Heart { state, rounds, telemetry, holders, handovers: desk, partitions, daemons: mps }
}

/// Starts what says when the state folder cannot be written.
fn watch_state_folder(config: &Config, instruments: &Instruments, parts: &mut Parts) {
    let (folder, look) = (config.state_dir.clone(), config.session.look_interval);
    let watching = state_folder::watch(folder, instruments.state_writable(), look, parts.token());
    parts.add("state folder", watching);
}

/// Starts what publishes the devices that claims may have.
fn publish(
    config: &Config,
    client: Client,
    (state, ledger): (&watch::Receiver<Arc<NodeState>>, &LedgerDesk),
    metrics: DraMetrics,
    parts: &mut Parts,
) {
    let (sight, outside) = ((state.clone(), ledger.watch()), (client, config.dra_driver.clone()));
    let slices = windlass_dra::publish::run(sight, outside, metrics, parts.token());
    parts.add("resource slices", slices);
}

/// Starts the memory of choices.
fn remember(config: &Config, clock: Clock, parts: &mut Parts) -> history::Teller {
    let (memory, choices) = history::memory(&config.state_dir, clock);
    parts.add("memory of choices", memory.run(parts.token()));
    choices
}

/// Starts what keeps MPS daemons. Gives the way to want some, and how they fare.
fn supervise(
    config: &Config,
    news: &Arc<Notify>,
    parts: &mut Parts,
) -> (watch::Sender<Arc<MpsDemand>>, watch::Receiver<Arc<MpsStates>>) {
    let (daemons, demand) = watch::channel(Arc::new(MpsDemand::default()));
    let (supervisor, mps) = Mps::new(config, demand, news);
    parts.add("MPS daemons", supervisor.run(parts.token()));
    (daemons, mps)
}

/// Starts what keeps leases. Without a way to the API server none is ever held.
fn lease(
    cluster: Option<Client>,
    (state, news): (&watch::Receiver<Arc<NodeState>>, &Arc<Notify>),
    clock: Clock,
    parts: &mut Parts,
) -> watch::Receiver<Arc<LeaseStates>> {
    let Some(client) = cluster else { return watch::channel(Arc::default()).1 };
    let (leases, run) = leases::keep(client, state.clone(), clock, news.clone(), parts.token());
    parts.add("leases", run);
    leases
}

/// Starts what tells others than the kubelet: labels, and events.
fn tell(
    (config, host): (&Config, Host),
    (state, policy): (&watch::Receiver<Arc<NodeState>>, &watch::Receiver<Arc<Policy>>),
    client: Option<Client>,
    clock: Clock,
    parts: &mut Parts,
) {
    let (labeller, labels) = Labeller::new(host, clock, state.clone(), policy.clone());
    parts.add("labels", labeller.run(parts.token()));
    let Some(client) = client else { return };
    if config.cluster.events {
        let events = windlass_cluster::events::run(state.clone(), client.clone(), parts.token());
        parts.add("events", events);
    }
    let apply = windlass_cluster::labels::run(labels, policy.clone(), client, parts.token());
    parts.add("labels in the cluster", apply);
}

/// Starts every source of devices.
pub(super) fn start(sources: Vec<Source>, parts: &mut Parts) -> Snapshots {
    let start = |source: Source| {
        parts.add(source.name, source.run);
        (source.name, source.snapshots)
    };
    sources.into_iter().map(start).collect()
}
