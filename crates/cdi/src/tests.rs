//! File accesses of document generation, against a simulated machine.

use std::collections::BTreeMap;

use jiff::Timestamp;
use windlass_core::device::{DeviceKind, DeviceNode, SourceName};
use windlass_host::{AccessKind, AccessLog};
use windlass_machine::{Machine, MachineProfile, find_driver};

use super::*;

type Counts = BTreeMap<(AccessKind, PathBuf), u32>;

fn take_counts(log: &AccessLog) -> Counts {
    let mut counts = Counts::new();
    for access in log.drain() {
        *counts.entry(access).or_default() += 1;
    }
    counts
}

fn inventory_with_gpu() -> Inventory {
    let id = "GPU-1".parse().expect("a name");
    let nodes = vec![DeviceNode::new("/dev/nvidia0")];
    let device = Device::new(id, DeviceKind::Gpu, SourceName::NVIDIA, Timestamp::UNIX_EPOCH);
    Inventory { devices: vec![Device { nodes, ..device }], ..Inventory::default() }
}

#[test]
fn each_driver_file_is_searched_once_and_none_again_for_the_first_documents() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let profile = MachineProfile::named("dgx-h100").expect("shipped");
    let driver = find_driver().expect("cargo builds the simulated driver with the tests");
    let machine = Machine::create(&folder.path().join("m"), &profile, &driver).expect("a machine");
    let paths = HostPaths { host_root: machine.host_root(), ..HostPaths::default() };
    let mut files = CdiFiles::new(&paths, Delivery::default());
    let (host, log) = files.roots.host.clone().with_access_log();
    files.roots = Roots { driver: host.clone(), dev: host.clone(), host };

    files.prefetch_driver_files();
    let prefetch_counts = take_counts(&log);
    let repeated_accesses: Vec<_> =
        prefetch_counts.iter().filter(|(_, count)| **count > 1).collect();
    assert!(prefetch_counts.len() > 100 && repeated_accesses.is_empty(), "{repeated_accesses:#?}");
    let first = files.generate(&inventory_with_gpu()).documents;
    let repeated: Vec<_> = take_counts(&log)
        .into_keys()
        .filter(|access| prefetch_counts.contains_key(access))
        .collect();
    assert!(repeated.is_empty(), "{repeated:#?}");
    assert_eq!(files.generate(&inventory_with_gpu()).documents, first);
    let second_counts = take_counts(&log);
    assert!(second_counts.values().all(|count| *count == 1), "{second_counts:#?}");
    assert!(
        second_counts.keys().any(|access| prefetch_counts.contains_key(access)),
        "the second document searches again"
    );
}
