//! Built-in profiles, and error messages for invalid profiles.

use windlass_machine::{MachineProfile, Model};

#[test]
fn every_built_in_profile_describes_a_possible_machine() {
    for name in MachineProfile::names() {
        let profile = MachineProfile::named(name).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(profile.name, name);
        let model = Model::new(&profile).expect("validated");
        assert_eq!(model.gpus.len(), profile.gpus.len());
    }
}

#[test]
fn a_profile_survives_a_round_trip_through_yaml() {
    for name in MachineProfile::names() {
        let profile = MachineProfile::named(name).expect("built in");
        let yaml = serde_saphyr::to_string(&profile).expect("a profile is serializable");
        assert_eq!(
            MachineProfile::parse("copy", &yaml).expect("serialized from a profile"),
            profile
        );
    }
}

#[test]
fn the_error_for_an_unknown_name_lists_the_profiles() {
    let error = MachineProfile::load("dgx-h900", |path| std::fs::read_to_string(path))
        .expect_err("no such machine")
        .to_string();
    assert!(error.contains("`dgx-h900`") && error.contains("dgx-h100, hgx-h200"), "{error}");
}

#[test]
fn a_file_is_loaded_by_its_path() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../profiles/t4-edge.yaml");
    assert_eq!(
        MachineProfile::load(path, |path| std::fs::read_to_string(path)).expect("a file").name,
        "t4-edge"
    );
}

/// L4 server with two GPUs. Each test breaks one property.
const VALID_PROFILE: &str = r#"name: small
description: two cards
product: Test
driver: {version: 570.133.20, cuda: "12.8"}
numa:
  - {cpus: "0-7", memory_gib: 16}
cards:
  a100:
    name: NVIDIA A100-PCIE-40GB
    brand: nvidia
    architecture: ampere
    compute_capability: "8.0"
    pci: 10de:20f1
    subsystem: 10de:145f
    memory_mib: 40960
    bar1_mib: 65536
    cores: 6912
    power_limit_w: 250
    clocks_mhz: {graphics: 1410, memory: 1215}
    pcie: {generation: 4, width: 16}
    nvlink: {generation: 3, links: 12}
    mig: {memory_gb: 40, multiprocessors: 14}
gpus:
  - path: pci0000:20/0000:20:01.0/0000:21:00.0
    numa: 0
  - path: pci0000:20/0000:20:03.0/0000:25:00.0
    numa: 0
"#;

#[track_caller]
fn check_refused(from: &str, to: &str, expected: &str) {
    assert!(VALID_PROFILE.contains(from), "{from}");
    let error = MachineProfile::parse("small.yaml", &VALID_PROFILE.replacen(from, to, 1))
        .expect_err(expected);
    assert_eq!(error.to_string(), expected);
}

#[test]
fn errors_name_the_file_the_line_and_the_entry() {
    let last = "0000:20:03.0/0000:25:00.0\n    numa: 0";
    check_refused(
        last,
        "0000:20:03.0/0000:25:00.0\n    numa: 4",
        "small.yaml:26: gpus[1]: there is no NUMA node 4",
    );
    check_refused(
        last,
        "0000:20:01.0/0000:21:00.0",
        "small.yaml:26: gpus[1]: PCI address 0000:21:00.0 is taken by an earlier entry",
    );
    check_refused(
        "0000:20:03.0/0000:25:00.0",
        "0000:20:03.0/0000:20:01.0/0000:25:00.0",
        "small.yaml:26: gpus[1]: PCI address 0000:20:01.0 has another path in an earlier entry",
    );
    check_refused(
        "0000:21:00.0",
        "0000:27:00.0",
        "small.yaml:26: gpus[1]: PCI address 0000:25:00.0 comes before that of the GPU above: list \
         GPUs in PCI order",
    );
}

#[test]
fn links_need_two_ends_and_ports() {
    let first = "    numa: 0\n  - path";
    check_refused(
        first,
        "    peers: {1: 4}\n  - path",
        "small.yaml:24: gpus[0]: it has 4 links to GPU 1, which has 0 links back",
    );
    check_refused(
        first,
        "    peers: {5: 4}\n  - path",
        "small.yaml:24: gpus[0]: there is no other GPU 5 to link with",
    );
}

#[test]
fn mig_instances_need_a_profile_and_room() {
    let first = "    numa: 0\n  - path";
    check_refused(
        first,
        "    mig: [1g.10gb, 9g.5gb]\n  - path",
        "small.yaml:24: gpus[0]: its card has no MIG profile `9g.5gb`",
    );
    check_refused(
        "    mig: {memory_gb: 40, multiprocessors: 14}\ngpus:\n  -",
        "gpus:\n  - mig: []\n   ",
        "small.yaml:23: gpus[0]: its card has no MIG: leave out `mig`",
    );
    check_refused(
        first,
        "    mig: [7g.40gb, 1g.5gb]\n  - path",
        "small.yaml:24: gpus[0]: there is no room left for MIG instance `1g.5gb`",
    );
}

#[test]
fn impossible_machines_are_refused() {
    check_refused(
        "links: 12",
        "links: 24",
        "small.yaml:9: cards.a100: it has 24 NVLink ports, NVML supports 18 at most",
    );
    check_refused(
        "generation: 4",
        "generation: 0",
        "small.yaml:9: cards.a100: its pcie generation is 0, it must be 1 to 6",
    );
    check_refused(
        "memory_mib: 40960",
        "memory_mib: 18446744073709551615",
        "small.yaml:9: cards.a100: its memory_mib is 18446744073709551615, it must be 1024 to \
         33554432",
    );
    check_refused(
        "power_limit_w: 250",
        "power_limit_w: 4294967295",
        "small.yaml:9: cards.a100: its power_limit_w is 4294967295, it must be 1 to 100000",
    );
    check_refused(
        "\"12.8\"",
        "twelve",
        "small.yaml:1: the machine: `twelve` is not a CUDA version, write it like `\"12.8\"`",
    );
    let node = "  - {cpus: \"0-7\", memory_gib: 16}\n";
    check_refused(
        node,
        &format!("{node}  - {{cpus: \"4-11\", memory_gib: 16}}\n"),
        "small.yaml:7: numa[1]: CPU 4 is in an earlier node",
    );
    let last = "0000:25:00.0\n    numa: 0\n";
    check_refused(
        last,
        &format!("{last}    peers: {{0: 4}}\n    switches: [0]\nswitches: [{{pci: 10de:1af1}}]\n"),
        "small.yaml:26: gpus[1]: it has links to peers and to switches: leave out `peers`, or \
         write `switches: []`",
    );
    let nic = |bus| {
        format!(
            "  - {{netdev: eth0, path: \"pci0000:40/0000:40:01.0/0000:{bus}:00.0\", \
             pci: 15b3:1021, subsystem: 15b3:0041, rate_gbps: 100}}\n"
        )
    };
    check_refused(
        last,
        &format!("{last}nics:\n{}{}", nic("41"), nic("42")),
        "small.yaml:30: nics[1]: netdev `eth0` is that of an earlier adapter",
    );
}

#[test]
fn one_instance_has_the_media_extensions() {
    check_refused(
        "    numa: 0\n  - path",
        "    mig: [1g.5gb+me, 1g.5gb+me]\n  - path",
        "small.yaml:24: gpus[0]: there is no room left for MIG instance `1g.5gb+me`",
    );
}

#[test]
fn duplicate_minors_are_refused() {
    check_refused(
        "    numa: 0\n  - path",
        "    minor: 1\n  - path",
        "small.yaml:26: gpus[1]: minor `1` is that of an earlier GPU",
    );
}

#[test]
fn syntax_errors_name_the_line_and_column() {
    let check = |from: &str, to: &str, place: &str, words: &str| {
        let yaml = VALID_PROFILE.replacen(from, to, 1);
        let error = MachineProfile::parse("small.yaml", &yaml).expect_err(to).to_string();
        assert!(error.starts_with(place) && error.contains(words), "{error}");
    };
    check("numa: 0", "nmua: 0", "small.yaml:25:", "nmua");
    check("10de:20f1", "20f1", "small.yaml:13:", "write it like `10de:2330`");
    check("\"8.0\"", "eight", "small.yaml:12:", "compute capability");
}
