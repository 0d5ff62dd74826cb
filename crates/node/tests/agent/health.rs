//! Faults of the simulated machine, and the kubelet's view of the devices.

use std::sync::Arc;

use tokio::time::Instant;
use tracing::Level;
use windlass_core::{
    health::{HealthState, Reason},
    inventory::SourceState,
};
use windlass_kubelet_sim::{Device, Event, NodeStatus};
use windlass_resources::NodeState;
use windlass_testkit::{GPU, LogCapture, RunningAgent, TIMEOUT, until, until_allocatable};

use crate::agent::world::{
    QUIET_PERIOD, gpu_id, gpu_node, until_gpu_counts, with_long_quiet_period,
};

/// Reason why the GPU of that index is not healthy.
fn failure(state: &NodeState, index: u32) -> Option<Reason> {
    let gpu = state.inventory.devices.iter().find(|device| device.index == index)?;
    gpu.health.failure().map(|failure| failure.reason)
}

/// Injects each fault into the GPU of its index, and waits for its reason and for the recovery.
pub(crate) async fn check_failure_and_recovery(faults: &[(&str, u32, Reason)]) {
    let world = gpu_node("dgx-h100");
    let (kubelet, agent) = world.start_ready(8).await;
    for &(fault, index, reason) in faults {
        world.inject(fault);
        until_failure(&agent, index, reason).await;
        until_gpu_counts(&kubelet, (8, 7)).await;
        world.inject(&format!("recover@{index}"));
        until_gpu_counts(&kubelet, (8, 8)).await;
    }
}

/// Waits until the GPU is not healthy and this reason is among its failures: a later probe may find another failure.
pub(crate) async fn until_failure(
    agent: &RunningAgent,
    index: u32,
    reason: Reason,
) -> Arc<NodeState> {
    let has_failure = |state: &Arc<NodeState>| {
        state.inventory.devices.iter().filter(|device| device.index == index).any(|device| {
            let failures = device.health.failures.iter();
            !device.health.is_healthy() && failures.clone().any(|one| one.reason == reason)
        })
    };
    agent.until(has_failure).await
}

#[tokio::test]
async fn a_critical_xid_counts_at_once_and_recovery_takes_the_quiet_period() {
    let world = gpu_node("dgx-h100");
    let (kubelet, agent) = world.start_ready(8).await;
    let start = Instant::now();
    world.inject("xid:79@3");
    until_failure(&agent, 3, Reason::Xid(79)).await;
    until_gpu_counts(&kubelet, (8, 7)).await;
    until_gpu_counts(&kubelet, (8, 8)).await;
    assert!(start.elapsed() >= QUIET_PERIOD, "healthy again after {:?}", start.elapsed());
}

#[tokio::test]
async fn an_xid_of_a_program_counts_only_if_configured() {
    let mut world = with_long_quiet_period("dgx-h100");
    world.config.policy.health.counted_xids.insert(13);
    world.config.policy.health.ignored_xids.insert(79);
    let (kubelet, agent) = world.start_ready(8).await;
    world.inject("xid:31@0");
    world.inject("xid:79@1");
    world.inject("xid:13@2");
    until_gpu_counts(&kubelet, (8, 7)).await;
    let state = agent.state.borrow().clone();
    let failures: Vec<_> = (0..3).map(|index| failure(&state, index)).collect();
    assert_eq!(failures, [None, None, Some(Reason::Xid(13))]);
}

#[tokio::test]
async fn each_kind_of_failure_has_its_reason_and_can_recover() {
    // Each fault has its own GPU, because a repeated failure lengthens the quiet period.
    check_failure_and_recovery(&[
        ("ecc@1", 1, Reason::DoubleBitEcc),
        ("lost@2", 2, Reason::Lost),
        ("error:999@3", 3, Reason::ProbeFailed),
        ("hang@4", 4, Reason::Unresponsive),
        ("garbage@5", 5, Reason::ProbeFailed),
    ])
    .await;
}

#[tokio::test]
async fn a_gpu_that_fails_at_the_start_hides_no_other() {
    for (fault, reason) in [
        ("error:999@5", Reason::ProbeFailed),
        ("hang@5", Reason::Unresponsive),
        ("garbage@5", Reason::ProbeFailed),
    ] {
        let world = gpu_node("dgx-h100");
        world.inject(fault);
        let kubelet = world.start_kubelet();
        let agent = world.start_agent();
        until_gpu_counts(&kubelet, (8, 7)).await;
        let state = until_failure(&agent, 5, reason).await;
        let ids: Vec<_> = state.inventory.devices.iter().map(|device| &device.id).collect();
        world.inject("recover@5");
        let node = until_gpu_counts(&kubelet, (8, 8)).await;
        let listed = &node.resources[GPU].devices;
        let is_same =
            listed.keys().all(|listed| ids.iter().any(|id| id.as_str() == listed.as_str()));
        assert!(is_same, "the failed GPU always had its name: {listed:?} in {ids:?}");
    }
}

#[tokio::test]
async fn a_gpu_with_impossible_values_is_unhealthy_and_the_driver_call_is_named() {
    let world = gpu_node("dgx-h100");
    let (kubelet, agent) = world.start_ready(8).await;
    world.inject("garbage@3");
    let state = until_failure(&agent, 3, Reason::ProbeFailed).await;
    let gpu = state.inventory.devices.iter().find(|device| device.index == 3).expect("listed");
    let detail = gpu.health.failure().expect("not healthy").detail.clone();
    assert_eq!(detail, "nvmlDeviceGetUUID: the answer makes no sense");
    until_gpu_counts(&kubelet, (8, 7)).await;
}

#[tokio::test]
async fn no_device_is_offered_healthy_before_its_first_probe() {
    let world = gpu_node("dgx-h100");
    for gpu in 0..8 {
        world.inject(&format!("hang@{gpu}"));
    }
    let kubelet = world.start_kubelet();
    let _agent = world.start_agent();
    until_gpu_counts(&kubelet, (8, 0)).await;
    let healthy_lists = kubelet.events().count(|event| match event {
        Event::ListReceived { devices, .. } => devices.iter().any(Device::is_healthy),
        _ => false,
    });
    assert_eq!(healthy_lists, 0, "no list has a healthy device");
    for gpu in 0..8 {
        world.inject(&format!("recover@{gpu}"));
    }
    until_gpu_counts(&kubelet, (8, 8)).await;
}

#[tokio::test]
async fn a_fault_reaches_every_instance_of_the_gpu() {
    let world = with_long_quiet_period("mig-a100");
    let kubelet = world.start_kubelet();
    let agent = world.start_agent();
    let complete = agent.until(|state| state.inventory.is_complete()).await;
    let instances = |state: &NodeState| {
        let gpu = state.inventory.devices.iter().find(|device| device.partitioned);
        let gpu = gpu.expect("the profile has a GPU in MIG mode").clone();
        let parts = state.inventory.parts_of(&gpu.id).cloned().collect::<Vec<_>>();
        (gpu, parts)
    };
    let (gpu, parts) = instances(&complete);
    assert!(parts.len() > 1 && parts.iter().all(|part| part.health.is_healthy()));
    world.inject(&format!("xid:79@{}", gpu.index));
    agent
        .until(|state| instances(state).1.iter().all(|p| p.health.state == HealthState::Unhealthy))
        .await;
    let unhealthy = |node: &NodeStatus| {
        let all = node.resources.values().flat_map(|resource| &resource.devices);
        parts.iter().all(|part| {
            all.clone().any(|(id, device)| id == part.id.as_str() && !device.is_healthy())
        })
    };
    kubelet.wait_for(unhealthy, TIMEOUT).await.expect("every instance is unhealthy");
}

#[tokio::test]
async fn a_fault_of_one_instance_affects_no_other() {
    let world = with_long_quiet_period("mig-a100");
    let _kubelet = world.start_kubelet();
    let agent = world.start_agent();
    let complete = agent.until(|state| state.inventory.is_complete()).await;
    let gpu = complete.inventory.devices.iter().find(|device| device.partitioned);
    let gpu = gpu.expect("the profile has a GPU in MIG mode").clone();
    let model = world.machine.model().expect("a model");
    let instances = model.gpus[gpu.index as usize].mig.clone().expect("the GPU is in MIG mode");
    let instance = instances.last().expect("it has instances");
    let uuid = &instance.compute.as_ref().expect("it is filled").uuid;
    world.inject(&format!("xid:79@{}/{}", gpu.index, instance.gpu_instance));
    let failed = |state: &Arc<NodeState>| {
        let device = state.inventory.get(uuid);
        device.is_some_and(|part| part.health.state == HealthState::Unhealthy)
    };
    let state = agent.until(failed).await;
    let unhealthy = state.inventory.devices.iter().filter(|device| !device.health.is_healthy());
    assert_eq!(unhealthy.count(), 1, "neither the GPU nor another instance");
}

#[tokio::test]
async fn an_added_gpu_is_offered_and_a_removed_one_stays_listed_as_unhealthy() {
    let world = gpu_node("dgx-h100");
    let (kubelet, agent) = world.start_ready(8).await;
    world.inject("add");
    until_gpu_counts(&kubelet, (9, 9)).await;
    let last = gpu_id(&agent, 8);
    world.inject("remove@8");
    let node = until_gpu_counts(&kubelet, (9, 8)).await;
    let device = &node.resources[GPU].devices[last.as_str()];
    assert!(!device.is_healthy(), "a kubelet that misses an id may panic");
}

#[tokio::test]
async fn a_driver_that_is_installed_later_is_found() {
    let world = gpu_node("dgx-h100");
    world.machine.remove_driver().expect("removed");
    let kubelet = world.start_kubelet();
    let agent = world.start_agent();
    let absent = |state: &Arc<NodeState>| {
        matches!(state.inventory.sources.get("nvidia"), Some(SourceState::Absent(_)))
    };
    agent.until(absent).await;
    assert!(kubelet.status().resources.is_empty(), "a node without GPUs has no GPU resource");
    world.machine.install_driver().expect("installed");
    until_allocatable(&kubelet, GPU, 8).await;

    world.machine.remove_driver().expect("removed");
    until_gpu_counts(&kubelet, (8, 0)).await;
    until_failure(&agent, 0, Reason::DriverGone).await;
    world.machine.install_driver().expect("installed");
    until_gpu_counts(&kubelet, (8, 8)).await;
}

#[tokio::test]
async fn a_lost_gpu_does_not_hide_the_faults_of_others() {
    let world = gpu_node("dgx-h100");
    let (kubelet, agent) = world.start_ready(8).await;
    world.inject("lost@2");
    until_failure(&agent, 2, Reason::Lost).await;
    until_gpu_counts(&kubelet, (8, 7)).await;
    // The driver refuses to wait for events of a set with a lost GPU. The agent soon waits for those of another set,
    // for which the driver has no earlier events.
    until("an event arrives in spite of a lost GPU", async || {
        world.inject("xid:79@5");
        failure(&agent.state.borrow(), 5).ok_or("no failure")
    })
    .await;
    until_gpu_counts(&kubelet, (8, 6)).await;
    world.inject("recover@2");
    until_gpu_counts(&kubelet, (8, 8)).await;
}

#[tokio::test]
async fn a_new_mig_layout_is_adopted_and_no_id_is_dropped() {
    let world = gpu_node("dgx-a100");
    let (kubelet, _agent) = world.start_ready(8).await;
    world.machine.set_mig(0, Some(&["3g.20gb", "2g.10gb"])).expect("partitioned");
    until_gpu_counts(&kubelet, (8, 7)).await;
    until_allocatable(&kubelet, "nvidia.com/mig-3g.20gb", 1).await;
    until_allocatable(&kubelet, "nvidia.com/mig-2g.10gb", 1).await;
    world.machine.set_mig(0, None).expect("MIG off");
    until_gpu_counts(&kubelet, (8, 8)).await;
    let node = until_allocatable(&kubelet, "nvidia.com/mig-3g.20gb", 0).await;
    assert_eq!(node.counts("nvidia.com/mig-3g.20gb"), Some((1, 0)), "the id stays listed");
}

#[tokio::test]
async fn a_lost_gpu_keeps_its_parts_during_a_new_initialisation() {
    let world = gpu_node("mig-a100");
    let kubelet = world.start_kubelet();
    let agent = world.start_agent();
    until_allocatable(&kubelet, "nvidia.com/mig-1g.5gb", 8).await;
    until_allocatable(&kubelet, GPU, 2).await;
    let mig_gpu = |state: &NodeState| {
        state.inventory.devices.iter().find(|device| device.partitioned).cloned()
    };
    let gpu = mig_gpu(&agent.state.borrow()).expect("the profile has a GPU in MIG mode");
    let log = LogCapture::start(Level::INFO);
    world.inject(&format!("lost@{}", gpu.index));
    until_failure(&agent, gpu.index, Reason::Lost).await;
    log.until(2, "NVIDIA driver found").await;
    let state = agent.state.borrow().clone();
    let current = state.inventory.get(gpu.id.as_str()).expect("still known");
    assert!(
        current.partitioned && current.attributes == gpu.attributes,
        "its description is unchanged: {current:?}"
    );
    assert_eq!(state.inventory.parts_of(&gpu.id).count(), 7);
    assert_eq!(kubelet.status().counts(GPU), Some((2, 2)), "it did not become a whole GPU");
    world.inject(&format!("recover@{}", gpu.index));
    until_allocatable(&kubelet, "nvidia.com/mig-1g.5gb", 8).await;
}
