//! Joint placement of GPUs and NICs on small machines with known answers.

mod brute_force;

use super::*;
use crate::{
    device::{Device, DeviceKind},
    nvlink::NvLinks,
    placement::tests::{gpu, nic, placed},
};

/// A request: free GPUs and NICs by index, and the number of each.
#[derive(Clone, Copy)]
struct TestRequest<'a> {
    free: (&'a [usize], &'a [usize]),
    size: (usize, usize),
    alignment: Alignment,
}

fn ids(prefix: &str, indices: &[usize]) -> Vec<String> {
    indices.iter().map(|index| format!("{prefix}-{index}")).collect()
}

fn answer(devices: &[Device], test: TestRequest<'_>) -> Result<JointChoice, JointError> {
    let (gpus, nics) = (ids("GPU", test.free.0), ids("NIC", test.free.1));
    let gpus: Vec<_> = gpus.iter().map(String::as_str).collect();
    let nics: Vec<_> = nics.iter().map(String::as_str).collect();
    let device_request = |available, size| DeviceRequest { available, required: &[], size };
    let request = JointRequest {
        gpus: device_request(&gpus, test.size.0),
        nics: device_request(&nics, test.size.1),
        alignment: test.alignment,
    };
    choose_joint(&Topology::from_devices(devices), request)
}

/// The pairs of the best choice: `0-1 PIX, 2-1 NODE` are GPUs 0 and 2 with NIC 1.
fn pairs(devices: &[Device], free: (&[usize], &[usize]), size: (usize, usize)) -> String {
    let alignment = Alignment::Preferred;
    let choice = answer(devices, TestRequest { free, size, alignment }).expect("an answer");
    assert!(choice.exact);
    let index = |id: &DeviceId| id.as_str()[4..].to_owned();
    let pair = |pair: &Pair| format!("{}-{} {}", index(&pair.gpu), index(&pair.nic), pair.level);
    choice.pairs.iter().map(pair).collect::<Vec<_>>().join(", ")
}

fn error_text(devices: &[Device], test: TestRequest<'_>) -> String {
    answer(devices, test).expect_err("refused").to_string()
}

/// The path of slot `slot` of the switch below host bridge `root`.
fn slot(root: u8, slot: u8) -> String {
    let device_bus = root + 4 + slot;
    let (upstream, below) = (root + 1, root + 2);
    format!(
        "pci0000:{root:02x}/0000:{root:02x}:01.0/0000:{upstream:02x}:00.0/0000:{below:02x}:{slot:02x}.0/\
         0000:{device_bus:02x}:00.0"
    )
}

/// A machine with one switch per entry, on the given NUMA node. `G` is a GPU below the switch, `N` a NIC.
fn machine(switches: &[(&str, u32)]) -> Vec<Device> {
    let (mut gpus, mut nics) = (0, 0);
    let mut devices = Vec::new();
    for (root, (devices_below, numa)) in (0_u8..).step_by(16).zip(switches) {
        for (slot_number, letter) in (0_u8..).zip(devices_below.chars()) {
            let (device, next) = match letter {
                'G' => (gpu(gpus, 0, 0), &mut gpus),
                _ => (nic(nics, 0), &mut nics),
            };
            *next += 1;
            devices.push(placed(device, &slot(root, slot_number), Some(*numa)));
        }
    }
    devices
}

/// Two sockets; on each a switch with two GPUs and a NIC, and one with two GPUs.
fn l40s() -> Vec<Device> {
    machine(&[("GGN", 0), ("GG", 0), ("GGN", 1), ("GG", 1)])
}

/// Four switches with two GPUs and two NICs each; the GPUs are linked by NVSwitch.
fn a100() -> Vec<Device> {
    let mut devices = machine(&[("GGNN", 0), ("GGNN", 0), ("GGNN", 1), ("GGNN", 1)]);
    link_to_switches(&mut devices, 12);
    devices
}

/// Connects every GPU to `NVSwitch`es by this number of links.
fn link_to_switches(devices: &mut [Device], links: u32) {
    for gpu in devices.iter_mut().filter(|device| device.kind == DeviceKind::Gpu) {
        gpu.place.nvlinks = NvLinks { to_switches: links, ..NvLinks::default() };
    }
}

/// Two sockets with two GPUs and two NICs each, every device below a host bridge of its own.
fn own_roots() -> Vec<Device> {
    machine(&[("G", 0), ("N", 0), ("G", 0), ("N", 0), ("G", 1), ("N", 1), ("G", 1), ("N", 1)])
}

const EIGHT: &[usize] = &[0, 1, 2, 3, 4, 5, 6, 7];

#[test]
fn the_chosen_nic_is_near_the_gpu() {
    let devices = l40s();
    for (gpus, nics, size, expected) in [
        (EIGHT, &[0, 1][..], (1, 1), "0-0 PIX"),
        (EIGHT, &[1], (1, 1), "4-1 PIX"),
        (EIGHT, &[0, 1], (2, 1), "0-0 PIX, 1-0 PIX"),
        (EIGHT, &[0, 1], (2, 2), "0-0 PIX, 4-1 PIX"),
        (EIGHT, &[0, 1], (4, 2), "0-0 PIX, 1-0 PIX, 4-1 PIX, 5-1 PIX"),
        // A third GPU comes from the same socket.
        (EIGHT, &[0, 1], (3, 1), "0-0 PIX, 1-0 PIX, 2-0 NODE"),
        (&[2, 3, 4, 6], &[0], (2, 1), "2-0 NODE, 3-0 NODE"),
        (&[6, 7], &[0, 1], (1, 1), "6-1 NODE"),
        (&[6, 7], &[0], (1, 1), "6-0 SYS"),
        (&[0], &[0, 1], (1, 2), "0-0 PIX, 0-1 SYS"),
    ] {
        assert_eq!(pairs(&devices, (gpus, nics), size), expected, "{size:?} of {gpus:?}");
    }
}

#[test]
fn nics_are_shared_evenly() {
    let devices = l40s();
    assert_eq!(
        pairs(&devices, (EIGHT, &[0, 1]), (6, 2)),
        "0-0 PIX, 1-0 PIX, 2-0 NODE, 4-1 PIX, 5-1 PIX, 6-1 NODE"
    );
    assert_eq!(
        pairs(&devices, (EIGHT, &[0, 1]), (5, 2)),
        "0-0 PIX, 1-0 PIX, 2-0 NODE, 4-1 PIX, 5-1 PIX"
    );
    // The second NIC takes one of the three GPUs on this socket.
    assert_eq!(pairs(&devices, (&[0, 1, 2], &[0, 1]), (3, 2)), "0-0 PIX, 1-0 PIX, 2-1 SYS");
}

#[test]
fn a_gpu_has_the_nics_of_its_switch() {
    let devices = a100();
    for (gpus, nics, size, expected) in [
        (EIGHT, EIGHT, (1, 1), "0-0 PIX"),
        (EIGHT, EIGHT, (1, 2), "0-0 PIX, 0-1 PIX"),
        (EIGHT, EIGHT, (2, 2), "0-0 PIX, 1-1 PIX"),
        (EIGHT, EIGHT, (2, 1), "0-0 PIX, 1-0 PIX"),
        (EIGHT, EIGHT, (4, 4), "0-0 PIX, 1-1 PIX, 2-2 PIX, 3-3 PIX"),
        (EIGHT, EIGHT, (4, 2), "0-0 PIX, 1-0 PIX, 2-2 PIX, 3-2 PIX"),
        // A switch that is in use already serves the next request.
        (&[1, 2, 3, 4, 5], &[1, 2, 3, 4, 5], (1, 1), "1-1 PIX"),
        (&[1, 2, 3, 4, 5, 6, 7], &[1, 2, 3, 4, 5, 6, 7], (2, 2), "2-2 PIX, 3-3 PIX"),
    ] {
        assert_eq!(pairs(&devices, (gpus, nics), size), expected, "{size:?} of {gpus:?}");
    }
}

#[test]
fn a_gpu_with_a_near_nic_is_left_free_if_another_serves_as_well() {
    // GPU 0 must go with NIC 0; the second GPU of the socket leaves NIC 1 its GPU 1.
    let devices = machine(&[("GN", 0), ("GN", 0), ("G", 0), ("GN", 1)]);
    let all_free = (&[0, 1, 2, 3][..], &[0, 1, 2][..]);
    assert_eq!(pairs(&devices, all_free, (2, 1)), "0-0 PIX, 2-0 NODE");
    assert_eq!(pairs(&devices, all_free, (2, 2)), "0-0 PIX, 1-1 PIX");
    // The further NIC is the one without a free GPU.
    assert_eq!(pairs(&devices, (&[0, 1], &[0, 1, 2]), (1, 1)), "0-0 PIX");
    let unsorted = (&[0, 2, 1][..], &[0, 1, 2][..]);
    assert_eq!(pairs(&devices, unsorted, (1, 2)), "0-0 PIX, 0-1 NODE");
    let with_spare_nic = machine(&[("GN", 0), ("GN", 0), ("N", 0)]);
    assert_eq!(pairs(&with_spare_nic, (&[0, 1], &[0, 1, 2]), (1, 2)), "0-0 PIX, 0-2 NODE");
}

#[test]
fn links_between_gpus_come_before_a_near_nic() {
    let mut devices = machine(&[("GN", 0), ("GN", 0), ("G", 0), ("G", 0)]);
    assert_eq!(pairs(&devices, (&[0, 1, 2, 3], &[0, 1]), (2, 2)), "0-0 PIX, 1-1 PIX");
    let address = |devices: &[Device], index: u32| {
        let gpu = devices.iter().find(|device| device.id.as_str() == format!("GPU-{index}"));
        gpu.expect("the GPU exists").place.pci.expect("the GPU has an address")
    };
    let (a, b) = (address(&devices, 2), address(&devices, 3));
    for device in &mut devices {
        let peer = if device.place.pci == Some(a) { b } else { a };
        if [Some(a), Some(b)].contains(&device.place.pci) {
            device.place.nvlinks.peers.insert(peer, 4);
        }
    }
    assert_eq!(pairs(&devices, (&[0, 1, 2, 3], &[0, 1]), (2, 2)), "2-0 NODE, 3-1 NODE");
}

#[test]
fn devices_on_separate_host_bridges_are_paired_by_numa_node() {
    let devices = own_roots();
    let (four, size) = (&[0, 1, 2, 3][..], (2, 2));
    assert_eq!(pairs(&devices, (four, four), size), "0-0 NODE, 1-1 NODE");
    assert_eq!(pairs(&devices, (&[1, 2, 3], &[0, 1, 2]), size), "1-0 NODE, 2-2 NODE");
    let within_level =
        |free, level| TestRequest { free, size, alignment: Alignment::Required(level) };
    let choice = answer(&devices, within_level((four, four), PcieLevel::Node)).expect("an answer");
    assert_eq!(choice.farthest(), Some(PcieLevel::Node));
    assert_eq!(
        error_text(&devices, within_level((four, four), PcieLevel::Pix)),
        "2 GPUs and 2 NICs requested, paired within PIX; the nearest possible level is NODE"
    );
    assert_eq!(
        error_text(&devices, within_level((&[0, 1], &[2, 3]), PcieLevel::Node)),
        "2 GPUs and 2 NICs requested, paired within NODE; the nearest possible level is SYS"
    );
}

#[test]
fn unknown_numa_nodes_are_different_nodes() {
    let mut devices = own_roots();
    for device in &mut devices {
        device.place.numa_node = None;
    }
    let free = (&[1, 2][..], &[0, 1, 2, 3][..]);
    assert_eq!(pairs(&devices, free, (1, 1)), "1-0 SYS");
    let alignment = Alignment::Required(PcieLevel::Sys);
    assert!(answer(&devices, TestRequest { free, size: (1, 1), alignment }).is_ok());
}

#[test]
fn required_devices_are_joined_by_near_ones() {
    let topology = Topology::from_devices(&l40s());
    let gpus: Vec<_> = (0..8).map(|index| format!("GPU-{index}")).collect();
    let gpus: Vec<_> = gpus.iter().map(String::as_str).collect();
    let pairs = |required_gpus: &[&str], required_nics: &[&str]| {
        let request = JointRequest {
            gpus: DeviceRequest { available: &gpus, required: required_gpus, size: 2 },
            nics: DeviceRequest {
                available: &["NIC-1", "NIC-0"],
                required: required_nics,
                size: 1,
            },
            alignment: Alignment::Preferred,
        };
        let choice = choose_joint(&topology, request).expect("an answer");
        choice.pairs.iter().map(Pair::to_string).collect::<Vec<_>>().join(", ")
    };
    assert_eq!(pairs(&[], &["NIC-1"]), "GPU-4 and NIC-1 over PIX, GPU-5 and NIC-1 over PIX");
    assert_eq!(pairs(&["GPU-5"], &[]), "GPU-4 and NIC-1 over PIX, GPU-5 and NIC-1 over PIX");
    assert_eq!(pairs(&["GPU-7"], &[]), "GPU-4 and NIC-1 over PIX, GPU-7 and NIC-1 over NODE");
    assert_eq!(pairs(&["GPU-3"], &["NIC-1"]), "GPU-3 and NIC-1 over SYS, GPU-4 and NIC-1 over PIX");
}

#[test]
fn one_kind_alone_is_chosen_by_the_aligned_policy() {
    let devices = l40s();
    let alignment = Alignment::Required(PcieLevel::Pix);
    let free = (EIGHT, &[0, 1][..]);
    let gpus = answer(&devices, TestRequest { free, size: (2, 0), alignment }).expect("an answer");
    let texts = |ids: &[DeviceId]| ids.iter().map(DeviceId::to_string).collect::<Vec<_>>();
    assert_eq!(texts(&gpus.gpus), ["GPU-2", "GPU-3"], "GPUs near NICs stay free");
    assert!(gpus.nics.is_empty() && gpus.pairs.is_empty() && gpus.farthest().is_none());
    let nics = answer(&devices, TestRequest { free, size: (0, 1), alignment }).expect("an answer");
    assert_eq!((texts(&nics.gpus), texts(&nics.nics)), (vec![], vec!["NIC-0".to_owned()]));
}

#[test]
fn impossible_requests_are_refused_with_the_numbers() {
    let topology = Topology::from_devices(&l40s());
    let gpus = |required: &'static [&str], size| DeviceRequest {
        available: &["GPU-1", "GPU-0", "GPU-1", "GPU-99"],
        required,
        size,
    };
    let nics =
        |required: &'static [&str], size| DeviceRequest { available: &["NIC-0"], required, size };
    let gpu_and_nic = DeviceRequest { available: &["NIC-0", "GPU-0"], required: &[], size: 1 };
    for (gpus, nics, expected) in [
        (gpus(&[], 0), nics(&[], 0), "neither GPUs nor NICs requested"),
        (gpus(&[], 3), nics(&[], 1), "GPUs: 3 devices requested, 2 available"),
        (gpus(&[], 1), nics(&[], 2), "NICs: 2 devices requested, 1 available"),
        (gpus(&["GPU-0"], 0), nics(&[], 1), "GPUs: 1 devices are required in a choice of 0"),
        (gpus(&[], 1), nics(&["NIC-0"], 0), "NICs: 1 devices are required in a choice of 0"),
        (
            gpus(&["GPU-0", "GPU-1"], 1),
            nics(&[], 1),
            "GPUs: 2 devices are required in a choice of 1",
        ),
        (
            gpus(&[], 1),
            nics(&["NIC-1"], 1),
            "NICs: required device NIC-1 is not among the available ones",
        ),
        (gpus(&[], 1), gpu_and_nic, "GPU-0 is named both as a GPU and as a NIC"),
    ] {
        let request = JointRequest { gpus, nics, alignment: Alignment::Preferred };
        let error = choose_joint(&topology, request).expect_err("refused");
        assert_eq!(error.to_string(), expected);
    }
}

/// Eight GPUs with a NIC each below their switch, and per socket a NIC without a near GPU.
fn h100() -> Vec<Device> {
    let mut devices = machine(&[
        ("GN", 0),
        ("GN", 0),
        ("GN", 0),
        ("GN", 0),
        ("GN", 1),
        ("GN", 1),
        ("GN", 1),
        ("GN", 1),
        ("N", 0),
        ("N", 1),
    ]);
    link_to_switches(&mut devices, 18);
    devices
}

#[test]
fn every_size_on_a_real_machine_is_answered_exactly_in_few_steps() {
    let devices = h100();
    let nics: Vec<_> = (0..10).collect();
    for size in (1..=8).flat_map(|gpus| (1..=10).map(move |nics| (gpus, nics))) {
        let request = TestRequest { free: (EIGHT, &nics), size, alignment: Alignment::Preferred };
        let choice = answer(&devices, request).expect("an answer");
        assert!(choice.exact && choice.steps < 1_000, "{size:?} took {} steps", choice.steps);
    }
}

#[test]
fn partitions_take_no_more_steps_than_gpus() {
    // Eight parts for each GPU.
    let mut devices = h100();
    let whole_gpus: Vec<_> =
        devices.iter().filter(|device| device.family().has_nvml).cloned().collect();
    for part in 1..8 {
        for gpu in &whole_gpus {
            let index = gpu.index + 8 * part;
            let id = format!("GPU-{index}").parse().expect("valid");
            devices.push(Device { id, index, ..gpu.clone() });
        }
    }
    let (gpus, nics): (Vec<_>, Vec<_>) = ((0..64).collect(), (0..10).collect());
    for size in [(8, 1), (8, 8), (12, 2), (32, 4), (60, 9)] {
        let request = TestRequest { free: (&gpus, &nics), size, alignment: Alignment::Preferred };
        let choice = answer(&devices, request).expect("an answer");
        assert!(choice.exact, "{size:?} took {} steps", choice.steps);
        // Whole GPUs, each with its NIC.
        assert_eq!(choice.farthest() == Some(PcieLevel::Pix), size.0 == 8 * size.1, "{size:?}");
    }
}

#[test]
fn the_answer_serialises_with_its_pairs() {
    let request =
        TestRequest { free: (EIGHT, &[0]), size: (1, 1), alignment: Alignment::Preferred };
    let choice = answer(&l40s(), request).expect("an answer");
    let document = serde_json::to_value(&choice).expect("JSON");
    assert_eq!(
        document["pairs"],
        serde_json::json!([{"gpu": "GPU-0", "nic": "NIC-0", "level": "PIX"}])
    );
    let terms = document["score"].as_array().expect("a list").iter();
    let terms: Vec<_> = terms.map(|entry| entry["term"].as_str().expect("a name")).collect();
    assert_eq!(
        terms.join(" "),
        "links sysPairs nodePairs phbPairs pxbPairs pixPairs pcie \
                                 remainingPairs remaining"
    );
}
