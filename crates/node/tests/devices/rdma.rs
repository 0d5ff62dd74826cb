//! Network interfaces: their discovery, their withholding, the edits of containers, and the files for CNI plugins.

mod groups;
mod parts;
mod used_by_host;

use std::{collections::BTreeSet, fs, os::unix::fs::symlink, sync::Arc};

use windlass_core::{
    device::{Device, DeviceId},
    topology::PcieLevel,
};
use windlass_kubelet_sim::{Container, Kubelet, Pod};
use windlass_machine::{
    MachineProfile,
    profile::{LinkState, VirtualFunction},
};
use windlass_resources::NodeState;
use windlass_testkit::{Node, pod_with as pod, until_allocatable, until_removed};

use crate::devices::world::{
    attribute, device, node_of, policy, source, start_with_http, until_metric,
};

/// A resource of virtual functions with the kernel's driver, by address and through the kubelet alone.
const VFS: &str = r#"
deviceList: envvar
nics: {ids: pciAddress, info: {"*": {rail: "<1>"}, "0000:17:00.2": {rail: "2"}}}
resources:
- name: example.com/vf
  devices: {kind: nic, match: 'device.attributes["windlass.dev"].isSriovVf'}
"#;

fn world(config: &str) -> Node {
    node_of(&MachineProfile::named("rdma").expect("a shipped profile"), config)
}

/// State of every interface, one line each.
fn states(state: &NodeState) -> String {
    let offers = state.device_offers();
    let line = |device: &Device| {
        let attribute_of = |name: &str| attribute(device, &format!("windlass.dev/{name}"));
        let names = ["driver", "ifName", "rdmaDevice", "pfName", "vfIndex", "vdpaType"];
        let names: Vec<_> = names.iter().filter_map(|name| attribute_of(name)).collect();
        let nodes = device.nodes.iter().map(|node| node.path.display().to_string());
        let nodes: Vec<_> = nodes.map(|path| path.replace("/dev/", "")).collect();
        let obstacle = offers.get(&device.id).and_then(|it| it.obstacle.as_deref());
        let (names, nodes) = (names.join(" "), nodes.join(" "));
        format!("{}: {names}; {nodes}; {}\n", device.id, obstacle.unwrap_or("offered"))
    };
    state.inventory.devices.iter().map(line).collect::<Vec<_>>().concat()
}

#[tokio::test]
async fn ports_count_traffic_in_bytes_and_errors_by_type() {
    let mut world = world("");
    let agent = start_with_http(&mut world);
    let value_of = |lines: &[String], label: &str| {
        let is_own = |line: &&String| {
            line.contains(r#"device="nic-0000-17-00-1""#)
                && line.contains(r#"port="1""#)
                && line.contains(label)
        };
        let line = lines.iter().find(is_own)?;
        line.rsplit(' ').next().map(str::to_owned)
    };
    let until_value = async |metric: &str, label: &str, expected: &str| {
        let reached = |lines: &[String]| value_of(lines, label).as_deref() == Some(expected);
        until_metric(&agent, metric, reached).await;
    };
    until_value("windlass_device_port_up", "", "1").await;
    until_value("windlass_device_port_errors_total", r#"type="symbol""#, "0").await;
    let counters = "set:ens1f1np1:infiniband/mlx5_1/ports/1/counters";
    world.inject(&format!("{counters}/port_rcv_data=250"));
    world.inject(&format!("{counters}/link_downed=3"));
    world.inject("link-down:ens1f1np1");
    until_value("windlass_device_port_received_bytes_total", "", "1000").await;
    until_value("windlass_device_port_errors_total", r#"type="link_down""#, "3").await;
    until_value("windlass_device_port_up", "", "0").await;
}

#[tokio::test]
async fn every_function_is_found_with_its_nodes_and_obstacles() {
    let world = world("resources: [{name: example.com/nic, devices: {kind: nic}}]");
    let state = world.scan_host().await;
    let expected = "\
nic-0000-17-00-0: mlx5_core ens1f0np0 mlx5_0; infiniband/uverbs0 infiniband/rdma_cm; 3 virtual functions are made of it
nic-0000-17-00-1: mlx5_core ens1f1np1 mlx5_1; infiniband/uverbs1 infiniband/rdma_cm; offered
nic-0000-98-00-0: mlx5_core eno1 mlx5_2; infiniband/uverbs2 infiniband/rdma_cm; eno1 is a part of the bond bond0, which is in use
nic-0000-98-00-1: mlx5_core eno2 mlx5_3; infiniband/uverbs3 infiniband/rdma_cm; eno2 is a part of the bond bond0, which is in use
nic-0000-ca-00-0: mlx5_core ibs3 mlx5_4; infiniband/uverbs4 infiniband/rdma_cm; offered
nic-0000-17-00-2: mlx5_core ens1f0v0 mlx5_5 ens1f0np0 0; infiniband/uverbs6 infiniband/rdma_cm; offered
nic-0000-17-00-4: mlx5_core ens1f0v2 mlx5_7 ens1f0np0 2 vhost; infiniband/uverbs8 infiniband/rdma_cm vhost-vdpa-0; offered
nic-0000-17-00-0-sf88: mlx5_core.sf ens1f0s88 mlx5_8 ens1f0np0; infiniband/uverbs9 infiniband/rdma_cm; offered
nic-0000-01-00-0: tg3 eno3; ; the host's default route is over eno3
nic-0000-17-00-3: vfio-pci ens1f0np0 1; vfio/62 vfio/vfio; offered
";
    assert_eq!(states(&state), expected);
    assert_eq!(source(&state, "nics"), "ready: 10 network interfaces, 8 with RDMA");
}

#[tokio::test]
async fn attributes_include_those_that_selectors_of_other_drivers_use() {
    let world = world("");
    let state = world.scan_host().await;
    let function = device(&state.inventory, "nic-0000-17-00-2");
    for (name, expected) in [
        ("windlass.dev/pciVendor", "15b3"),
        ("windlass.dev/pciDevice", "101e"),
        ("windlass.dev/isSriovVf", "true"),
        ("windlass.dev/pfPciAddress", "0000:17:00.0"),
        ("windlass.dev/linkLayer", "Ethernet"),
        ("windlass.dev/portState", "ACTIVE"),
        ("windlass.dev/mtu", "9000"),
        ("resource.kubernetes.io/pciBusID", "0000:17:00.2"),
        ("resource.kubernetes.io/pcieRoot", "pci0000:15"),
        ("resource.kubernetes.io/numaNode", "0"),
        ("dra.net/ifName", "ens1f0v0"),
        ("dra.net/encapsulation", "ether"),
        ("dra.net/rdma", "true"),
    ] {
        assert_eq!(attribute(function, name).as_deref(), Some(expected), "{name}");
    }
    let physical = device(&state.inventory, "nic-0000-17-00-0");
    assert_eq!(attribute(physical, "windlass.dev/sriovVfs").as_deref(), Some("3"));
}

/// A virtual function with RDMA, vDPA and a representor, and a subfunction with RDMA and vDPA.
#[tokio::test]
async fn no_function_has_more_attributes_than_dra_allows() {
    let world = world("");
    let (physical, part) = ("/sys/bus/pci/devices/0000:17:00.0", "mlx5_core.sf.4");
    world.write("/sys/module/ib_core/parameters/netns_mode", "Y\n");
    world.write(&format!("{physical}/net/eth0/phys_port_name"), "pf0vf2\n");
    world.write("/sys/bus/pci/devices/0000:17:00.4/acpi_index", "7\n");
    for rdma in ["mlx5_7", "mlx5_8"] {
        world.write(&format!("/sys/class/infiniband/{rdma}/ports/1/pkeys/0"), "0xffff\n");
    }
    let vdpa = world.host_path(&format!("/sys/bus/auxiliary/devices/{part}/vdpa1"));
    fs::create_dir_all(&vdpa).expect("created");
    symlink("../drivers/virtio_vdpa", vdpa.join("driver")).expect("linked");
    let listed = world.host_path("/sys/bus/vdpa/devices/vdpa1");
    symlink(format!("../../auxiliary/devices/{part}/vdpa1"), listed).expect("linked");
    let state = world.scan_host().await;
    let attribute_of = |id: &str, name: &str| {
        attribute(device(&state.inventory, id), &format!("windlass.dev/{name}"))
    };
    let (virtual_function, subfunction) = ("nic-0000-17-00-4", "nic-0000-17-00-0-sf88");
    for name in ["pKey", "rdmaNetns", "representor", "acpiIndex", "vdpaType", "vfIndex"] {
        assert!(attribute_of(virtual_function, name).is_some(), "{name}");
    }
    for (name, expected) in [
        ("pKey", "0xffff"),
        ("vdpaType", "virtio"),
        ("isSriovVf", "false"),
        ("pfName", "ens1f0np0"),
        ("pfPciAddress", "0000:17:00.0"),
        ("sfNumber", "88"),
    ] {
        assert_eq!(attribute_of(subfunction, name).as_deref(), Some(expected), "{name}");
    }
    for device in &state.inventory.devices {
        let count = device.attributes.len() + device.capacity.len();
        assert!(count <= 32, "{count} of {}: {:?}", device.id, device.attributes.keys());
    }
}

#[tokio::test]
async fn a_container_gets_the_variables_of_the_sriov_network_device_plugin() {
    let world = world(VFS);
    let (kubelet, _agent) = (world.start_kubelet(), world.start_agent());
    until_allocatable(&kubelet, "example.com/vf", 3).await;
    let admission = kubelet.admit(pod("p", "example.com/vf", 3)).await.expect("admitted");
    let grant = &admission.allocation("main", "example.com/vf").expect("allocated").run_options;
    let addresses: BTreeSet<_> = grant.envs["PCIDEVICE_EXAMPLE_COM_VF"].split(',').collect();
    assert_eq!(addresses, ["0000:17:00.2", "0000:17:00.3", "0000:17:00.4"].into());
    let expected = concat!(
        r#"{"0000:17:00.2":{"extra":{"rail":"2"},"generic":{"deviceID":"0000:17:00.2"},"#,
        r#""rdma":{"rdma_cm":"/dev/infiniband/rdma_cm","rdma_dev":"mlx5_5","#,
        r#""uverbs":"/dev/infiniband/uverbs6"}},"#,
        r#""0000:17:00.3":{"extra":{"rail":"\u003c1\u003e"},"generic":{"deviceID":"0000:17:00.3"},"#,
        r#""vfio":{"dev-mount":"/dev/vfio/62","mount":"/dev/vfio/vfio"}},"#,
        r#""0000:17:00.4":{"extra":{"rail":"\u003c1\u003e"},"generic":{"deviceID":"0000:17:00.4"},"#,
        r#""rdma":{"rdma_cm":"/dev/infiniband/rdma_cm","rdma_dev":"mlx5_7","#,
        r#""uverbs":"/dev/infiniband/uverbs8"},"vdpa":{"mount":"/dev/vhost-vdpa-0"}}}"#,
    );
    assert_eq!(grant.envs["PCIDEVICE_EXAMPLE_COM_VF_INFO"], expected);
    let nodes: Vec<_> = grant.devices.iter().map(|node| node.container_path.as_str()).collect();
    assert_eq!(nodes.len(), 6, "{nodes:?}");
    assert!(grant.devices.iter().all(|node| node.permissions == "rw"));
}

#[tokio::test]
async fn each_offered_interface_has_a_file_for_cni_plugins() {
    let world = world(VFS);
    let folder = world.host_path("/var/run/k8s.cni.cncf.io/devinfo/dp");
    fs::create_dir_all(&folder).expect("created");
    fs::write(folder.join("other.com-x-0000:17:00.2-device.json"), "{}").expect("written");
    let file = |id: &str| folder.join(format!("example.com-vf-{id}-device.json"));
    let (kubelet, agent) = (world.start_kubelet(), world.start_agent());
    until_allocatable(&kubelet, "example.com/vf", 3).await;
    let text = |id| fs::read_to_string(file(id)).expect("written before it was offered");
    assert_eq!(
        text("0000:17:00.2"),
        concat!(
            r#"{"type":"pci","version":"1.1.0","pci":{"pci-address":"0000:17:00.2","#,
            r#""rdma-device":"mlx5_5","pf-pci-address":"0000:17:00.0"}}"#,
        )
    );
    assert_eq!(
        text("0000:17:00.4"),
        concat!(
            r#"{"type":"vdpa","version":"1.1.0","vdpa":{"parent-device":"vdpa0","driver":"vhost","#,
            r#""path":"/dev/vhost-vdpa-0","pci-address":"0000:17:00.4","#,
            r#""pf-pci-address":"0000:17:00.0"}}"#,
        )
    );
    world.machine.update(|model| drop(functions(model).pop())).expect("changed");
    agent.until_health("0000:17:00.4", "Unhealthy: vanished").await;
    until_removed(&file("0000:17:00.4")).await;
    assert!(file("0000:17:00.2").exists());
    agent.stop().await;
    let mut without_rules = world;
    without_rules.config.policy.resources = windlass_config::Resources::Default;
    let agent = without_rules.start_agent();
    agent.until(|state| state.inventory.generation > 0).await;
    let remaining = fs::read_dir(&folder).expect("a folder").count();
    assert_eq!(remaining, 1, "an agent removes the files of an earlier run, and no others");
}

#[tokio::test]
async fn a_file_that_cannot_be_written_withholds_only_its_own_device() {
    let world = world(VFS);
    let folder = world.host_path("/var/run/k8s.cni.cncf.io/devinfo/dp");
    let file = |id: &str| folder.join(format!("example.com-vf-{id}-device.json"));
    fs::create_dir_all(file("0000:17:00.2").join("in the way")).expect("created");
    let (kubelet, agent) = (world.start_kubelet(), world.start_agent());
    let node = until_allocatable(&kubelet, "example.com/vf", 2).await;
    assert_eq!(node.counts("example.com/vf"), Some((3, 2)));
    assert!(file("0000:17:00.3").exists() && file("0000:17:00.4").exists());
    let id: DeviceId = "0000:17:00.2".parse().expect("an id");
    let state = agent.state.borrow().clone();
    let obstacle = state.device_offers()[&id].obstacle.clone().unwrap_or_default();
    assert!(
        obstacle.starts_with("cannot write device information for CNI plugins to"),
        "{obstacle}"
    );
    assert!(state.missing_parts.problems.contains(&obstacle), "{:?}", state.missing_parts.problems);
    world.machine.update(|model| drop(functions(model).pop())).expect("changed");
    until_removed(&file("0000:17:00.4")).await;
    until_allocatable(&kubelet, "example.com/vf", 1).await;
    fs::remove_dir_all(file("0000:17:00.2")).expect("removed");
    until_allocatable(&kubelet, "example.com/vf", 2).await;
    assert!(file("0000:17:00.2").is_file());
}

fn functions(model: &mut windlass_machine::state::Model) -> &mut Vec<VirtualFunction> {
    &mut model.nics[0].sriov.as_mut().expect("it has virtual functions").functions
}

#[tokio::test]
async fn functions_that_are_made_while_the_agent_runs_are_offered() {
    let world = world(VFS);
    let (kubelet, _agent) = (world.start_kubelet(), world.start_agent());
    until_allocatable(&kubelet, "example.com/vf", 3).await;
    let function = VirtualFunction {
        driver: Some("mlx5_core".to_owned()),
        netdev: Some("ens1f0v3".to_owned()),
        ..VirtualFunction::default()
    };
    world.machine.update(|model| functions(model).push(function)).expect("changed");
    until_allocatable(&kubelet, "example.com/vf", 4).await;
}

#[tokio::test]
async fn a_cable_that_was_unplugged_makes_its_functions_wait_for_a_quiet_period() {
    let world = world(VFS);
    let (kubelet, agent) = (world.start_kubelet(), world.start_agent());
    until_allocatable(&kubelet, "example.com/vf", 3).await;
    let link = |link| world.machine.update(|model| model.nics[0].link = link).expect("changed");
    link(LinkState::Down);
    until_allocatable(&kubelet, "example.com/vf", 0).await;
    let expected =
        "Unhealthy: link down, physical function: port 1 of mlx5_0 is 1: DOWN, 3: Disabled";
    agent.until_health("0000:17:00.3", expected).await;
    link(LinkState::Up);
    until_allocatable(&kubelet, "example.com/vf", 3).await;
}

#[tokio::test]
async fn an_interface_that_is_administratively_down_stays_healthy() {
    let world = world("nics: {ids: pciAddress}");
    world.machine.update(|model| model.nics[1].link = LinkState::Down).expect("changed");
    let agent = world.start_agent();
    agent.until_health("0000:17:00.1", "Unhealthy: link down").await;
    let flags = "/sys/class/net/ens1f1np1/flags";
    world.write(flags, "0x1002\n");
    agent.until_health("0000:17:00.1", "Healthy").await;
    world.write(flags, "0x1003\n");
    agent.until_health("0000:17:00.1", "Unhealthy: link down").await;
}

#[tokio::test]
async fn an_incomplete_set_of_nodes_is_withheld() {
    let world = world("nics: {ids: pciAddress, rdmaNodes: [uverbs, rdmaCm, umad, issm]}");
    let agent = world.start_agent();
    agent.until_health("0000:ca:00.0", "Healthy").await;
    let nodes = device(&agent.state.borrow().inventory, "0000:ca:00.0").nodes.len();
    assert_eq!(nodes, 4, "InfiniBand has a manager's node as well");
    for (path, expected) in [
        ("/dev/infiniband/rdma_cm", "not ready, /dev/infiniband/rdma_cm is not there"),
        ("/dev/infiniband/uverbs4", "device node missing, /dev/infiniband/uverbs4 is not there"),
    ] {
        fs::rename(world.host_path(path), world.host_path("/dev/elsewhere")).expect("moved");
        agent.until_health("0000:ca:00.0", &format!("Unhealthy: {expected}")).await;
        fs::rename(world.host_path("/dev/elsewhere"), world.host_path(path)).expect("moved");
        agent.until_health("0000:ca:00.0", "Healthy").await;
    }
    let verbs = world.host_path("/sys/bus/pci/devices/0000:ca:00.0/infiniband_verbs");
    fs::rename(&verbs, world.host_path("/sys/elsewhere")).expect("moved");
    let expected = "Unhealthy: not ready, mlx5_4 has no uverbs node yet: is ib_uverbs loaded?";
    agent.until_health("0000:ca:00.0", expected).await;
}

#[tokio::test]
async fn an_interface_without_rdma_nodes_waits_for_none_and_is_not_shared() {
    let node = world("nics: {ids: pciAddress, rdmaNodes: []}");
    fs::remove_file(node.host_path("/dev/infiniband/rdma_cm")).expect("removed");
    let agent = node.start_agent();
    agent.until_health("0000:ca:00.0", "Healthy").await;
    assert_eq!(device(&agent.state.borrow().inventory, "0000:ca:00.0").nodes, []);
    let shared = two_shared_nics("").replace("resources", "nics: {rdmaNodes: []}\nresources");
    let offers = world(&shared).scan_host().await.device_offers();
    let obstacle = offers["nic-0000-ca-00-0"].obstacle.as_deref();
    assert_eq!(obstacle, Some("nics.rdmaNodes is empty: no RDMA node for containers to share"));
}

#[tokio::test]
async fn optional_nodes_are_granted_once_they_exist() {
    let config = "nics: {ids: pciAddress, rdmaNodes: [uverbs, rdmaCm, umad], vhostNet: true, \
                  missingNodes: leftOut}";
    let world = world(config);
    let (cm, mad) = ("/dev/infiniband/rdma_cm", "/sys/bus/pci/devices/0000:ca:00.0/infiniband_mad");
    for (path, destination) in [(cm, "/dev/elsewhere"), (mad, "/sys/elsewhere")] {
        fs::rename(world.host_path(path), world.host_path(destination)).expect("moved");
    }
    let agent = world.start_agent();
    agent.until_health("0000:ca:00.0", "Healthy").await;
    let nodes = |state: &NodeState| device(&state.inventory, "0000:ca:00.0").nodes.len();
    assert_eq!(nodes(&agent.state.borrow()), 1, "verbs");
    fs::rename(world.host_path("/dev/elsewhere"), world.host_path(cm)).expect("moved");
    agent.until(|state| nodes(state) == 2).await;
}

/// A shared resource of the two NICs that the host does not need.
fn two_shared_nics(pool: &str) -> String {
    format!(
        "deviceList: envvar\nresources: [{{name: rdma/hca, devices: {{kind: nic, ids: \
         [nic-0000-17-00-1, nic-0000-ca-00-0]}}, sharing: {{method: shared, replicas: 3{pool}}}}}]"
    )
}

/// The verbs nodes that a new pod gets with one of a resource, by its ids.
async fn verbs(kubelet: &Kubelet, name: &str) -> (Vec<String>, Vec<String>) {
    let admission = kubelet.admit(pod(name, "rdma/hca", 1)).await.expect("admitted");
    let allocation = admission.allocation("main", "rdma/hca").expect("allocated");
    let nodes = allocation.run_options.devices.iter().map(|node| node.container_path.clone());
    let verbs = nodes.filter(|path| path.contains("uverbs")).collect();
    (allocation.ids().into_iter().collect(), verbs)
}

#[tokio::test]
async fn tokens_of_a_nic_grant_that_nic() {
    let world = world(&two_shared_nics(""));
    let (kubelet, _agent) = (world.start_kubelet(), world.start_agent());
    until_allocatable(&kubelet, "rdma/hca", 6).await;
    let mut used = BTreeSet::new();
    for name in ["a", "b"] {
        let (ids, verbs) = verbs(&kubelet, name).await;
        assert_eq!(verbs.len(), 1, "{ids:?}");
        used.extend(verbs);
    }
    assert_eq!(used.len(), 2, "the second container has the other NIC");
}

#[tokio::test]
async fn tokens_of_a_pool_grant_every_healthy_nic() {
    let world = world(&two_shared_nics(", pool: true"));
    let (kubelet, agent) = (world.start_kubelet(), world.start_agent());
    until_allocatable(&kubelet, "rdma/hca", 3).await;
    let both = ["/dev/infiniband/uverbs1".to_owned(), "/dev/infiniband/uverbs4".to_owned()];
    assert_eq!(verbs(&kubelet, "a").await, (vec!["0".to_owned()], both.to_vec()));
    let link = |nic: usize, link| {
        world.machine.update(|model| model.nics[nic].link = link).expect("changed");
    };
    link(4, LinkState::Down);
    agent.until_health("nic-0000-ca-00-0", "Unhealthy").await;
    assert_eq!(verbs(&kubelet, "b").await.1, both[..1]);
    link(1, LinkState::Down);
    until_allocatable(&kubelet, "rdma/hca", 0).await;
    link(1, LinkState::Up);
    until_allocatable(&kubelet, "rdma/hca", 3).await;
    assert_eq!(verbs(&kubelet, "c").await.0, ["2"]);
}

#[tokio::test]
async fn tokens_beyond_a_smaller_pool_remain_listed() {
    let world = world(&two_shared_nics(", pool: true"));
    let (kubelet, agent) = (world.start_kubelet(), world.start_agent());
    until_allocatable(&kubelet, "rdma/hca", 3).await;
    agent
        .set_policy(policy(&two_shared_nics(", pool: true").replace("replicas: 3", "replicas: 2")));
    let node = until_allocatable(&kubelet, "rdma/hca", 2).await;
    assert_eq!(node.counts("rdma/hca"), Some((3, 2)));
}

#[tokio::test]
async fn nics_of_a_pool_in_use_are_not_exclusive() {
    let world = world(&two_shared_nics(", pool: true"));
    let (kubelet, agent) = (world.start_kubelet(), world.start_agent());
    until_allocatable(&kubelet, "rdma/hca", 3).await;
    verbs(&kubelet, "holder").await;
    agent.set_policy(policy(
        "resources: [{name: rdma/whole, devices: {kind: nic, ids: [nic-0000-17-00-1]}}]",
    ));
    let id: DeviceId = "nic-0000-17-00-1".parse().expect("an id");
    let expected = "a container holds it as rdma/hca";
    let is_held = |state: &Arc<NodeState>| {
        state.device_offers().get(&id).is_some_and(|it| it.obstacle.as_deref() == Some(expected))
    };
    agent.until(is_held).await;
}

#[tokio::test]
async fn programs_get_the_names_of_their_rdma_devices_if_configured() {
    let world =
        world(&format!("nics: {{programHints: true}}\n{}", two_shared_nics(", pool: true")));
    let (kubelet, _agent) = (world.start_kubelet(), world.start_agent());
    until_allocatable(&kubelet, "rdma/hca", 3).await;
    let admission = kubelet.admit(pod("p", "rdma/hca", 1)).await.expect("admitted");
    let envs = &admission.allocation("main", "rdma/hca").expect("allocated").run_options.envs;
    assert_eq!(envs["NCCL_IB_HCA"], "=mlx5_1,mlx5_4");
    assert_eq!(envs["UCX_NET_DEVICES"], "mlx5_1:1,mlx5_4:1");
}

#[tokio::test]
async fn the_kubelet_gets_numa_nodes_unless_switched_off() {
    for (hints, expected) in [("true", &[0_i64][..]), ("false", &[-1])] {
        let world = world(&format!("nics: {{numaHints: {hints}}}\n{}", two_shared_nics("")));
        let (kubelet, _agent) = (world.start_kubelet(), world.start_agent());
        until_allocatable(&kubelet, "rdma/hca", 6).await;
        let admission = kubelet.admit(pod("p", "rdma/hca", 1)).await.expect("admitted");
        let devices = &admission.allocation("main", "rdma/hca").expect("allocated").devices;
        assert_eq!(devices.keys().copied().collect::<Vec<_>>(), expected, "{hints}");
    }
}

/// GPUs and NICs of a new pod, by the level of the farthest pair.
async fn gpu_nic_distance(kubelet: &Kubelet, state: &NodeState, nic: &str) -> PcieLevel {
    let limits = [("nvidia.com/gpu".to_owned(), 1), (nic.to_owned(), 1)].into();
    let pod = Pod::new(nic).container(Container { name: "main".to_owned(), limits });
    let admission = kubelet.admit(pod).await.expect("admitted");
    let position = |resource: &str| {
        let ids = admission.allocation("main", resource).expect("allocated").ids();
        state.topology.position(ids.first().expect("one")).expect("known")
    };
    state.topology.connection(position("nvidia.com/gpu"), position(nic)).pcie
}

#[tokio::test]
async fn a_gpu_and_a_nic_of_one_pod_are_near_each_other_in_any_order_of_requests() {
    // The embedded kubelet sends its requests in the order of the names. Its first device is not the first of its kind,
    // because other pods have those.
    for (nic, first) in [("rdma/nic", "nvidia.com/gpu"), ("a.com/nic", "a.com/nic")] {
        let config = format!(
            "unmatched: default\nresources: [{{name: {nic}, devices: {{kind: nic, \
             match: 'device.attributes[\"windlass.dev\"].rdma'}}}}]"
        );
        let world = node_of(&MachineProfile::named("dgx-h100").expect("a profile"), &config);
        let (kubelet, agent) = (world.start_kubelet(), world.start_agent());
        until_allocatable(&kubelet, nic, 8).await;
        until_allocatable(&kubelet, "nvidia.com/gpu", 8).await;
        kubelet.admit(pod("others", first, 3)).await.expect("admitted");
        let state = agent.state.borrow().clone();
        assert_eq!(gpu_nic_distance(&kubelet, &state, nic).await, PcieLevel::Pix, "{nic}");
    }
}

#[tokio::test]
async fn an_interface_that_does_not_answer_keeps_its_identity_and_affects_no_other() {
    let world = world("");
    let (hanging, file) = ("nic-0000-ca-00-0", "/sys/class/infiniband/mlx5_4/ports/1/state");
    let agent = world.start_agent();
    let state = agent.until_health(hanging, "Healthy").await;
    let before = device(&state.inventory, hanging).clone();
    world.block_reads(file);
    let state = agent.until_health(hanging, "Unhealthy: not ready, it does not answer").await;
    let current = device(&state.inventory, hanging);
    assert_eq!((&current.nodes, &current.attributes), (&before.nodes, &before.attributes));
    world.machine.update(|model| model.nics[1].link = LinkState::Down).expect("changed");
    let state = agent.until_health("nic-0000-17-00-1", "Unhealthy: link down").await;
    assert!(source(&state, "nics").starts_with("ready: "), "{}", source(&state, "nics"));
    world.unblock_reads(file, "4: ACTIVE\n");
    agent.until_health(hanging, "Healthy").await;
}

#[tokio::test]
async fn an_interface_that_never_answered_is_listed_and_not_ready() {
    let world = world("");
    world.block_reads("/sys/class/infiniband/mlx5_4/ports/1/state");
    let state = world.scan_host().await;
    let health = |id: &str| device(&state.inventory, id).health.to_string();
    assert!(health("nic-0000-ca-00-0").contains("it does not answer"));
    assert!(health("nic-0000-17-00-1").starts_with("Healthy"));
}
