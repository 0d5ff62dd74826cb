//! `windlass topo`: topology of the host's devices.

use anyhow::Result;
use serde::Serialize;
use windlass_core::{
    device::{Device, DeviceKind},
    inventory::Inventory,
    topology::{Connection, ConnectionMatrix},
};

use super::{
    devices::{apply_filter, name},
    print_origin_notice, print_output, require_driver_answers, scan_host,
};
use crate::{
    cli::TopoArgs,
    screen::{MAX_WIDTH, Paint, Style, Table, print_line, wrapped},
};

/// Connection matrix of whole devices with a location: `connections[i][j]` is between devices i and j.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Topology {
    #[serde(skip_serializing_if = "Option::is_none")]
    simulated: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    recorded: Option<String>,
    devices: Vec<TopologyDevice>,
    connections: Vec<Vec<Connection>>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct TopologyDevice {
    name: String,
    id: String,
    kind: DeviceKind,
    #[serde(skip)]
    may_have_nvlinks: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    numa_node: Option<u32>,
}

/// Meaning of the labels, which are those of `nvidia-smi topo` and `rocm-smi`.
const LEGEND: &str = "PSB same board, PIX one PCIe switch, PXB several, PHB host bridge, \
                      NODE same NUMA node, SYS other";

/// Maximum number of columns for devices other than GPUs: as many as 80 characters hold.
#[cfg(feature = "laboratory")]
const OTHER_COLUMNS: usize = 8;

/// Legend of the labels of NVIDIA GPUs.
const NVLINK: &str = "NV# NVLinks";

/// Labels that few machines have, with their legend.
const RARE_LABELS: [(&str, &str); 2] =
    [("XGMI", "XGMI AMD's links"), ("DEV", "DEV same PCI function")];

pub(crate) async fn run(args: TopoArgs) -> Result<()> {
    let mut inventory = scan_host(args.host).await?.inventory;
    apply_filter(&mut inventory, &args.filter)?;
    let topology = Topology::of(&inventory);
    print_output(args.output, &topology, || show(&inventory, &topology))?;
    require_driver_answers(&inventory)
}

fn show(inventory: &Inventory, topology: &Topology) -> Result<()> {
    let paint = Paint::for_stdout();
    print_origin_notice(inventory, paint)?;
    if topology.devices.is_empty() {
        return Ok(print_line("no device with a location; `windlass devices` lists all")?);
    }
    for table in topology.panes(MAX_WIDTH) {
        table.print()?;
        print_line("")?;
    }
    let without_location: Vec<_> =
        inventory.devices.iter().filter(|device| !has_location(device)).collect();
    if !without_location.is_empty() {
        let names: Vec<_> = without_location.into_iter().map(name).collect();
        wrapped("without a location: ", &names).into_iter().try_for_each(print_line)?;
    }
    Ok(print_line(paint.styled(Style::Muted, topology.legend()))?)
}

/// True if the device's PCI path or NUMA node is known.
fn has_location(device: &Device) -> bool {
    device.place.path.is_some() || device.place.numa_node.is_some()
}

// === impl Topology ===

impl Topology {
    /// Topology of all whole devices; partitions share their parent's location.
    pub(crate) fn of(inventory: &Inventory) -> Self {
        let is_included = |device: &&Device| device.parent.is_none() && has_location(device);
        Self::of_devices(inventory, inventory.devices.iter().filter(is_included).collect())
    }

    /// Topology of these devices.
    pub(crate) fn of_devices(inventory: &Inventory, devices: Vec<&Device>) -> Self {
        let matrix = ConnectionMatrix::from_devices(&devices);
        let row = |i| (0..devices.len()).map(|j| matrix.at(i, j)).collect();
        Self {
            simulated: inventory.simulated.clone(),
            recorded: inventory.recorded.clone(),
            connections: (0..devices.len()).map(row).collect(),
            devices: devices.into_iter().map(TopologyDevice::of).collect(),
        }
    }

    /// Legend of the labels in this matrix.
    pub(crate) fn legend(&self) -> String {
        let pairs = (0..self.devices.len()).flat_map(|i| (0..i).map(move |j| (i, j)));
        let labels: Vec<_> = pairs.map(|(i, j)| self.connections[i][j].to_string()).collect();
        let occurs = |label: &str| labels.iter().any(|text| text.starts_with(label));
        let nvidia = self.devices.iter().any(|device| device.may_have_nvlinks).then_some(NVLINK);
        let rare = RARE_LABELS.iter().filter(|(label, _)| occurs(label)).map(|(_, legend)| *legend);
        nvidia.into_iter().chain(rare).chain([LEGEND]).collect::<Vec<_>>().join(", ")
    }

    /// The matrix with NUMA nodes last, split into panes by columns if it exceeds `width`.
    fn panes(&self, width: usize) -> Vec<Table> {
        let positions: Vec<_> = (0..self.devices.len()).collect();
        let fits = |columns: &[usize]| self.pane(&positions, columns).width() <= width;
        let mut panes: Vec<&[usize]> = Vec::new();
        let mut start = 0;
        for kind in positions.chunk_by(|a, b| self.devices[*a].kind == self.devices[*b].kind) {
            let end = kind[0] + kind.len();
            if start < kind[0] && !fits(&positions[start..end]) {
                panes.push(&positions[start..kind[0]]);
                start = kind[0];
            }
            // One kind may exceed the width; a pane has at least one column.
            while !fits(&positions[start..end]) && end - start > 1 {
                let count =
                    (1..end - start).rev().find(|count| fits(&positions[start..start + count]));
                let count = count.unwrap_or(1);
                panes.push(&positions[start..start + count]);
                start += count;
            }
        }
        panes.push(&positions[start..]);
        panes.into_iter().map(|columns| self.pane(&positions, columns)).collect()
    }

    fn pane(&self, rows: &[usize], columns: &[usize]) -> Table {
        self.with_numa(rows, self.cells(rows, columns))
    }

    /// The whole matrix with NUMA nodes last.
    pub(crate) fn matrix(&self) -> Table {
        let positions: Vec<_> = (0..self.devices.len()).collect();
        self.with_numa(&positions, self.cells(&positions, &positions))
    }

    /// GPUs among each other, then GPUs with other devices: narrower than the whole matrix. Without GPUs, all devices.
    #[cfg(feature = "laboratory")]
    pub(crate) fn gpu_tables(&self) -> Vec<Table> {
        let is_gpu = |position: &usize| self.devices[*position].kind == DeviceKind::Gpu;
        let (mut gpus, mut other_devices): (Vec<_>, Vec<_>) =
            (0..self.devices.len()).partition(is_gpu);
        if gpus.is_empty() {
            std::mem::swap(&mut gpus, &mut other_devices);
        }
        let mut tables = vec![self.with_numa(&gpus, self.cells(&gpus, &gpus))];
        let other_devices = other_devices.chunks(OTHER_COLUMNS);
        tables.extend(
            other_devices.map(|other_devices| Table::from_rows(self.cells(&gpus, other_devices))),
        );
        tables
    }

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

impl TopologyDevice {
    fn of(device: &Device) -> Self {
        Self {
            name: name(device),
            id: device.id.to_string(),
            kind: device.kind,
            may_have_nvlinks: device.family().has_nvml,
            numa_node: device.place.numa_node,
        }
    }
}
