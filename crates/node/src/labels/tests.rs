//! Labeller under changing state and policy, with paused time.

use std::{collections::BTreeMap, fs, os::unix::fs::MetadataExt as _, path::PathBuf};

use tempfile::TempDir;
use tokio::{task::JoinSet, time::timeout};
use windlass_config::LabelPolicy;
use windlass_core::{
    attribute::{AttributeName, AttributeValue},
    device::{Device, DeviceKind, SourceName},
    health::{HealthTracker, Observation, Reason},
    inventory::Inventory,
    inventory::SourceState,
};

use super::*;

const COUNT: &str = "nvidia.com/gpu.count";

struct RunningLabeller {
    folder: TempDir,
    state: watch::Sender<Arc<NodeState>>,
    policy: watch::Sender<Arc<Policy>>,
    labels: watch::Receiver<Arc<Labels>>,
    stop: CancellationToken,
    task: JoinSet<()>,
}

fn gpu(id: &str, last_error: Option<Reason>) -> Device {
    let now = Timestamp::UNIX_EPOCH;
    let mut tracker = HealthTracker::new(Duration::from_secs(1), now);
    if let Some(reason) = last_error {
        tracker.observe(&Observation::Fault(reason, String::new()), now);
    }
    let product = AttributeName::new("nvidia.com", "productName");
    let id = id.parse().expect("valid");
    Device {
        health: tracker.health().clone(),
        attributes: BTreeMap::from([(product, AttributeValue::string("Tesla T4"))]),
        ..Device::new(id, DeviceKind::Gpu, SourceName::NVIDIA, now)
    }
}

fn state(devices: Vec<Device>) -> Arc<NodeState> {
    let source = ("nvidia".to_owned(), SourceState::Ready("driver".to_owned()));
    let sources = BTreeMap::from([source]);
    let inventory = Inventory { sources, devices, ..Inventory::default() };
    Arc::new(NodeState { inventory, ..NodeState::default() })
}

fn policy(output: LabelOutput) -> Arc<Policy> {
    let labels = LabelPolicy { output, timestamp: true, ..LabelPolicy::default() };
    Arc::new(Policy { labels, ..Policy::default() })
}

// === impl RunningLabeller ===

impl RunningLabeller {
    /// Starts a labeller with a feature file of this name in a temporary folder.
    fn start(name: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = LabelOutput::File(folder.path().join(name));
        let (policy, policies) = watch::channel(policy(file));
        let (state, states) = watch::channel(Arc::new(NodeState::default()));
        let host = Host::new(folder.path(), folder.path());
        let clock = Clock::starting_at(Timestamp::UNIX_EPOCH);
        let (labeller, labels) = Labeller::new(host, clock, states, policies);
        let (stop, mut task) = (CancellationToken::new(), JoinSet::new());
        task.spawn(labeller.run(stop.clone()));
        Self { folder, state, policy, labels, stop, task }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.path(name)).ok()
    }

    /// Lets `time` pass after all tasks are idle.
    async fn settle(&mut self, time: Duration) {
        // Paused time advances only while every task waits and no blocking task runs.
        tokio::time::sleep(time).await;
    }

    fn count(&self) -> Option<String> {
        self.labels.borrow().get(COUNT).cloned()
    }

    async fn stop(mut self) -> TempDir {
        self.stop.cancel();
        self.task.join_next().await.expect("one task").expect("no panic");
        self.folder
    }
}

const SETTLE_TIME: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn labels_follow_the_devices_and_the_file_follows_the_labels() {
    let mut node = RunningLabeller::start("features.d/gfd");
    node.settle(SETTLE_TIME).await;
    assert_eq!((node.count(), node.text("features.d/gfd")), (None, None), "nothing is known yet");
    for count in 1..=2 {
        let devices = (0..count).map(|index| gpu(&format!("GPU-{index}"), None)).collect();
        node.state.send_replace(state(devices));
        node.settle(SETTLE_TIME).await;
        assert_eq!(node.count(), Some(count.to_string()));
        let text = node.text("features.d/gfd").expect("a file");
        assert!(text.contains(&format!("{COUNT}={count}\n")), "{text}");
    }
    let folder = node.stop().await;
    assert_eq!(fs::read_dir(folder.path().join("features.d")).expect("a folder").count(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_change_that_no_label_shows_writes_nothing() {
    let mut node = RunningLabeller::start("gfd");
    node.state.send_replace(state(vec![gpu("GPU-0", None)]));
    node.settle(SETTLE_TIME).await;
    node.labels.mark_unchanged();
    let inode = |node: &RunningLabeller| fs::metadata(node.path("gfd")).expect("a file").ino();
    let first_inode = inode(&node);
    node.state.send_replace(state(vec![gpu("GPU-0", Some(Reason::Xid(79)))]));
    let changed = timeout(Duration::from_secs(3600), node.labels.changed()).await;
    assert!(changed.is_err(), "neither a fault nor time changes a label");
    assert_eq!(inode(&node), first_inode);
}

#[tokio::test(start_paused = true)]
async fn a_failed_write_is_repeated_and_labels_are_published_meanwhile() {
    let mut node = RunningLabeller::start("features.d/gfd");
    fs::write(node.path("features.d"), "in the way").expect("a file");
    node.state.send_replace(state(vec![gpu("GPU-0", None)]));
    node.settle(SETTLE_TIME).await;
    assert_eq!((node.count().as_deref(), node.text("features.d/gfd")), (Some("1"), None));
    fs::remove_file(node.path("features.d")).expect("removed");
    node.settle(RETRY_MAX).await;
    assert!(node.text("features.d/gfd").is_some());
}

#[tokio::test(start_paused = true)]
async fn a_new_policy_moves_the_file_and_removes_it() {
    let mut node = RunningLabeller::start("one");
    node.state.send_replace(state(vec![gpu("GPU-0", None)]));
    node.settle(SETTLE_TIME).await;
    assert!(node.text("one").expect("a file").contains("gfd.timestamp=0\n"));
    node.policy.send_replace(policy(LabelOutput::File(node.path("two"))));
    node.settle(SETTLE_TIME).await;
    assert_eq!(node.text("one"), None);
    assert!(
        node.text("two").expect("a file").contains("gfd.timestamp=1\n"),
        "the time of the new policy"
    );
    node.policy.send_replace(policy(LabelOutput::NodeFeature));
    node.settle(SETTLE_TIME).await;
    assert_eq!((node.text("two"), node.count().as_deref()), (None, Some("1")));
    node.policy.send_replace(policy(LabelOutput::None));
    node.settle(SETTLE_TIME).await;
    assert!(node.labels.borrow().is_empty());
}
