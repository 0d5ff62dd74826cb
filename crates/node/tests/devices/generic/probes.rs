//! Probes as an operator sees them: a device is offered after its first answer, and withheld while it does not answer.

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    sync::watch,
    task::JoinSet,
};

use super::ACCELERATOR;
use windlass_testkit::until_allocatable;

use crate::devices::world::{attribute, device, node};

/// A board's server, which answers correctly or not at all.
async fn board(is_healthy: watch::Receiver<bool>) -> (String, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr().expect("an address").to_string();
    let mut server = JoinSet::new();
    server.spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.expect("a client");
            let mut request = [0; 512];
            let _ = stream.read(&mut request).await;
            let status = if *is_healthy.borrow() { "200 OK" } else { "500 Down" };
            let _ = stream.write_all(format!("HTTP/1.1 {status}\r\n\r\n").as_bytes()).await;
        }
    });
    (address, server)
}

#[tokio::test]
async fn a_board_on_the_network_is_offered_while_it_answers() {
    let is_healthy = watch::Sender::new(false);
    let (address, _server) = board(is_healthy.subscribe()).await;
    let config = format!(
        r#"
sources:
- name: board
  resource: a.com/board
  find: {{endpoints: ["{address}"]}}
  give: {{env: {{BOARD: "{{endpoint}}"}}}}
  probe: {{http: "http://{{endpoint}}/last_running_time", every: 20ms, timeout: 1s}}
"#
    );
    let world = node("", &config);
    let (kubelet, agent) = (world.start_kubelet(), world.start_agent());
    let id = format!("board-{}", address.replace(':', "-"));
    agent.until_health(&id, "Unhealthy: probe failed").await;
    is_healthy.send_replace(true);
    until_allocatable(&kubelet, "a.com/board", 1).await;
    is_healthy.send_replace(false);
    until_allocatable(&kubelet, "a.com/board", 0).await;
}

#[tokio::test]
async fn a_device_is_ready_by_the_content_of_its_file() {
    let config = r#"
sources:
- name: apex
  resource: a.com/apex
  find: {bus: pci}
  match: 'device.attributes["windlass.dev"].pciVendor == "1ac1"'
  probe: {attribute: apex/apex_0/temp, equals: ["41000", "42000"], every: 20ms}
"#;
    let world = node(ACCELERATOR, config);
    let (kubelet, agent) = (world.start_kubelet(), world.start_agent());
    until_allocatable(&kubelet, "a.com/apex", 1).await;
    let folder = "/sys/devices/pci0000:15/0000:15:01.0/0000:1b:00.0";
    world.write(&format!("{folder}/apex/apex_0/temp"), "99000\n");
    let expected = format!(
        "Unhealthy: probe failed, {folder}/apex/apex_0/temp has \"99000\", not \"41000 or 42000\""
    );
    agent.until_health("apex-0000-1b-00-0", &expected).await;
    world.write(&format!("{folder}/apex/apex_0/temp"), "42000\n");
    until_allocatable(&kubelet, "a.com/apex", 1).await;
}

#[tokio::test]
async fn a_command_that_hangs_is_reported_and_delays_no_other_device() {
    let config = r#"
sources:
- {name: hangs, find: {endpoints: [a]}, give: {env: {A: b}}, probe: {command: [/bin/sleep, "3600"], timeout: 100ms}}
- {name: works, resource: a.com/works, find: {endpoints: [b]}, give: {env: {A: b}}, probe: {command: [/bin/true]}}
"#;
    let world = node("", config);
    let (kubelet, agent) = (world.start_kubelet(), world.start_agent());
    until_allocatable(&kubelet, "a.com/works", 1).await;
    agent
        .until_health("hangs-a", "Unhealthy: unresponsive, /bin/sleep did not end within 100ms")
        .await;
}

#[tokio::test]
async fn a_device_whose_file_hangs_keeps_its_identity_and_affects_no_other() {
    let board = |number: u32| {
        format!(
            "- {{name: board{number}, folder: platform/board{number}, bus: platform, driver: board, \
             files: {{firmware: v4}}, children: [{{folder: misc/board{number}, class: misc, \
             number: \"10:{number}\", node: board{number}}}]}}\n"
        )
    };
    let config = r#"
sources:
- name: board
  resource: example.com/board
  find: {bus: platform}
  attributes: {firmware: firmware}
  match: device.attributes["windlass.dev"].firmware == "v4"
"#;
    let world = node(&[board(0), board(1)].concat(), config);
    let file = "/sys/devices/platform/board0/firmware";
    let (kubelet, agent) = (world.start_kubelet(), world.start_agent());
    until_allocatable(&kubelet, "example.com/board", 2).await;
    world.block_reads(file);
    let no_answer = "Unhealthy: not ready, it does not answer";
    let state = agent.until_health("board-board0", no_answer).await;
    let firmware = attribute(device(&state.inventory, "board-board0"), "windlass.dev/firmware");
    assert_eq!(firmware.as_deref(), Some("v4"));
    until_allocatable(&kubelet, "example.com/board", 1).await;
    world.unblock_reads(file, "v4\n");
    until_allocatable(&kubelet, "example.com/board", 2).await;
}
