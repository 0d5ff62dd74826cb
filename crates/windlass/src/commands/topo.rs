//! `windlass topo`: how near the devices are to each other.

use anyhow::Result;
use serde::Serialize;
use windlass_core::{
    device::{Device, DeviceKind},
    inventory::Inventory,
    topology::{Connection, ConnectionMatrix},
};

use super::{answer, devices::name, simulated, survey};
use crate::{
    cli::TopoArgs,
    screen::{Paint, Table, Tone, line},
};

/// The matrix for programs: `connections[i][j]` between the devices at i and j.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    simulated: Option<&'a str>,
    devices: Vec<Entry<'a>>,
    connections: Vec<Vec<Connection>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Entry<'a> {
    name: String,
    id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    numa_node: Option<u32>,
}

/// What the labels mean, as `nvidia-smi topo` has them.
const LEGEND: [&str; 6] = [
    "NV#   # NVLinks, through NVSwitch where there is one",
    "PIX   a single PCIe switch",
    "PXB   several PCIe switches, no host bridge",
    "PHB   a PCIe host bridge",
    "NODE  host bridges of one NUMA node",
    "SYS   the interconnect between NUMA nodes",
];

pub(super) async fn run(args: TopoArgs) -> Result<()> {
    let inventory = survey(args.host).await?;
    answer(args.output, &document(&inventory), || table(&inventory))
}

fn table(inventory: &Inventory) -> Result<()> {
    let paint = Paint::for_stdout();
    simulated(inventory, paint)?;
    if places(inventory).is_empty() {
        return Ok(line("no devices with a place on the PCI bus; `windlass devices` says why")?);
    }
    for text in matrix(inventory).lines("") {
        line(text)?;
    }
    line("")?;
    for text in LEGEND {
        line(paint.text(Tone::Quiet, text))?;
    }
    Ok(())
}

/// The matrix for people: a row and a column per device, the NUMA node last.
pub(crate) fn matrix(inventory: &Inventory) -> Table {
    let devices = places(inventory);
    let connections = ConnectionMatrix::of(&devices);
    let heading = [String::new()].into_iter().chain(devices.iter().map(|device| name(device)));
    let mut rows = vec![heading.chain(["NUMA".to_owned()]).collect::<Vec<_>>()];
    for (position, device) in devices.iter().enumerate() {
        let cell = |column| {
            let itself = column == position;
            if itself { "X".to_owned() } else { connections.at(position, column).to_string() }
        };
        let numa = device.place.numa_node.map_or_else(|| "-".to_owned(), |node| node.to_string());
        let cells = (0..devices.len()).map(cell);
        rows.push([name(device)].into_iter().chain(cells).chain([numa]).collect());
    }
    Table::from_rows(rows)
}

fn document(inventory: &Inventory) -> Document<'_> {
    let devices = places(inventory);
    let matrix = ConnectionMatrix::of(&devices);
    let row = |i| (0..devices.len()).map(|j| matrix.at(i, j)).collect();
    Document {
        simulated: inventory.simulated.as_deref(),
        connections: (0..devices.len()).map(row).collect(),
        devices: devices.iter().map(|device| Entry::of(device)).collect(),
    }
}

/// Whole devices with a place; parts are where their whole is.
fn places(inventory: &Inventory) -> Vec<&Device> {
    let whole = |device: &&Device| device.kind != DeviceKind::Mig && device.place.pci.is_some();
    inventory.devices.iter().filter(whole).collect()
}

impl<'a> Entry<'a> {
    fn of(device: &'a Device) -> Self {
        Self { name: name(device), id: device.id.as_str(), numa_node: device.place.numa_node }
    }
}
