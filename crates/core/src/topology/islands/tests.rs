//! Islands of GPUs with NVLinks or xGMI.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::*;
use crate::{
    device::{DeviceKind, SourceName},
    pci::PciAddress,
};

fn address(bus: u8) -> PciAddress {
    format!("0000:{bus:02x}:00.0").parse().expect("valid")
}

/// GPUs on buses 0, 1, ..., with these NVLinks, each reported by its first end.
fn islands(count: u8, links: &[(u8, u8)]) -> Vec<Option<String>> {
    let gpu = |bus: u8| {
        let id = format!("GPU-{bus}").parse().expect("an id");
        let mut gpu = Device::new(id, DeviceKind::Gpu, SourceName::NVIDIA, Timestamp::UNIX_EPOCH);
        gpu.place.pci = Some(address(bus));
        let peers = links.iter().filter(|(from, _)| *from == bus);
        gpu.place.nvlinks.peers = peers.map(|(_, to)| (address(*to), 4)).collect();
        gpu
    };
    let mut devices: Vec<_> = (0..count).map(gpu).collect();
    set_islands(&mut devices);
    let island = |gpu: &Device| gpu.attributes.get(&ISLAND).map(ToString::to_string);
    devices.iter().map(island).collect()
}

#[test]
fn linked_gpus_have_the_address_of_the_first_one() {
    let first = |bus: u8| Some(address(bus).to_string());
    assert_eq!(islands(3, &[]), [None, None, None]);
    // Bridges between 0 and 2, and between 1 and 3. Both ends report the second one.
    assert_eq!(islands(4, &[(0, 2), (1, 3), (3, 1)]), [first(0), first(1), first(0), first(1)]);
    // 4 connects two islands. The links of 0 lead to a GPU that is not listed.
    let chain = islands(5, &[(0, 9), (1, 2), (4, 2), (3, 4)]);
    assert_eq!(chain, [None, first(1), first(1), first(1), first(1)]);
}

#[test]
fn switches_and_xgmi_connect_gpus_and_partitions_of_one_gpu_are_no_island() {
    let gpu = |bus: u8, part: u8| {
        let id = format!("GPU-{bus}-{part}").parse().expect("an id");
        let mut gpu = Device::new(id, DeviceKind::Gpu, SourceName::AMD, Timestamp::UNIX_EPOCH);
        gpu.place.pci = Some(address(bus));
        gpu
    };
    let mut switched = [gpu(1, 0), gpu(2, 0)];
    for gpu in &mut switched {
        gpu.place.nvlinks.to_switches = 18;
    }
    let mut partitions = [gpu(1, 0), gpu(1, 1)];
    for part in &mut partitions {
        part.place.xgmi = BTreeMap::from([(address(2), 64_000)]);
    }
    let mut hive = [&partitions[..], &[gpu(2, 0)]].concat();
    hive[2].place.xgmi = BTreeMap::from([(address(1), 64_000)]);
    for (devices, is_island) in
        [(&mut switched[..], true), (&mut partitions[..], false), (&mut hive[..], true)]
    {
        set_islands(devices);
        let island = is_island.then(|| address(1).to_string());
        for device in devices {
            assert_eq!(device.attributes.get(&ISLAND).map(ToString::to_string), island);
        }
    }
}
