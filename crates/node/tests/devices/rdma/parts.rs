//! Files in a function's folder that belong to the function itself.

use windlass_testkit::Node;

use super::{states, world};
use crate::devices::world::{attribute, device, source};

#[tokio::test]
async fn a_subfunction_is_named_by_its_assigned_number() {
    let world = world("");
    let state = world.scan_host().await;
    let part = device(&state.inventory, "nic-0000-17-00-0-sf88");
    let auxiliary = attribute(part, "windlass.dev/auxiliaryDevice");
    assert_eq!(auxiliary.as_deref(), Some("mlx5_core.sf.4"));
    std::fs::remove_file(world.host_path("/sys/bus/auxiliary/devices/mlx5_core.sf.4/sfnum"))
        .expect("removed");
    device(&world.scan_host().await.inventory, "nic-mlx5_core.sf.4");
}

#[tokio::test]
async fn representors_are_not_the_functions_own_interfaces() {
    let world = world("");
    // Each name sorts before the function's own.
    for (name, port) in [("a", "pf0sf88"), ("b", "c1pf0sf3"), ("c", "pf0hpf"), ("d", "pf0vf1")] {
        let folder = format!("/sys/bus/pci/devices/0000:17:00.0/net/{name}");
        world.write(&format!("{folder}/phys_port_name"), &format!("{port}\n"));
        world.write(&format!("{folder}/flags"), "0x1003\n");
        world.write(&format!("{folder}/carrier"), "0\n");
    }
    world.write("/sys/class/net/ens1f0np0/phys_port_name", "p0s1\n");
    let state = world.scan_host().await;
    let attribute_of = |id: &str, name: &str| attribute(device(&state.inventory, id), name);
    let interface = attribute_of("nic-0000-17-00-0", "windlass.dev/ifName");
    assert_eq!(interface.as_deref(), Some("ens1f0np0"));
    let representor = attribute_of("nic-0000-17-00-3", "windlass.dev/representor");
    assert_eq!(representor.as_deref(), Some("d"));
}

#[tokio::test]
async fn software_rdma_is_named_and_skipped() {
    let world = world("");
    add_rdma(&world, "/sys/devices/virtual", "rxe0", "node_desc", "rxe\n");
    let state = world.scan_host().await;
    assert!(source(&state, "nics").ends_with("; software RDMA devices skipped: rxe0"));
}

#[tokio::test]
async fn software_rdma_on_hardware_does_not_count_as_the_hardwares() {
    let world = world("");
    let function = "/sys/bus/pci/devices/0000:01:00.0";
    add_rdma(&world, function, "rxe0", "node_desc", "rxe\n");
    add_rdma(&world, function, "renamed", "parent", "eno3\n");
    add_rdma(&world, function, "siw0", "node_desc", "Software iWARP stack\n");
    let state = world.scan_host().await;
    let states = states(&state);
    assert!(states.contains("nic-0000-01-00-0: tg3 eno3; ;"), "{states}");
    let names = "software RDMA devices skipped: renamed rxe0 siw0";
    assert!(source(&state, "nics").ends_with(names), "{}", source(&state, "nics"));
}

/// Adds an RDMA device below another device, with one file that identifies it.
fn add_rdma(world: &Node, parent: &str, name: &str, file: &str, text: &str) {
    let folder = format!("{parent}/infiniband/{name}");
    world.write(&format!("{folder}/node_type"), "1: CA\n");
    world.write(&format!("{folder}/{file}"), text);
    let real = world.host_path(&folder).canonicalize().expect("created");
    std::os::unix::fs::symlink("../..", real.join("device")).expect("linked");
    let link = world.host_path(&format!("/sys/class/infiniband/{name}"));
    std::os::unix::fs::symlink(real, link).expect("linked");
}

/// Removes the RDMA devices of all adapters and their functions, except the first ones.
fn remove_rdma(world: &Node, first_kept: usize) {
    let remove = |model: &mut windlass_machine::state::Model| {
        for nic in model.nics.iter_mut().skip(first_kept) {
            nic.rdma = None;
            nic.subfunctions.iter_mut().for_each(|part| part.rdma = None);
            let functions = nic.sriov.iter_mut().flat_map(|sriov| &mut sriov.functions);
            functions.for_each(|function| function.rdma = None);
        }
    };
    world.machine.update(remove).expect("changed");
}

const RDMA_VANISHED: &str =
    "Unhealthy: not ready, its RDMA device is gone, while its driver is still mlx5_core";

#[tokio::test]
async fn rdma_devices_that_vanish_with_their_module_are_a_failure() {
    let world = world("nics: {ids: pciAddress}");
    let agent = world.start_agent();
    agent.until_health("0000:ca:00.0", "Healthy").await;
    remove_rdma(&world, 0);
    let state = agent.until_health("0000:ca:00.0", RDMA_VANISHED).await;
    let in_bond = device(&state.inventory, "0000:98:00.0");
    assert!(in_bond.health.is_healthy(), "a bond has one RDMA device for all its parts");
    // The module is loaded again, and creates no RDMA device for this function.
    for module in ["ib_core", "mlx5_core"] {
        world.write(&format!("/sys/module/{module}/holders/mlx5_ib/refcnt"), "0");
    }
    agent.until_health("0000:ca:00.0", "Healthy").await;
}

#[tokio::test]
async fn an_rdma_device_that_is_removed_from_a_function_is_no_failure() {
    let world = world("nics: {ids: pciAddress}");
    let agent = world.start_agent();
    agent.until_health("0000:ca:00.0", "Healthy").await;
    remove_rdma(&world, 1);
    let has_none = |state: &std::sync::Arc<windlass_resources::NodeState>| {
        let device = device(&state.inventory, "0000:ca:00.0");
        attribute(device, "windlass.dev/rdma").as_deref() == Some("false")
    };
    let state = agent.until(has_none).await;
    let device = device(&state.inventory, "0000:ca:00.0");
    assert!(device.health.is_healthy(), "{}", device.health);
}

#[tokio::test]
async fn an_rdma_device_that_no_container_gets_may_vanish() {
    let world = world("nics: {ids: pciAddress, rdmaNodes: []}");
    let agent = world.start_agent();
    agent.until_health("0000:ca:00.0", "Healthy").await;
    remove_rdma(&world, 0);
    let state = agent.until(|state| source(state, "nics").contains(", 0 with RDMA")).await;
    let device = device(&state.inventory, "0000:ca:00.0");
    assert!(device.health.is_healthy(), "{}", device.health);
}

#[tokio::test]
async fn too_many_entries_are_reported_and_affect_no_interface() {
    let world = world("");
    let lists = ["/sys/class/infiniband", "/sys/bus/vdpa/devices", "/sys/bus/auxiliary/devices"];
    for list in lists {
        world.create_many_links(list, "crowd", 20_000);
    }
    let state = world.scan_host().await;
    let state_text = source(&state, "nics");
    for list in lists {
        let warning = format!("{list} has more than 4000 entries: the others are left out");
        assert!(state_text.contains(&warning), "{state_text}");
    }
    assert!(state_text.starts_with("ready: ") && state_text.len() < 500, "{state_text}");
    assert!(device(&state.inventory, "nic-0000-17-00-1").health.is_healthy());
}
