//! `windlass devices`: what this host has.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use serde::Serialize;
use windlass_core::{
    attribute::AttributeName,
    device::{Device, DeviceId, DeviceKind},
    inventory::{Inventory, SourceState},
    resource::ResourceName,
};

use windlass_node::state::{NodeState, Offering};

use super::{answer, complete, simulated, survey};
use crate::{
    cli::LookArgs,
    screen::{Paint, Table, Tone, line},
};

/// The column that is left out where resources are not known.
const RESOURCE: usize = 7;

const PRODUCT: AttributeName = AttributeName::new("nvidia.com", "productName");
const PROFILE: AttributeName = AttributeName::new("nvidia.com", "profile");
const MEMORY: AttributeName = AttributeName::new("nvidia.com", "memory");
const RDMA_DEVICE: AttributeName = AttributeName::new("windlass.dev", "rdmaDevice");

pub(super) async fn run(args: LookArgs) -> Result<()> {
    let node = survey(args.host).await?;
    let (inventory, offerings) = (&node.inventory, node.offerings());
    let lacks = node.lacks.troubles.as_slice();
    let without_devices = &node.empty;
    let document = Document { inventory, offerings: &offerings, lacks, without_devices };
    answer(args.output, &document, || table(&node, &offerings))?;
    complete(inventory)
}

/// What becomes of each device.
type Offerings = BTreeMap<DeviceId, Offering>;

/// The answer for programs.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    #[serde(flatten)]
    inventory: &'a Inventory,
    offerings: &'a Offerings,
    /// What containers go without.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    lacks: &'a [String],
    /// Resources of the configuration that no device is for.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    without_devices: &'a BTreeSet<ResourceName>,
}

fn table(node: &NodeState, offerings: &Offerings) -> Result<()> {
    let inventory = &node.inventory;
    let paint = Paint::for_stdout();
    simulated(inventory, paint)?;
    for text in sources(inventory, paint) {
        line(text)?;
    }
    if !inventory.devices.is_empty() {
        line("")?;
        for text in device_table(inventory, offerings).lines("") {
            line(text)?;
        }
        let empty = node.empty.iter().map(|name| format!("{name} gets no device of this node"));
        let lacks = node.lacks.troubles.iter().map(|what| format!("note: {what}"));
        for text in obstacles(inventory, offerings).into_iter().chain(empty).chain(lacks) {
            line(paint.text(Tone::Notable, text))?;
        }
    }
    Ok(())
}

/// One line for each source: what it found, or why not.
pub(crate) fn sources(inventory: &Inventory, paint: Paint) -> Vec<String> {
    let width = inventory.sources.keys().map(String::len).max().unwrap_or(0);
    let text = |(name, state): (&String, &SourceState)| match state {
        SourceState::Starting => format!("{name:<width$}  did not answer in time"),
        SourceState::Ready(what) => format!("{name:<width$}  {what}"),
        SourceState::Absent(why) => {
            format!("{name:<width$}  {}", paint.text(Tone::Quiet, format!("none: {why}")))
        }
        SourceState::Failing(why) => {
            format!("{name:<width$}  {}", paint.text(Tone::Bad, format!("failing: {why}")))
        }
    };
    inventory.sources.iter().map(text).collect()
}

/// Why healthy devices are not handed out, in the order of the table.
fn obstacles(inventory: &Inventory, offerings: &Offerings) -> Vec<String> {
    let healthy = inventory.devices.iter().filter(|device| device.health.is_healthy());
    let obstacle = |device: &Device| {
        let why = offerings.get(&device.id)?.obstacle.as_deref()?;
        Some(format!("{} is not handed out: {why}", name(device)))
    };
    healthy.filter_map(obstacle).collect()
}

/// The resource, and into how many parts a device is shared: `nvidia.com/gpu x8`.
fn resource(device: &Device, offerings: &Offerings) -> String {
    let Some(offering) = offerings.get(&device.id) else { return dash() };
    let name = offering.resource.as_ref().map_or_else(dash, ToString::to_string);
    match offering.shared {
        Some(shared) => format!("{name} x{}", shared.replicas),
        None => name,
    }
}

/// The devices in columns, with their resources where those are known. The table leaves to JSON what would make it too wide: the maker's name,
/// the PCI domain where it is 0, as `lspci` does, and where NVLinks end.
pub(crate) fn device_table(inventory: &Inventory, offerings: &Offerings) -> Table {
    let headings =
        ["NAME", "ID", "PRODUCT", "MEMORY", "NUMA", "PCI", "NVLINK", "RESOURCE", "HEALTH"];
    let mut rows = vec![headings.map(str::to_owned).to_vec()];
    for device in &inventory.devices {
        rows.push(vec![
            name(device),
            device.id.to_string(),
            product(inventory, device),
            device.capacity.get(&MEMORY).map_or_else(dash, ToString::to_string),
            device.place.numa_node.map_or_else(dash, |node| node.to_string()),
            device.place.pci.map_or_else(dash, |address| without("0000:", &address.to_string())),
            nvlinks(device),
            resource(device, offerings),
            device.health.to_string(),
        ]);
    }
    if offerings.is_empty() {
        for row in &mut rows {
            row.remove(RESOURCE);
        }
    }
    Table::from_rows(rows)
}

/// Devices in the inventory's order.
pub(crate) fn ordered<'a>(devices: impl IntoIterator<Item = &'a Device>) -> Vec<&'a Device> {
    let mut devices: Vec<_> = devices.into_iter().collect();
    devices.sort_by(|a, b| a.order().cmp(&b.order()));
    devices
}

/// The short name that tables and matrices use: `GPU0`, `GPU0:3`, `mlx5_0`.
pub(crate) fn name(device: &Device) -> String {
    let text = |key: &_| device.attributes.get(key).map(ToString::to_string);
    match device.kind {
        DeviceKind::Gpu => format!("GPU{}", device.index),
        DeviceKind::Mig => {
            let part = device.part.map(|part| part.to_string()).or_else(|| text(&PROFILE));
            format!("GPU{}:{}", device.index, part.unwrap_or_default())
        }
        DeviceKind::Nic => text(&RDMA_DEVICE).unwrap_or_else(|| format!("NIC{}", device.index)),
        DeviceKind::Fpga => format!("FPGA{}", device.index),
        DeviceKind::Nvme => format!("nvme{}", device.index),
        DeviceKind::Other => format!("{}{}", device.source, device.index),
    }
}

/// `H100 80GB HBM3`; a part says which, a whole that is cut into parts says how many.
fn product(inventory: &Inventory, device: &Device) -> String {
    let product = device.attributes.get(&PRODUCT).map(ToString::to_string);
    let product = product.map_or_else(dash, |product| without("NVIDIA ", &product));
    match device.attributes.get(&PROFILE) {
        Some(profile) => format!("{product} MIG {profile}"),
        None if device.partitioned => {
            format!("{product}, {} x MIG", inventory.parts_of(&device.id).count())
        }
        None => product,
    }
}

fn without(prefix: &str, text: &str) -> String {
    text.strip_prefix(prefix).unwrap_or(text).to_owned()
}

/// How many links, whatever they end at.
fn nvlinks(device: &Device) -> String {
    let links = &device.place.nvlinks;
    match links.to_switches + links.peers.values().sum::<u32>() {
        0 => dash(),
        links => links.to_string(),
    }
}

fn dash() -> String {
    "-".to_owned()
}
