//! Files of pipelines and boards, and their mistakes.

use std::path::Path;

use windlass_pipeline::{Fleet, Pipeline, schema};

const DOORBELL: &str = "
name: doorbell
rate: 10
input: 1KiB
stages:
- name: notify
  on: [{time: 1ms}]
- name: detect
  replicas: 2
  output: 200
  on:
  - {resource: coral.ai/tpu, time: 12ms}
  - {cpus: 2, time: 90ms, variation: 0.2}
- name: camera
  output: 60KiB
  on: [{cpus: 0.5, time: 3ms}]
links:
- {from: camera, to: detect}
- {from: detect, to: notify}
";

fn mistakes(text: &str) -> String {
    let error = Pipeline::parse(Path::new("p.yaml"), text).expect_err("the file is wrong");
    error.to_string()
}

#[test]
fn stages_are_sorted_topologically() {
    let pipeline = Pipeline::parse(Path::new("p.yaml"), DOORBELL).expect("a pipeline");
    let names: Vec<_> = pipeline.stages.iter().map(|stage| stage.name.as_str()).collect();
    assert_eq!(names, ["camera", "detect", "notify"]);
    let links: Vec<_> =
        pipeline.links.iter().map(|link| (link.from, link.to, link.bytes.0)).collect();
    assert_eq!(links, [(0, 1, 61_440), (1, 2, 200)]);
    assert_eq!(pipeline.final_stages().collect::<Vec<_>>(), [2]);
}

/// Invalid files, each with the beginning of its error message.
const WRONG: &[(&str, &str)] = &[
    ("name: a\nstages: []", "p.yaml:1: a pipeline has at least one stage"),
    (
        "name: a\nstages:\n- {name: b, on: []}",
        "p.yaml:3: stage \"b\" has no alternatives: list devices or CPUs under `on`",
    ),
    (
        "name: a\nstages:\n- name: b\n  on: [{time: 0ms}]",
        "p.yaml:4: time: 0us: write the time of one item, more than 0",
    ),
    (
        "name: a\nstages:\n- name: b\n  on: [{time: -5ms}]",
        "p.yaml:4: \"-5ms\" is not a duration: write 200us, 12ms or 1.5s",
    ),
    (
        "name: a\ngoal: latency\nstages:\n- {name: b, on: [{time: 1ms}]}",
        "p.yaml:2: goal: latency depends on the arrival rate: write rate, in items per second",
    ),
    (
        "name: a\nstages:\n- {name: b, on: [{time: 1ms}]}\n- {name: c, on: [{time: 1ms}]}",
        "p.yaml:4: no item reaches stage \"c\": the first stage is \"b\"; add a link to \"c\", or remove the stage",
    ),
    (
        "name: a\nstages:\n- {name: b, output: 1, on: [{time: 1ms}]}\n- {name: c, output: 1, on: [{time: 1ms}]}\n- {name: d, on: [{time: 1ms}]}\n\
             links:\n- {from: b, to: c}\n- {from: c, to: c}\n- {from: c, to: d}",
        "p.yaml:4: stages form a cycle: c: remove a link",
    ),
    (
        "name: a\nstages:\n- {name: detect, on: [{time: 1ms}]}\nlinks:\n- {from: detect, to: detct}",
        "p.yaml:5: there is no stage \"detct\" (is it \"detect\"?)",
    ),
    (
        "name: a\nstages:\n- {name: b, on: [{match: \"true\", time: 1ms}]}",
        "p.yaml:3: match filters the devices of a class: write deviceClass too",
    ),
    (
        "name: a\nstages:\n- {name: b, on: [{resource: r/x, deviceClass: c, time: 1ms}]}",
        "p.yaml:3: resource and deviceClass exclude each other: write one",
    ),
    (
        "name: a\nstages:\n- {name: b, replicas: 0, on: [{time: 1ms}]}\n- {name: b, on: [{time: 1ms}]}",
        "p.yaml:3: replicas: 0: write a number from 1 to 1000\n\
             p.yaml:4: no item reaches stage \"b\": the first stage is \"b\"; add a link to \"b\", or remove the stage\n\
             p.yaml:4: stage \"b\" is defined on line 3 too: use different names",
    ),
    (
        "name: a\nstages:\n- {name: b, on: [{time: 1ms}]}\n- {name: c, on: [{time: 1ms}]}\nlinks:\n- {from: b, to: c}",
        "p.yaml:6: stage \"b\" has an outgoing link: write `output`, the size of its results",
    ),
    (
        "name: 1a\nrate: 1e300\nstages:\n- {name: b, port: 0, output: 18446744073709551615, on: [{resource: x, time: 1ms}]}",
        "p.yaml:4: \"18446744073709551615\" is not a size: write 600, 60KiB or 2MB",
    ),
    (
        "name: 1a\nrate: 1e300\nstages:\n- {name: b, port: 0, output: 20MiB, on: [{resource: x, time: 1ms}]}",
        "p.yaml:1: name: \"1a\": the name of a pipeline has at most 30 lower-case letters, digits and inner dashes, and \
         begins with a letter\np.yaml:2: rate: 1e300: write items per second, more than 0 and at most 1e9",
    ),
    (
        "name: a\nstages:\n- {name: b, on: [{deviceClass: Bad Class, time: 1ms}]}",
        "p.yaml:3: deviceClass: \"Bad Class\": the name of a DeviceClass has lower-case letters, digits, dashes and dots",
    ),
    (
        "name: a\nstages:\n- name: b\n  on: [{time: 1ms}]\n  pod: {containers: [], tolerations: [{key: 1}]}\n  container: {image: x}",
        "p.yaml:5: pod: containers is written by Windlass: remove it\n\
             p.yaml:5: pod: tolerations: invalid type: integer `1`, expected a string\n\
             p.yaml:6: container: image is written by Windlass: use image of the stage",
    ),
];

#[test]
fn every_mistake_is_reported_with_its_line() {
    for (text, expected) in WRONG {
        let message = mistakes(text);
        assert!(message.starts_with(expected), "{text}\n{message}");
    }
    let message = mistakes("name: a\nstage: []");
    assert!(
        message.ends_with("p.yaml:2: unknown field `stage`: did you mean `stages`?"),
        "{message}"
    );
}

#[test]
fn a_wrong_expression_is_refused() {
    let text = "name: a\nstages:\n- {name: b, on: [{deviceClass: gpu, match: device.atributes, time: 1ms}]}";
    assert!(mistakes(text).starts_with("p.yaml:3: match: "), "{}", mistakes(text));
}

#[test]
fn the_schema_accepts_a_file_that_the_parser_accepts() {
    let validator = jsonschema::validator_for(&schema()).expect("a schema");
    let document = serde_json::json!({
        "name": "a", "goal": {"throughputUnder": "200ms"}, "input": 512,
        "stages": [{"name": "b", "on": [{"resource": "coral.ai/tpu", "time": "1ms"}]}],
    });
    assert!(validator.is_valid(&document));
    Pipeline::parse(Path::new("p.yaml"), &document.to_string()).expect("a pipeline");
    assert!(!validator.is_valid(&serde_json::json!({"name": "a"})));
}

#[test]
fn boards_have_the_cpus_devices_and_rate_of_their_profile() {
    let text = "
nodes:
- {name: pi, board: raspberry-pi-5}
- {name: jetson, board: jetson-orin-nano, rate: 100Mbit, delay: 2ms}
- name: own
  cpus: 2
  devices: [{deviceClass: npu, driver: npu.example.com, attributes: {tops: 13}, count: 2}]
";
    let fleet = Fleet::parse(Path::new("b.yaml"), text).expect("boards");
    let summaries: Vec<_> = fleet
        .nodes
        .iter()
        .map(|node| (node.free.cpus, node.devices.len(), node.link.rate.to_string()))
        .collect();
    let expected = [(4.0, 0, "1Gbit"), (6.0, 1, "100Mbit"), (2.0, 2, "1Gbit")];
    assert_eq!(summaries, expected.map(|(cpus, devices, rate)| (cpus, devices, rate.to_owned())));
    assert!(fleet.is_simulated);
    let result = Fleet::parse(Path::new("b.yaml"), "nodes:\n- {name: x, board: raspbery-pi-5}");
    assert_eq!(
        result.expect_err("an unknown board").to_string(),
        "b.yaml:2: board: there is no profile \"raspbery-pi-5\" (is it \"raspberry-pi-5\"?)"
    );
}
