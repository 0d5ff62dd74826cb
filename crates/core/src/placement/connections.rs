//! Summary of a set's topology: pairs by connection, and NUMA nodes.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use serde::Serialize;

use super::Topology;

/// Summary of a set's topology.
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
        let pairs: Vec<_> =
            self.pairs.iter().map(|(label, count)| format!("{count} x {label}")).collect();
        match self.pairs.iter().next() {
            None => f.write_str("a single device")?,
            Some((label, _)) if pairs.len() == 1 && label == SAME_DEVICE_LABEL => {
                f.write_str("parts of one device")?;
            }
            Some((label, 1)) if pairs.len() == 1 => write!(f, "the pair over {label}{via_switch}")?,
            Some((label, count)) if pairs.len() == 1 => {
                write!(f, "all {count} pairs {label}{via_switch}")?;
            }
            Some(_) => write!(f, "pairs {}{via_switch}", pairs.join(", "))?,
        }
        let nodes: Vec<_> = self.numa_nodes.iter().map(u32::to_string).collect();
        match nodes.as_slice() {
            [] => Ok(()),
            [node] => write!(f, ", NUMA node {node}"),
            [others @ .., last] => write!(f, ", NUMA nodes {} and {last}", others.join(", ")),
        }
    }
}
