//! Labels of every simulated machine, and of one whose MIG layout changes.

use std::sync::Arc;

use jiff::Timestamp;
use tokio::{sync::watch, task::JoinSet};
use tokio_util::sync::CancellationToken;
use windlass_config::{
    LabelOutput, MigStrategy, PerContainer, Replicas, ResourceRule, Resources, Selector, Shared,
    Sharing, SharingMethod,
};
use windlass_core::{
    device::DeviceKind,
    labels::{Labels, feature_file},
};
use windlass_host::{Host, clock::Clock};
use windlass_machine::MachineProfile;
use windlass_node::{agent, labels};
use windlass_testkit::{Node, until_value, within_timeout};

use crate::agent::world::gpu_node;

/// Labels after one scan of the host.
async fn labels_of(world: &Node) -> Labels {
    let clock = Clock::starting_at(Timestamp::UNIX_EPOCH);
    let state = agent::scan_host(&world.config, clock).await;
    let host = Host::new(world.machine.host_root(), world.machine.host_root());
    labels::compute(&host, &world.config.policy, &state, clock.now())
}

fn values<const N: usize>(labels: &Labels, keys: [&str; N]) -> [String; N] {
    keys.map(|key| labels.get(key).cloned().unwrap_or_default())
}

#[tokio::test]
async fn every_machine_has_its_labels() {
    for name in MachineProfile::names_with_nvidia() {
        let labels = labels_of(&gpu_node(name)).await;
        insta::assert_snapshot!(format!("labels_{name}"), feature_file(&labels));
    }
}

fn time_sliced(name: &str, kind: DeviceKind, replicas: u64) -> ResourceRule {
    let shared = Shared {
        method: SharingMethod::TimeSlicing,
        replicas: Replicas::try_from(replicas).expect("valid"),
        per_container: PerContainer::Any,
        memory_mib: None,
    };
    let name = name.parse().expect("valid");
    ResourceRule::new(name, Selector::all(kind), Sharing::Shared(shared))
}

#[tokio::test]
async fn labels_show_the_sharing_of_each_device() {
    let mut world = gpu_node("mixed-models");
    let excluded = Selector { index: [0].into(), ..Selector::all(DeviceKind::Gpu) };
    world.config.policy.exclude = vec![excluded];
    let keys =
        ["product", "replicas", "sharing-strategy"].map(|key| format!("nvidia.com/gpu.{key}"));
    let keys = keys.each_ref().map(String::as_str);
    for (name, product) in [
        ("nvidia.com/gpu", "NVIDIA-A100-PCIE-40GB-SHARED"),
        ("nvidia.com/gpu.shared", "NVIDIA-A100-PCIE-40GB"),
    ] {
        let rule = time_sliced(name, DeviceKind::Gpu, 4);
        world.config.policy.resources = Resources::Rules(vec![rule]);
        let labels = labels_of(&world).await;
        assert_eq!(values(&labels, keys), [product, "4", "time-slicing"]);
        let model = "windlass.dev/gpu.NVIDIA-A100-PCIE-40GB";
        let shares = values(&labels, [&format!("{model}.count"), &format!("{model}.shares")]);
        assert_eq!(shares, ["2", "4"], "one of them is excluded");
    }
}

#[tokio::test]
async fn a_new_mig_layout_gets_new_labels_and_a_stopped_agent_removes_them() {
    let mut world = gpu_node("dgx-a100");
    let path = world.folder.join("features.d/gfd");
    world.config.policy.mig = MigStrategy::Mixed;
    world.config.policy.labels.output = LabelOutput::File(path.clone());
    let agent = world.start_agent();
    let (_policy, policies) = watch::channel(Arc::new(world.config.policy.clone()));
    let host = Host::new(world.machine.host_root(), world.machine.host_root());
    let clock = Clock::starting_at(Timestamp::UNIX_EPOCH);
    let (labeller, labels) = labels::Labeller::new(host, clock, agent.state.clone(), policies);
    let (stop, mut task) = (CancellationToken::new(), JoinSet::new());
    task.spawn(labeller.run(stop.clone()));

    let mig = "nvidia.com/mig-3g.20gb.count";
    let has = |count: Option<&'static str>| {
        move |labels: &Arc<Labels>| {
            !labels.is_empty() && labels.get(mig).map(String::as_str) == count
        }
    };
    until_value("no label", &labels, has(None)).await;
    world.machine.set_mig(3, Some(&["3g.20gb", "3g.20gb"])).expect("another layout");
    until_value("two GPUs", &labels, has(Some("2"))).await;

    agent.stop().await;
    stop.cancel();
    within_timeout("it ends", task.join_next()).await.expect("one").expect("no panic");
    assert!(!path.exists());
}
