//! Parser of the scripts' device lists: `d0 d1! d2? d3@0,1 d4@`.

use windlass_kubelet_api::deviceplugin as wire;

/// Parses a list. `!` and `?` after an id are the health `Unhealthy` and `healthy`; NUMA nodes follow `@`.
pub(crate) fn parse(list: &str) -> Vec<wire::Device> {
    list.split_whitespace().map(device).collect()
}

fn device(text: &str) -> wire::Device {
    let (text, health) = if let Some(text) = text.strip_suffix('!') {
        (text, wire::UNHEALTHY)
    } else if let Some(text) = text.strip_suffix('?') {
        (text, "healthy")
    } else {
        (text, wire::HEALTHY)
    };
    let (id, nodes) = match text.split_once('@') {
        None => (text, None),
        Some((id, nodes)) => (id, Some(nodes)),
    };
    let topology = nodes.map(|nodes| {
        let nodes = nodes.split(',').filter(|node| !node.is_empty());
        let node = |id: &str| wire::NumaNode { id: id.parse().expect("a node number") };
        wire::TopologyInfo { nodes: nodes.map(node).collect() }
    });
    wire::Device { id: id.to_owned(), health: health.to_owned(), topology }
}
