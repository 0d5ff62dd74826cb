//! Topology policies and scopes: allocated devices, and rejections.

use windlass_kubelet_api::{checkpoint::FILE_NAME, deviceplugin::Device};
use windlass_kubelet_sim::{Rejection, RejectionReason, TopologyPolicy, TopologyScope};

use super::{
    plugin::Plugin,
    support::{GPU, Node, device_on_nodes, ids, pod},
};

/// A kubelet with this policy, and a plugin with two devices on each of two NUMA nodes.
async fn node(policy: TopologyPolicy) -> (Node, Plugin) {
    let node = Node::start_with(|config| config.topology = policy);
    let list = (0..4).map(|index| device_on_nodes(&format!("d{index}"), &[index / 2])).collect();
    let plugin = Plugin::registered(&node.kubelet, GPU, list).await;
    node.wait_for_counts(GPU, 4, 4).await;
    (node, plugin)
}

fn check_misaligned(rejection: &Rejection) {
    assert_eq!(rejection.reason, RejectionReason::TopologyAffinityError);
    let expected = "Pod was rejected: Resources cannot be allocated with Topology locality";
    assert_eq!(rejection.message, expected);
}

#[tokio::test]
async fn a_pod_gets_devices_of_one_numa_node_if_possible() {
    for policy in
        [TopologyPolicy::BestEffort, TopologyPolicy::Restricted, TopologyPolicy::SingleNumaNode]
    {
        let (node, _plugin) = node(policy).await;
        assert_eq!(node.admit("one", GPU, 1).await, ids("d0"));
        assert_eq!(node.admit("two", GPU, 2).await, ids("d2 d3"), "{policy:?}");
    }
}

#[tokio::test]
async fn restricted_rejects_devices_of_two_nodes_if_one_node_could_have_enough() {
    let half_unhealthy = || {
        [("d0", 0, "Healthy"), ("d1", 0, "Unhealthy"), ("d2", 1, "Healthy"), ("d3", 1, "Unhealthy")]
            .map(|(id, node, health)| Device {
                health: health.to_owned(),
                ..device_on_nodes(id, &[node])
            })
    };
    let pair = async |policy| {
        let (node, plugin) = node(policy).await;
        plugin.set_devices(half_unhealthy().to_vec());
        node.wait_for_counts(GPU, 4, 2).await;
        node.kubelet.admit(pod("pair", GPU, 2)).await
    };
    let admission = pair(TopologyPolicy::BestEffort).await.expect("two healthy devices");
    assert_eq!(admission.allocation("c", GPU).expect("allocated").ids(), ids("d0 d2"));
    check_misaligned(&pair(TopologyPolicy::Restricted).await.expect_err("on two nodes"));
}

#[tokio::test]
async fn only_single_numa_node_rejects_devices_that_must_come_from_two_nodes() {
    let (restricted, _plugin) = node(TopologyPolicy::Restricted).await;
    assert_eq!(restricted.admit("three", GPU, 3).await.len(), 3, "no node has three devices");
    let (single, _plugin) = node(TopologyPolicy::SingleNumaNode).await;
    check_misaligned(&single.expect_rejection("three", GPU, 3).await);
    assert_eq!(single.admit("two", GPU, 2).await, ids("d0 d1"));
}

#[tokio::test]
async fn policy_none_ignores_numa_nodes_but_records_them() {
    let (node, _plugin) = node(TopologyPolicy::None).await;
    assert_eq!(node.admit("one", GPU, 1).await, ids("d0"));
    assert_eq!(node.admit("two", GPU, 2).await, ids("d1 d2"));
    let json = std::fs::read_to_string(node.kubelet.config().plugin_dir().join(FILE_NAME));
    let json = json.expect("written");
    assert!(json.contains(r#""DeviceIDs":{"0":["d1"],"1":["d2"]}"#), "{json}");
}

#[tokio::test]
async fn scope_pod_aligns_all_containers_together() {
    let node = Node::start_with(|config| {
        config.topology = TopologyPolicy::SingleNumaNode;
        config.topology_scope = TopologyScope::Pod;
    });
    let list = (0..4).map(|index| device_on_nodes(&format!("d{index}"), &[index / 2])).collect();
    let _plugin = Plugin::registered(&node.kubelet, GPU, list).await;
    node.wait_for_counts(GPU, 4, 4).await;
    let container = |name: &str| windlass_kubelet_sim::Container::new(name).limit(GPU, 1);
    let pair = |name: &str| {
        windlass_kubelet_sim::Pod::new(name).container(container("a")).container(container("b"))
    };
    node.admit("one", GPU, 1).await;
    let admission = node.kubelet.admit(pair("pair")).await.expect("admitted on node 1");
    let device_ids = |name| admission.allocation(name, GPU).expect("allocated").ids();
    assert_eq!((device_ids("a"), device_ids("b")), (ids("d2"), ids("d3")));
    let rejection = node.kubelet.admit(pair("late")).await.expect_err("one device is left");
    assert_eq!(rejection.reason, RejectionReason::TopologyAffinityError);
}
