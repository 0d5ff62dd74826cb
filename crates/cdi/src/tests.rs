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

fn with_a_gpu() -> Inventory {
    let id = "GPU-1".parse().expect("a name");
    let nodes = vec![DeviceNode::new("/dev/nvidia0")];
    let new = Device::new(id, DeviceKind::Gpu, SourceName::NVIDIA, Timestamp::UNIX_EPOCH);
    Inventory { devices: vec![Device { nodes, ..new }], ..Inventory::default() }
}

#[test]
fn each_driver_file_is_searched_once_and_none_again_for_the_first_documents() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let profile = MachineProfile::named("dgx-h100").expect("shipped");
    let driver = find_driver().expect("cargo builds the simulated driver with the tests");
    let machine = Machine::create(&folder.path().join("m"), &profile, &driver).expect("a machine");
    let places = HostPaths { host_root: machine.host_root(), ..HostPaths::default() };
    let mut files = CdiFiles::new(&places, Delivery::default());
    let (host, log) = files.roots.host.clone().with_access_log();
    files.roots = Roots { driver: host.clone(), dev: host.clone(), host };

    files.prefetch_driver_files();
    let before = take_counts(&log);
    let twice: Vec<_> = before.iter().filter(|(_, count)| **count > 1).collect();
    assert!(before.len() > 100 && twice.is_empty(), "{twice:#?}");
    let first = files.generate(&with_a_gpu()).documents;
    let again: Vec<_> =
        take_counts(&log).into_keys().filter(|it| before.contains_key(it)).collect();
    assert!(again.is_empty(), "{again:#?}");
    assert_eq!(files.generate(&with_a_gpu()).documents, first);
    let later = take_counts(&log);
    assert!(later.values().all(|count| *count == 1), "{later:#?}");
    assert!(
        later.keys().any(|access| before.contains_key(access)),
        "the second document searches again"
    );
}
