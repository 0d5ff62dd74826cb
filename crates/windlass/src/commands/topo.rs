//! `windlass topo`: how near the devices are to each other.

use anyhow::Result;
use serde::Serialize;
use windlass_core::{
    device::{Device, DeviceKind},
    inventory::Inventory,
    topology::{Connection, ConnectionMatrix},
};

use super::{answer, complete, devices::name, simulated, survey};
use crate::{
    cli::LookArgs,
    screen::{Paint, Table, Tone, line},
};

/// Whole devices with a place, and how they are connected: `connections[i][j]` between the devices
/// at i and j.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Topology {
    #[serde(skip_serializing_if = "Option::is_none")]
    simulated: Option<String>,
    devices: Vec<Entry>,
    connections: Vec<Vec<Connection>>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    name: String,
    id: String,
    kind: DeviceKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    numa_node: Option<u32>,
}

/// What the labels mean, which are those of `nvidia-smi topo`.
pub(crate) const LEGEND: &str = "NV# NVLinks, PSB same board, PIX one PCIe switch, PXB several, \
                                 PHB host bridge, NODE same NUMA node, SYS other";

pub(super) async fn run(args: LookArgs) -> Result<()> {
    let inventory = survey(args.host).await?.inventory;
    let topology = Topology::of(&inventory);
    answer(args.output, &topology, || show(&inventory, &topology))?;
    complete(&inventory)
}

fn show(inventory: &Inventory, topology: &Topology) -> Result<()> {
    let paint = Paint::for_stdout();
    simulated(inventory, paint)?;
    if topology.devices.is_empty() {
        return Ok(line("no devices with a place on the PCI bus; `windlass devices` says why")?);
    }
    topology.matrix().lines("").into_iter().try_for_each(line)?;
    line("")?;
    Ok(line(paint.text(Tone::Quiet, LEGEND))?)
}

// === impl Topology ===

impl Topology {
    /// The topology of an inventory. Parts are left out: they are where their whole is.
    pub(crate) fn of(inventory: &Inventory) -> Self {
        let whole = |device: &&Device| device.kind != DeviceKind::Mig && device.place.pci.is_some();
        Self::among(inventory, inventory.devices.iter().filter(whole).collect())
    }

    /// The topology of some devices of an inventory.
    pub(crate) fn among(inventory: &Inventory, devices: Vec<&Device>) -> Self {
        let matrix = ConnectionMatrix::of(&devices);
        let row = |i| (0..devices.len()).map(|j| matrix.at(i, j)).collect();
        Self {
            simulated: inventory.simulated.clone(),
            connections: (0..devices.len()).map(row).collect(),
            devices: devices.into_iter().map(Entry::of).collect(),
        }
    }

    /// Everything with everything, the NUMA nodes last.
    pub(crate) fn matrix(&self) -> Table {
        let all: Vec<_> = (0..self.devices.len()).collect();
        self.with_numa(&all, self.cells(&all, &all))
    }

    /// The GPUs with each other and their NUMA nodes, then, where there are other devices, the GPUs
    /// with these: narrower than the whole, which few screens have room for.
    pub(crate) fn of_gpus(&self) -> Vec<Table> {
        let is_gpu = |position: &usize| self.devices[*position].kind == DeviceKind::Gpu;
        let (gpus, others): (Vec<_>, Vec<_>) = (0..self.devices.len()).partition(is_gpu);
        let mut tables = vec![self.with_numa(&gpus, self.cells(&gpus, &gpus))];
        if !others.is_empty() {
            tables.push(Table::from_rows(self.cells(&gpus, &others)));
        }
        tables
    }

    /// Names before each row and above each column.
    fn cells(&self, rows: &[usize], columns: &[usize]) -> Vec<Vec<String>> {
        let name = |position: &usize| self.devices[*position].name.clone();
        let heading = [String::new()].into_iter().chain(columns.iter().map(name)).collect();
        let line = |row: &usize| {
            let cells = columns.iter().map(|column| self.cell(*row, *column));
            [name(row)].into_iter().chain(cells).collect()
        };
        [heading].into_iter().chain(rows.iter().map(line)).collect()
    }

    fn cell(&self, row: usize, column: usize) -> String {
        if row == column { "X".to_owned() } else { self.connections[row][column].to_string() }
    }

    fn with_numa(&self, rows: &[usize], mut cells: Vec<Vec<String>>) -> Table {
        let node = |row: &usize| {
            let node = self.devices[*row].numa_node;
            node.map_or_else(|| "-".to_owned(), |node| node.to_string())
        };
        let column = ["NUMA".to_owned()].into_iter().chain(rows.iter().map(node));
        for (line, cell) in cells.iter_mut().zip(column) {
            line.push(cell);
        }
        Table::from_rows(cells)
    }
}

impl Entry {
    fn of(device: &Device) -> Self {
        Self {
            name: name(device),
            id: device.id.to_string(),
            kind: device.kind,
            numa_node: device.place.numa_node,
        }
    }
}
