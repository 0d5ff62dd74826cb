//! `windlass pipeline`: plans, manifests, and measurements on simulated boards.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::program::{folder, json_lines, run, text};

fn example(name: &str) -> String {
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/examples/pipelines");
    shipped.join(name).display().to_string()
}

fn plan(flags: &[&str]) -> std::process::Output {
    let (pipeline, boards) = (example("doorbell.yaml"), example("boards.yaml"));
    run(&[&["pipeline", "plan", &pipeline, "--boards", &boards], flags].concat())
}

#[test]
fn a_plan_compares_layouts_and_names_helpful_devices() {
    let output = plan(&[]);
    let stdout = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(
        stdout.starts_with("doorbell: the most items per second, on 5 nodes, SIMULATED boards\n"),
        "{stdout}"
    );
    for line in [
        "LAYOUT   ITEMS/S  LATENCY  AT ITEMS/S  BOTTLENECK",
        "No placement is better.",
        "Next best: ",
    ] {
        assert!(stdout.contains(line), "{line} is not in\n{stdout}");
    }
    assert!(stdout.contains("One more nvidia.com/gpu on jetson-1: "), "{stdout}");
    // Prose is wrapped; no line is wider than two panes.
    assert!(stdout.lines().all(|line| line.chars().count() <= 120), "{stdout}");
}

#[test]
fn the_spiking_network_of_the_examples_is_placed_on_its_board() {
    let (pipeline, boards) = (example("gesture.yaml"), example("gesture-boards.yaml"));
    let plan = ["pipeline", "plan", &pipeline, "--boards", &boards, "--layout", "planned"];
    let output = run(&[&plan[..], &["-o", "json"]].concat());
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let stages = report["layouts"][0]["stages"].as_array().expect("stages");
    let spike = stages.iter().find(|stage| stage["stage"] == "spike").expect("a stage");
    let replica = &spike["replicas"][0];
    assert_eq!((&replica["node"], &replica["on"]), (&"darwin-1".into(), &"zj.com/darwin3".into()));
    let render = ["pipeline", "render", &pipeline, "--boards", &boards];
    let manifests = text(&run(&render).stdout);
    // In the manifests, flags follow an option with an optional value.
    let commands = manifests.lines().filter(|line| line.contains("--darwin3")).count();
    assert!(commands > 0 && manifests.contains("zj.com/darwin3"), "{manifests}");
}

#[test]
fn a_plan_as_json_has_places_and_times() {
    let report: Value =
        serde_json::from_slice(&plan(&["--layout", "planned", "-o", "json"]).stdout).expect("JSON");
    let layout = &report["layouts"][0];
    assert_eq!((&layout["layout"], &layout["isBest"]), (&"planned".into(), &true.into()));
    let detect = layout["stages"]
        .as_array()
        .expect("stages")
        .iter()
        .find(|stage| stage["stage"] == "detect");
    let replicas = detect.expect("a stage")["replicas"].as_array().expect("replicas");
    assert!(replicas.iter().any(|replica| replica["on"] == "nvidia.com/gpu"), "{replicas:?}");
    assert!(layout["latencyMs"].as_f64().is_some_and(|ms| ms > 10.0), "{layout}");
}

#[test]
fn a_layout_without_a_placement_is_an_error() {
    let folder = folder();
    let file = folder.path().join("p.yaml");
    let stages = "name: p\nstages:\n- {name: a, output: 1, on: [{resource: coral.ai/tpu, time: 1ms}]}\n\
        - {name: b, on: [{resource: nvidia.com/gpu, time: 1ms}]}\nlinks: [{from: a, to: b}]";
    std::fs::write(&file, stages).expect("a folder of its own");
    let output = run(&[
        "pipeline",
        "plan",
        &file.display().to_string(),
        "--boards",
        &example("boards.yaml"),
    ]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stdout)
            .contains("no node has the devices, CPUs and memory for all stages together")
    );
    assert!(
        text(&output.stderr).contains("no placement for the layout pod"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn mistakes_in_either_file_have_their_lines() {
    let folder = folder();
    let write = |name: &str, content: &str| -> PathBuf {
        let path = folder.path().join(name);
        std::fs::write(&path, content).expect("a folder of its own");
        path
    };
    let pipeline = write("p.yaml", "name: p\nstages:\n- {name: a, on: [{time: fast}]}");
    let boards = write("b.yaml", "nodes:\n- {name: n, board: raspberry}");
    for (pipeline, boards, expected) in [
        (&pipeline, &PathBuf::from(example("boards.yaml")), "p.yaml:3: \"fast\" is not a duration"),
        (&PathBuf::from(example("doorbell.yaml")), &boards, "b.yaml:2: board: there is no profile"),
        (&folder.path().join("none.yaml"), &boards, "cannot read"),
    ] {
        let paths = [pipeline, boards].map(|path| path.display().to_string());
        let output = run(&["pipeline", "plan", &paths[0], "--boards", &paths[1]]);
        assert_eq!(output.status.code(), Some(64), "{}", text(&output.stderr));
        assert!(text(&output.stderr).contains(expected), "{}", text(&output.stderr));
    }
}

#[test]
fn manifests_are_documents_of_known_kinds() {
    let (pipeline, boards) = (example("doorbell.yaml"), example("boards.yaml"));
    let output = run(&["pipeline", "render", &pipeline, "--boards", &boards]);
    let stdout = text(&output.stdout);
    let documents: Vec<Value> = serde_saphyr::from_multiple(&stdout).expect("YAML");
    let kinds = |kind: &str| documents.iter().filter(|document| document["kind"] == kind).count();
    assert_eq!((kinds("Service"), kinds("Deployment") > 2), (5, true), "{stdout}");
    for deployment in documents.iter().filter(|document| document["kind"] == "Deployment") {
        let containers = &deployment["spec"]["template"]["spec"]["containers"];
        for container in containers.as_array().expect("containers") {
            check_arguments(container);
        }
    }
}

/// Checks that the program accepts a container's arguments. It then exits, because process 1 is not its parent.
fn check_arguments(container: &Value) {
    let strings = |key: &str| -> Vec<String> {
        let strings = container[key].as_array().expect("words").iter();
        strings.map(|string| string.as_str().expect("a word").to_owned()).collect()
    };
    let (command, arguments) = (strings("command"), strings("args"));
    assert_eq!(command[0], "windlass");
    let command_line: Vec<_> = command[1..].iter().chain(&arguments).map(String::as_str).collect();
    let output = run(&[&command_line[..], &["--ends-with", "1"]].concat());
    assert_eq!(output.status.code(), Some(1), "{command_line:?}: {}", text(&output.stderr));
}

#[test]
fn real_stages_on_simulated_boards_pass_every_item() {
    let folder = folder();
    let file = folder.path().join("p.yaml");
    // A split, a join, a link between two boards.
    let stages = "name: p\ninput: 1KiB\nrate: 40\nstages:\n- {name: a, output: 2KiB, on: [{resource: coral.ai/tpu, time: 2ms}]}\n\
        - {name: b, output: 1KiB, on: [{resource: nvidia.com/gpu, time: 3ms}]}\n\
        - {name: c, output: 1KiB, on: [{cpus: 1, time: 1ms, variation: 0.2}]}\n\
        - {name: d, on: [{cpus: 1, time: 1ms}]}\n\
        links: [{from: a, to: b}, {from: a, to: c}, {from: b, to: d}, {from: c, to: d}]";
    std::fs::write(&file, stages).expect("a folder of its own");
    let (pipeline, boards) = (file.display().to_string(), example("boards.yaml"));
    let arguments = [
        "pipeline", "measure", &pipeline, "--boards", &boards, "--layout", "planned", "--for", "1s",
    ];
    let trace_file = folder.path().join("items.json");
    let picture = folder.path().join("times.svg");
    let output_flags =
        ["--trace", &trace_file.display().to_string(), "--picture", &picture.display().to_string()];
    let output = run(&[&arguments[..], &output_flags, &["-o", "json"]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let traced_items = check_traces(&trace_file);
    let svg = std::fs::read_to_string(picture).expect("a picture");
    for expected in ["p: mean times of an item, on SIMULATED boards", "planned: ", ">b</text>"] {
        assert!(svg.contains(expected), "{expected} is not in\n{svg}");
    }
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let layout = &report["layouts"][0];
    let account = &layout["account"];
    // The machine decides how many items a second are. The account has those of the untraced run too.
    assert!(account["sent"].as_u64().is_some_and(|sent| sent > traced_items), "{account}");
    assert_eq!(
        (&account["sent"], &account["unheard"]),
        (&account["arrived"], &0.into()),
        "{account}"
    );
    assert!(
        layout["predicted"]["itemsPerSecond"].as_f64().is_some_and(|rate| rate > 0.0),
        "{layout}"
    );
    let stages = layout["stages"].as_array().expect("stages");
    let processing_times =
        stages.iter().map(|stage| stage["worked"]["meanMs"].as_f64().expect("a time"));
    assert!(
        processing_times.zip([2.0, 3.0, 0.9, 1.0]).all(|(ms, min_ms)| ms >= min_ms),
        "{stages:?}"
    );
}

/// Checks that each item has a span for each of four stages, within its root span. Returns the number of items.
fn check_traces(file: &Path) -> u64 {
    let document: Value =
        serde_json::from_slice(&std::fs::read(file).expect("a file")).expect("JSON");
    let resources = document["resourceSpans"].as_array().expect("a list");
    let spans = resources
        .iter()
        .flat_map(|resource| resource["scopeSpans"][0]["spans"].as_array().expect("spans"));
    let nanos = |span: &Value, key: &str| -> u64 {
        span[key].as_str().and_then(|text| text.parse().ok()).expect("nanoseconds")
    };
    let (mut item_count, mut stage_span_count) = (0, 0);
    let roots: std::collections::HashMap<_, _> = spans
        .clone()
        .filter(|span| span.get("parentSpanId").is_none())
        .map(|span| (span["traceId"].as_str().expect("an id"), span))
        .collect();
    for span in spans {
        let root = roots[span["traceId"].as_str().expect("an id")];
        let (start, end) = ("startTimeUnixNano", "endTimeUnixNano");
        assert!(
            nanos(root, start) <= nanos(span, start) && nanos(span, end) <= nanos(root, end),
            "{span}"
        );
        item_count += u64::from(span.get("parentSpanId").is_none());
        stage_span_count += u64::from(span["kind"] == 5);
    }
    assert!(
        item_count > 0 && stage_span_count == 4 * item_count,
        "{item_count} items, {stage_span_count} visits"
    );
    item_count
}

#[test]
fn the_edge_demo_accounts_for_every_item_after_a_board_failure() {
    let output = run(&["demo", "--edge", "-o", "json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let events = json_lines(&output.stdout);
    let events_of_kind =
        |kind: &str| events.iter().filter(|event| event["event"] == kind).collect::<Vec<_>>();
    assert_eq!(
        (
            events_of_kind("layout").len(),
            events_of_kind("boardFailed").len(),
            events_of_kind("placedAnew").len()
        ),
        (3, 1, 1),
        "{events:#?}"
    );
    let account = events_of_kind("account")[0];
    let failed_count = account["failed"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|entry| entry[1].as_u64())
        .sum::<u64>();
    assert_eq!(
        account["sent"].as_u64(),
        account["arrived"].as_u64().map(|arrived| arrived + failed_count),
        "{account}"
    );
    assert_eq!(account["unheard"], 0);
}
