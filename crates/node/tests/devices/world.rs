//! Nodes with devices other than GPUs, and helpers that read their state.

use std::{path::Path, time::Duration};

use windlass_config::{Config, HealthPolicy, Policy};
use windlass_core::{
    device::Device,
    inventory::{Inventory, SourceState},
};
use windlass_kubelet_sim::{Container, Kubelet, Pod};
use windlass_machine::MachineProfile;
use windlass_resources::NodeState;
use windlass_testkit::{Node, RunningAgent, health_policy, until};

use crate::agent::admin::get;

/// Quiet period of these tests.
pub(crate) const QUIET_PERIOD: Duration = Duration::from_millis(100);

/// Profile of a machine without devices. A test appends its own devices.
const EMPTY: &str = r#"name: any
description: a machine without GPUs
product: Any
driver: {version: 570.133.20, cuda: "12.8"}
numa: [{cpus: "0-7", memory_gib: 16}, {cpus: "8-15", memory_gib: 16}]
cards: {}
gpus: []
"#;

/// A machine with devices, as a profile's `devices:` lists them, and an agent's configuration.
pub(crate) fn node(devices: &str, config: &str) -> Node {
    let indented = devices.lines().fold(String::new(), |text, line| text + "  " + line + "\n");
    let profile = match devices.trim() {
        "" => EMPTY.to_owned(),
        _ => format!("{EMPTY}devices:\n{indented}"),
    };
    node_of(&MachineProfile::parse("test", &profile).expect("a machine"), config)
}

/// A machine with this profile, and an agent's configuration.
pub(crate) fn node_of(profile: &MachineProfile, config: &str) -> Node {
    Node::new(profile, policy(config))
}

/// The policy of a configuration, the default one for empty text, with shorter delays.
pub(crate) fn policy(text: &str) -> Policy {
    let text = if text.is_empty() { "{}" } else { text };
    let config = Config::parse(Path::new("test.yaml"), text);
    let policy = config.unwrap_or_else(|error| panic!("{error}")).policy;
    let HealthPolicy { quiet_period, probe_interval, .. } = health_policy(QUIET_PERIOD);
    // A long deadline: no file of these machines hangs, and a scan takes seconds while other tests use the processors.
    let call_deadline = Duration::from_secs(60);
    let health = HealthPolicy { quiet_period, probe_interval, call_deadline, ..policy.health };
    Policy { health, ..policy }
}

/// Error of a refused configuration.
pub(crate) fn config_error(text: &str) -> String {
    let config = Config::parse(Path::new("test.yaml"), text);
    config.expect_err("it is refused").to_string()
}

/// Ends a pod. Another one without devices keeps running: the agent accepts an empty list of pods only after a long
/// delay.
pub(crate) async fn end(kubelet: &Kubelet, pod: &str) {
    kubelet.admit(Pod::new("idle").container(Container::new("main"))).await.expect("admitted");
    kubelet.delete_pod(&format!("{pod}-uid")).await;
}

/// Lines of a metric, once there are this many.
pub(crate) async fn until_measured(
    agent: &RunningAgent,
    metric: &str,
    count: usize,
) -> Vec<String> {
    until_metric(agent, metric, |lines| lines.len() == count).await
}

/// Lines of a metric, once they meet a condition.
pub(crate) async fn until_metric(
    agent: &RunningAgent,
    metric: &str,
    condition: impl Fn(&[String]) -> bool,
) -> Vec<String> {
    until(metric, async || {
        let page = get(agent, "/metrics").await.body;
        let metric_lines =
            page.lines().filter(|line| line.split(['{', ' ']).next() == Some(metric));
        let lines: Vec<_> = metric_lines.map(str::to_owned).collect();
        if condition(&lines) { Ok(lines) } else { Err(lines) }
    })
    .await
}

/// Starts the agent with a port for its HTTP pages.
pub(crate) fn start_with_http(world: &mut Node) -> RunningAgent {
    world.config.listen = Some("127.0.0.1:0".parse().expect("an address"));
    world.start_agent()
}

/// The device of that id.
pub(crate) fn device<'a>(inventory: &'a Inventory, id: &str) -> &'a Device {
    let ids = || inventory.devices.iter().map(|device| device.id.as_str()).collect::<Vec<_>>();
    inventory.get(id).unwrap_or_else(|| panic!("no {id} among {:?}", ids()))
}

/// An attribute of a device, as text.
pub(crate) fn attribute(device: &Device, name: &str) -> Option<String> {
    let mut attributes = device.attributes.iter();
    attributes
        .find(|(attribute, _)| attribute.to_string() == name)
        .map(|(_, value)| value.to_string())
}

/// State of a source as text.
pub(crate) fn source(state: &NodeState, name: &str) -> String {
    match state.inventory.sources.get(name) {
        None => "unknown".to_owned(),
        Some(SourceState::Starting) => "starting".to_owned(),
        Some(SourceState::Ready(text)) => format!("ready: {text}"),
        Some(SourceState::Absent(text)) => format!("absent: {text}"),
        Some(SourceState::Failing(text)) => format!("failing: {text}"),
    }
}
