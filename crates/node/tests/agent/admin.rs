//! Health, readiness and metrics over real HTTP, of an agent that serves a simulated machine.

use std::{
    io::{ErrorKind, Write as _},
    net::SocketAddr,
    process::Stdio,
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};
use windlass_config::{Disclosed, Selector};
use windlass_core::{device::DeviceKind, health::HealthState};
use windlass_node::{ListenError, StartError};
use windlass_testkit::{GPU, Node, RunningAgent, until};

use crate::agent::world::{gpu_id, gpu_node, pod};

/// HTTP response.
pub(crate) struct HttpResponse {
    status: u16,
    head: String,
    pub(crate) body: String,
}

impl HttpResponse {
    pub(crate) fn status(&self) -> u16 {
        self.status
    }

    /// Status line and headers, in lower case.
    pub(crate) fn head(&self) -> &str {
        &self.head
    }
}

/// Time limit of an answer that waits for nothing.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);

fn world(profile: &str) -> Node {
    let mut world = gpu_node(profile);
    world.config.listen = Some("127.0.0.1:0".parse().expect("an address"));
    world
}

/// A node whose samples outlast a test on a busy machine.
pub(crate) fn node_with_slow_probes(profile: &str) -> Node {
    let mut world = world(profile);
    world.config.policy.health.probe_interval = Duration::from_secs(20);
    world
}

async fn send(address: SocketAddr, request: &str) -> HttpResponse {
    let exchange = async {
        let mut stream = TcpStream::connect(address).await.expect("connected");
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut text = String::new();
        stream.read_to_string(&mut text).await.expect("answered");
        text
    };
    let text = timeout(RESPONSE_TIMEOUT, exchange).await.expect("answered at once");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).expect("a status line").parse().expect("a number");
    HttpResponse { status, head: head.to_lowercase(), body: body.to_owned() }
}

pub(crate) async fn get(agent: &RunningAgent, path: &str) -> HttpResponse {
    get_as(agent, path, "*/*").await
}

/// Requests a page with this `Accept` header.
async fn get_as(agent: &RunningAgent, path: &str, accept: &str) -> HttpResponse {
    let address = agent.admin.expect("it listens");
    let request = format!("GET {path} HTTP/1.1\r\nHost: node\r\nAccept: {accept}\r\n\r\n");
    send(address, &request).await
}

/// Requests the page until the answer meets the condition.
pub(crate) async fn get_until(
    agent: &RunningAgent,
    path: &str,
    condition: impl Fn(&HttpResponse) -> bool,
) -> HttpResponse {
    until(path, async || {
        let answer = get(agent, path).await;
        if condition(&answer) { Ok(answer) } else { Err(answer.body) }
    })
    .await
}

/// The lines of one metric.
fn lines<'a>(text: &'a str, metric: &str) -> Vec<&'a str> {
    let name = |line: &&str| line.split(['{', ' ']).next() == Some(metric);
    text.lines().filter(name).collect()
}

#[tokio::test]
async fn readiness_follows_the_kubelet_and_health_does_not() {
    let world = world("dgx-h100");
    let agent = world.start_agent();
    agent.until(|state| state.inventory.is_complete()).await;
    let alone = get_until(&agent, "/readyz", |answer| answer.body.contains("registered")).await;
    assert_eq!(alone.status, 503);
    assert!(alone.body.starts_with("not ok: nvidia.com/gpu is not registered"), "{}", alone.body);
    assert_eq!(get(&agent, "/healthz").await.status, 200);

    let kubelet = world.start_kubelet();
    let served = get_until(&agent, "/readyz", |answer| answer.status == 200).await;
    assert!(served.body.contains("simulated: dgx-h100\n"), "the page names the simulation");
    assert!(served.body.contains("nvidia.com/gpu: 8 of 8 allocatable\n"), "{}", served.body);

    kubelet.restart().await.expect("restarted");
    get_until(&agent, "/readyz", |answer| answer.status == 200).await;
    drop(kubelet);
    get_until(&agent, "/readyz", |answer| answer.status == 503).await;
    assert_eq!(get(&agent, "/healthz").await.status, 200, "a restart would not start the kubelet");
}

#[tokio::test]
async fn a_node_without_a_driver_is_ready_and_names_the_missing_library() {
    let mut world = world("dgx-h100");
    world.config.places.nvml_library = Some("/nowhere/libnvidia-ml.so.1".into());
    let agent = world.start_agent();
    let answer = get_until(&agent, "/readyz", |answer| answer.status == 200).await;
    assert!(answer.body.contains("/nowhere/libnvidia-ml.so.1"), "{}", answer.body);
    let text = get(&agent, "/metrics").await.body;
    let absent = r#"windlass_source_state{source="nvidia",state="absent"} 1"#;
    assert!(text.contains(absent), "{text}");
}

#[tokio::test]
async fn a_withheld_device_has_its_reason_in_one_word() {
    let mut world = world("dgx-h100");
    let excluded = Selector { index: [7].into(), ..Selector::all(DeviceKind::Gpu) };
    world.config.policy.exclude = vec![excluded];
    world.config.policy.health.quiet_period = Duration::from_secs(3600);
    let (kubelet, agent) = world.start_ready(7).await;
    let withheld =
        |answer: &HttpResponse| lines(&answer.body, "windlass_device_withheld").join("\n");
    let at_first = get(&agent, "/metrics").await;
    let [line] = lines(&at_first.body, "windlass_device_withheld")[..] else {
        panic!("{}", withheld(&at_first));
    };
    assert!(line.contains(r#"index="7""#), "{line}");
    assert!(line.ends_with(r#"reason="configuration"} 1"#), "{line}");
    kubelet.admit(pod("trainer", 1)).await.expect("admitted");
    world.inject("xid:79@3");
    let is_shown =
        |answer: &HttpResponse| lines(&answer.body, "windlass_device_withheld").len() == 2;
    let text = withheld(&get_until(&agent, "/metrics", is_shown).await);
    let unhealthy = text.lines().find(|line| line.contains(r#"index="3""#)).expect("a line");
    assert!(
        unhealthy.ends_with(r#"reason="unhealthy"} 1"#),
        "held devices are not withheld: {text}"
    );
}

#[tokio::test]
async fn metrics_of_an_exclusive_device_have_the_pods_name() {
    let mut world = node_with_slow_probes("dgx-h100");
    world.config.disclose = [Disclosed::Pods].into();
    let (kubelet, agent) = world.start_ready(8).await;
    let admission = kubelet.admit(pod("trainer", 2)).await.expect("admitted");
    let ids = admission.allocation("main", GPU).expect("allocated").ids();
    let is_complete =
        |answer: &HttpResponse| lines(&answer.body, "windlass_device_power_watts").len() == 8;
    let text = get_until(&agent, "/metrics", is_complete).await.body;
    let name = r#"namespace="default",pod="trainer",container="main"} "#;
    let mut named = lines(&text, "windlass_device_power_watts");
    named.retain(|line| line.contains(name));
    assert_eq!(named.len(), 2);
    assert!(named.iter().all(|line| ids.iter().any(|id| line.contains(id.as_str()))));
    assert_eq!(lines(&text, "windlass_device_holder").len(), 2);
    let granted = r#"windlass_allocations_total{resource="nvidia.com/gpu",result="granted"} 1"#;
    assert!(text.contains(granted), "{text}");
    assert!(text.contains("windlass_kubelet_pod_resources_up 1\n"));
}

#[tokio::test]
async fn no_page_shows_pods_or_serial_numbers_by_default() {
    let mut world = node_with_slow_probes("dgx-h100");
    let (kubelet, agent) = world.start_ready(8).await;
    kubelet.admit(pod("trainer", 2)).await.expect("admitted");
    let is_held = |answer: &HttpResponse| lines(&answer.body, "windlass_device_holder").len() == 2;
    let metrics = get_until(&agent, "/metrics", is_held).await.body;
    assert!(!metrics.contains("trainer") && !metrics.contains("namespace="), "{metrics}");
    assert!(!get(&agent, "/devices").await.body.contains("nvidia.com/serial"));
    agent.stop().await;
    world.config.disclose = [Disclosed::Serials].into();
    let agent = world.start_agent();
    let is_shown = |answer: &HttpResponse| answer.body.contains("nvidia.com/serial");
    get_until(&agent, "/devices", is_shown).await;
}

#[tokio::test]
async fn without_a_kubelet_a_scrape_has_no_pods_and_reports_the_failure() {
    let world = node_with_slow_probes("dgx-h100");
    let agent = world.start_agent();
    let is_complete =
        |answer: &HttpResponse| lines(&answer.body, "windlass_device_power_watts").len() == 8;
    let text = get_until(&agent, "/metrics", is_complete).await.body;
    assert!(text.contains("windlass_kubelet_pod_resources_up 0\n"));
    let registered = r#"windlass_kubelet_registered{resource="nvidia.com/gpu"} 0"#;
    assert!(text.contains(registered), "{text}");
}

#[tokio::test]
async fn a_scrape_waits_for_no_driver_and_a_hanging_gpu_has_no_measurements() {
    let world = world("dgx-h100");
    let agent = world.start_agent();
    agent.until(|state| state.inventory.is_complete()).await;
    let id = gpu_id(&agent, 3);
    let is_measured =
        |text: &str| lines(text, "windlass_device_temperature_celsius").join("\n").contains(&id);
    get_until(&agent, "/metrics", |answer| is_measured(&answer.body)).await;
    world.inject("hang@3");
    agent
        .until(|state| {
            let gpu = state.inventory.get(&id).expect("listed");
            gpu.health.state == HealthState::Unhealthy
        })
        .await;
    let is_unmeasured = |answer: &HttpResponse| !is_measured(&answer.body);
    let text = get_until(&agent, "/metrics", is_unmeasured).await.body;
    let fault = format!(
        r#"windlass_device_faults_total{{device="{id}",kind="gpu",reason="unresponsive"}} 1"#
    );
    assert!(text.contains(&fault), "{text}");
    let transition = r#"windlass_device_health_transitions_total{kind="gpu",to="unhealthy"} 1"#;
    assert!(text.contains(transition), "{text}");
    let unhealthy =
        |answer: &HttpResponse| lines(&answer.body, "windlass_device_unhealthy").join("\n");
    let is_reported = unhealthy(&get(&agent, "/metrics").await)
        .lines()
        .any(|line| line.contains(&id) && line.ends_with(r#",reason="unresponsive"} 1"#));
    assert!(is_reported, "{text}");
    world.inject("recover@3");
    get_until(&agent, "/metrics", |answer| is_measured(&answer.body)).await;
    agent.until(|state| state.inventory.get(&id).expect("listed").health.is_healthy()).await;
    get_until(&agent, "/metrics", |answer| !unhealthy(answer).contains(&id)).await;
}

#[tokio::test]
async fn an_unhealthy_gpu_names_the_reason_and_the_operators_remedy() {
    let mut world = world("dgx-h100");
    // Longer than the test.
    world.config.policy.health.quiet_period = Duration::from_secs(600);
    let agent = world.start_agent();
    let is_whole = |text: &str| lines(text, "windlass_device_healthy").len() >= 8;
    let page = get_until(&agent, "/metrics", |answer| is_whole(&answer.body)).await.body;
    assert_eq!(lines(&page, "windlass_device_unhealthy"), [""; 0]);
    let id = gpu_id(&agent, 3);
    world.inject("xid:79@3");
    let is_shown =
        |answer: &HttpResponse| !lines(&answer.body, "windlass_device_unhealthy").is_empty();
    let page = get_until(&agent, "/metrics", is_shown).await.body;
    let [line] = lines(&page, "windlass_device_unhealthy")[..] else { panic!("{page}") };
    assert!(line.contains(&id), "{line}");
    assert!(line.ends_with(r#",reason="XID",action="restart the machine"} 1"#), "{line}");
}

#[tokio::test]
async fn a_failed_gpu_has_metrics_by_reason_and_type() {
    let world = world("dgx-h100");
    world.inject("thermal@3");
    world.inject("ecc-count@3");
    world.inject("remap-pending@3");
    let agent = world.start_agent();
    agent.until(|state| state.inventory.is_complete()).await;
    let id = gpu_id(&agent, 3);
    let value = |text: &str, metric: &str, label: &str| {
        let own = lines(text, metric).into_iter();
        let mut own = own.filter(|line| line.contains(&id) && line.contains(label));
        own.next().and_then(|line| line.rsplit(' ').next().map(str::to_owned))
    };
    let is_present =
        |answer: &HttpResponse| value(&answer.body, "windlass_device_throttled", "").is_some();
    let text = get_until(&agent, "/metrics", is_present).await.body;
    for (metric, label, expected) in [
        ("windlass_device_throttled", r#"reason="hw_slowdown""#, "1"),
        ("windlass_device_throttled", r#"reason="hw_thermal""#, "1"),
        ("windlass_device_throttled", r#"reason="power_brake""#, "0"),
        ("windlass_device_ecc_errors_total", r#"type="uncorrected""#, "1"),
        ("windlass_device_ecc_errors_total", r#"type="corrected""#, "0"),
        ("windlass_device_row_remapping", r#"state="pending""#, "1"),
        ("windlass_device_nvlinks", r#"state="up""#, "18"),
        ("windlass_device_nvlinks", r#"state="down""#, "0"),
    ] {
        assert_eq!(value(&text, metric, label).as_deref(), Some(expected), "{metric} {label}");
    }
    world.inject("nvlink:5@3");
    let down = |answer: &HttpResponse| {
        value(&answer.body, "windlass_device_nvlinks", r#"state="down""#).as_deref() == Some("1")
    };
    get_until(&agent, "/metrics", down).await;
}

#[tokio::test]
async fn instances_have_memory_metrics() {
    let world = node_with_slow_probes("mig-a100");
    let agent = world.start_agent();
    let of_instances = |text: &str, metric: &str| {
        lines(text, metric).iter().filter(|line| line.contains(r#"kind="mig""#)).count()
    };
    let is_present =
        |answer: &HttpResponse| of_instances(&answer.body, "windlass_device_memory_bytes") > 0;
    let text = get_until(&agent, "/metrics", is_present).await.body;
    assert_eq!(of_instances(&text, "windlass_device_power_watts"), 0);
    assert_eq!(of_instances(&text, "windlass_device_utilization_ratio"), 0);
}

#[tokio::test]
async fn http_requests_are_answered_as_the_standard_requires() {
    let world = world("t4-edge");
    let agent = world.start_agent();
    let address = agent.admin.expect("it listens");
    let index = get(&agent, "/").await;
    assert_eq!(index.status, 200);
    assert!(index.body.contains("/metrics"));
    assert_eq!(get(&agent, "/metric").await.status, 404);
    let posted = send(address, "POST /metrics HTTP/1.1\r\nHost: n\r\n\r\n").await;
    assert_eq!(posted.status, 405);
    assert!(posted.head.contains("\r\nallow: get, head"), "{}", posted.head);
    let head = send(address, "HEAD /healthz HTTP/1.1\r\nHost: n\r\n\r\n").await;
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    assert_eq!(send(address, "nonsense\r\n\r\n").await.status, 400);
    let endless = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(100_000));
    assert_eq!(send(address, &endless).await.status, 431);
    let with_body = "POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n123456789";
    assert_eq!(send(address, with_body).await.status, 405);
    let devices = get_until(&agent, "/devices", |answer| answer.body.contains("GPU-")).await;
    let inventory: serde_json::Value = serde_json::from_str(&devices.body).expect("JSON");
    assert_eq!(inventory["simulated"], "t4-edge");
    agent.stop().await;
}

#[tokio::test]
async fn an_address_in_use_is_an_error_before_anything_starts() {
    let mut world = world("t4-edge");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
    let address = listener.local_addr().expect("an address");
    world.config.listen = Some(address);
    let Err(error) = world.try_start_agent() else { panic!("it started") };
    assert!(matches!(error, StartError::Listen(ListenError::Address(..))));
    let expected = format!("cannot listen on {address}: choose another with --listen");
    assert_eq!(error.to_string(), expected);
    assert!(!world.config.places.cdi_dir.join("windlass.dev-gpu.json").exists());
}

#[tokio::test]
async fn the_page_of_metrics_is_open_metrics() {
    let world = node_with_slow_probes("dgx-h100");
    let (_kubelet, agent) = world.start_ready(8).await;
    let is_complete = |answer: &HttpResponse| {
        lines(&answer.body, "windlass_device_power_watts").len() == 8
            && answer.body.contains(r#"windlass_kubelet_registered{resource="nvidia.com/gpu"} 1"#)
            && answer.body.contains(r#"windlass_device_port_up{device="nic-0000-18-00-0""#)
    };
    get_until(&agent, "/metrics", is_complete).await;
    let page = get_as(&agent, "/metrics", "application/openmetrics-text; version=1.0.0").await;
    let content_type = "content-type: application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert!(page.head.contains(content_type), "{}", page.head);
    check_format(&page.body);
    insta::assert_snapshot!(normalised(&page.body));
}

#[tokio::test]
async fn a_client_without_open_metrics_gets_a_page_that_promtool_accepts() {
    let mut world = node_with_slow_probes("dgx-h100");
    world.config.disclose = [Disclosed::Pods].into();
    let (kubelet, agent) = world.start_ready(8).await;
    kubelet.admit(pod("trainer", 2)).await.expect("admitted");
    let is_held = |answer: &HttpResponse| lines(&answer.body, "windlass_device_holder").len() == 2;
    let page = get_until(&agent, "/metrics", is_held).await;
    let content_type = "content-type: text/plain; version=0.0.4; charset=utf-8";
    assert!(page.head.contains(content_type), "{}", page.head);
    assert!(page.body.contains("\n# TYPE windlass_build_info gauge\n"), "{}", page.body);
    assert!(page.body.contains("\n# TYPE windlass_allocations_total counter\n"), "{}", page.body);
    assert!(!page.body.contains("# UNIT") && !page.body.contains("# EOF"), "{}", page.body);
    promtool_finds_no_fault(&page.body);
}

/// Runs if Prometheus' own tool is installed.
#[expect(clippy::print_stderr, reason = "a skipped check has to be visible")]
fn promtool_finds_no_fault(page: &str) {
    let mut command = std::process::Command::new("promtool");
    let command = command.args(["check", "metrics"]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut promtool = match command.spawn() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            eprintln!("promtool is not on the PATH: the page is not checked by it");
            return;
        }
        child => child.expect("promtool starts"),
    };
    let mut input = promtool.stdin.take().expect("piped");
    input.write_all(page.as_bytes()).expect("promtool reads");
    drop(input);
    let output = promtool.wait_with_output().expect("promtool ends");
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && complaints.is_empty(), "{complaints}");
}

/// The page of metrics without values that differ between runs, and without lines that repeat for each GPU or call.
/// Lines have no order, except the buckets of a histogram.
fn normalised(text: &str) -> String {
    const VARYING: [&str; 7] = [
        "process_",
        "windlass_config_last_reload_success_timestamp",
        "windlass_device_energy",
        "windlass_device_sampled_timestamp",
        "windlass_inventory_generation",
        "windlass_kubelet_registrations",
        "windlass_rpc_seconds",
    ];
    let repeats = |line: &&str| {
        (line.contains("device=") && !line.contains(r#"index="0""#))
            || (line.contains("method=") && !line.contains(r#"method="Allocate""#))
    };
    let redact = |line: &str| {
        let varies = VARYING.iter().any(|name| line.starts_with(name));
        match line.rsplit_once(' ').filter(|_| varies) {
            Some((name, _)) => format!("{name} [varies]"),
            None => line.to_owned(),
        }
    };
    let lines: Vec<_> = text.lines().filter(|line| !repeats(line)).map(redact).collect();
    let families = lines.chunk_by(|one, next| one.starts_with('#') == next.starts_with('#'));
    let ordered = families.flat_map(|family| {
        let mut family = family.to_vec();
        if !family[0].starts_with('#') && !family[0].contains("_seconds_") {
            family.sort();
        }
        family
    });
    ordered.map(|line| line + "\n").collect()
}

/// Checks rules of `OpenMetrics` 1.0 that a page without a library breaks easily.
fn check_format(text: &str) {
    assert!(text.ends_with("# EOF\n") && text.matches("# EOF").count() == 1);
    let (mut families, mut seen) = (Vec::<(&str, &str)>::new(), std::collections::BTreeSet::new());
    for line in text.lines().filter(|line| *line != "# EOF") {
        let words: Vec<_> = line.splitn(4, ' ').collect();
        match words.as_slice() {
            ["#", "HELP", name, help] => {
                assert!(families.iter().all(|(known, _)| known != name), "{name} is repeated");
                assert!(help.ends_with('.') && !help.ends_with(".."), "{line}");
                families.push((name, ""));
            }
            ["#", "TYPE", name, kind] => {
                let last = families.last_mut().expect("help before the type");
                assert_eq!(last.0, *name);
                last.1 = kind;
            }
            ["#", "UNIT", name, unit] => {
                assert_eq!(families.last().expect("a family").0, *name);
                assert!(name.ends_with(&format!("_{unit}")), "{line}");
            }
            _ => {
                let (name, kind) = families.last().expect("a family before its lines");
                let (series, value) = line.rsplit_once(' ').expect("a value");
                assert!(value.parse::<f64>().is_ok(), "{line}");
                assert!(seen.insert(series), "{series} is repeated");
                let suffix = series.split('{').next().and_then(|own| own.strip_prefix(name));
                let allowed: &[&str] = match *kind {
                    "counter" => &["_total"],
                    "info" => &["_info"],
                    "histogram" => &["_sum", "_count", "_bucket"],
                    _ => &[""],
                };
                assert!(suffix.is_some_and(|suffix| allowed.contains(&suffix)), "{line}");
            }
        }
    }
}
