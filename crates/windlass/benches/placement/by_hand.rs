//! Machines that no profile describes: GPUs of AMD's, whole and in parts, and one without any order.

use std::collections::BTreeMap;

use jiff::Timestamp;
use windlass_core::{
    device::{Device, DeviceKind, Extras, Place, SourceName},
    health::Health,
    pci::{PciAddress, PciePath},
};

use crate::{machines::Machine, random::Random};

/// One xGMI link of an MI300X in one direction: 16 lanes at 32 GT/s.
const XGMI_MBPS: u32 = 64_000;

/// GPUs on each NUMA node of an MI300X machine.
const ON_A_NODE: u32 = 4;

/// What the mode CPX cuts an MI300X into: its compute dies.
const PARTS: u32 = 8;

/// NVLinks between two GPUs that are linked by lot.
const LINKS: [u32; 7] = [0, 1, 2, 3, 4, 5, 6];

/// Eight MI300X.
pub(crate) fn mi300x() -> Machine {
    let about = "8 x AMD MI300X, xGMI between all of them, each with a PCIe root of its own";
    Machine::new("mi300x", about.to_owned(), linked_by_xgmi(), |_| true)
}

/// The same, each GPU cut into eight.
pub(crate) fn mi300x_in_parts() -> Machine {
    let parts = |gpu: Device| (0..PARTS).map(move |part| part_of(&gpu, part));
    let devices = linked_by_xgmi().into_iter().flat_map(parts).collect();
    let about = "8 x AMD MI300X in CPX mode: 64 partitions, 8 of each GPU".to_owned();
    Machine::new("mi300x-cpx", about, devices, |_| true)
}

/// Sixteen GPUs whose links are drawn by lot: no two are alike, which a search finds hardest.
pub(crate) fn without_order(seed: u64) -> Machine {
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

fn linked_by_xgmi() -> Vec<Device> {
    let with_links = |index: u32| {
        let mut device = gpu(index, index / ON_A_NODE);
        let others = (0..8).filter(|other| *other != index);
        device.place.xgmi = others.map(|other| (address(other), XGMI_MBPS)).collect();
        device
    };
    (0..8).map(with_links).collect()
}

/// A GPU below a host bridge of its own.
fn gpu(index: u32, numa: u32) -> Device {
    let pci = address(index);
    let bus = bus(index);
    let path = PciePath::from_sysfs(&format!("pci0000:{bus:02x}/0000:{bus:02x}:01.1/{pci}"));
    Device {
        id: format!("GPU-{index}").parse().expect("letters and digits"),
        kind: DeviceKind::Gpu,
        source: SourceName::NVIDIA,
        index,
        health: Health::unknown(Timestamp::UNIX_EPOCH),
        attributes: BTreeMap::new(),
        capacity: BTreeMap::new(),
        place: Place { pci: Some(pci), path, numa_node: Some(numa), ..Place::default() },
        nodes: Vec::new(),
        extras: Extras::default(),
        withheld: None,
        parent: None,
        part: None,
        partitioned: false,
    }
}

/// A part is where its GPU is.
fn part_of(gpu: &Device, part: u32) -> Device {
    let id = format!("{}-{part}", gpu.id).parse().expect("letters and digits");
    Device { id, parent: Some(gpu.id.clone()), part: Some(part), ..gpu.clone() }
}

/// The host bridge's bus; the GPU is on the next one.
fn bus(index: u32) -> u32 {
    8 * index
}

fn address(index: u32) -> PciAddress {
    format!("0000:{:02x}:00.0", bus(index) + 1).parse().expect("a bus below 256")
}
