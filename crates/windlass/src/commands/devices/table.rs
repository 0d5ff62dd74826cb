//! Device tables, one per kind with its own columns.

use std::collections::{BTreeMap, BTreeSet};

use windlass_core::{
    attribute::Quantity,
    device::{Device, DeviceId, DeviceKind},
    inventory::Inventory,
};
use windlass_host::Host;
use windlass_node::owners::Owners;
use windlass_resources::{DeviceOffer, SharingSummary};

use super::{
    names::name,
    product::{product, text},
};
use crate::screen::Table;

pub(super) type DeviceOffers = BTreeMap<DeviceId, DeviceOffer>;

/// Offerings and owners of the devices, which the inventory lacks.
#[derive(Clone, Copy)]
pub(crate) struct DeviceStatus<'a> {
    pub(crate) offers: &'a BTreeMap<DeviceId, DeviceOffer>,
    pub(crate) owners: &'a Owners,
}

/// Number of columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    /// Identity and state.
    Normal,
    /// Sources, nodes and variables too.
    Wide,
}

/// Device with the sources of its cells.
struct Row<'a> {
    inventory: &'a Inventory,
    status: DeviceStatus<'a>,
    host: Option<&'a Host>,
    device: &'a Device,
}

/// One table per kind; GPUs and their MIG instances share one. Only JSON has vendor names, PCI domain 0000 and link
/// peers, which are too wide for a table. With a `host`, products that sources leave out come from its sysfs.
pub(crate) fn device_tables(
    inventory: &Inventory,
    status: DeviceStatus<'_>,
    host: Option<&Host>,
    width: Width,
) -> Vec<Table> {
    let group = |kinds: &[DeviceKind]| {
        let devices = inventory.devices.iter().filter(|device| kinds.contains(&device.kind));
        let rows = devices.map(|device| Row { inventory, status, host, device }.cells(width));
        let rows: Vec<_> = rows.collect();
        (!rows.is_empty()).then(|| without_empty_columns(&rows))
    };
    DeviceKind::ALL.chunk_by(|one, next| one.is_gpu() && next.is_gpu()).filter_map(group).collect()
}

// === impl Row ===

impl Row<'_> {
    /// Headings and cells of the columns for this kind.
    fn cells(&self, width: Width) -> Vec<(&'static str, Option<String>)> {
        let device = self.device;
        let mut cells = vec![
            ("NAME", Some(name(device))),
            ("ID", Some(device.id.to_string())),
            ("PRODUCT", product(self.inventory, device, self.host)),
        ];
        cells.extend(self.kind_cells());
        cells.extend([
            ("NUMA", device.place.numa_node.map(|node| node.to_string())),
            ("PCI", device.place.pci.map(|address| without_prefix("0000:", &address.to_string()))),
        ]);
        if width == Width::Wide {
            cells.extend(self.wide_cells());
        }
        cells.extend([
            ("RESOURCE", self.resource()),
            ("ENFORCEMENT", self.enforcement()),
            ("HELD BY", self.owners()),
            ("HEALTH", Some(device.health.to_string())),
        ]);
        cells
    }

    /// Columns specific to the kind.
    fn kind_cells(&self) -> Vec<(&'static str, Option<String>)> {
        let device = self.device;
        let fact = |name: &str| text(&device.attributes, name);
        match device.kind {
            DeviceKind::Gpu | DeviceKind::Mig => vec![
                ("MEMORY", self.memory()),
                ("NVLINK", self.nvlinks()),
                ("XGMI", if_positive(device.place.xgmi.len())),
            ],
            DeviceKind::Nic => vec![
                ("NETDEV", fact("ifName")),
                ("LINK", fact("linkLayer")),
                ("RATE", fact("rate").map(|rate| text_before(" (", &rate))),
                ("DRIVER", fact("driver")),
            ],
            DeviceKind::Fpga => vec![("SHELL", fact("shell")), ("DRIVER", fact("driver"))],
            DeviceKind::Nvme => vec![("DRIVER", fact("driver"))],
            DeviceKind::Other => vec![("GIVES", self.nodes_or_env())],
        }
    }

    fn wide_cells(&self) -> Vec<(&'static str, Option<String>)> {
        let env = self.device.extras.env.iter().map(|(key, value)| format!("{key}={value}"));
        vec![
            ("SOURCE", Some(self.device.source.to_string())),
            ("NODES", joined(self.nodes())),
            ("ENV", joined(env)),
        ]
    }

    /// Nodes or variables of a device of kind `other`.
    fn nodes_or_env(&self) -> Option<String> {
        match (self.device.nodes.as_slice(), self.device.extras.env.len()) {
            ([], 0) => None,
            ([], count) => Some(format!("{count} variables")),
            ([node], _) => Some(node.path.display().to_string()),
            ([first, rest @ ..], _) => {
                Some(format!("{} and {} more", first.path.display(), rest.len()))
            }
        }
    }

    fn nodes(&self) -> impl Iterator<Item = String> {
        self.device.nodes.iter().map(|node| node.path.display().to_string())
    }

    fn memory(&self) -> Option<String> {
        let (_, bytes) = self.device.memory_capacity()?;
        Some(Quantity::Bytes(bytes).to_string())
    }

    fn nvlinks(&self) -> Option<String> {
        let links = &self.device.place.nvlinks;
        if_positive((links.to_switches + links.peers.values().sum::<u32>()) as usize)
    }

    /// Resource and sharing: `nvidia.com/gpu x8`.
    fn resource(&self) -> Option<String> {
        let offer = self.status.offers.get(&self.device.id)?;
        let name = offer.resource.as_ref()?;
        Some(match offer.shared {
            Some(shared) if shared.pool => format!("{name}, a pool of {}", shared.replicas),
            Some(SharingSummary { replicas, memory_mib: Some(mib), .. }) => {
                format!("{name} x{replicas} of {mib} MiB")
            }
            Some(shared) => format!("{name} x{}", shared.replicas),
            None => name.to_string(),
        })
    }

    /// Enforcement of the memory limits of containers: `driver`.
    fn enforcement(&self) -> Option<String> {
        let offer = self.status.offers.get(&self.device.id)?;
        offer.enforcement.map(|layer| layer.as_str().to_owned())
    }

    /// First owner: `default/train-0`, `team/train-0 (claim gpus)`, `default/a and 7 more`.
    fn owners(&self) -> Option<String> {
        let owners = self.status.owners.get(&self.device.id)?;
        let names: BTreeSet<_> = owners.iter().map(ToString::to_string).collect();
        let first = names.first()?;
        Some(match names.len() {
            1 => first.clone(),
            count => format!("{first} and {} more", count - 1),
        })
    }
}

/// Drops columns without a value.
fn without_empty_columns(rows: &[Vec<(&'static str, Option<String>)>]) -> Table {
    let columns = 0..rows.first().map_or(0, Vec::len);
    let used: Vec<_> =
        columns.filter(|&column| rows.iter().any(|row| row[column].1.is_some())).collect();
    let headings = used.iter().map(|&column| rows[0][column].0.to_owned()).collect();
    let cells = |row: &Vec<(&str, Option<String>)>| {
        let cell = |&column: &usize| row[column].1.clone().unwrap_or_else(|| "-".to_owned());
        used.iter().map(cell).collect()
    };
    Table::from_rows(std::iter::once(headings).chain(rows.iter().map(cells)).collect())
}

fn if_positive(number: usize) -> Option<String> {
    (number > 0).then(|| number.to_string())
}

fn joined(words: impl Iterator<Item = String>) -> Option<String> {
    let words = words.collect::<Vec<_>>().join(" ");
    (!words.is_empty()).then_some(words)
}

fn without_prefix(prefix: &str, text: &str) -> String {
    text.strip_prefix(prefix).unwrap_or(text).to_owned()
}

fn text_before(mark: &str, text: &str) -> String {
    text.split(mark).next().unwrap_or(text).to_owned()
}
