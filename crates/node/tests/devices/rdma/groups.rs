//! IOMMU groups: a function that user space drives, and the other functions of its group.

use std::{fs, os::unix::fs::symlink, sync::Arc, time::Duration};

use windlass_machine::profile::VirtualFunction;
use windlass_resources::NodeState;
use windlass_testkit::{pod_with as pod, until_allocatable};

use super::{VFS, functions, states, world};
use crate::devices::world::device;

#[tokio::test]
async fn a_group_whose_number_changed_is_granted_with_its_new_number() {
    let world = world(VFS);
    let (kubelet, agent) = (world.start_kubelet(), world.start_agent());
    until_allocatable(&kubelet, "example.com/vf", 3).await;
    world.machine.update(|model| functions(model)[1].group = Some(70)).expect("changed");
    let has_node = |state: &Arc<NodeState>, path: &str| {
        let device = device(&state.inventory, "0000:17:00.3");
        device.nodes.iter().any(|node| node.path.to_str() == Some(path))
    };
    let is_offered = |state: &Arc<NodeState>| {
        let resources = state.resources();
        let vf = resources.iter().find(|(name, _)| name.as_str() == "example.com/vf");
        vf.is_some_and(|(_, (_, free))| *free == 3)
    };
    let is_moved = |state: &Arc<NodeState>| {
        has_node(state, "/dev/vfio/70") && !has_node(state, "/dev/vfio/62")
    };
    agent.until(|state| is_moved(state) && is_offered(state)).await;
    until_allocatable(&kubelet, "example.com/vf", 3).await;
    let admission = kubelet.admit(pod("p", "example.com/vf", 3)).await.expect("admitted");
    let grant = &admission.allocation("main", "example.com/vf").expect("allocated").run_options;
    assert!(grant.devices.iter().any(|node| node.host_path.ends_with("/dev/vfio/70")));
}

#[tokio::test]
async fn a_group_with_an_added_function_is_refused_before_the_next_scan() {
    let mut world = world(&VFS.replace("isSriovVf'", "driver == \"vfio-pci\"'"));
    world.config.policy.health.probe_interval = Duration::from_secs(3600);
    let (kubelet, _agent) = (world.start_kubelet(), world.start_agent());
    until_allocatable(&kubelet, "example.com/vf", 1).await;
    // The function's folder sends no notifications. The node of its old group remains.
    let link = world.host_path("/sys/bus/pci/devices/0000:17:00.3/iommu_group");
    fs::remove_file(&link).expect("removed");
    symlink("../../../../kernel/iommu_groups/70", &link).expect("linked");
    let rejection = kubelet.admit(pod("p", "example.com/vf", 1)).await.expect_err("refused");
    assert!(rejection.message.contains("/dev/vfio/62 is another device's now"), "{rejection:?}");
}

#[tokio::test]
async fn a_group_with_a_member_of_another_driver_is_withheld() {
    let world = world(VFS);
    world.machine.update(|model| functions(model)[0].group = Some(62)).expect("changed");
    let state = world.scan_host().await;
    let expected = "0000:17:00.2 is in its IOMMU group 62 and has the driver mlx5_core";
    assert!(states(&state).contains(expected), "{}", states(&state));
}

#[tokio::test]
async fn a_group_whose_members_cannot_be_read_is_withheld() {
    let world = world(VFS);
    let groups = world.host_path("/sys/kernel/iommu_groups");
    fs::rename(&groups, world.host_path("/sys/kernel/elsewhere")).expect("moved");
    let states = states(&world.scan_host().await);
    let expected = "vfio/62 vfio/vfio; the members of its IOMMU group 62 cannot be read: \
                    the agent needs /sys/kernel/iommu_groups";
    assert!(states.contains(expected), "{states}");
}

#[tokio::test]
async fn of_two_functions_in_one_group_only_one_is_allocated() {
    let world = world(VFS);
    let share_group = |model: &mut windlass_machine::state::Model| {
        let functions = functions(model);
        functions[0] = VirtualFunction { netdev: None, rdma: None, ..functions[1].clone() };
    };
    world.machine.update(share_group).expect("changed");
    let states = states(&world.scan_host().await);
    assert!(
        states.contains("0000:17:00.2: vfio-pci ens1f0np0 0; vfio/62 vfio/vfio; offered"),
        "{states}"
    );
    let obstacle = "0000:17:00.2 is in the same IOMMU group, and is offered";
    assert!(states.contains(&format!("vfio/62 vfio/vfio; {obstacle}")), "{states}");
}

#[tokio::test]
async fn without_an_iommu_the_node_has_its_usual_name_in_containers() {
    let world = world(VFS);
    world.write("/sys/kernel/iommu_groups/62/name", "vfio-noiommu\n");
    world.write("/dev/vfio/noiommu-62", "");
    let state = world.scan_host().await;
    let node = &device(&state.inventory, "0000:17:00.3").nodes[0];
    assert_eq!(node.path.to_str(), Some("/dev/vfio/noiommu-62"));
    assert_eq!(node.container_path().to_str(), Some("/dev/vfio/62"));
}
