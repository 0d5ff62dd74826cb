//! `GetPreferredAllocation`: conditions, arguments, and the effect of its answer.

use tonic::Status;
use windlass_kubelet_api::deviceplugin::{Device, DevicePluginOptions};
use windlass_kubelet_sim::{Container, Pod, TopologyPolicy};

use super::{
    plugin::{Call, Plugin},
    support::{GPU, Node, devices, ids, on_nodes, pod},
};

/// A plugin with a preference.
async fn opinionated(node: &Node, list: Vec<Device>) -> Plugin {
    let plugin = Plugin::serve(&node.kubelet, GPU, "gpu.sock");
    let count = list.len();
    plugin.show(list);
    let options =
        DevicePluginOptions { get_preferred_allocation_available: true, ..Default::default() };
    plugin.script().options = Ok(options);
    plugin.register().await.expect("registered");
    node.counts(GPU, count, count).await;
    plugin.take_calls();
    plugin
}

fn asked(plugin: &Plugin) -> Vec<(String, String, i32)> {
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

fn two_nodes() -> Vec<Device> {
    (0..8).map(|index| on_nodes(&format!("d{index}"), &[index / 4])).collect()
}

/// Catalogue row 72.
#[tokio::test]
async fn without_topology_it_is_asked_even_if_everything_is_taken() {
    let node = Node::start();
    let plugin = opinionated(&node, devices(2)).await;
    node.admit("pod", GPU, 2).await;
    assert_eq!(asked(&plugin), [("d0 d1".to_owned(), String::new(), 2)]);
}

/// Catalogue row 73.
#[tokio::test]
async fn exactly_the_aligned_devices_need_no_opinion() {
    let node = Node::start_with(|config| config.topology = TopologyPolicy::SingleNumaNode);
    let plugin = opinionated(&node, two_nodes()).await;
    assert_eq!(node.admit("pod", GPU, 4).await, ids("d0 d1 d2 d3"));
    assert_eq!(asked(&plugin), []);
}

/// Catalogue row 74.
#[tokio::test]
async fn reusable_devices_need_no_opinion() {
    let node = Node::start();
    let plugin = opinionated(&node, devices(4)).await;
    let of = |name: &str| Container::new(name).limit(GPU, 2);
    node.kubelet.admit(Pod::new("pod").init(of("i")).container(of("c"))).await.expect("admitted");
    assert_eq!(
        asked(&plugin),
        [("d0 d1 d2 d3".to_owned(), String::new(), 2)],
        "for the first only"
    );
}

/// Catalogue row 75.
#[tokio::test]
async fn it_is_asked_with_aligned_and_taken_devices_and_the_whole_size() {
    let node = Node::start_with(|config| config.topology = TopologyPolicy::BestEffort);
    let plugin = opinionated(&node, two_nodes()).await;
    let wish = ["d5", "d1", "d2", "d3"].map(str::to_owned);
    plugin.script().preferred = Ok(wish.to_vec());
    let init = Container::new("i").limit(GPU, 2);
    let app = Container::new("c").limit(GPU, 3);
    let pod = Pod::new("pod").init(init).container(app);
    let admission = node.kubelet.admit(pod).await.expect("admitted");
    // The hint for both containers is node 0, so d5 is not aligned.
    let allotment = |name| admission.allotment(name, GPU).expect("held");
    assert_eq!(allotment("i").ids(), ids("d1 d2"));
    assert_eq!(allotment("c").ids(), ids("d1 d2 d3"));
    let aligned = || "d0 d1 d2 d3".to_owned();
    let expected = [(aligned(), String::new(), 2), (aligned(), "d1 d2".to_owned(), 3)];
    assert_eq!(asked(&plugin), expected);
    let question = allotment("c").preference.clone().expect("the plugin was asked");
    assert_eq!((question.available, question.must_include), (ids("d0 d1 d2 d3"), ids("d1 d2")));
    assert_eq!((question.size, &question.answer[..]), (3, &wish[..]));
}

/// Catalogue row 73.
#[tokio::test]
async fn exactly_the_aligned_devices_that_are_left_need_no_opinion() {
    let node = Node::start_with(|config| config.topology = TopologyPolicy::BestEffort);
    let plugin = opinionated(&node, two_nodes()).await;
    let init = Container::new("i").limit(GPU, 2);
    let pod = Pod::new("pod").init(init).container(Container::new("c").limit(GPU, 4));
    let admission = node.kubelet.admit(pod).await.expect("admitted");
    assert_eq!(admission.allotment("c", GPU).expect("held").ids(), ids("d0 d1 d2 d3"));
    assert_eq!(asked(&plugin).len(), 1, "for the init container only");
}

/// Catalogue row 75.
#[tokio::test]
async fn reused_devices_must_be_included() {
    let node = Node::start();
    let plugin = opinionated(&node, devices(8)).await;
    plugin.script().preferred = Ok(vec!["d0".to_owned(), "d5".to_owned(), "d6".to_owned()]);
    let init = Container::new("i").limit(GPU, 2);
    let pod = Pod::new("pod").init(init).container(Container::new("c").limit(GPU, 4));
    let admission = node.kubelet.admit(pod).await.expect("admitted");
    assert_eq!(admission.allotment("i", GPU).expect("held").ids(), ids("d0 d5"));
    assert_eq!(admission.allotment("c", GPU).expect("held").ids(), ids("d0 d1 d5 d6"));
    let all = "d0 d1 d2 d3 d4 d5 d6 d7".to_owned();
    assert_eq!(asked(&plugin)[1], (all, "d0 d5".to_owned(), 4));
}

/// Catalogue row 76.
#[tokio::test]
async fn nonsense_is_tolerated_and_an_error_is_not() {
    for (answer, expected) in
        [("", "d0 d1"), ("d3", "d0 d3"), ("bogus d2 d2", "d0 d2"), ("d1 d2 d3", "d1 d2")]
    {
        let node = Node::start();
        let plugin = opinionated(&node, devices(4)).await;
        plugin.script().preferred = Ok(answer.split_whitespace().map(str::to_owned).collect());
        assert_eq!(node.admit("pod", GPU, 2).await, ids(expected), "{answer}");
    }
    let node = Node::start();
    let plugin = opinionated(&node, devices(4)).await;
    plugin.script().preferred = Err(Status::internal("no idea"));
    node.refuse(
        ("pod", 2),
        "device plugin GetPreferredAllocation rpc failed with err: rpc error: code = Internal desc = no idea",
    )
    .await;
    let rejected = node.kubelet.admit(pod("next", GPU, 1)).await;
    rejected.expect_err("the plugin has still no idea");
}
