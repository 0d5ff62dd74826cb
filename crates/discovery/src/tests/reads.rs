//! Cost of scans: accesses to host files.

use std::{collections::BTreeMap, fs, os::unix::fs::symlink, path::PathBuf};

use windlass_config::{Config, DiscoveryRule, HostPaths, SourceRule};
use windlass_host::{AccessKind, AccessLog, Host};
use windlass_machine::MachineProfile;

use super::{config, machine_of, scanners};
use crate::{described::ConfiguredSources, scanner::Scanner};

/// Number of accesses by kind and path, or by kind and content.
type Counts = BTreeMap<(AccessKind, PathBuf), u32>;

/// Scans once with each scanner. Returns the accesses of each scan.
fn accesses_by_scan(config: &Config) -> Vec<Counts> {
    let (host, log) = Host::new(&config.places.host_root, "/").with_access_log();
    let (configured_sources, _) = ConfiguredSources::new(&config.places, &config.policy, &host);
    let configured_sources: Box<dyn Scanner> = Box::new(configured_sources);
    let scan = |mut scanner: Box<dyn Scanner>| {
        drop(scanner.scan(&host.for_one_scan()));
        by_file(&host, &log)
    };
    scanners(&config.policy).chain([configured_sources]).map(scan).collect()
}

fn by_file(host: &Host, log: &AccessLog) -> Counts {
    let mut counts = Counts::new();
    for (access, path) in log.drain() {
        let agent_path = host.path(&path);
        let file = match access {
            AccessKind::Text => agent_path.canonicalize().unwrap_or(agent_path),
            // A folder with two paths is listed through both.
            AccessKind::Names | AccessKind::Link | AccessKind::Kind => agent_path,
        };
        *counts.entry((access, file)).or_default() += 1;
    }
    counts
}

fn add_configured_sources(config: &mut Config) {
    let rule = |name: &str, find| SourceRule::new(name.parse().expect("valid"), find);
    let bus = |name: &str| DiscoveryRule::Bus(name.to_owned());
    config.policy.sources = vec![
        rule("pci", bus("pci")),
        rule("usb", bus("usb")),
        rule("interfaces", DiscoveryRule::Class("net".to_owned())),
        rule("screens", DiscoveryRule::Nodes(vec!["/dev/dri/*".to_owned()])),
    ];
}

#[test]
fn a_scan_reads_no_file_twice() {
    for profile in MachineProfile::names() {
        let (folder, machine) = machine_of(profile);
        let mut config = config(&folder, &machine);
        add_configured_sources(&mut config);
        for counts in accesses_by_scan(&config) {
            let repeated: Vec<_> = counts.iter().filter(|(_, count)| **count > 1).collect();
            assert!(repeated.is_empty(), "{profile}: {repeated:#?}");
        }
    }
}

#[test]
fn a_file_is_read_once_for_all_families() {
    let (folder, machine) = machine_of("dgx-h100");
    let mut total_counts = Counts::new();
    for (access, count) in accesses_by_scan(&config(&folder, &machine)).into_iter().flatten() {
        *total_counts.entry(access).or_default() += count;
    }
    let repeated: Vec<_> = total_counts
        .iter()
        .filter(|((access, _), count)| *access == AccessKind::Text && **count > 1)
        .collect();
    assert!(repeated.is_empty(), "{repeated:#?}");
}

/// A host with this many PCI functions: an adapter with virtual functions, drives and bridges.
fn host_with(functions: usize) -> (tempfile::TempDir, Config) {
    let mut builder = tempfile::Builder::new();
    builder.prefix("wl");
    let root = builder.tempdir_in("/dev/shm").or_else(|_| builder.tempdir());
    let root = root.expect("a temporary folder");
    let devices = root.path().join("sys/devices/pci0000:00");
    let list = root.path().join("sys/bus/pci/devices");
    fs::create_dir_all(&list).expect("made");
    for number in 0..functions {
        let address = format!("0000:{:02x}:{:02x}.{}", number >> 8, number >> 3 & 31, number & 7);
        let folder = devices.join(&address);
        fs::create_dir_all(&folder).expect("made");
        let class = match number % 10 {
            0 => "0x010802",
            1 => "0x060400",
            2 => "0x030000",
            _ => "0x020000",
        };
        for (file, text) in [("class", class), ("vendor", "0x8086"), ("device", "0x1889")] {
            fs::write(folder.join(file), text).expect("written");
        }
        symlink(format!("../../../devices/pci0000:00/{address}"), list.join(&address))
            .expect("linked");
        if number > 0 {
            let physical_function = devices.join("0000:00:00.0");
            symlink(format!("../{address}"), physical_function.join(format!("virtfn{number}")))
                .expect("linked");
            symlink("../0000:00:00.0", folder.join("physfn")).expect("linked");
        }
    }
    let physical_function = devices.join("0000:00:00.0");
    fs::write(physical_function.join("class"), "0x020000").expect("written");
    fs::write(physical_function.join("sriov_totalvfs"), functions.to_string()).expect("written");
    fs::write(physical_function.join("sriov_numvfs"), functions.to_string()).expect("written");
    let paths = HostPaths { host_root: root.path().to_owned(), ..HostPaths::default() };
    let config = Config { places: paths, ..Config::default() };
    (root, config)
}

#[test]
fn accesses_of_a_scan_grow_no_faster_than_the_number_of_functions() {
    let accesses = |functions| {
        let (_root, config) = host_with(functions);
        accesses_by_scan(&config).iter().flatten().map(|(_, count)| count).sum::<u32>()
    };
    let (small_host, large_host) = (accesses(200), accesses(2_000));
    assert!(small_host > 400, "{small_host}: every function is scanned");
    assert!(
        large_host * 2 <= small_host * 21,
        "{small_host} accesses for 200 functions, {large_host} for 2,000"
    );
}
