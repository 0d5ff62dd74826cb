//! Boards that are programmed before a container gets them, by a script that writes the driver's files as they are
//! afterwards.

use std::{fs, path::PathBuf};

use windlass_config::{CleanupSteps, Step, StepAction};
use windlass_core::device::Device;
use windlass_testkit::{Node, RunningAgent, TIMEOUT, until_allocatable};

use super::machine;
use crate::devices::{
    gateway::{admit, start},
    world::{attribute, device},
};

const BOARD: &str = "fpga-0000-1a-00-0-port-0-0";
const FUNCTION: &str = "fpga.intel.com/af-695.d84.aVKNtusxV3qMNmj5-qCB9thCTcSko8QT-J5DNoP5BAs";
const REGION: &str = "fpga.intel.com/region-69528db6eb31577a8c3668f9faa081f6";

const BITSTREAM_FILE: &str =
    "/sys/bus/pci/devices/0000:1a:00.0/fpga_region/region0/dfl-port.0/afu_id";

/// Bitstream of the board, and another one.
const REQUESTED: &str = "d8424dc4a4a3c413f89e433683f9040b";
const OTHER: &str = "f7df405cbd7acf7222f144b0b93acd18";

/// A machine with one board that scripts program; in them `$0` is the file that names the board's bitstream.
fn world(config: &str, prepare: &str, release: &str) -> Node {
    with_scripts(machine("dfl", config), BITSTREAM_FILE, prepare, release)
}

/// A machine whose FPGAs are programmed by scripts; in them `$0` is that file.
fn with_scripts(mut world: Node, file: &str, prepare: &str, release: &str) -> Node {
    let file = world.host_path(file).display().to_string();
    let steps = |script: &str| {
        let words = ["/bin/sh", "-c", script, &file, "{pci}", "{attr:fpga.intel.com/interfaceId}"];
        let action = StepAction::Command(words.map(str::to_owned).to_vec());
        if script.is_empty() { Vec::new() } else { vec![Step { action, timeout: TIMEOUT }] }
    };
    let cleanup = CleanupSteps { prepare: steps(prepare), release: steps(release) };
    world.config.policy.families.fpga.cleanup = cleanup;
    world
}

fn bitstream_file(world: &Node) -> PathBuf {
    world.host_path(BITSTREAM_FILE)
}

async fn until_obstacle(agent: &RunningAgent, id: &str, expected: &str) {
    let matches = |obstacle: Option<String>| obstacle.is_some_and(|text| text.contains(expected));
    agent
        .until(|state| {
            let mut offers = state.device_offers().into_iter();
            offers.any(|(device, offer)| device.as_str() == id && matches(offer.obstacle))
        })
        .await;
}

#[tokio::test]
async fn a_board_is_programmed_as_requested_before_a_container_starts() {
    let script = format!("echo \"$WINDLASS_DEVICE_ID $1 $2\" > $0.log; echo {REQUESTED} > $0");
    let world = world("", &script, "");
    let (kubelet, _agent) = (world.start_kubelet(), world.start_agent());
    until_allocatable(&kubelet, FUNCTION, 1).await;
    admit(&kubelet, "a", FUNCTION).await;
    start(&kubelet, "a").await.expect("programmed");
    let log = fs::read_to_string(bitstream_file(&world).with_extension("log")).expect("written");
    assert_eq!(log, format!("{BOARD} 0000:1a:00.0 69528db6eb31577a8c3668f9faa081f6\n"));
}

#[tokio::test]
async fn a_board_with_a_wrong_bitstream_is_withheld_and_restored() {
    let (program, restore) = (format!("echo {OTHER} > $0"), format!("echo {REQUESTED} > $0"));
    let world = world("", &program, &restore);
    let (kubelet, agent) = (world.start_kubelet(), world.start_agent());
    until_allocatable(&kubelet, FUNCTION, 1).await;
    admit(&kubelet, "a", FUNCTION).await;
    let error = start(&kubelet, "a").await.expect_err("another function").to_string();
    assert!(error.contains(&format!("and not {FUNCTION}, after its steps were done")), "{error}");
    let text = fs::read_to_string(bitstream_file(&world)).expect("there");
    assert_eq!(text.trim(), REQUESTED, "the earlier bitstream is restored");
    until_obstacle(&agent, BOARD, "cleanup failed: it is fpga.intel.com/af-695.f7d.").await;
}

#[tokio::test]
async fn a_board_with_a_wrong_bitstream_is_refused_at_the_second_attempt_too() {
    let world = world("", &format!("echo {OTHER} > $0"), "");
    let (kubelet, agent) = (world.start_kubelet(), world.start_agent());
    until_allocatable(&kubelet, FUNCTION, 1).await;
    admit(&kubelet, "a", FUNCTION).await;
    start(&kubelet, "a").await.expect_err("another function");
    let name = "fpga.intel.com/afuId";
    let has_other = |board: &Device| attribute(board, name).as_deref() == Some(OTHER);
    agent.until(|state| has_other(device(&state.inventory, BOARD))).await;
    let error = start(&kubelet, "a").await.expect_err("still another function").to_string();
    assert!(error.contains(&format!("and not {FUNCTION}")), "{error}");
}

#[tokio::test]
async fn a_chip_that_could_not_be_programmed_is_withheld_even_if_the_program_reported_success() {
    let state = "/sys/class/fpga_manager/fpga0/state";
    let (program, restore) = ("echo 'write error' > $0", "echo operating > $0");
    // A script identifies its board by an address that chips lack.
    let mut world = with_scripts(machine("kria", ""), state, program, restore);
    let cleanup = &mut world.config.policy.families.fpga.cleanup;
    for step in cleanup.prepare.iter_mut().chain(&mut cleanup.release) {
        let StepAction::Command(words) = &mut step.action else { unreachable!("a script") };
        words.truncate(4);
    }
    let (kubelet, _agent) = (world.start_kubelet(), world.start_agent());
    let resource = "windlass.dev/fpga-xilinx-zynqmp";
    until_allocatable(&kubelet, resource, 1).await;
    admit(&kubelet, "a", resource).await;
    let error = start(&kubelet, "a").await.expect_err("not programmed").to_string();
    assert!(error.contains("it is not ready") && error.contains("write error"), "{error}");
    let state = fs::read_to_string(world.host_path(state)).expect("there");
    assert_eq!(state.trim(), "operating", "it is released at once");
}

#[tokio::test]
async fn a_region_is_checked_for_the_configured_bitstream() {
    let expect = format!("fpga.intel.com/afuId: {OTHER}");
    let config =
        format!("fpga: {{mode: region, prepare: [{{command: [/x]}}], expect: {{{expect}}}}}");
    for (written, expected) in
        [(OTHER, None), (REQUESTED, Some("its fpga.intel.com/afuId is d842"))]
    {
        let world = world(&config, &format!("echo {written} > $0"), "");
        let (kubelet, _agent) = (world.start_kubelet(), world.start_agent());
        until_allocatable(&kubelet, REGION, 2).await;
        fs::write(bitstream_file(&world), REQUESTED).expect("written");
        admit(&kubelet, "a", REGION).await;
        let outcome = start(&kubelet, "a").await.map(drop).map_err(|error| error.to_string());
        match expected {
            None => assert_eq!(outcome, Ok(())),
            Some(text) => {
                assert!(outcome.clone().is_err_and(|it| it.contains(text)), "{outcome:?}");
            }
        }
    }
}
