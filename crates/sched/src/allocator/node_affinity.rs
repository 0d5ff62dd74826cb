//! Node affinity of slices and devices.

use k8s_openapi::api::{
    core::v1::{Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm},
    resource::v1::{Device, ResourceSlice},
};

/// True if a slice has devices for a node, or counters. Slices with counters are relevant for every node, even with a
/// node name.
pub fn is_relevant(slice: &ResourceSlice, node: &Node) -> bool {
    if has_counters(slice) {
        return true;
    }
    let spec = &slice.spec;
    let name = spec.node_name.as_deref().unwrap_or_default();
    if !name.is_empty() || spec.all_nodes == Some(true) || spec.node_selector.is_some() {
        let all_nodes = spec.all_nodes == Some(true);
        return matches(node, (name, all_nodes, spec.node_selector.as_ref()));
    }
    is_per_device(slice) && spec.devices.iter().flatten().any(|device| device_matches(device, node))
}

pub(super) fn has_counters(slice: &ResourceSlice) -> bool {
    slice.spec.shared_counters.as_ref().is_some_and(|counters| !counters.is_empty())
}

/// True if each device of a slice has its own node selection.
pub(super) fn is_per_device(slice: &ResourceSlice) -> bool {
    slice.spec.per_device_node_selection == Some(true)
}

/// True if the node selection of a device matches a node.
pub(super) fn device_matches(device: &Device, node: &Node) -> bool {
    let name = device.node_name.as_deref().unwrap_or_default();
    matches(node, (name, device.all_nodes == Some(true), device.node_selector.as_ref()))
}

/// True if an allocation's devices can be used on a node: the allocation's node selector matches, or there is none.
pub fn allows_node(selector: Option<&NodeSelector>, node: &Node) -> bool {
    selector.is_none() || matches(node, ("", false, selector))
}

/// True if a node has this name. Without a name: true if all nodes are selected, or the selector matches.
fn matches(node: &Node, (name, all_nodes, selector): (&str, bool, Option<&NodeSelector>)) -> bool {
    if !name.is_empty() {
        return node.metadata.name.as_deref() == Some(name);
    }
    all_nodes
        || selector.is_some_and(|selector| {
            selector.node_selector_terms.iter().any(|term| matches_term(node, term))
        })
}

/// True if a node matches the term. An empty term matches no node.
fn matches_term(node: &Node, term: &NodeSelectorTerm) -> bool {
    let labels = node.metadata.labels.as_ref();
    let label = |requirement: &NodeSelectorRequirement| {
        is_satisfied(
            requirement,
            labels.and_then(|labels| labels.get(&requirement.key)).map(String::as_str),
        )
    };
    let field = |requirement: &NodeSelectorRequirement| {
        let name = node.metadata.name.as_deref();
        is_satisfied(requirement, name.filter(|_| requirement.key == "metadata.name"))
    };
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    (!expressions.is_empty() || !fields.is_empty())
        && expressions.iter().all(label)
        && fields.iter().all(field)
}

fn is_satisfied(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let is_listed = value.is_some_and(|value| values.iter().any(|allowed| allowed == value));
    let number = |text: &str| text.parse::<i64>().ok();
    let numbers = value.and_then(number).zip(values.first().and_then(|first| number(first)));
    match requirement.operator.as_str() {
        "In" => is_listed,
        "NotIn" => !is_listed,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => numbers.is_some_and(|(value, bound)| value > bound),
        "Lt" => numbers.is_some_and(|(value, bound)| value < bound),
        _ => false,
    }
}
