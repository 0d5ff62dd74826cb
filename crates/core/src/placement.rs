//! Which devices should serve a request: the set with the fastest connections, chosen so that what
//! remains stays connected too.
//!
//! The answer depends on the question only: equal questions get equal answers, in whatever order the
//! devices are named. In order of weight:
//!
//! 1. the connections inside the chosen set (the sum over its pairs, NVLink before PCIe),
//! 2. the connections inside what remains available,
//! 3. few NUMA nodes,
//! 4. low positions in the inventory's order.

mod search;
pub mod shares;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use serde::Serialize;

use crate::{
    device::{Device, DeviceId},
    topology::{Connection, ConnectionMatrix, PcieLevel},
};

/// What is asked: `size` of the available devices, the required ones among them.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Devices to choose from.
    pub available: &'a [&'a Device],
    /// Ids that the answer must hold; a subset of the available.
    pub required: &'a [&'a str],
    /// How many devices the answer has.
    pub size: usize,
}

/// The answer, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Choice {
    /// The chosen devices, in the inventory's order.
    pub devices: Vec<DeviceId>,
    /// How the pairs of the chosen set are connected.
    pub connections: Connections,
    /// How many sets were compared.
    pub compared: u64,
    /// Whether every possible set was compared; otherwise the best found within the bound.
    pub exact: bool,
}

/// The pairs of a set by connection, and the NUMA nodes it spans: a set's topology in short.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Connections {
    /// Number of pairs per label, such as `NV18` or `PIX`.
    pub pairs: BTreeMap<String, usize>,
    /// Whether NVLink passes a switch.
    pub via_switch: bool,
    /// The NUMA nodes of the devices, where the machine tells them.
    pub numa_nodes: BTreeSet<u32>,
}

/// A question that has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// Nothing is asked for.
    #[error("a choice of 0 devices was asked for")]
    Nothing,
    /// More than there is.
    #[error("{size} devices were asked for and {available} are available")]
    TooFew {
        /// How many are asked for.
        size: usize,
        /// How many there are.
        available: usize,
    },
    /// More must be in the answer than it has places.
    #[error("{required} devices are required in a choice of {size}")]
    TooManyRequired {
        /// How many are asked for.
        size: usize,
        /// How many must be among them.
        required: usize,
    },
    /// A required device cannot be had.
    #[error("required device {0} is not among the available ones")]
    RequiredUnavailable(String),
}

/// Chooses the best set.
pub fn choose(request: Request<'_>) -> Result<Choice, PlacementError> {
    let devices = ordered(request.available);
    let required = required_positions(&devices, request)?;
    let matrix = ConnectionMatrix::of(&devices);
    let found = search::best_set(&problem(&devices, &matrix), &required, request.size);
    let chosen: Vec<_> = found.positions.iter().map(|&position| devices[position]).collect();
    Ok(Choice {
        devices: chosen.iter().map(|device| device.id.clone()).collect(),
        connections: Connections::of(&chosen),
        compared: found.compared,
        exact: found.exact,
    })
}

/// The inventory's order, whatever the caller's; each device once.
fn ordered<'a>(available: &[&'a Device]) -> Vec<&'a Device> {
    let mut devices = available.to_vec();
    devices.sort_by(|a, b| a.order().cmp(&b.order()));
    devices.dedup_by(|a, b| a.id == b.id);
    devices
}

fn required_positions(
    devices: &[&Device],
    request: Request<'_>,
) -> Result<Vec<usize>, PlacementError> {
    let position = |id: &&str| {
        devices
            .iter()
            .position(|device| device.id.as_str() == *id)
            .ok_or_else(|| PlacementError::RequiredUnavailable((*id).to_owned()))
    };
    let required: BTreeSet<usize> =
        request.required.iter().map(position).collect::<Result<_, _>>()?;
    let size = request.size;
    if size == 0 {
        return Err(PlacementError::Nothing);
    }
    if size > devices.len() {
        return Err(PlacementError::TooFew { size, available: devices.len() });
    }
    if required.len() > size {
        return Err(PlacementError::TooManyRequired { size, required: required.len() });
    }
    Ok(required.into_iter().collect())
}

fn problem(devices: &[&Device], matrix: &ConnectionMatrix) -> search::Problem {
    let pairs = |row| (0..matrix.size()).map(move |column| (row, column));
    let weight = |(row, column)| if row == column { 0 } else { affinity(matrix.at(row, column)) };
    let affinity = (0..matrix.size()).flat_map(pairs).map(weight).collect();
    search::Problem::new(affinity, devices.iter().map(|device| device.place.numa_node).collect())
}

/// The worth of one connection. One NVLink outweighs every PCIe level; the levels have the order
/// and the spacing of NVIDIA's best-effort policy, so that equal machines rank sets alike.
fn affinity(connection: Connection) -> i64 {
    const PER_LINK: i64 = 100;
    let pcie = match connection.pcie {
        PcieLevel::Board => 60,
        PcieLevel::Pix => 50,
        PcieLevel::Pxb => 40,
        PcieLevel::Phb => 30,
        PcieLevel::Node => 20,
        PcieLevel::Sys => 10,
    };
    pcie + connection.nvlink.map_or(0, |pair| i64::from(pair.links) * PER_LINK)
}

// === impl Connections ===

impl Connections {
    /// Sums up the pairs of a set.
    pub fn of(devices: &[&Device]) -> Self {
        let mut summary = Self {
            numa_nodes: devices.iter().filter_map(|device| device.place.numa_node).collect(),
            ..Self::default()
        };
        for (position, a) in devices.iter().enumerate() {
            for b in &devices[position + 1..] {
                let connection = Connection::between(a, b);
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
        let switch = if self.via_switch { " through NVSwitch" } else { "" };
        let pairs: Vec<_> = self.pairs.iter().map(|(label, n)| format!("{n} x {label}")).collect();
        match self.pairs.iter().next() {
            None => f.write_str("a single device")?,
            Some((label, 1)) if pairs.len() == 1 => write!(f, "the pair over {label}{switch}")?,
            Some((label, n)) if pairs.len() == 1 => write!(f, "all {n} pairs {label}{switch}")?,
            Some(_) => write!(f, "pairs {}{switch}", pairs.join(", "))?,
        }
        let nodes: Vec<_> = self.numa_nodes.iter().map(u32::to_string).collect();
        match nodes.as_slice() {
            [] => Ok(()),
            [node] => write!(f, ", NUMA node {node}"),
            several => write!(f, ", NUMA nodes {}", several.join(" and ")),
        }
    }
}

#[cfg(test)]
mod tests;
