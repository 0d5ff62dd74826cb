//! Parser of the boards file: simulated nodes, each from a profile or from explicit keys.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use windlass_config::{Diagnostic, document::Spanned};
use windlass_core::{
    attribute::{AttributeName, AttributeValue},
    name,
    selector::{PreparedDevice, PublishedDevice},
};

use super::{BoardProfile, Fleet, FreeDevice, Node, NodeLink, Overhead};
use crate::{
    capacity::Capacity,
    document::{self, suggestion},
    quantity::{BitRate, Bytes, Seconds},
    taint::Taint,
};

/// Simulated nodes.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(title = "Boards of windlass")]
struct BoardsFile {
    /// The nodes.
    #[schemars(with = "Vec<NodeEntry>")]
    nodes: Vec<Spanned<NodeEntry>>,
}

/// A node. Its keys override those of its profile.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct NodeEntry {
    /// Name of the node.
    #[schemars(with = "String")]
    name: Spanned<String>,
    /// Profile of the board: `windlass pipeline boards` lists them.
    board: Option<String>,
    /// Free CPUs [default: those of the board].
    cpus: Option<f64>,
    /// Free memory [default: that of the board, else 4GiB].
    memory: Option<Bytes>,
    /// Labels in addition to kubernetes.io/hostname, for node selectors.
    #[serde(default)]
    labels: BTreeMap<String, String>,
    /// Taints, for tolerations.
    #[serde(default)]
    taints: Vec<TaintEntry>,
    /// Rate of its link in each direction [default: that of the board].
    rate: Option<BitRate>,
    /// Delay between the node and the switch [default: 100us].
    delay: Option<Seconds>,
    /// Devices in addition to those of the board.
    #[serde(default)]
    devices: Vec<DeviceEntry>,
}

/// Devices of one kind.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct DeviceEntry {
    /// Extended resource that the devices belong to.
    resource: Option<String>,
    /// DeviceClass that selects them.
    device_class: Option<String>,
    /// DRA driver that publishes them, for expressions.
    #[serde(default)]
    driver: String,
    /// Attributes in the driver's domain, for expressions.
    #[serde(default)]
    attributes: BTreeMap<String, AttributeEntry>,
    /// Number of devices [default: 1].
    count: Option<u32>,
}

/// A taint that keeps pods off the node.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct TaintEntry {
    /// Key of the taint.
    key: String,
    /// Value [default: empty].
    #[serde(default)]
    value: String,
    /// Effect on pods that do not tolerate it.
    effect: Effect,
}

#[derive(Deserialize, JsonSchema)]
enum Effect {
    /// The scheduler places no new pods on the node.
    NoSchedule,
    /// In addition, running pods are evicted.
    NoExecute,
}

#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
enum AttributeEntry {
    Bool(bool),
    Int(i64),
    Text(String),
}

/// Upper limit of `count`: servers have some dozen devices.
const MAX_DEVICES: u32 = 1024;
const DEFAULT_CPUS: f64 = 4.0;
const DEFAULT_MEMORY_GIB: u32 = 4;
/// Label that the kubelet sets on its node.
const HOSTNAME: &str = "kubernetes.io/hostname";

pub(super) fn schema() -> Value {
    schemars::schema_for!(BoardsFile).to_value()
}

pub(super) fn read(text: &str) -> Result<Fleet, Vec<Diagnostic>> {
    let file: BoardsFile = document::read(text)?;
    let mut errors = Vec::new();
    let mut nodes: Vec<Node> = Vec::new();
    for Spanned { value: entry, .. } in file.nodes {
        let line = entry.name.line;
        let node = entry.node(&mut errors);
        if nodes.iter().any(|existing| existing.name == node.name) {
            let text = format!("node {:?} is defined twice: use different names", node.name);
            errors.push(Diagnostic::new(line, text));
        }
        nodes.push(node);
    }
    if errors.is_empty() {
        Ok(Fleet { nodes, is_simulated: true, overhead: Overhead::default() })
    } else {
        Err(errors)
    }
}

// === impl NodeEntry ===

impl NodeEntry {
    fn node(self, errors: &mut Vec<Diagnostic>) -> Node {
        let Spanned { line, value: name } = self.name;
        let mut report = |text: String| errors.push(Diagnostic::new(line, text));
        if !name::is_subdomain(&name) {
            report(format!(
                "name: {name:?}: a node's name has lower-case letters, digits, dashes and dots"
            ));
        }
        let profile = self.board.as_deref().and_then(|board| {
            let profile = BoardProfile::named(board);
            if profile.is_none() {
                report(unknown_board(board));
            }
            profile
        });
        let NodeLink { rate, delay } = profile.map_or_else(NodeLink::default, BoardProfile::link);
        let (rate, delay) = (self.rate.unwrap_or(rate), self.delay.unwrap_or(delay));
        let link = NodeLink { rate, delay };
        if link.rate.0 <= 0.0 {
            report("rate: write a rate of more than 0".to_owned());
        }
        let cpus = self.cpus.or(profile.map(|board| f64::from(board.cpus))).unwrap_or(DEFAULT_CPUS);
        if !(0.0..=1024.0).contains(&cpus) {
            report(format!("cpus: {cpus}: write a number of CPUs"));
        }
        let memory_gib = profile.map_or(DEFAULT_MEMORY_GIB, |board| board.memory_gib);
        let memory = self.memory.unwrap_or(Bytes(u64::from(memory_gib) << 30));
        let mut labels = self.labels;
        labels.entry(HOSTNAME.to_owned()).or_insert_with(|| name.clone());
        let board_devices = profile.map_or(&[][..], |board| board.devices).iter();
        let board_devices =
            board_devices.map(|(resource, count)| DeviceEntry::of_board(resource, *count));
        let mut devices = Vec::new();
        for entry in board_devices.chain(self.devices) {
            if entry.count.is_some_and(|count| count > MAX_DEVICES) {
                report(format!("count: a node has at most {MAX_DEVICES} devices of one kind"));
            } else if entry.resource.is_none() && entry.device_class.is_none() {
                report("a device has a resource or a deviceClass".to_owned());
            } else {
                entry.add_to(&mut devices, &name);
            }
        }
        Node {
            board: profile.map_or("", |board| board.name).to_owned(),
            name,
            free: Capacity { cpus, memory },
            labels,
            taints: self.taints.into_iter().map(TaintEntry::taint).collect(),
            link,
            devices,
        }
    }
}

fn unknown_board(name: &str) -> String {
    let names = || BoardProfile::ALL.iter().map(|board| board.name);
    let advice = suggestion(name, names()).unwrap_or_else(|| {
        format!(": write one of {}, or cpus and devices", names().collect::<Vec<_>>().join(", "))
    });
    format!("board: there is no profile {name:?}{advice}")
}

// === impl TaintEntry ===

impl TaintEntry {
    fn taint(self) -> Taint {
        let effect = match self.effect {
            Effect::NoSchedule => "NoSchedule",
            Effect::NoExecute => "NoExecute",
        };
        Taint { key: self.key, value: self.value, effect: effect.to_owned() }
    }
}

// === impl DeviceEntry ===

impl DeviceEntry {
    fn of_board(resource: &str, count: u32) -> Self {
        Self {
            resource: Some(resource.to_owned()),
            device_class: None,
            driver: String::new(),
            attributes: BTreeMap::new(),
            count: Some(count),
        }
    }

    fn add_to(self, devices: &mut Vec<FreeDevice>, node: &str) {
        let kind =
            self.resource.as_ref().or(self.device_class.as_ref()).expect("checked by the caller");
        let attributes = self.attributes.into_iter().map(|(name, value)| {
            let value = match value {
                AttributeEntry::Bool(value) => AttributeValue::Bool(value),
                AttributeEntry::Int(value) => AttributeValue::Int(value),
                AttributeEntry::Text(text) => AttributeValue::string(text),
            };
            (AttributeName::from_slice_name(&self.driver, &name), value)
        });
        let mut published = PublishedDevice {
            driver: self.driver.clone(),
            attributes: attributes.collect(),
            ..PublishedDevice::default()
        };
        for _ in 0..self.count.unwrap_or(1) {
            let number = devices.iter().filter(|device| device.name.starts_with(kind)).count();
            let name = format!("{kind}-{number}");
            published.id = format!("{node}/{name}");
            devices.push(FreeDevice {
                name,
                resource: self.resource.clone(),
                classes: self.device_class.clone().into_iter().collect(),
                published: Some(PreparedDevice::from(&published)),
            });
        }
    }
}
