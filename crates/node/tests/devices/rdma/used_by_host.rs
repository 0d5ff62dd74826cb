//! Interfaces that the host needs, or may need.

use std::fs;

use windlass_core::device::DeviceId;

use super::{states, world};
use windlass_testkit::Node;

use crate::devices::world::source;

/// Every interface, to one container each.
const ALL: &str = "resources: [{name: example.com/nic, devices: {kind: nic}}]";

/// State of every interface if the host has these routes in addition to the one over `bond0`.
async fn with_routes(world: &Node, lines: &str) -> String {
    let head = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n";
    let default = "bond0\t00000000\t0100A8C0\t0003\t0\t0\t100\t00000000\n";
    world.write("/proc/1/net/route", &format!("{head}{default}{lines}"));
    world.write("/proc/1/net/ipv6_route", "");
    states(&world.scan_host().await)
}

#[tokio::test]
async fn interfaces_that_the_host_needs_are_not_exclusive_and_their_rdma_devices_can_be_shared() {
    let ids = "ids: [nic-0000-01-00-0, nic-0000-17-00-0, nic-0000-98-00-0]";
    let exclusive =
        world(&format!("resources: [{{name: a.com/x, devices: {{kind: nic, {ids}}}}}]"));
    assert_eq!(exclusive.scan_host().await.resources().len(), 0, "no id overrides the host's use");
    let config = format!(
        "resources: [{{name: rdma/shared, devices: {{kind: nic, {ids}}}, \
         sharing: {{method: shared, replicas: 4}}}}]"
    );
    let shared = world(&config);
    let state = shared.scan_host().await;
    assert_eq!(state.resources().into_values().collect::<Vec<_>>(), [(8, 8)]);
    let without_rdma: DeviceId = "nic-0000-01-00-0".parse().expect("an id");
    let obstacle = state.device_offers()[&without_rdma].obstacle.clone();
    assert_eq!(obstacle.as_deref(), Some("no RDMA device that containers could share"));
    shared.write("/sys/module/ib_core/parameters/netns_mode", "N\n");
    let state = shared.scan_host().await;
    assert_eq!(state.resources().len(), 0);
    assert!(states(&state).contains("rdma system set netns shared"));
    assert!(source(&state, "nics").ends_with("RDMA network namespaces: exclusive"));
}

#[tokio::test]
async fn a_route_over_a_stacked_interface_is_also_over_the_lower_one() {
    let world = world("resources: [{name: example.com/nic, devices: {kind: nic}}]");
    world.write("/sys/class/net/ens1f1np1/upper_ens1f1.7/ifindex", "40");
    let routes = fs::read_to_string(world.host_path("/proc/1/net/route")).expect("routes");
    world.write("/proc/1/net/route", &routes.replace("eno3\t", "ens1f1.7\t"));
    world.write("/proc/1/net/ipv6_route", "");
    let state = world.scan_host().await;
    let expected = "the host's default route is over ens1f1.7, which is made of ens1f1np1";
    assert!(states(&state).contains(expected), "{}", states(&state));
    assert!(states(&state).contains("tg3 eno3; ; offered"), "{}", states(&state));
}

#[tokio::test]
async fn a_port_of_a_switch_is_in_use_even_if_the_switch_is_down() {
    let world = world(ALL);
    let switch = "/sys/devices/virtual/net/ovs-system";
    world.write(&format!("{switch}/operstate"), "down\n");
    let port = world.host_path("/sys/class/net/eno3");
    std::os::unix::fs::symlink(world.host_path(switch), port.join("master")).expect("linked");
    std::os::unix::fs::symlink(switch, world.host_path("/sys/class/net/ovs-system"))
        .expect("linked");
    // The host's route is over the switch's internal port, which has no physical interface.
    let states = with_routes(&world, "br-ex\t0000A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\n").await;
    assert!(states.contains("tg3 eno3; ; eno3 is a part of ovs-system"), "{states}");
}

#[tokio::test]
async fn a_bond_that_is_down_and_has_no_route_is_not_in_use() {
    let world = world(ALL);
    world.write("/sys/class/net/bond0/operstate", "down\n");
    let states = states(&world.scan_host().await);
    assert!(
        states.contains("eno1 mlx5_2; infiniband/uverbs2 infiniband/rdma_cm; offered"),
        "{states}"
    );
}

#[tokio::test]
async fn an_interface_with_an_address_of_the_host_is_withheld() {
    let world = world(ALL);
    let connected = "eno3\t0000000A\t00000000\t0001\t0\t0\t0\t000000FF\n";
    let states = with_routes(&world, connected).await;
    assert!(states.contains("tg3 eno3; ; a route of the host is over eno3"), "{states}");
    assert!(
        states.contains("eno1 mlx5_2; infiniband/uverbs2 infiniband/rdma_cm; the host's default")
    );
}

#[tokio::test]
async fn while_the_routes_cannot_be_read_no_interface_is_allocated() {
    let world = world(ALL);
    let table = world.host_path("/proc/1/net/route");
    fs::rename(&table, world.host_path("/proc/1/net/elsewhere")).expect("moved");
    let state = world.scan_host().await;
    let expected = "the host's routes cannot be read, and one may use it: /proc/1/net/route: ";
    assert!(
        states(&state).contains(&format!(
            "ens1f1np1 mlx5_1; infiniband/uverbs1 infiniband/rdma_cm; {expected}"
        )),
        "{}",
        states(&state)
    );
    assert!(
        states(&state).contains("vfio/62 vfio/vfio; offered"),
        "a function without an interface"
    );
    assert!(source(&state, "nics").ends_with("the host's routes cannot be read"));
}

#[tokio::test]
async fn beyond_the_limit_of_routes_every_interface_counts_as_used() {
    let world = world(ALL);
    let routes = "eno3\t0000000A\t0100A8C0\t0003\t0\t0\t0\t000000FF\n".repeat(100_000);
    let states = with_routes(&world, &routes).await;
    assert!(states.contains("mlx5_1; infiniband/uverbs1 infiniband/rdma_cm; the host's routes cannot be read, and one may use it: /proc/1/net/route: it has more than 100000"), "{states}");
}

#[tokio::test]
async fn a_function_with_subfunctions_is_not_exclusive() {
    let world = world(ALL);
    let remove_functions =
        |model: &mut windlass_machine::state::Model| super::functions(model).clear();
    world.machine.update(remove_functions).expect("changed");
    let states = states(&world.scan_host().await);
    assert!(states.contains("nic-0000-17-00-0: mlx5_core ens1f0np0 mlx5_0; infiniband/uverbs0 infiniband/rdma_cm; 1 subfunction is made of it"), "{states}");
}
