//! Topology policies, from the list to the pod.

use windlass_kubelet_api::{checkpoint::FILE, deviceplugin::Device};
use windlass_kubelet_sim::{Reason, Rejection, TopologyPolicy, TopologyScope};

use super::{
    plugin::Plugin,
    support::{GPU, Node, ids, on_nodes, pod},
};

/// Two devices on each of two nodes.
async fn node(policy: TopologyPolicy) -> (Node, Plugin) {
    let node = Node::start_with(|config| config.topology = policy);
    let list = (0..4).map(|index| on_nodes(&format!("d{index}"), &[index / 2])).collect();
    let plugin = Plugin::registered(&node.kubelet, GPU, list).await;
    node.counts(GPU, 4, 4).await;
    (node, plugin)
}

fn misaligned(rejection: &Rejection) {
    assert_eq!(rejection.reason, Reason::TopologyAffinityError);
    let expected = "Pod was rejected: Resources cannot be allocated with Topology locality";
    assert_eq!(rejection.message, expected);
}

/// Catalogue row 99.
#[tokio::test]
async fn a_pod_gets_devices_of_one_node_where_they_fit() {
    for policy in
        [TopologyPolicy::BestEffort, TopologyPolicy::Restricted, TopologyPolicy::SingleNumaNode]
    {
        let (node, _plugin) = node(policy).await;
        assert_eq!(node.admit("one", GPU, 1).await, ids("d0"));
        assert_eq!(node.admit("two", GPU, 2).await, ids("d2 d3"), "{policy:?}");
    }
}

/// Catalogue row 100.
#[tokio::test]
async fn devices_that_are_enough_but_apart_are_refused_by_restricted() {
    let half_sick = || {
        [("d0", 0, "Healthy"), ("d1", 0, "Unhealthy"), ("d2", 1, "Healthy"), ("d3", 1, "Unhealthy")]
            .map(|(id, node, health)| Device { health: health.to_owned(), ..on_nodes(id, &[node]) })
    };
    let pair = async |policy| {
        let (node, plugin) = node(policy).await;
        plugin.show(half_sick().to_vec());
        node.counts(GPU, 4, 2).await;
        node.kubelet.admit(pod("pair", GPU, 2)).await
    };
    let admission = pair(TopologyPolicy::BestEffort).await.expect("there are two");
    assert_eq!(admission.allotment("c", GPU).expect("held").ids(), ids("d0 d2"));
    misaligned(&pair(TopologyPolicy::Restricted).await.expect_err("on two nodes"));
}

/// Catalogue row 100.
#[tokio::test]
async fn devices_that_must_come_from_two_nodes_are_refused_by_single_numa_node() {
    let (free, _plugin) = node(TopologyPolicy::Restricted).await;
    assert_eq!(free.admit("three", GPU, 3).await.len(), 3, "no node could ever have three");
    let (strict, _plugin) = node(TopologyPolicy::SingleNumaNode).await;
    misaligned(&strict.reject("three", GPU, 3).await);
    assert_eq!(strict.admit("two", GPU, 2).await, ids("d0 d1"));
}

/// Catalogue row 101.
#[tokio::test]
async fn without_a_policy_nodes_do_not_matter_and_are_still_recorded() {
    let (node, _plugin) = node(TopologyPolicy::None).await;
    assert_eq!(node.admit("one", GPU, 1).await, ids("d0"));
    assert_eq!(node.admit("two", GPU, 2).await, ids("d1 d2"));
    let json = std::fs::read_to_string(node.kubelet.config().plugin_dir().join(FILE));
    let json = json.expect("written");
    assert!(json.contains(r#""DeviceIDs":{"0":["d1"],"1":["d2"]}"#), "{json}");
}

#[tokio::test]
async fn scope_pod_aligns_all_containers_together() {
    let node = Node::start_with(|config| {
        config.topology = TopologyPolicy::SingleNumaNode;
        config.topology_scope = TopologyScope::Pod;
    });
    let list = (0..4).map(|index| on_nodes(&format!("d{index}"), &[index / 2])).collect();
    let _plugin = Plugin::registered(&node.kubelet, GPU, list).await;
    node.counts(GPU, 4, 4).await;
    let of = |name: &str| windlass_kubelet_sim::Container::new(name).limit(GPU, 1);
    let pair =
        |name: &str| windlass_kubelet_sim::Pod::new(name).container(of("a")).container(of("b"));
    node.admit("one", GPU, 1).await;
    let admission = node.kubelet.admit(pair("pair")).await.expect("admitted on node 1");
    let held = |name| admission.allotment(name, GPU).expect("held").ids();
    assert_eq!((held("a"), held("b")), (ids("d2"), ids("d3")));
    let rejection = node.kubelet.admit(pair("late")).await.expect_err("one device is left");
    assert_eq!(rejection.reason, Reason::TopologyAffinityError);
}
