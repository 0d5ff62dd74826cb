//! Short names of devices: `0-3 6` for GPUs, `1:0` for a part, `mlx5_0` for a NIC.

use windlass_core::{
    attribute::AttributeName,
    device::{Device, DeviceId, DeviceKind},
};

use crate::placement::machines::Machine;

const RDMA_DEVICE: AttributeName = AttributeName::new("windlass.dev", "rdmaDevice");

/// A device's short name.
pub(crate) fn label(device: &Device) -> String {
    let rdma = device.attributes.get(&RDMA_DEVICE);
    match (device.kind, device.part) {
        (DeviceKind::Nic, _) => {
            rdma.map_or_else(|| format!("nic{}", device.index), ToString::to_string)
        }
        (_, Some(part)) => format!("{}:{part}", device.index),
        (_, None) => device.index.to_string(),
    }
}

/// Ids of the devices in a list of short names. `all` stands for the pool.
pub(crate) fn ids<'a>(machine: &'a Machine, list: &str) -> Vec<&'a str> {
    let pool = if list == "all" { machine.pool.clone() } else { Vec::new() };
    let listed = list.split_whitespace().filter(|word| *word != "all").flat_map(|word| {
        let (first, last) = word.split_once('-').unwrap_or((word, word));
        position(machine, first)..=position(machine, last)
    });
    pool.into_iter().chain(listed).map(|index| machine.devices[index].id.as_str()).collect()
}

/// Compact form of a list of ids: the first and the last of three or more in a row, or of the partitions of one GPU.
pub(crate) fn list<'a>(machine: &Machine, ids: impl IntoIterator<Item = &'a DeviceId>) -> String {
    let place = |id: &DeviceId| machine.devices.iter().position(|device| device.id == *id);
    let places = ids.into_iter().map(|id| place(id).expect("a device of the machine"));
    let parent = |place: usize| &machine.devices[place].parent;
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for place in places {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == place && parent(*last) == parent(place) => {
                *last = place;
            }
            _ => runs.push((place, place)),
        }
    }
    let label = |place: usize| label(&machine.devices[place]);
    let run_label = |(first, last): (usize, usize)| match last - first {
        0 => label(first),
        1 => format!("{} {}", label(first), label(last)),
        _ => format!("{}-{}", label(first), label(last)),
    };
    runs.into_iter().map(run_label).collect::<Vec<_>>().join(" ")
}

fn position(machine: &Machine, name: &str) -> usize {
    let is_named = |device: &Device| label(device) == name;
    let index = machine.devices.iter().position(is_named);
    index.unwrap_or_else(|| panic!("{} has no device {name}", machine.name))
}
