//! Reconciler with a slow disk.

use jiff::Timestamp;
use tempfile::TempDir;
use tokio::time::advance;
use windlass_allocations::{
    follow::{CheckpointFollower, FollowerInputs},
    ledger::SharedLedger,
    podresources,
};
use windlass_config::{DeviceIdStrategy, DraOffer, DraPolicy, HostPaths, Resources};
use windlass_core::{
    device::{DeviceKind, SourceName},
    health::{HealthTracker, Observation, Reason},
    inventory::SourceState,
};
use windlass_discovery::SourceSnapshot;

use super::*;

/// A reconciler with its inputs and outputs. The test controls the passes of the disk.
struct Rig {
    reconciler: Reconciler,
    source: watch::Sender<SourceSnapshot>,
    state: watch::Receiver<Arc<NodeState>>,
    disk: Disk,
    channels: DiskChannels,
    _folder: TempDir,
}

/// Allocations without a reader.
fn allocations(config: &Config) -> AllocationsReader {
    let ledger = SharedLedger::default();
    let sources = FollowerInputs {
        policy: watch::channel(Arc::default()).1,
        state: watch::channel(Arc::default()).1,
        devices_of_pool: NodeState::devices_of_pool,
        kubelet_writes: watch::channel(0).1,
        catch_up_delay: Duration::ZERO,
        holders: podresources::PodResourcesPoller::new(&config.places.kubelet_dir, ledger.clone())
            .1,
    };
    CheckpointFollower::new(&config.places, config.kubelet_limits, ledger, sources).1
}

// === impl Rig ===

impl Rig {
    /// A node that offers its GPUs through both APIs.
    fn new() -> Self {
        let dra = DraPolicy { offer: DraOffer::Beside, ..DraPolicy::default() };
        Self::with_policy(Policy { dra, ..Policy::default() })
    }

    fn with_policy(policy: Policy) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = |name: &str| folder.path().join(name);
        let config = Config {
            places: HostPaths {
                host_root: folder.path().to_owned(),
                host_root_on_node: folder.path().to_owned(),
                kubelet_dir: path("kubelet"),
                state_dir: path("state"),
                cdi_dir: path("cdi"),
                ..HostPaths::default()
            },
            policy,
            ..Config::default()
        };
        let no_devices = SourceSnapshot {
            states: [(SourceName::NVIDIA, SourceState::Ready("driver 1".to_owned()))].into(),
            simulated: None,
            devices: Vec::new(),
        };
        let (source, snapshots) = watch::channel(no_devices);
        let inputs = Inputs {
            wake: Arc::default(),
            allocations: allocations(&config),
            policy: watch::channel(Arc::new(config.policy.clone())).1,
            mps: watch::channel(Arc::default()).1,
            cleanup_states: watch::channel(Arc::default()).1,
            leases: watch::channel(Arc::default()).1,
            ledger: SharedLedger::default().watch(),
            driver: None,
        };
        let (state_sender, state) = watch::channel(Arc::default());
        let outputs = Outputs {
            state: state_sender,
            daemons: watch::channel(Arc::default()).0,
            cleanup_demand: watch::channel(Arc::default()).0,
            last_round: watch::channel(Instant::now()).0,
        };
        let mut reconciler = Reconciler::new(&config, vec![("nvidia", snapshots)], inputs, outputs);
        let (disk, channels) = reconciler.worker.take().expect("a new reconciler has its worker");
        Self { reconciler, source, state, disk, channels, _folder: folder }
    }

    /// Replaces the devices and runs a round.
    fn discover(&mut self, devices: &[&Device]) {
        let devices = devices.iter().map(|device| (*device).clone()).collect();
        self.source.send_modify(|snapshot| snapshot.devices = devices);
        self.reconciler.refresh(Trigger::Change);
    }

    /// Starts a pass of the disk.
    fn begin_disk_pass(&self) {
        self.channels.busy_since.send_replace(Some(Instant::now()));
    }

    /// Ends the pass of the disk and runs a round.
    fn finish_disk_pass(&mut self) {
        let desired = self.channels.desired.borrow_and_update().clone();
        let on_disk = self.disk.apply(desired);
        self.channels.busy_since.send_replace(None);
        self.channels.on_disk.send_replace(Arc::new(on_disk));
        self.reconciler.refresh(Trigger::Disk);
    }

    /// Allocatable devices, each with true if claims can get it.
    fn allocatable(&self) -> Vec<(String, bool)> {
        let state = self.state.borrow();
        let offered = state.offers.values().flat_map(|offer| offer.list().collect::<Vec<_>>());
        let allocatable = offered.filter(|offer| offer.state.obstacle().is_none()).map(|offer| {
            let device = state.inventory.get(&offer.id).expect("a device");
            (offer.id.to_string(), state.obstacle(device).is_none())
        });
        allocatable.collect()
    }

    fn is_healthy(&self, device: &Device) -> bool {
        let state = self.state.borrow();
        state.inventory.get(device.id.as_str()).expect("a device of the node").health.is_healthy()
    }
}

fn gpu(id: &str) -> Device {
    observed_device(id, &Observation::Passed)
}

fn observed_device(id: &str, observation: &Observation) -> Device {
    let mut tracker = HealthTracker::new(Duration::from_secs(1), Timestamp::UNIX_EPOCH);
    tracker.observe(observation, Timestamp::UNIX_EPOCH);
    let id = id.parse().expect("an id");
    let healthy = Device::new(id, DeviceKind::Gpu, SourceName::NVIDIA, Timestamp::UNIX_EPOCH);
    Device { health: tracker.health().clone(), ..healthy }
}

fn in_both_apis(ids: &[&str]) -> Vec<(String, bool)> {
    ids.iter().map(|id| ((*id).to_owned(), true)).collect()
}

#[tokio::test(start_paused = true)]
async fn a_hanging_disk_delays_new_devices_and_no_change_of_existing_ones() {
    let mut rig = Rig::new();
    let (first, second, third) = (gpu("GPU-1"), gpu("GPU-2"), gpu("GPU-3"));
    rig.discover(&[&first, &second]);
    assert!(rig.allocatable().is_empty(), "nothing is written yet");
    rig.finish_disk_pass();
    assert_eq!(rig.allocatable(), in_both_apis(&["GPU-1", "GPU-2"]));

    rig.begin_disk_pass();
    let lost =
        observed_device("GPU-1", &Observation::Failed(Reason::Lost, "it fell off".to_owned()));
    rig.discover(&[&lost, &second]);
    assert_eq!(
        rig.allocatable(),
        in_both_apis(&["GPU-2"]),
        "the loss is published at once; the other device is unchanged"
    );

    rig.discover(&[&lost, &second, &third]);
    assert_eq!(rig.allocatable(), in_both_apis(&["GPU-2"]));
    assert_eq!(rig.state.borrow().inventory.devices.len(), 2, "a new device appears in one step");
    advance(DEADLINE).await;
    rig.reconciler.refresh(Trigger::Disk);
    assert_eq!(rig.allocatable(), in_both_apis(&["GPU-2"]));
    assert_eq!(rig.state.borrow().inventory.devices.len(), 3);
    assert!(rig.state.borrow().disk_slow_since.is_some());
    let failed =
        observed_device("GPU-2", &Observation::Fault(Reason::Xid(79), "XID 79".to_owned()));
    rig.discover(&[&lost, &failed, &third]);
    assert!(!rig.is_healthy(&second) && rig.allocatable().is_empty());

    rig.finish_disk_pass();
    assert_eq!(rig.allocatable(), in_both_apis(&["GPU-3"]));
    assert_eq!(rig.state.borrow().disk_slow_since, None);
}

#[tokio::test(start_paused = true)]
async fn a_new_delivery_waits_for_the_disk_and_withholds_no_device_meanwhile() {
    let mut rig = Rig::new();
    let device = gpu("GPU-1");
    rig.discover(&[&device]);
    rig.finish_disk_pass();
    let mut policy = Policy::clone(&rig.reconciler.policy);
    policy.delivery.ids = DeviceIdStrategy::Index;
    rig.reconciler.policy = Arc::new(policy);
    rig.begin_disk_pass();
    rig.discover(&[&device]);
    assert_eq!(
        rig.allocatable(),
        in_both_apis(&["GPU-1"]),
        "the old delivery, until the new one is written"
    );
    advance(DEADLINE).await;
    rig.reconciler.refresh(Trigger::Disk);
    assert!(rig.allocatable().is_empty(), "the disk is slow");
    rig.finish_disk_pass();
    assert_eq!(rig.allocatable(), in_both_apis(&["GPU-1"]));
}

#[tokio::test(start_paused = true)]
async fn a_configuration_that_offers_no_device_of_the_node_is_reported() {
    let resources = Resources::Rules(Vec::new());
    let mut rig = Rig::with_policy(Policy { resources, ..Policy::default() });
    rig.discover(&[]);
    rig.finish_disk_pass();
    assert_eq!(rig.state.borrow().no_offer_warning(), None, "there is nothing to offer");
    rig.discover(&[&gpu("GPU-1")]);
    rig.finish_disk_pass();
    let warning = rig.state.borrow().no_offer_warning().expect("a GPU is there");
    assert!(warning.starts_with("nothing is offered of 1 devices"), "{warning}");
}
