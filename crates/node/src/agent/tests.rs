//! Device plugin and claims on one node: allocations of pods, and claims in the ledger.

use std::time::Duration;

use jiff::Timestamp;
use tempfile::TempDir;
use tokio::time::{sleep, timeout};
use windlass_allocations::ledger::{ClaimRef, ClaimUse, Conflict, Overlap, Overlaps};
use windlass_config::{
    DraOffer, DriverName, HostPaths, KubeletLimits, PerContainer, Pooled, Replicas, ResourceRule,
    Resources, Selector, Sharing,
};
use windlass_core::device::DeviceKind;
use windlass_dra::catalog::Catalog;
use windlass_kubelet_sim::{Container, Kubelet, NodeStatus, Pod};
use windlass_machine::{Machine, MachineProfile, find_driver};

use super::*;
use crate::admin::Listeners;

const GPU: &str = "nvidia.com/gpu";

const TIMEOUT: Duration = Duration::from_secs(20);

/// A node with eight GPUs and its kubelet.
struct Node {
    config: Config,
    kubelet: Kubelet,
    _machine: Machine,
    _folder: TempDir,
}

/// A running agent.
struct RunningAgent {
    ledger: SharedLedger,
    policy: watch::Sender<Arc<Policy>>,
    state: watch::Receiver<Arc<NodeState>>,
    tasks: TaskSet,
}

impl Node {
    fn new(offer: DraOffer) -> Self {
        let mut folder = tempfile::Builder::new();
        folder.prefix("wl");
        // A simulated machine is a thousand small files.
        let folder = folder.tempdir_in("/dev/shm").or_else(|_| folder.tempdir());
        let folder = folder.expect("a temporary folder");
        let profile = MachineProfile::named("dgx-h100").expect("a shipped profile");
        let driver = find_driver().expect("cargo builds it with the tests");
        let path = |name: &str| folder.path().join(name);
        let machine = Machine::create(&path("machine"), &profile, &driver).expect("a machine");
        let mut config = Config {
            places: HostPaths {
                kubelet_dir: path("kubelet"),
                host_root: machine.host_root(),
                host_root_on_node: machine.host_root(),
                nvml_library: Some(machine.nvml_library()),
                state_dir: path("state"),
                cdi_dir: path("cdi"),
                ..HostPaths::default()
            },
            kubelet_limits: KubeletLimits {
                checkpoint_delay: Duration::from_millis(50),
                check_interval: Duration::from_millis(100),
                ..KubeletLimits::default()
            },
            ..Config::default()
        };
        config.policy.dra.offer = offer;
        let kubelet = Kubelet::start(windlass_kubelet_sim::Config::new(&config.places.kubelet_dir));
        let kubelet = kubelet.expect("the embedded kubelet starts");
        Self { config, kubelet, _machine: machine, _folder: folder }
    }

    fn agent(&self, ledger: SharedLedger) -> RunningAgent {
        let dir = self.config.places.kubelet_dir.join(PLUGIN_DIR);
        let clock = Clock::starting_at(Timestamp::now());
        let (registry, instruments) = metrics::registry(&clock);
        let policy = watch::Sender::new(Arc::new(self.config.policy.clone()));
        let mut tasks = TaskSet::default();
        let (event_sender, directory) = watch::channel(0);
        let event_watch = DirectoryWatch::new(&dir).expect("the kubelet's folder");
        tasks.spawn(
            "watch",
            event_watch.run(event_sender, self.config.kubelet_limits.check_interval),
        );
        let deps = Deps {
            dir,
            directory,
            listeners: Listeners::default(),
            cluster: None,
            policy: policy.subscribe(),
            ledger: ledger.clone(),
            clock,
        };
        let (state, _) = assembly::assemble(&self.config, deps, registry, instruments, &mut tasks);
        RunningAgent { ledger, policy, state, tasks }
    }

    /// Waits until the kubelet lists and may allocate these numbers of GPUs.
    async fn until_counts(&self, expected: (usize, usize)) {
        let reached = |node: &NodeStatus| node.counts(GPU) == Some(expected);
        self.kubelet.wait_for(reached, TIMEOUT).await.unwrap_or_else(|late| panic!("{late}"));
    }

    /// Admits a pod; returns its UID and its GPU.
    async fn pod(&self, name: &str) -> (String, String) {
        let admission = self.kubelet.admit(pod(name, 1)).await.expect("admitted");
        let ids = admission.allocation("main", GPU).expect("allotted").ids();
        (format!("{name}-uid"), ids.into_iter().next().expect("a device id"))
    }
}

impl RunningAgent {
    fn gpus(&self) -> Vec<String> {
        let state = self.state.borrow();
        state.inventory.of_kind(DeviceKind::Gpu).map(|gpu| gpu.id.to_string()).collect()
    }

    fn is_claimable(&self) -> bool {
        let state = self.state.borrow();
        self.gpus().iter().all(|id| state.claimable.contains_key(id.as_str()))
    }

    fn overlap(&self, id: &str) -> Overlap {
        let state = self.state.borrow();
        let device = state.inventory.get(id).expect("a device of the node");
        Overlaps::from_inventory(&state.inventory).overlap(&device.id)
    }

    fn claim(&self, id: &str) -> Result<(), Conflict> {
        self.ledger.take_for_claim(&claim(), &[(self.overlap(id), ClaimUse::Exclusive)])
    }

    fn taints(&self, id: &str) -> Vec<String> {
        let ledger = self.ledger.watch().borrow().clone();
        let catalog = Catalog::of(&self.state.borrow(), "n1", &DriverName::default(), &ledger);
        let mut entries = catalog.pools.values().flat_map(|pool| &pool.entries);
        let entry = entries.find(|entry| entry.device.as_str() == id).expect("claims may have it");
        entry.taints.iter().map(|taint| format!("{}={}", taint.key, taint.value)).collect()
    }

    fn obstacle(&self, id: &str) -> Option<String> {
        self.state.borrow().device_offers().get(id)?.obstacle.clone()
    }

    fn offer(&self, offer: DraOffer) {
        self.policy.send_modify(|policy| Arc::make_mut(policy).dra.offer = offer);
    }

    async fn until(&self, expectation: &str, condition: impl Fn(&Self) -> bool) {
        let reached = async {
            while !condition(self) {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(TIMEOUT, reached).await.unwrap_or_else(|_| panic!("not in time: {expectation}"));
    }
}

fn claim() -> ClaimRef {
    let [namespace, name, uid] = ["team", "train", "uid"].map(ToOwned::to_owned);
    ClaimRef { namespace, name, uid }
}

fn pod(name: &str, gpus: u64) -> Pod {
    let limits = [(GPU.to_owned(), gpus)].into();
    Pod::new(name).container(Container { name: "main".to_owned(), limits })
}

#[tokio::test]
async fn a_gpu_of_a_pod_is_refused_to_claims_until_the_pod_is_deleted() {
    let node = Node::new(DraOffer::Beside);
    let agent = node.agent(SharedLedger::with_unknown_containers());
    node.until_counts((8, 8)).await;
    agent.ledger.wait_until_known().await;
    let admission = node.kubelet.admit(pod("p", 2)).await.expect("admitted");
    let held_gpus = admission.allocation("main", GPU).expect("allotted").ids();
    for gpu in &held_gpus {
        assert_eq!(agent.taints(gpu), ["device-plugin=gpu"]);
        let refusal = agent.claim(gpu).expect_err("held").to_string();
        assert_eq!(refusal, format!("{gpu} is held by a container, as {GPU}"));
    }
    node.kubelet.delete_pod("p-uid").await;
    // The kubelet writes its checkpoint at the next allocation, which leaves one of the two GPUs.
    let (_, next_gpu) = node.pod("next").await;
    let free_gpu = held_gpus.into_iter().find(|gpu| *gpu != next_gpu).expect("two were held");
    agent.until("taints are gone", |agent| agent.taints(&free_gpu).is_empty()).await;
    agent.claim(&free_gpu).expect("free");
}

#[tokio::test]
async fn a_gpu_of_a_claim_is_refused_to_pods_until_the_claim_is_released() {
    let node = Node::new(DraOffer::Beside);
    let agent = node.agent(SharedLedger::with_unknown_containers());
    node.until_counts((8, 8)).await;
    agent.ledger.wait_until_known().await;
    let gpu = agent.gpus().remove(0);
    agent.claim(&gpu).expect("free");
    node.until_counts((8, 7)).await;
    assert_eq!(agent.obstacle(&gpu).as_deref(), Some("held by a claim"));
    node.kubelet.admit(pod("greedy", 8)).await.expect_err("one is the claim's");
    agent.ledger.release_claim("uid");
    node.until_counts((8, 8)).await;
    node.kubelet.admit(pod("greedy", 8)).await.expect("all are free");
}

#[tokio::test]
async fn a_pod_gets_no_gpu_of_a_claim_before_the_kubelet_has_the_new_list() {
    let node = Node::new(DraOffer::Beside);
    let agent = node.agent(SharedLedger::with_unknown_containers());
    node.until_counts((8, 8)).await;
    agent.ledger.wait_until_known().await;
    agent.claim(&agent.gpus()[0]).expect("free");
    node.kubelet.admit(pod("greedy", 8)).await.expect_err("one is the claim's");
}

#[tokio::test]
async fn a_starting_agent_knows_the_devices_of_pods_and_claims() {
    let node = Node::new(DraOffer::Beside);
    let mut first_agent = node.agent(SharedLedger::with_unknown_containers());
    node.until_counts((8, 8)).await;
    let (_, held_gpu) = node.pod("p").await;
    first_agent.ledger.wait_until_known().await;
    let claimed_gpu = first_agent.gpus().into_iter().find(|id| *id != held_gpu).expect("another");
    first_agent.tasks.stop().await;
    let ledger = SharedLedger::with_unknown_containers();
    ledger.restore_claim(&claim(), [(&claimed_gpu.parse().expect("an id"), ClaimUse::Exclusive)]);
    let agent = node.agent(ledger);
    agent.ledger.wait_until_known().await;
    agent.until("eight GPUs", |agent| agent.gpus().len() == 8).await;
    assert_eq!(agent.taints(&held_gpu), ["device-plugin=gpu"]);
    agent.claim(&held_gpu).expect_err("held");
    node.until_counts((8, 7)).await;
    agent.claim(&claimed_gpu).expect("its own");
}

#[tokio::test]
async fn a_node_moves_from_device_plugin_to_claims_and_back_while_devices_are_held() {
    let node = Node::new(DraOffer::Off);
    let agent = node.agent(SharedLedger::with_unknown_containers());
    node.until_counts((8, 8)).await;
    let (uid, held_gpu) = node.pod("p").await;
    let free_gpus: Vec<_> = agent.gpus().into_iter().filter(|id| *id != held_gpu).collect();
    agent.claim(&free_gpus[0]).expect_err("nothing is offered to claims");

    agent.offer(DraOffer::Beside);
    agent.ledger.wait_until_known().await;
    agent.until("GPUs are claimable", RunningAgent::is_claimable).await;
    assert_eq!(agent.taints(&held_gpu), ["device-plugin=gpu"]);
    node.until_counts((8, 8)).await;
    agent.claim(&free_gpus[0]).expect("free");
    node.until_counts((8, 7)).await;

    agent.offer(DraOffer::Instead);
    node.until_counts((8, 0)).await;
    assert_eq!(agent.taints(&held_gpu), ["device-plugin=gpu"], "it moves once the pod has ended");
    assert!(agent.taints(&free_gpus[1]).is_empty());
    node.kubelet.delete_pod(&uid).await;
    agent.offer(DraOffer::Off);
    node.until_counts((8, 7)).await;
    assert_eq!(agent.obstacle(&free_gpus[0]).as_deref(), Some("held by a claim"));
    agent.ledger.release_claim("uid");
    node.until_counts((8, 8)).await;
    node.kubelet.admit(pod("all", 8)).await.expect("all are free");
}

#[tokio::test]
async fn a_token_from_an_earlier_agent_holds_its_pool_after_the_pool_moved_to_claims() {
    let mut node = Node::new(DraOffer::Off);
    let tokens = Replicas::try_from(8).expect("valid");
    let pool = Sharing::Pooled(Pooled { tokens, per_container: PerContainer::Any });
    let name = "example.com/rdma".parse().expect("a name");
    let rule = ResourceRule::new(name, Selector::all(DeviceKind::Nic), pool);
    node.config.policy.resources = Resources::Rules(vec![rule]);
    let mut first = node.agent(SharedLedger::with_unknown_containers());
    let served = |node: &NodeStatus| node.counts("example.com/rdma") == Some((8, 8));
    node.kubelet.wait_for(served, TIMEOUT).await.unwrap_or_else(|late| panic!("{late}"));
    let limits = [("example.com/rdma".to_owned(), 1)].into();
    let pod = Pod::new("p").container(Container { name: "main".to_owned(), limits });
    node.kubelet.admit(pod).await.expect("admitted");
    first.tasks.stop().await;
    node.config.policy.dra.offer = DraOffer::Instead;
    let agent = node.agent(SharedLedger::with_unknown_containers());
    agent.ledger.wait_until_known().await;
    let nics: Vec<_> = agent.state.borrow().inventory.of_kind(DeviceKind::Nic).cloned().collect();
    assert!(nics.len() > 1);
    for nic in nics {
        assert_eq!(agent.taints(nic.id.as_str()), ["device-plugin=rdma"], "{}", nic.id);
    }
}
