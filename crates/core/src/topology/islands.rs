//! Islands: GPUs of a node that NVLink or xGMI connects, directly or through others.

use super::Connection;
use crate::{
    attribute::{AttributeValue, ISLAND},
    device::Device,
};

/// Sets the attribute [`ISLAND`] of each GPU that such links connect with another.
pub fn set_islands(devices: &mut [Device]) {
    // MIG instances are at the address of their GPU, and have no links.
    let may_have_links = |device: &Device| device.parent.is_none() || !device.place.xgmi.is_empty();
    let gpus: Vec<_> = (0..devices.len()).filter(|gpu| may_have_links(&devices[*gpu])).collect();
    let mut islands: Vec<Vec<usize>> = Vec::new();
    for gpu in gpus {
        let is_connected = |other: &usize| {
            let connection = Connection::between(&devices[gpu], &devices[*other]);
            connection.nvlink.is_some() || connection.xgmi_mbps.is_some()
        };
        // The GPU joins all islands that it is connected with.
        let (joined, others): (Vec<_>, Vec<_>) =
            islands.into_iter().partition(|island| island.iter().any(is_connected));
        islands = others;
        islands.push(joined.into_iter().flatten().chain([gpu]).collect());
    }
    for island in islands {
        let addresses = || island.iter().filter_map(|gpu| devices[*gpu].place.pci);
        let Some(first) = addresses().min().filter(|first| addresses().any(|it| it != *first))
        else {
            continue;
        };
        for gpu in island {
            devices[gpu].attributes.insert(ISLAND, AttributeValue::string(first.to_string()));
        }
    }
}

#[cfg(test)]
mod tests;
