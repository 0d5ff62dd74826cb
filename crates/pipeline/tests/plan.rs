//! Compares plans with exhaustive enumeration, and predictions with figures calculated by hand.

use std::{fmt::Write as _, path::Path};

use proptest::{prelude::*, test_runner::Config};
use windlass_pipeline::{
    Fleet, Layout, Pipeline, Placement, Plan,
    pipeline::DeviceRequirement,
    placement::Replica,
    plan::{ObjectiveValue, gains, objective_value},
    prediction::Bottleneck,
};

fn pipeline(text: &str) -> Pipeline {
    Pipeline::parse(Path::new("p.yaml"), text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn fleet(text: &str) -> Fleet {
    Fleet::parse(Path::new("b.yaml"), text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn assert_close(actual: f64, expected: f64) {
    assert!((actual - expected).abs() < 0.02 * expected.abs(), "{actual}, expected {expected}");
}

const CAMERA: &str = "
name: camera
rate: 5
stages:
- {name: grab, output: 125kB, on: [{time: 2ms}]}
- name: detect
  output: 100
  on:
  - {resource: coral.ai/tpu, time: 10ms}
  - {cpus: 2, time: 100ms}
- {name: act, on: [{time: 1ms}]}
links:
- {from: grab, to: detect}
- {from: detect, to: act}
";

#[test]
fn a_slow_link_keeps_the_work_on_the_board_and_a_fast_one_sends_it_to_the_accelerator() {
    let boards = |rate: &str| {
        fleet(&format!(
            "nodes:\n- {{name: pi, cpus: 4, rate: {rate}}}\n- {{name: coral, board: coral-dev-board, cpus: 0.2, rate: {rate}}}"
        ))
    };
    let slow_boards = boards("5Mbit");
    let plan = Plan::of(&pipeline(CAMERA), &slow_boards, Layout::Planned).expect("a plan");
    assert!(plan.is_exact && !plan.placement.uses_network(&pipeline(CAMERA)));
    assert_close(plan.prediction.throughput, 10.0);
    assert_eq!(plan.prediction.bottleneck, Bottleneck::Stage(1));

    let fast_boards = boards("1Gbit");
    let plan = Plan::of(&pipeline(CAMERA), &fast_boards, Layout::Planned).expect("a plan");
    assert!(plan.placement.uses_network(&pipeline(CAMERA)));
    assert_close(plan.prediction.throughput, 100.0);
    let latency =
        plan.prediction.latency.expect("five items per second are below the throughput").total;
    // 2 + 10 + 1 ms of work, 1.05 ms for the frame, four delays of 0.1 ms, four hops.
    assert_close(latency, 0.0151);
}

#[test]
fn the_gain_of_one_more_accelerator_is_its_additional_throughput() {
    let text = CAMERA.replace("- name: detect\n", "- name: detect\n  replicas: 2\n");
    let boards = fleet(
        "nodes:\n- {name: a, board: raspberry-pi-5-coral}\n- {name: b, board: raspberry-pi-5}",
    );
    let pipeline = pipeline(&text);
    let plan = Plan::of(&pipeline, &boards, Layout::Planned).expect("a plan");
    assert_close(plan.prediction.throughput, 110.0);
    let gains = gains(&pipeline, &boards, &plan);
    assert_eq!(gains.len(), 1);
    assert_close(gains[0].objective.amount, 200.0);
}

#[test]
fn an_unplaceable_stage_is_reported_with_a_remedy() {
    let text = "name: a\nstages:\n- {name: b, on: [{resource: x.com/y, time: 1ms}]}";
    let error = Plan::of(&pipeline(text), &fleet("nodes: [{name: n}]"), Layout::Planned)
        .expect_err("no such device");
    assert_eq!(
        error.to_string(),
        "stage \"b\" fits nowhere: 1 nodes admit it, but none has x.com/y; add an alternative under `on`, or such a device"
    );
    let two_stages = "name: a\nstages:\n- {name: b, output: 1, on: [{cpus: 1, time: 1ms}]}\n- {name: c, on: [{cpus: 1, time: 1ms}]}\n\
        links: [{from: b, to: c}]";
    let error =
        Plan::of(&pipeline(two_stages), &fleet("nodes: [{name: n, cpus: 1}]"), Layout::Planned)
            .expect_err("full");
    assert!(error.to_string().contains("earlier stages need all"), "{error}");
}

/// A random file of a pipeline with at most four stages.
fn any_pipeline() -> impl Strategy<Value = String> {
    let stage = (1_u32..40, 1_u32..80, 1_u32..=2, 0_usize..4, 0.0..1.5_f64, any_demand());
    let links = proptest::collection::vec((0_usize..4, 0_u64..200_000), 4);
    let goal = prop_oneof![
        Just("throughput".to_owned()),
        Just("latency".to_owned()),
        (5_u32..300).prop_map(|limit| format!("{{throughputUnder: {limit}ms}}"))
    ];
    (proptest::collection::vec(stage, 1..=4), links, goal, 1_u32..30).prop_map(
        |(stages, links, goal, rate)| {
            let mut text = format!("name: p\ngoal: {goal}\nrate: {rate}\nstages:\n");
            for (position, (device, cpu, replicas, kind, variation, (memory, pod))) in
                stages.iter().enumerate()
            {
                let alternatives = match kind {
                    0 => format!("{{resource: a/x, time: {device}ms, variation: {variation}, memory: {memory}MiB}}"),
                    1 => format!("{{resource: a/y, time: {device}ms}}, {{cpus: 1, time: {cpu}ms}}"),
                    _ => format!("{{cpus: 1, time: {cpu}ms, variation: {variation}, memory: {memory}MiB}}"),
                };
                let output = links[position].1;
                writeln!(
                    text,
                    "- {{name: s{position}, replicas: {replicas}, output: {output}, on: [{alternatives}], pod: {{{pod}}}}}"
                )
                .expect("a string");
            }
            text.push_str("links:\n");
            for (to, (from, _)) in links.iter().enumerate().take(stages.len()).skip(1) {
                writeln!(text, "- {{from: s{}, to: s{to}}}", from % to).expect("a string");
            }
            // YAML parses a key without a value as null, not as a list.
            if stages.len() == 1 { text.replace("links:\n", "links: []\n") } else { text }
        },
    )
}

/// Memory of a replica in MiB, and fields of its pod. Nodes have 1000 MiB.
fn any_demand() -> impl Strategy<Value = (u32, &'static str)> {
    let pod = prop_oneof![
        4 => Just(""),
        1 => Just("nodeSelector: {zone: a}"),
        2 => Just("tolerations: [{key: edge, operator: Exists}]"),
    ];
    (prop_oneof![2 => Just(0), 1 => 1_u32..1500], pod)
}

fn any_fleet() -> impl Strategy<Value = String> {
    let zone = prop_oneof![2 => Just("a"), 1 => Just("b")];
    let rate = prop_oneof![Just(10), Just(100), Just(1000)];
    let taint = prop_oneof![4 => Just(""), 1 => Just("{key: edge, effect: NoSchedule}")];
    let node = (1_u32..=3, 0_u32..=1, 0_u32..=2, rate, zone, taint);
    proptest::collection::vec(node, 1..=3).prop_map(|nodes| {
        let mut text = "nodes:\n".to_owned();
        for (position, (cpus, x, y, rate, zone, taint)) in nodes.iter().enumerate() {
            writeln!(
                text,
                "- {{name: n{position}, cpus: {cpus}, memory: 1000MiB, labels: {{zone: {zone}}}, taints: [{taint}], \
                 rate: {rate}Mbit, devices: [{{resource: a/x, count: {x}}}, {{resource: a/y, count: {y}}}]}}"
            )
            .expect("a string");
        }
        text
    })
}

/// Objective value of the best placement by exhaustive enumeration. `None` if no placement is feasible.
fn by_brute_force(pipeline: &Pipeline, fleet: &Fleet) -> Option<ObjectiveValue> {
    let mut values = Vec::new();
    let mut placement = Placement::empty(pipeline.stages.len());
    enumerate(pipeline, fleet, 0, &mut placement, &mut values);
    values.into_iter().reduce(|a, b| if b.is_above(a) { b } else { a })
}

/// Adds to `values` the objective value of every completion of `placement` from this stage on.
fn enumerate(
    pipeline: &Pipeline,
    fleet: &Fleet,
    stage: usize,
    placement: &mut Placement,
    values: &mut Vec<ObjectiveValue>,
) {
    if stage == pipeline.stages.len() {
        values.push(objective_value(pipeline, fleet, placement));
        return;
    }
    if !placement.replicas[stage].is_empty() {
        enumerate(pipeline, fleet, stage + 1, placement, values);
    }
    if placement.replicas[stage].len() == pipeline.stages[stage].max_replicas as usize {
        return;
    }
    for replica in places(pipeline, fleet, stage) {
        if placement.replicas[stage].last().is_some_and(|previous| replica < *previous) {
            continue;
        }
        placement.replicas[stage].push(replica);
        if placement.conflicts(pipeline, fleet).is_empty() {
            enumerate(pipeline, fleet, stage, placement, values);
        }
        placement.replicas[stage].pop();
    }
}

fn places(pipeline: &Pipeline, fleet: &Fleet, stage: usize) -> Vec<Replica> {
    let mut places = Vec::new();
    for (node, fleet_node) in fleet.nodes.iter().enumerate() {
        for (alternative, option) in pipeline.stages[stage].alternatives.iter().enumerate() {
            if option.device == DeviceRequirement::CpuOnly {
                places.push(Replica { node, alternative, device: None });
            }
            let devices = (0..fleet_node.devices.len()).filter(|position| {
                fleet_node.devices[*position].serves(&option.device).expect("no expression")
            });
            places.extend(devices.map(|device| Replica {
                node,
                alternative,
                device: Some(device),
            }));
        }
    }
    places
}

/// Number of cases from `WINDLASS_PLANS`; default: 400.
fn cases() -> Config {
    let cases =
        std::env::var("WINDLASS_PLANS").ok().and_then(|text| text.parse().ok()).unwrap_or(400);
    Config { cases, ..Config::default() }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn no_placement_is_better_than_the_plan(pipeline_text in any_pipeline(), fleet_text in any_fleet()) {
        let (pipeline, fleet) = (pipeline(&pipeline_text), fleet(&fleet_text));
        let best = by_brute_force(&pipeline, &fleet);
        let plan = Plan::of(&pipeline, &fleet, Layout::Planned);
        prop_assert_eq!(plan.is_ok(), best.is_some(), "{:?}", plan);
        if let (Ok(plan), Some(best)) = (plan, best) {
            prop_assert_eq!(plan.placement.conflicts(&pipeline, &fleet), Vec::<String>::new());
            prop_assert!(plan.is_exact && !best.is_above(plan.objective), "{:?}; enumeration found {:?}", plan, best);
            for layout in [Layout::Pods, Layout::Pod] {
                if let Ok(layout_plan) = Plan::of(&pipeline, &fleet, layout) {
                    prop_assert_eq!(layout_plan.placement.conflicts(&pipeline, &fleet), Vec::<String>::new());
                    prop_assert!(!layout_plan.objective.is_above(plan.objective));
                }
            }
        }
    }
}

#[test]
fn only_a_stage_that_tolerates_a_boards_taint_runs_on_it() {
    let boards = fleet(
        "nodes:\n- {name: a, cpus: 1}\n- {name: b, cpus: 4, taints: [{key: edge, value: gpu, effect: NoExecute}]}",
    );
    let nodes = |pod: &str| {
        let text = format!(
            "name: p\nstages:\n- {{name: s, on: [{{cpus: 1, time: 1ms}}], replicas: 4, pod: {pod}}}\nlinks: []"
        );
        let plan = Plan::of(&pipeline(&text), &boards, Layout::Planned).expect("a plan");
        plan.placement.replicas[0].iter().map(|replica| replica.node).collect::<Vec<_>>()
    };
    assert_eq!(nodes("{}"), [0]);
    assert_eq!(nodes("{tolerations: [{key: edge, value: fpga}]}"), [0]);
    assert_eq!(nodes("{tolerations: [{key: edge, value: gpu}]}").len(), 4);
}

#[test]
fn fifty_stages_on_two_hundred_devices_are_planned_with_a_bound() {
    let mut text = "name: large\nstages:\n".to_owned();
    for stage in 0..50 {
        let (device, cpu) = (5 + stage % 7, 40 + stage % 11);
        writeln!(
            text,
            "- {{name: s{stage}, replicas: 4, output: {}, on: [{{resource: a/r{}, time: {device}ms}}, {{cpus: 1, time: {cpu}ms}}]}}",
            500 * (stage % 9),
            stage % 4
        )
        .expect("a string");
    }
    text.push_str("links:\n");
    for stage in 1..50 {
        writeln!(text, "- {{from: s{}, to: s{stage}}}", stage - 1).expect("a string");
    }
    let mut boards = "nodes:\n".to_owned();
    for node in 0..50 {
        writeln!(
            boards,
            "- {{name: n{node}, cpus: 4, devices: [{{resource: a/r{}, count: 4}}]}}",
            node % 4
        )
        .expect("a string");
    }
    let (pipeline, fleet) = (pipeline(&text), fleet(&boards));
    let plan = Plan::of(&pipeline, &fleet, Layout::Planned).expect("a plan");
    assert_eq!(plan.placement.conflicts(&pipeline, &fleet), Vec::<String>::new());
    let gap = 1.0 - plan.objective.amount / plan.bound.amount;
    assert!(
        gap < 0.1,
        "{:?} of {:?}, {:?}",
        plan.objective,
        plan.bound,
        plan.prediction.bottleneck
    );
}

#[test]
fn the_shipped_example_has_a_plan_that_no_usual_layout_exceeds() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/examples/pipelines");
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).expect("an example");
    let (pipeline, fleet) = (pipeline(&read("doorbell.yaml")), fleet(&read("boards.yaml")));
    let amount = |layout| Plan::of(&pipeline, &fleet, layout).expect("a plan").objective.amount;
    assert!(amount(Layout::Planned) > 1.15 * amount(Layout::Pods).max(amount(Layout::Pod)));
}
