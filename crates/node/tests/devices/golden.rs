//! Snapshot text of a source's devices.

use std::{fmt::Write as _, path::Path};

use windlass_config::Config;
use windlass_core::{attribute::AttributeValue, device::Device, selector::literal};
use windlass_resources::NodeState;

/// The devices of a source with all their fields, one after the other; attributes that Kubernetes defines for all PCI
/// devices are left out.
pub(crate) fn devices(state: &NodeState, source: &str) -> String {
    let devices = state.inventory.devices.iter();
    let of_source = devices.filter(|device| device.source.as_str() == source);
    of_source.map(|device| text_of(state, device)).collect()
}

/// The devices of a source by their ids, with the resource of each and its nodes.
pub(crate) fn overview(state: &NodeState, source: &str) -> String {
    let devices = state.inventory.devices.iter();
    let of_source = devices.filter(|device| device.source.as_str() == source);
    let line = |device| format!("{} {}", heading(state, device), nodes(device));
    of_source.map(line).collect::<Vec<_>>().join("\n")
}

fn text_of(state: &NodeState, device: &Device) -> String {
    every_attribute_is_valid_in_a_rule(device);
    let mut text = format!("{}\n", heading(state, device));
    let attributes =
        device.attributes.iter().filter(|(name, _)| !name.to_string().starts_with("resource."));
    for (name, value) in attributes {
        let _ = writeln!(text, "    {name}: {value}");
    }
    for (name, amount) in &device.capacity {
        let _ = writeln!(text, "    {name}: {amount}");
    }
    let place = &device.place;
    let numa = place.numa_node.map_or_else(|| "none".to_owned(), |node| node.to_string());
    let _ = writeln!(text, "    numa: {numa}, nodes: {}", nodes(device));
    if !place.xgmi.is_empty() {
        let _ = writeln!(text, "    xgmi: {:?}", place.xgmi.values().collect::<Vec<_>>());
    }
    text
}

/// A rule on any attribute of a device is valid, in the attribute's name and in the type of its value.
fn every_attribute_is_valid_in_a_rule(device: &Device) {
    for (name, value) in &device.attributes {
        let value = match value {
            AttributeValue::String(text) => literal(text),
            AttributeValue::Version(text) => format!("semver({})", literal(text)),
            other => other.to_string(),
        };
        let (domain, name, source) = (name.domain(), name.name(), &device.source);
        let condition =
            format!(r#"device.attributes["{domain}"].{name} == {value}"#).replace('\'', "''");
        let devices = format!("{{source: {source}, match: '{condition}'}}");
        let text = format!("resources:\n- name: a.com/x\n  devices: {devices}\n");
        Config::parse(Path::new("w.yaml"), &text).expect("every attribute is valid in a rule");
    }
}

fn heading(state: &NodeState, device: &Device) -> String {
    let offer = state.device_offers().remove(&device.id);
    let name = offer.as_ref().and_then(|offer| offer.resource.as_ref());
    let name = name.map_or_else(|| "-".to_owned(), ToString::to_string);
    let reason = device.withheld.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
    format!("{} {name} {}{reason}", device.id, device.health)
}

fn nodes(device: &Device) -> String {
    let shared = |shared| if shared { "*" } else { "" };
    let node = |node: &windlass_core::device::DeviceNode| {
        let container_path =
            node.inside.as_ref().map(|container_path| format!("={}", container_path.display()));
        let path = node.path.strip_prefix("/dev").unwrap_or(&node.path).display();
        format!("{path}{}{}", shared(node.shared), container_path.unwrap_or_default())
    };
    device.nodes.iter().map(node).collect::<Vec<_>>().join(" ")
}
