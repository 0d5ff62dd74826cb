//! `GetPreferredAllocation`: conditions of the call, arguments, and effect of the answer.

use tonic::Status;
use windlass_kubelet_api::deviceplugin::{Device, DevicePluginOptions};
use windlass_kubelet_sim::{Container, Pod, TopologyPolicy};

use super::{
    plugin::{Call, Plugin},
    support::{GPU, Node, device_on_nodes, devices, ids, pod},
};

/// Registers a plugin whose options include `GetPreferredAllocation`.
async fn register_with_preference(node: &Node, list: Vec<Device>) -> Plugin {
    let plugin = Plugin::serve(&node.kubelet, GPU, "gpu.sock");
    let count = list.len();
    plugin.set_devices(list);
    let options =
        DevicePluginOptions { get_preferred_allocation_available: true, ..Default::default() };
    plugin.script().options = Ok(options);
    plugin.register().await.expect("registered");
    node.wait_for_counts(GPU, count, count).await;
    plugin.take_calls();
    plugin
}

/// Arguments of the plugin's `GetPreferredAllocation` calls since the last `take_calls`: available,
/// must-include, size.
fn take_preference_calls(plugin: &Plugin) -> Vec<(String, String, i32)> {
    let calls = plugin.take_calls().into_iter();
    calls
        .filter_map(|call| match call {
            Call::Preferred { available, must_include, size } => {
                Some((available.join(" "), must_include.join(" "), size))
            }
            _ => None,
        })
        .collect()
}

fn devices_on_two_nodes() -> Vec<Device> {
    (0..8).map(|index| device_on_nodes(&format!("d{index}"), &[index / 4])).collect()
}

#[tokio::test]
async fn without_topology_the_plugin_is_called_even_if_all_devices_are_needed() {
    let node = Node::start();
    let plugin = register_with_preference(&node, devices(2)).await;
    node.admit("pod", GPU, 2).await;
    assert_eq!(take_preference_calls(&plugin), [("d0 d1".to_owned(), String::new(), 2)]);
}

#[tokio::test]
async fn a_request_for_exactly_the_aligned_devices_makes_no_call() {
    let node = Node::start_with(|config| config.topology = TopologyPolicy::SingleNumaNode);
    let plugin = register_with_preference(&node, devices_on_two_nodes()).await;
    assert_eq!(node.admit("pod", GPU, 4).await, ids("d0 d1 d2 d3"));
    assert_eq!(take_preference_calls(&plugin), []);
}

#[tokio::test]
async fn a_request_that_reusable_devices_cover_makes_no_call() {
    let node = Node::start();
    let plugin = register_with_preference(&node, devices(4)).await;
    let container = |name: &str| Container::new(name).limit(GPU, 2);
    node.kubelet
        .admit(Pod::new("pod").init_container(container("i")).container(container("c")))
        .await
        .expect("admitted");
    assert_eq!(
        take_preference_calls(&plugin),
        [("d0 d1 d2 d3".to_owned(), String::new(), 2)],
        "for the init container only"
    );
}

#[tokio::test]
async fn the_call_has_aligned_devices_must_include_devices_and_the_whole_size() {
    let node = Node::start_with(|config| config.topology = TopologyPolicy::BestEffort);
    let plugin = register_with_preference(&node, devices_on_two_nodes()).await;
    let preferred = ["d5", "d1", "d2", "d3"].map(str::to_owned);
    plugin.script().preferred = Ok(preferred.to_vec());
    let init = Container::new("i").limit(GPU, 2);
    let app = Container::new("c").limit(GPU, 3);
    let pod = Pod::new("pod").init_container(init).container(app);
    let admission = node.kubelet.admit(pod).await.expect("admitted");
    // The hint for both containers is node 0, so d5 is not aligned.
    let allocation = |name| admission.allocation(name, GPU).expect("allocated");
    assert_eq!(allocation("i").ids(), ids("d1 d2"));
    assert_eq!(allocation("c").ids(), ids("d1 d2 d3"));
    let aligned = || "d0 d1 d2 d3".to_owned();
    let expected = [(aligned(), String::new(), 2), (aligned(), "d1 d2".to_owned(), 3)];
    assert_eq!(take_preference_calls(&plugin), expected);
    let call = allocation("c").preferred_call.clone().expect("the plugin was called");
    assert_eq!((call.available, call.must_include), (ids("d0 d1 d2 d3"), ids("d1 d2")));
    assert_eq!((call.size, &call.preferred[..]), (3, &preferred[..]));
}

#[tokio::test]
async fn a_request_for_exactly_the_remaining_aligned_devices_makes_no_call() {
    let node = Node::start_with(|config| config.topology = TopologyPolicy::BestEffort);
    let plugin = register_with_preference(&node, devices_on_two_nodes()).await;
    let init = Container::new("i").limit(GPU, 2);
    let pod = Pod::new("pod").init_container(init).container(Container::new("c").limit(GPU, 4));
    let admission = node.kubelet.admit(pod).await.expect("admitted");
    assert_eq!(admission.allocation("c", GPU).expect("allocated").ids(), ids("d0 d1 d2 d3"));
    assert_eq!(take_preference_calls(&plugin).len(), 1, "for the init container only");
}

#[tokio::test]
async fn reused_devices_must_be_included() {
    let node = Node::start();
    let plugin = register_with_preference(&node, devices(8)).await;
    plugin.script().preferred = Ok(vec!["d0".to_owned(), "d5".to_owned(), "d6".to_owned()]);
    let init = Container::new("i").limit(GPU, 2);
    let pod = Pod::new("pod").init_container(init).container(Container::new("c").limit(GPU, 4));
    let admission = node.kubelet.admit(pod).await.expect("admitted");
    assert_eq!(admission.allocation("i", GPU).expect("allocated").ids(), ids("d0 d5"));
    assert_eq!(admission.allocation("c", GPU).expect("allocated").ids(), ids("d0 d1 d5 d6"));
    let all = "d0 d1 d2 d3 d4 d5 d6 d7".to_owned();
    assert_eq!(take_preference_calls(&plugin)[1], (all, "d0 d5".to_owned(), 4));
}

#[tokio::test]
async fn an_invalid_preference_is_ignored_and_an_error_rejects_the_pod() {
    for (preferred, expected) in
        [("", "d0 d1"), ("d3", "d0 d3"), ("bogus d2 d2", "d0 d2"), ("d1 d2 d3", "d1 d2")]
    {
        let node = Node::start();
        let plugin = register_with_preference(&node, devices(4)).await;
        plugin.script().preferred = Ok(preferred.split_whitespace().map(str::to_owned).collect());
        assert_eq!(node.admit("pod", GPU, 2).await, ids(expected), "{preferred}");
    }
    let node = Node::start();
    let plugin = register_with_preference(&node, devices(4)).await;
    plugin.script().preferred = Err(Status::internal("no preference"));
    node.expect_allocation_error(
        ("pod", 2),
        "device plugin GetPreferredAllocation rpc failed with err: rpc error: code = Internal desc = no preference",
    )
    .await;
    let outcome = node.kubelet.admit(pod("next", GPU, 1)).await;
    outcome.expect_err("the call still fails");
}
