//! Owners according to `windlass devices` and to the API server.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::cluster::{node::Node, pods::kubectl};

/// The devices of each claim, `namespace/name`, sorted.
pub(super) type Owners = BTreeMap<String, Vec<String>>;

/// Common name of the devices whose names differ between node and API server.
const OTHER_DEVICE: &str = "not a whole GPU";

/// Owners according to the node.
pub(super) fn node_owners(node: &Node) -> Owners {
    let document = node.devices();
    let mut owners = Owners::new();
    for (device, holders) in document["holders"].as_object().into_iter().flatten() {
        for holder in each(holders).filter(|holder| holder["api"] == "dra") {
            let claim = format!("{}/{}", text(&holder["namespace"]), text(&holder["claim"]));
            owners.entry(claim).or_default().push(common_name(&device.to_lowercase()));
        }
    }
    sorted(owners)
}

/// Owners of this driver's devices according to the API server.
pub(super) fn api_owners() -> Owners {
    let mut owners = Owners::new();
    for claim in claims() {
        let results = &claim["status"]["allocation"]["devices"]["results"];
        let own_results = each(results).filter(|result| result["driver"] == "windlass.dev");
        let devices: Vec<_> =
            own_results.map(|result| common_name(&text(&result["device"]))).collect();
        if !devices.is_empty() {
            owners.insert(name(&claim), devices);
        }
    }
    sorted(owners)
}

/// All holders of devices according to the node, as text.
pub(super) fn holders(node: &Node) -> Vec<String> {
    let document = node.devices();
    let holders = document["holders"].as_object().into_iter().flatten();
    holders.map(|(device, holders)| format!("{device}: {holders}")).collect()
}

/// The claims of all namespaces.
pub(super) fn claims() -> Vec<Value> {
    let text = kubectl(&["get", "resourceclaims", "-A", "-o", "json"]);
    let list: Value = serde_json::from_str(&text).expect("JSON");
    each(&list["items"]).cloned().collect()
}

/// `namespace/name`
fn name(object: &Value) -> String {
    let metadata = &object["metadata"];
    format!("{}/{}", text(&metadata["namespace"]), text(&metadata["name"]))
}

/// Name of a device that node and API server share: the UUID of a whole GPU.
fn common_name(device: &str) -> String {
    let is_whole = device.starts_with("gpu-") && !device.contains("-mig-");
    if is_whole { device } else { OTHER_DEVICE }.to_owned()
}

fn each(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn sorted(mut owners: Owners) -> Owners {
    for devices in owners.values_mut() {
        devices.sort();
    }
    owners
}
