//! FPGAs: Alveo boards, boards in regions, and logic on a processor's chip.

mod programming;

use windlass_machine::MachineProfile;
use windlass_testkit::{Node, pod_with as pod, until_allocatable};

use crate::devices::{
    golden,
    world::{attribute, device, end, node, node_of, policy, source},
};

const U250: &str = "amd.com/xilinx_u250_gen3x16_xdma_shell_4_1-1643110417";
const U50: &str = "amd.com/xilinx_u50_gen3x16_xdma_201920_3-1585024580";

fn machine(profile: &str, config: &str) -> Node {
    node_of(&MachineProfile::named(profile).expect("a shipped profile"), config)
}

#[tokio::test]
async fn a_board_is_one_device_under_the_name_of_its_shell() {
    let state = machine("alveo", "").scan_host().await;
    insta::assert_snapshot!("alveo", golden::devices(&state, "fpga"));
}

#[tokio::test]
async fn a_pod_gets_a_management_node_only_if_configured() {
    for (config, expected) in [
        ("deviceList: envvar", vec!["/dev/dri/renderD130", "/dev/xfpga/dma.qdma.u34305.0"]),
        (
            "{deviceList: envvar, fpga: {managementNodes: true}}",
            vec!["/dev/dri/renderD130", "/dev/xclmgmt34304", "/dev/xfpga/dma.qdma.u34305.0"],
        ),
    ] {
        let world = machine("alveo", config);
        let kubelet = world.start_kubelet();
        let _agent = world.start_agent();
        until_allocatable(&kubelet, U50, 1).await;
        let admission = kubelet.admit(pod("p", U50, 1)).await.expect("admitted");
        let grant = &admission.allocation("main", U50).expect("allocated").run_options;
        let paths: Vec<_> = grant.devices.iter().map(|it| it.container_path.as_str()).collect();
        assert_eq!(paths, expected);
        assert!(grant.mounts.is_empty(), "no node is also a mount: {:?}", grant.mounts);
    }
}

#[tokio::test]
async fn a_board_in_reset_keeps_its_identity_and_affects_no_other() {
    let world = machine("alveo", "");
    let (kubelet, agent) = (world.start_kubelet(), world.start_agent());
    until_allocatable(&kubelet, U250, 2).await;
    world.inject("unset:u250-0:rom.u.31457280");
    agent.until_health("fpga-0000-3b-00-0", "Unhealthy: not ready").await;
    let status = until_allocatable(&kubelet, U250, 1).await;
    assert_eq!(status.counts(U250), Some((2, 1)), "it is still listed");
    // A reset changes the number of the folder.
    world.inject("set:u250-0:rom.u.99/VBNV=xilinx_u250_gen3x16_xdma_shell_4_1");
    world.inject("set:u250-0:rom.u.99/timestamp=1643110417");
    until_allocatable(&kubelet, U250, 2).await;
}

#[tokio::test]
async fn a_board_that_does_not_answer_keeps_its_identity_and_affects_no_other() {
    let world = machine("alveo", "");
    let file = "/sys/bus/pci/devices/0000:3b:00.1/xmc.u.32505856/xmc_power_warn";
    let (kubelet, agent) = (world.start_kubelet(), world.start_agent());
    let state = agent.until_health("fpga-0000-3b-00-0", "Healthy").await;
    let before = device(&state.inventory, "fpga-0000-3b-00-0").clone();
    world.block_reads(file);
    let no_answer = "Unhealthy: not ready, it does not answer";
    let state = agent.until_health("fpga-0000-3b-00-0", no_answer).await;
    let now = device(&state.inventory, "fpga-0000-3b-00-0");
    assert_eq!((&now.nodes, &now.attributes), (&before.nodes, &before.attributes));
    world.inject("set:u250-1:xmc.u.34603008/xmc_power_warn=1");
    agent.until_health("fpga-0000-5e-00-0", "Unhealthy: out of bounds").await;
    world.inject("set:u250-1:xmc.u.34603008/xmc_power_warn=0");
    world.unblock_reads(file, "0\n");
    until_allocatable(&kubelet, U250, 2).await;
}

#[tokio::test]
async fn a_board_that_never_answered_is_listed_and_not_offered() {
    let world = machine("alveo", "");
    world.block_reads("/sys/bus/pci/devices/0000:3b:00.1/xmc.u.32505856/serial_num");
    let state = world.scan_host().await;
    let board = device(&state.inventory, "fpga-0000-3b-00-0");
    assert!(board.health.to_string().contains("it does not answer"), "{board:?}");
    assert!(board.withheld.is_some() && board.place.pci.is_some());
    assert!(device(&state.inventory, "fpga-0000-5e-00-0").health.is_healthy());
}

#[tokio::test]
async fn a_board_with_a_changed_shell_has_another_resource() {
    let world = machine("alveo", "");
    let (kubelet, _agent) = (world.start_kubelet(), world.start_agent());
    until_allocatable(&kubelet, U250, 2).await;
    world.inject("set:u250-0:rom.u.31457280/timestamp=1700000000");
    until_allocatable(&kubelet, "amd.com/xilinx_u250_gen3x16_xdma_shell_4_1-1700000000", 1).await;
    until_allocatable(&kubelet, U250, 1).await;
}

#[tokio::test]
async fn the_health_of_a_board_follows_its_reports() {
    let world = machine("alveo", "fpga: {hottest: 95}");
    let agent = world.start_agent();
    agent.until_health("fpga-0000-3b-00-0", "Healthy").await;
    for (fault, id, expected) in [
        (
            "set:u250-0:xmc.u.32505856/xmc_fpga_temp=130",
            "fpga-0000-3b-00-0",
            "Unhealthy: out of bounds, its FPGA 130 °C, limit 95 °C",
        ),
        (
            "set:u250-0-mgmt:firewall.m.1/detected_level=2",
            "fpga-0000-3b-00-0",
            "Unhealthy: needs a reset, its firewall tripped at level 2",
        ),
        (
            "set:u250-1:xmc.u.34603008/xmc_power_warn=1",
            "fpga-0000-5e-00-0",
            "Unhealthy: out of bounds",
        ),
        (
            "set:u50-0:logic_uuids=ffffffffffffffffffffffffffffffff",
            "fpga-0000-86-00-0",
            "Unhealthy: not ready, the identifier of its logic is all ones",
        ),
    ] {
        world.inject(fault);
        agent.until_health(id, expected).await;
    }
    world.inject("set:u250-0:xmc.u.32505856/xmc_fpga_temp=94");
    world.inject("set:u250-0-mgmt:firewall.m.1/detected_level=0");
    agent.until_health("fpga-0000-3b-00-0", "Healthy").await;
    // Without a configured limit, the limit of the board applies, if it reports one.
    agent.set_policy(policy(""));
    world.inject("set:u250-0:xmc.u.32505856/xmc_fpga_temp=130");
    world.inject("set:u250-0:xmc.u.32505856/scaling_critical_temp_threshold=97");
    agent.until_health("fpga-0000-3b-00-0", "Unhealthy: out of bounds, its FPGA 130").await;
    world.inject("set:u250-0:xmc.u.32505856/scaling_critical_temp_threshold=N/A");
    agent.until_health("fpga-0000-3b-00-0", "Healthy").await;
}

/// The FPGAs of a card, by bus and number of their render node.
fn u30(boards: &[(&str, u32)]) -> String {
    boards
        .iter()
        .map(|(bus, minor)| {
            format!(
                r#"
- name: u30-{bus}
  pci: {{path: "pci0000:3a/0000:3a:00.0/0000:{bus}:00.1", id: "10ee:513d", class: 0x120000, numa: 0}}
  driver: xocl
  files:
    user_pf: "1"
    logic_uuids: c7e9f8d0b1a24e5f9a3b6c7d8e9fa0b1
    rom.u.1/VBNV: xilinx_u30_gen3x4_base_1
    rom.u.1/timestamp: "1700000000"
    xmc.u.1/serial_num: 70010000
  children:
  - {{folder: drm/renderD{minor}, class: drm, number: "226:{minor}", node: dri/renderD{minor}}}"#
            )
        })
        .collect::<Vec<_>>()
        .concat()
}

/// File with the serial number of one FPGA's card.
const U30_SERIAL: &str = "/sys/bus/pci/devices/0000:3c:00.1/xmc.u.1/serial_num";

#[tokio::test]
async fn a_card_is_not_allocated_while_an_unanswering_board_may_be_its_part() {
    let world = node(&u30(&[("3b", 128), ("3c", 129)]), "fpga: {unit: card}");
    world.block_reads(U30_SERIAL);
    let agent = world.start_agent();
    let card = "fpga-card-70010000";
    let may_be_part = "Unhealthy: not ready, a board that does not answer may be a part of it";
    agent.until_health(card, may_be_part).await;
    world.unblock_reads(U30_SERIAL, "70010000\n");
    let state = agent.until_health(card, "Healthy").await;
    assert_eq!(device(&state.inventory, card).nodes.len(), 2);
    world.block_reads(U30_SERIAL);
    agent.until_health(card, "Unhealthy: not ready, it does not answer").await;
}

#[tokio::test]
async fn a_complete_card_stays_healthy_while_another_board_does_not_answer() {
    let boards = u30(&[("3b", 128), ("3c", 129), ("4b", 130)]);
    let world = node(&boards, "fpga: {unit: card}");
    let folder = "/sys/bus/pci/devices/0000:4b:00.1";
    // Without this file it is not found as a board.
    world.inject("unset:u30-4b:user_pf");
    let agent = world.start_agent();
    let card = "fpga-card-70010000";
    agent.until_health(card, "Healthy").await;
    world.block_reads(&format!("{folder}/xmc.u.1/serial_num"));
    world.write(&format!("{folder}/user_pf"), "1\n");
    let state = agent.until_health("fpga-0000-4b-00-0", "Unhealthy").await;
    assert!(device(&state.inventory, card).health.is_healthy());
}

#[tokio::test]
async fn boards_of_one_card_are_one_device_if_configured() {
    let world = node(&u30(&[("3b", 128), ("3c", 129)]), "fpga: {unit: card}");
    let state = world.scan_host().await;
    insta::assert_snapshot!("u30_card", golden::devices(&state, "fpga"));
    let agent = world.start_agent();
    let card = "fpga-card-70010000";
    agent.until_health(card, "Healthy").await;
    world.inject("set:u30-3c:ready=0x0");
    let state = agent.until_health(card, "Unhealthy: not ready").await;
    assert_eq!(device(&state.inventory, card).nodes.len(), 2);
    world.inject("set:u30-3c:ready=0x1");
    // A satellite controller reports no serial number during its reset.
    world.inject("unset:u30-3b:xmc.u.1");
    agent.until_health(card, "Healthy").await;
    assert_eq!(agent.state.borrow().inventory.devices.len(), 1, "it is still a part of the card");
    world.inject("unplug:u30-3b");
    let state = agent.until_health(card, "Unhealthy: not ready, an FPGA of the card").await;
    let nodes = &device(&state.inventory, card).nodes;
    assert_eq!(nodes.len(), 2, "the card does not shrink: {nodes:?}");
    world.inject("plug:u30-3b");
    agent.until_health(card, "Healthy").await;
}

#[tokio::test]
async fn regions_are_offered_by_function_or_by_interface() {
    for (name, mode) in
        [("dfl_af", "af"), ("dfl_region", "region"), ("dfl_regiondevel", "regiondevel")]
    {
        let state = machine("dfl", &format!("fpga: {{mode: {mode}}}")).scan_host().await;
        insta::assert_snapshot!(name, golden::devices(&state, "fpga"));
    }
}

#[tokio::test]
async fn a_changed_mode_applies_without_a_restart_and_never_offers_a_region_twice() {
    let world = machine("dfl", "");
    let (kubelet, agent) = (world.start_kubelet(), world.start_agent());
    let function = "fpga.intel.com/af-695.d84.aVKNtusxV3qMNmj5-qCB9thCTcSko8QT-J5DNoP5BAs";
    until_allocatable(&kubelet, function, 1).await;
    agent.set_policy(policy("fpga: {mode: region}"));
    let region = "fpga.intel.com/region-69528db6eb31577a8c3668f9faa081f6";
    until_allocatable(&kubelet, region, 2).await;
    until_allocatable(&kubelet, function, 0).await;
}

#[tokio::test]
async fn a_function_that_a_container_holds_is_not_offered_as_a_region_after_a_restart() {
    let mut world = machine("dfl", "");
    let (kubelet, agent) = (world.start_kubelet(), world.start_agent());
    let function = "fpga.intel.com/af-695.d84.aVKNtusxV3qMNmj5-qCB9thCTcSko8QT-J5DNoP5BAs";
    until_allocatable(&kubelet, function, 1).await;
    kubelet.admit(pod("holder", function, 1)).await.expect("admitted");
    agent.stop().await;
    world.config.policy = policy("fpga: {mode: region}");
    let agent = world.start_agent();
    let region = "fpga.intel.com/region-69528db6eb31577a8c3668f9faa081f6";
    until_allocatable(&kubelet, region, 1).await;
    let expected = format!("a container holds it as {function}");
    let obstacles = agent.state.borrow().device_offers();
    let obstacles: Vec<_> = obstacles.values().filter_map(|it| it.obstacle.clone()).collect();
    assert_eq!(obstacles, [expected]);
    end(&kubelet, "holder").await;
    until_allocatable(&kubelet, region, 2).await;
}

/// A physical function under Intel's older driver, with the engine of its region.
const ENGINE: &str = r#"
- name: pf
  pci: {path: "pci0000:17/0000:17:00.0/0000:18:00.0", id: "8086:09c4", class: 0x120000, numa: 0}
  driver: intel-fpga-pci
  children:
  - {folder: fpga/intel-fpga-dev.0, class: fpga}
  - folder: fpga/intel-fpga-dev.0/intel-fpga-fme.0
    number: "243:0"
    node: intel-fpga-fme.0
    files: {bitstream_id: "0x1", pr/interface_id: ce48969398f05f33946d560708be108a}"#;

#[tokio::test]
async fn the_older_driver_and_a_port_without_its_engine_are_supported() {
    let others = r#"
  - folder: fpga/intel-fpga-dev.0/intel-fpga-port.0
    number: "244:0"
    node: intel-fpga-port.0
    files: {id: "0", afu_id: d8424dc4a4a3c413f89e433683f9040b}
- name: vf
  pci: {path: "pci0000:17/0000:17:01.0/0000:19:00.1", id: "8086:09c5", class: 0x120000, numa: 0}
  driver: intel-fpga-pci
  children:
  - {folder: fpga/intel-fpga-dev.1, class: fpga}
  - folder: fpga/intel-fpga-dev.1/intel-fpga-port.1
    number: "244:1"
    node: intel-fpga-port.1
    files: {afu_id: d8424dc4a4a3c413f89e433683f9040b}
"#;
    let world = node(&[ENGINE, others].concat(), "");
    insta::assert_snapshot!("opae", golden::devices(&world.scan_host().await, "fpga"));
}

#[tokio::test]
async fn a_virtual_functions_device_has_no_node_of_the_physical_functions_engine() {
    let function = r#"
- name: vf
  pci: {path: "pci0000:17/0000:17:00.0/0000:18:00.1", id: "8086:09c5", class: 0x120000, numa: 0}
  driver: intel-fpga-pci
  links: {physfn: "sys/devices/pci0000:17/0000:17:00.0/0000:18:00.0"}
  children:
  - {folder: fpga/intel-fpga-dev.1, class: fpga}
  - folder: fpga/intel-fpga-dev.1/intel-fpga-port.1
    number: "244:1"
    node: intel-fpga-port.1
    files: {id: "0", afu_id: d8424dc4a4a3c413f89e433683f9040b}
"#;
    let world = node(&[ENGINE, function].concat(), "fpga: {mode: regiondevel}");
    let state = world.scan_host().await;
    let region = device(&state.inventory, "fpga-0000-18-00-1-region-0");
    assert!(region.health.is_healthy(), "the engine has its interface: {region:?}");
    let nodes: Vec<_> = region.nodes.iter().map(|node| node.path.clone()).collect();
    assert_eq!(nodes, [std::path::Path::new("/dev/intel-fpga-port.1")]);
}

#[tokio::test]
async fn a_port_keeps_its_name_when_another_is_released() {
    let port = |number: u32| {
        format!(
            r#"
  - folder: fpga_region/region0/dfl-port.{number}
    number: "244:{number}"
    node: dfl-port.{number}
    files: {{id: "{number}", afu_id: d8424dc4a4a3c413f89e433683f9040b}}"#
        )
    };
    let board = |ports: &str| {
        format!(
            r#"- name: pac
  pci: {{path: "pci0000:17/0000:17:00.0/0000:18:00.0", id: "8086:0b30", class: 0x120000, numa: 0}}
  driver: dfl-pci
  children:
  - {{folder: fpga_region/region0, class: fpga_region}}
  - folder: fpga_region/region0/dfl-fme.0/dfl-fme-region.0/fpga_region/region1
    class: fpga_region
    files: {{compat_id: 69528db6eb31577a8c3668f9faa081f6}}{ports}"#
        )
    };
    let world = node(&board(&[port(0), port(1)].concat()), "");
    let agent = world.start_agent();
    agent.until_health("fpga-0000-18-00-0-port-0-0", "Healthy").await;
    let after = serde_saphyr::from_str(&board(&port(1))).expect("devices");
    world.machine.update(|model| model.devices = after).expect("released");
    let state = agent.until_health("fpga-0000-18-00-0-port-0-0", "Unhealthy: vanished").await;
    let other = device(&state.inventory, "fpga-0000-18-00-0-port-0-1");
    assert!(other.health.is_healthy(), "{other:?}");
    assert!(other.nodes[0].path.ends_with("dfl-port.1"), "{:?}", other.nodes);
}

/// A chip without XRT's driver, whose logic is listed next to its region.
const CHIP: &str = r#"
- name: pcap
  folder: "platform/firmware:pcap"
  bus: platform
  driver: zynqmp_fpga_manager
  children:
  - folder: fpga_manager/fpga0
    class: fpga_manager
    files: {name: Xilinx ZynqMP FPGA Manager, state: operating}
- name: fpga-full
  folder: platform/fpga-full
  bus: platform
  driver: of-fpga-region
  children: [{folder: fpga_region/region0, class: fpga_region}]
- name: logic
  folder: platform/axi/a0000000.dma
  bus: platform
  driver: uio_pdrv_genirq
  children: [{folder: uio/uio4, class: uio, number: "243:4", node: uio4}]
"#;

#[tokio::test]
async fn logic_next_to_its_region_is_offered_with_the_configured_nodes() {
    let world = node(CHIP, "");
    let (kubelet, agent) = (world.start_kubelet(), world.start_agent());
    let no_node = "Unhealthy: not ready, it is programmed, but no driver made a node";
    agent.until_health("fpga-fpga0", no_node).await;
    agent.set_policy(policy("fpga: {nodes: /dev/uio*}"));
    let state = agent.until_health("fpga-fpga0", "Healthy").await;
    let node = &device(&state.inventory, "fpga-fpga0").nodes[0];
    assert!(node.path.ends_with("uio4") && node.proof.is_some(), "{node:?}");
    until_allocatable(&kubelet, "windlass.dev/fpga-xilinx-zynqmp", 1).await;
    world.inject("set:pcap:fpga_manager/fpga0/state=unknown");
    agent.until_health("fpga-fpga0", "Unhealthy: not ready, its manager does not know").await;
}

#[tokio::test]
async fn logic_on_a_chip_is_offered_while_its_manager_operates() {
    let world = machine("kria", "");
    insta::assert_snapshot!("kria", golden::devices(&world.scan_host().await, "fpga"));
    let (kubelet, agent) = (world.start_kubelet(), world.start_agent());
    let name = "windlass.dev/fpga-xilinx-zynqmp";
    until_allocatable(&kubelet, name, 1).await;
    world.inject("set:pcap:fpga_manager/fpga0/state=write error");
    let state = agent.until_health("fpga-fpga0", "Unhealthy: not ready").await;
    let manager = device(&state.inventory, "fpga-fpga0");
    let manager_name = attribute(manager, "windlass.dev/fpgaManager");
    assert_eq!(manager_name.as_deref(), Some("Xilinx ZynqMP FPGA Manager"));
}

#[tokio::test]
async fn a_board_in_regions_that_does_not_answer_keeps_its_identity_and_affects_no_other() {
    let world = machine("dfl", "");
    let (hanging_id, other_id) = ("fpga-0000-1a-00-0-port-0-0", "fpga-0000-b1-00-0-port-0-0");
    let file = "/sys/class/fpga_region/region0/dfl-port.0/afu_id";
    let agent = world.start_agent();
    let state = agent.until_health(hanging_id, "Healthy").await;
    let before = device(&state.inventory, hanging_id).clone();
    world.block_reads(file);
    let state = agent.until_health(hanging_id, "Unhealthy: not ready, it does not answer").await;
    let now = device(&state.inventory, hanging_id);
    assert_eq!((&now.nodes, &now.attributes), (&before.nodes, &before.attributes));
    let afu = "/sys/class/fpga_region/region2/dfl-port.1/afu_id";
    world.write(afu, "d8424dc4a4a3c413f89e433683f9040b\n");
    agent.until_health(other_id, "Healthy").await;
    world.unblock_reads(file, "d8424dc4a4a3c413f89e433683f9040b\n");
    agent.until_health(hanging_id, "Healthy").await;
}

#[tokio::test]
async fn a_manager_that_does_not_answer_is_not_ready_and_affects_no_board() {
    let world = node(CHIP, "fpga: {nodes: /dev/uio*}");
    let (kubelet, agent) = (world.start_kubelet(), world.start_agent());
    let name = "windlass.dev/fpga-xilinx-zynqmp";
    until_allocatable(&kubelet, name, 1).await;
    let file = "/sys/class/fpga_manager/fpga0/state";
    world.block_reads(file);
    let state = agent.until_health("fpga-fpga0", "Unhealthy: not ready, it does not answer").await;
    assert!(source(&state, "fpga").starts_with("ready: "), "{}", source(&state, "fpga"));
    assert_eq!(
        until_allocatable(&kubelet, name, 0).await.counts(name),
        Some((1, 0)),
        "it is still listed"
    );
    world.unblock_reads(file, "operating\n");
    until_allocatable(&kubelet, name, 1).await;
}

#[tokio::test]
async fn too_many_entries_are_reported_and_affect_no_board() {
    let world = machine("alveo", "");
    let lists = ["/sys/class/fpga_region", "/sys/class/fpga_manager"];
    for list in lists {
        world.create_many_links(list, "region", 20_000);
    }
    let state = world.scan_host().await;
    let source_state = source(&state, "fpga");
    for list in lists {
        let warning = format!("{list} has more than 1000 entries: the others are left out");
        assert!(
            source_state.starts_with("ready: ") && source_state.contains(&warning),
            "{source_state}"
        );
    }
    assert!(device(&state.inventory, "fpga-0000-3b-00-0").health.is_healthy());
}
