//! Summary of the connections within a set of devices: pairs by connection, and NUMA nodes.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use serde::Serialize;

use super::Topology;

/// Summary of the connections within a set of devices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Connections {
    /// Number of pairs per label, such as `NV18` or `PIX`.
    pub pairs: BTreeMap<String, usize>,
    /// True if an NVLink passes a switch.
    pub via_switch: bool,
    /// Known NUMA nodes of the devices.
    pub numa_nodes: BTreeSet<u32>,
}

/// Label of [`PcieLevel::Device`](crate::topology::PcieLevel::Device).
const SAME_DEVICE_LABEL: &str = "DEV";

// === impl Connections ===

impl Connections {
    /// Summary of these devices; ids outside the topology are skipped.
    pub fn among(topology: &Topology, ids: &[&str]) -> Self {
        let positions: Vec<_> = ids.iter().filter_map(|id| topology.position(id)).collect();
        Self::of_positions(topology, &positions)
    }

    /// Summary of the devices at these positions.
    pub(super) fn of_positions(topology: &Topology, positions: &[usize]) -> Self {
        let mut summary = Self {
            numa_nodes: positions
                .iter()
                .filter_map(|&position| topology.device(position).numa_node)
                .collect(),
            ..Self::default()
        };
        for (index, &a) in positions.iter().enumerate() {
            for &b in &positions[index + 1..] {
                let connection = topology.connection(a, b);
                summary.via_switch |= connection.nvlink.is_some_and(|pair| pair.via_switch);
                *summary.pairs.entry(connection.to_string()).or_default() += 1;
            }
        }
        summary
    }
}

impl fmt::Display for Connections {
    /// `all 6 pairs NV18 through NVSwitch, NUMA node 0`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let via_switch = if self.via_switch { " through NVSwitch" } else { "" };
        let pairs: Vec<_> = self.pairs.iter().collect();
        match pairs.as_slice() {
            [] => f.write_str("a single device")?,
            [(label, _)] if *label == SAME_DEVICE_LABEL => f.write_str("parts of one device")?,
            [(label, 1)] => write!(f, "the pair over {label}{via_switch}")?,
            [(label, count)] => write!(f, "all {count} pairs {label}{via_switch}")?,
            several => {
                let counts: Vec<_> =
                    several.iter().map(|(label, count)| format!("{count} x {label}")).collect();
                write!(f, "pairs {}{via_switch}", counts.join(", "))?;
            }
        }
        let nodes: Vec<_> = self.numa_nodes.iter().map(u32::to_string).collect();
        match nodes.as_slice() {
            [] => Ok(()),
            [node] => write!(f, ", NUMA node {node}"),
            [others @ .., last] => write!(f, ", NUMA nodes {} and {last}", others.join(", ")),
        }
    }
}
