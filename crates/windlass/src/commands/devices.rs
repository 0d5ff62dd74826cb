//! `windlass devices`: what this host has.

use anyhow::Result;
use windlass_core::{
    attribute::AttributeName,
    device::{Device, DeviceKind},
    inventory::{Inventory, SourceState},
};

use super::{answer, simulated, survey};
use crate::{
    cli::DevicesArgs,
    screen::{Paint, Table, Tone, line},
};

const PRODUCT: AttributeName = AttributeName::new("nvidia.com", "productName");
const PROFILE: AttributeName = AttributeName::new("nvidia.com", "profile");
const MEMORY: AttributeName = AttributeName::new("nvidia.com", "memory");
const RDMA_DEVICE: AttributeName = AttributeName::new("windlass.dev", "rdmaDevice");

pub(super) async fn run(args: DevicesArgs) -> Result<()> {
    let inventory = survey(args.host).await?;
    answer(args.output, &inventory, || table(&inventory))
}

fn table(inventory: &Inventory) -> Result<()> {
    let paint = Paint::for_stdout();
    simulated(inventory, paint)?;
    for text in sources(inventory, paint) {
        line(text)?;
    }
    if !inventory.devices.is_empty() {
        line("")?;
        for text in device_table(inventory).lines("") {
            line(text)?;
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

/// The devices in columns.
pub(crate) fn device_table(inventory: &Inventory) -> Table {
    let mut table =
        Table::new(["NAME", "ID", "PRODUCT", "MEMORY", "NUMA", "PCI", "NVLINK", "HEALTH"]);
    for device in &inventory.devices {
        table.row([
            name(device),
            device.id.to_string(),
            product(device),
            device.capacity.get(&MEMORY).map_or_else(dash, ToString::to_string),
            device.place.numa_node.map_or_else(dash, |node| node.to_string()),
            device.place.pci.map_or_else(dash, |address| address.to_string()),
            nvlinks(device),
            health(device),
        ]);
    }
    table
}

/// The short name that tables and matrices use: `GPU0`, `GPU0:1g.5gb`, `mlx5_0`.
pub(crate) fn name(device: &Device) -> String {
    let text = |key| device.attributes.get(key).map(ToString::to_string);
    match device.kind {
        DeviceKind::Gpu => format!("GPU{}", device.index),
        DeviceKind::Mig => format!("GPU{}:{}", device.index, text(&PROFILE).unwrap_or_default()),
        DeviceKind::Nic => text(&RDMA_DEVICE).unwrap_or_else(|| format!("NIC{}", device.index)),
    }
}

fn product(device: &Device) -> String {
    device.attributes.get(&PRODUCT).map_or_else(dash, ToString::to_string)
}

/// `18 (switch)`, or `12` for links that end at other GPUs.
fn nvlinks(device: &Device) -> String {
    let links = &device.place.nvlinks;
    match (links.to_switches, links.peers.values().sum::<u32>()) {
        (0, 0) => dash(),
        (0, direct) => direct.to_string(),
        (switched, 0) => format!("{switched} (switch)"),
        (switched, direct) => format!("{direct} + {switched} (switch)"),
    }
}

fn health(device: &Device) -> String {
    if device.partitioned {
        return format!("{}, cut into MIG instances", device.health);
    }
    device.health.to_string()
}

fn dash() -> String {
    "-".to_owned()
}
