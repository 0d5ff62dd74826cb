//! Sources against a simulated machine, with a policy that changes while they run.

mod reads;

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use tempfile::TempDir;
use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
    time::timeout,
};
use tokio_util::sync::CancellationToken;
use windlass_config::{Config, HealthPolicy, HostPaths, Policy};
use windlass_core::{device::SourceName, health::HealthState};
use windlass_host::clock::Clock;
use windlass_machine::{Fault, Machine, MachineProfile, find_driver};

use super::{BUILT_IN, DiscoveryMethod, SourceSnapshot, scanner::Scanner, sources};

const TIMEOUT: Duration = Duration::from_secs(10);

/// XID of a GPU that has fallen off the bus, which is critical.
const XID_OFF_THE_BUS: u64 = 79;

fn machine() -> (TempDir, Machine) {
    machine_of("t4-edge")
}

fn machine_of(profile: &str) -> (TempDir, Machine) {
    let mut builder = tempfile::Builder::new();
    builder.prefix("wl");
    let folder = builder.tempdir_in("/dev/shm").or_else(|_| builder.tempdir());
    let folder = folder.expect("a temporary folder");
    let profile = MachineProfile::named(profile).expect("a shipped profile");
    let driver = find_driver().expect("cargo builds the simulated driver with the tests");
    let machine = Machine::create(&folder.path().join("machine"), &profile, &driver);
    (folder, machine.expect("a machine"))
}

fn config(folder: &TempDir, machine: &Machine) -> Config {
    let nvml_library = Some(machine.nvml_library());
    Config {
        places: HostPaths {
            host_root: machine.host_root(),
            host_root_on_node: machine.host_root(),
            nvml_library,
            state_dir: folder.path().join("state"),
            ..HostPaths::default()
        },
        policy: Policy {
            health: HealthPolicy {
                quiet_period: Duration::from_secs(3600),
                event_wait: Duration::from_millis(100),
                ..HealthPolicy::default()
            },
            ..Policy::default()
        },
        ..Config::default()
    }
}

/// Waits until every device of a source has this state.
async fn wait_for_state(snapshots: &mut watch::Receiver<SourceSnapshot>, state: HealthState) {
    let reached = snapshots.wait_for(|snapshot| {
        !snapshot.devices.is_empty()
            && snapshot.devices.iter().all(|device| device.health.state == state)
    });
    let reached = timeout(TIMEOUT, reached).await;
    drop(reached.expect("in time").expect("the source runs"));
}

/// The source of the simulated GPUs, running until `stop`.
struct RunningSource {
    policy: watch::Sender<Arc<Policy>>,
    snapshots: watch::Receiver<SourceSnapshot>,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl RunningSource {
    fn start(config: &Config) -> Self {
        let (policy, policies) = watch::channel(Arc::new(config.policy.clone()));
        let (reconciler, stop) = (Arc::new(Notify::new()), CancellationToken::new());
        let clock = Clock::starting_at(Timestamp::now());
        let (_, changes) = watch::channel(0);
        let host = config.places.host();
        let all_sources =
            sources(&config.places, &host, &policies, &changes, clock, &reconciler, &stop);
        let nvidia =
            all_sources.into_iter().find(|source| source.name == "nvidia").expect("built in");
        let mut tasks = JoinSet::new();
        tasks.spawn(nvidia.run);
        Self { policy, snapshots: nvidia.snapshots, stop, tasks }
    }

    async fn end(mut self) {
        self.stop.cancel();
        timeout(TIMEOUT, self.tasks.join_next()).await.expect("it ends in time");
    }
}

#[tokio::test]
async fn a_shorter_quiet_period_ends_the_wait_that_runs() {
    let (folder, machine) = machine();
    let mut nvidia = RunningSource::start(&config(&folder, &machine));
    wait_for_state(&mut nvidia.snapshots, HealthState::Healthy).await;
    machine.inject(&Fault::Xid { gpu: 0, code: XID_OFF_THE_BUS }).expect("injected");
    wait_for_state(&mut nvidia.snapshots, HealthState::Unhealthy).await;
    nvidia.policy.send_modify(|policy| {
        Arc::make_mut(policy).health.quiet_period = Duration::from_millis(50);
    });
    wait_for_state(&mut nvidia.snapshots, HealthState::Healthy).await;
    nvidia.end().await;
}

#[tokio::test]
async fn a_gpu_that_vanishes_leaves_its_neighbours_healthy_though_their_indices_move() {
    let (folder, machine) = machine_of("dgx-h100");
    let mut nvidia = RunningSource::start(&config(&folder, &machine));
    wait_for_state(&mut nvidia.snapshots, HealthState::Healthy).await;
    for remaining in (5..8).rev() {
        machine.update(|model| drop(model.gpus.remove(2))).expect("changed");
        let is_published = |snapshot: &SourceSnapshot| healthy(snapshot) < remaining + 1;
        let published = timeout(TIMEOUT, nvidia.snapshots.wait_for(is_published)).await;
        let published = healthy(&published.expect("in time").expect("the source runs"));
        assert_eq!(published, remaining, "one vanished");
    }
    nvidia.end().await;
}

fn healthy(snapshot: &SourceSnapshot) -> usize {
    let healthy = |health| health == HealthState::Healthy;
    snapshot.devices.iter().filter(|device| healthy(device.health.state)).count()
}

/// Waits until exactly `count` devices are healthy.
async fn until_healthy(snapshots: &mut watch::Receiver<SourceSnapshot>, count: usize) {
    let reached = snapshots.wait_for(|snapshot| healthy(snapshot) == count);
    drop(timeout(TIMEOUT, reached).await.expect("in time").expect("the source runs"));
}

#[tokio::test]
async fn a_gpu_that_was_lost_is_back_without_the_end_of_a_long_wait_for_events() {
    let (folder, machine) = machine();
    let slow = Fault::Slow { gpu: 0, millis: 700 };
    for fault in [slow, Fault::Lost { gpu: 0 }] {
        machine.inject(&fault).expect("injected");
    }
    let mut config = config(&folder, &machine);
    config.policy.health = HealthPolicy {
        quiet_period: Duration::from_millis(100),
        event_wait: TIMEOUT * 6,
        ..config.policy.health
    };
    let mut nvidia = RunningSource::start(&config);
    for _ in 0..2 {
        wait_for_state(&mut nvidia.snapshots, HealthState::Unhealthy).await;
        machine.inject(&Fault::Recover { gpu: 0 }).expect("injected");
        wait_for_state(&mut nvidia.snapshots, HealthState::Healthy).await;
        machine.inject(&Fault::Lost { gpu: 0 }).expect("injected");
    }
    nvidia.end().await;
}

/// Lets the GPU fail and recover, and then have a fault that the driver reports by an event.
async fn recovers_and_reports_next_fault(config: &Config, machine: &Machine, failure: &Fault) {
    let mut nvidia = RunningSource::start(config);
    wait_for_state(&mut nvidia.snapshots, HealthState::Healthy).await;
    machine.inject(failure).expect("injected");
    wait_for_state(&mut nvidia.snapshots, HealthState::Unhealthy).await;
    machine.inject(&Fault::Recover { gpu: 0 }).expect("injected");
    wait_for_state(&mut nvidia.snapshots, HealthState::Healthy).await;
    machine.inject(&Fault::Xid { gpu: 0, code: XID_OFF_THE_BUS }).expect("injected");
    wait_for_state(&mut nvidia.snapshots, HealthState::Unhealthy).await;
    nvidia.end().await;
}

#[tokio::test]
async fn a_gpu_that_hangs_for_a_moment_is_back_without_the_end_of_a_long_wait_for_events() {
    let (folder, machine) = machine();
    let mut config = config(&folder, &machine);
    config.policy.health = HealthPolicy {
        quiet_period: Duration::from_millis(100),
        probe_interval: Duration::from_millis(100),
        call_deadline: Duration::from_secs(1),
        event_wait: TIMEOUT * 6,
        ..config.policy.health
    };
    recovers_and_reports_next_fault(&config, &machine, &Fault::Hang { gpu: 0 }).await;
}

#[tokio::test]
async fn a_gpu_that_recovers_from_an_error_reports_its_next_fault() {
    let (folder, machine) = machine();
    let mut config = config(&folder, &machine);
    config.policy.health = HealthPolicy {
        quiet_period: Duration::from_millis(100),
        probe_interval: Duration::from_millis(100),
        event_wait: Duration::from_secs(1),
        ..config.policy.health
    };
    recovers_and_reports_next_fault(&config, &machine, &Fault::Error { gpu: 0, code: 999 }).await;
}

#[tokio::test]
async fn events_are_awaited_though_a_gpu_hangs_from_the_start_and_the_next_probe_is_far() {
    let (folder, machine) = machine_of("dgx-h100");
    machine.inject(&Fault::Hang { gpu: 3 }).expect("injected");
    let mut config = config(&folder, &machine);
    config.policy.health = HealthPolicy {
        probe_interval: TIMEOUT * 6,
        call_deadline: Duration::from_secs(1),
        ..config.policy.health
    };
    let mut nvidia = RunningSource::start(&config);
    until_healthy(&mut nvidia.snapshots, 7).await;
    machine.inject(&Fault::Xid { gpu: 5, code: XID_OFF_THE_BUS }).expect("injected");
    until_healthy(&mut nvidia.snapshots, 6).await;
    // Otherwise the hanging driver call would keep the test from ending.
    machine.inject(&Fault::Recover { gpu: 3 }).expect("injected");
    nvidia.end().await;
}

#[tokio::test]
async fn a_gpu_that_hung_at_the_start_joins_between_two_waits_for_events() {
    let (folder, machine) = machine_of("dgx-h100");
    machine.inject(&Fault::Hang { gpu: 3 }).expect("injected");
    let mut config = config(&folder, &machine);
    config.policy.health = HealthPolicy {
        quiet_period: Duration::from_millis(100),
        probe_interval: Duration::from_millis(100),
        call_deadline: Duration::from_secs(1),
        ..config.policy.health
    };
    let mut nvidia = RunningSource::start(&config);
    until_healthy(&mut nvidia.snapshots, 7).await;
    machine.inject(&Fault::Recover { gpu: 3 }).expect("injected");
    wait_for_state(&mut nvidia.snapshots, HealthState::Healthy).await;
    // NVML's event set now contains the GPU, so its next fault is reported.
    machine.inject(&Fault::Xid { gpu: 3, code: XID_OFF_THE_BUS }).expect("injected");
    until_healthy(&mut nvidia.snapshots, 7).await;
    nvidia.end().await;
}

/// The scanners of all built-in sources.
pub(crate) fn scanners(policy: &Policy) -> impl Iterator<Item = Box<dyn Scanner>> {
    BUILT_IN.iter().filter_map(|built_in| match built_in.method {
        DiscoveryMethod::Driver => None,
        DiscoveryMethod::HostScan(_, scanner, _) => Some(scanner(policy)),
    })
}

#[test]
fn every_family_has_a_source_and_every_built_in_source_is_a_family() {
    let sources: Vec<_> = BUILT_IN.iter().map(|built_in| built_in.name.clone()).collect();
    assert_eq!(sources, SourceName::built_in().collect::<Vec<_>>(), "core/src/device/family.rs");
}
