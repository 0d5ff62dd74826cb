//! A machine that no profile describes: its links are random.

use jiff::Timestamp;
use windlass_core::{
    device::{Device, DeviceKind, Location, SourceName},
    pci::{PciAddress, PciePath},
};

use super::{machines::Machine, random::Random};

/// Possible numbers of NVLinks between two GPUs.
const LINKS: [u32; 7] = [0, 1, 2, 3, 4, 5, 6];

/// Sixteen GPUs with random links. Without symmetry, it is the hardest machine for a search.
pub(crate) fn with_random_links(seed: u64) -> Machine {
    let mut random = Random::new(seed);
    let mut devices: Vec<_> = (0..16).map(|index| gpu(index, index / 8)).collect();
    for a in 0..devices.len() {
        for peer in 0..a {
            let peer = address(devices[peer].index);
            devices[a].place.nvlinks.peers.insert(peer, LINKS[random.below(LINKS.len())]);
        }
    }
    Machine::new(
        "without-order",
        "16 GPUs, 0 to 6 NVLinks between any two".to_owned(),
        devices,
        |_| true,
    )
}

/// A GPU under its own host bridge.
fn gpu(index: u32, numa: u32) -> Device {
    let pci = address(index);
    let bus = bus(index);
    let path = PciePath::from_sysfs(&format!("pci0000:{bus:02x}/0000:{bus:02x}:01.1/{pci}"));
    let id = format!("GPU-{index}").parse().expect("letters and digits");
    Device {
        index,
        place: Location { pci: Some(pci), path, numa_node: Some(numa), ..Location::default() },
        ..Device::new(id, DeviceKind::Gpu, SourceName::NVIDIA, Timestamp::UNIX_EPOCH)
    }
}

/// The host bridge's bus; the GPU is on the next one.
fn bus(index: u32) -> u32 {
    8 * index
}

fn address(index: u32) -> PciAddress {
    format!("0000:{:02x}:00.0", bus(index) + 1).parse().expect("a bus below 256")
}
