//! `windlass cluster simulate`: a trace in a folder, and policies compared on it.

use std::fs;

use serde_json::Value;
use tempfile::TempDir;

use crate::{
    cli::USAGE,
    program::{folder, run, text},
};

const NODES: &str = "\
sn,cpu_milli,memory_mib,gpu,model
node-a,32000,262144,2,T4
node-b,96000,393216,8,G2
";

const PODS: &str = "\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos
pod-a,4000,1024,1,500,,LS
pod-b,8000,1024,1,1000,,LS
pod-c,6000,1024,1,250,T4,LS
pod-d,32000,1024,4,1000,,LS
pod-e,2000,1024,0,0,,BE
";

/// Folder with a trace: one table of nodes, and a table of pods for each name.
fn trace(names: &[&str]) -> TempDir {
    let dir = folder();
    fs::write(dir.path().join("x_node_list_gpu_node.csv"), NODES).expect("a table");
    for name in names {
        fs::write(dir.path().join(format!("x_pod_list_{name}.csv")), PODS).expect("a table");
    }
    dir
}

/// Exit code, output and errors of a simulation of the trace.
fn simulate(trace: &TempDir, flags: &[&str]) -> (Option<i32>, String, String) {
    let dir = trace.path().display().to_string();
    let mut arguments = vec!["cluster", "simulate", "--trace", &dir, "--seeds", "1-3"];
    arguments.extend(flags);
    let output = run(&arguments);
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn json(trace: &TempDir, flags: &[&str]) -> Value {
    let (code, stdout, stderr) = simulate(trace, &[flags, &["-o", "json"]].concat());
    assert_eq!(code, Some(0), "{stderr}");
    let mut document: Value = serde_json::from_str(&stdout).expect("JSON");
    for policy in document["policies"].as_array_mut().expect("policies") {
        let decision_time = policy.as_object_mut().expect("an object").remove("microsPerDecision");
        assert!(decision_time.is_some_and(|time| time.is_f64()));
    }
    document
}

#[test]
fn every_policy_runs_with_every_seed_and_equal_seeds_give_equal_results() {
    let trace = trace(&["only"]);
    let document = json(&trace, &[]);
    assert_eq!(document, json(&trace, &[]));
    assert_eq!(document["gpus"], 10);
    assert_eq!(document["pods"], "only");
    let policies = document["policies"].as_array().expect("policies");
    let names: Vec<_> = policies.iter().filter_map(|policy| policy["policy"].as_str()).collect();
    let expected = [
        "random",
        "least-allocated",
        "first-fit",
        "best-fit",
        "dot-product",
        "packing",
        "fgd",
        "windlass",
    ];
    assert_eq!(names, expected);
    for policy in policies {
        let classes = policy["classes"].as_array().expect("classes");
        let arrived_count: u64 = classes.iter().filter_map(|class| class["arrived"].as_u64()).sum();
        // Each seed simulates each pod of the trace, and copies of it.
        assert!(arrived_count > 3 * 5, "{policy}");
        let last_point =
            policy["allocated"].as_array().and_then(|points| points.last()).expect("a curve");
        assert!(
            last_point["requestedPercent"].as_u64().is_some_and(|percent| percent <= 130),
            "{last_point}"
        );
    }
}

#[test]
fn pods_with_departures_are_refused_or_queued() {
    let trace = trace(&["default", "other"]);
    let report_without_queue = json(&trace, &["--policy", "windlass", "--departures", "1.5"]);
    let class = |document: &Value, index: usize| document["policies"][0]["classes"][index].clone();
    assert!(
        class(&report_without_queue, 3)["refused"].as_u64() > Some(0),
        "{report_without_queue}"
    );
    let report_with_queue =
        json(&trace, &["--policy", "windlass", "--departures", "1.5", "--queue"]);
    assert_eq!(class(&report_with_queue, 3)["refused"], 0);
    assert!(
        class(&report_with_queue, 3)["wait"]["p95"].as_f64() > Some(0.0),
        "{report_with_queue}"
    );
}

#[test]
fn the_table_has_headings_and_the_image_a_curve_for_each_policy() {
    let trace = trace(&["default"]);
    let svg = trace.path().join("curves.svg").display().to_string();
    let (code, stdout, stderr) = simulate(&trace, &["--policy", "fgd,windlass", "--svg", &svg]);
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    let lines: Vec<_> = stdout.lines().collect();
    assert_eq!(
        lines[0],
        "2 nodes with 10 GPUs; 5 pods (default); seeds 1 to 3; policies know the frequencies of the trace"
    );
    for column in ["POLICY", "AT 100 %", "AT 130 %", "NO GPU", "8 GPUS AND MORE", "US"] {
        assert!(lines[1].contains(column), "{stdout}");
    }
    assert!(lines[2].starts_with("fgd ") && lines[3].starts_with("windlass "), "{stdout}");
    let image = fs::read_to_string(svg).expect("an image");
    assert_eq!(image.matches("<polyline").count(), 2);
    assert!(image.ends_with("</svg>\n"));
}

#[test]
fn a_wrong_trace_or_flag_is_misuse_with_its_position() {
    let empty_folder = folder();
    let valid_trace = trace(&["a", "b"]);
    let invalid_trace = trace(&["a"]);
    let table = invalid_trace.path().join("x_pod_list_a.csv");
    fs::write(&table, PODS.replace("8000", "eight")).expect("a table");
    let incomplete_trace = trace(&["a"]);
    fs::write(incomplete_trace.path().join("x_pod_list_a.csv"), "name,num_gpu\n").expect("a table");
    let cases: [(&TempDir, &[&str], &str); 8] = [
        (&empty_folder, &[], "has no table of nodes, *node_list*.csv"),
        (&valid_trace, &[], "choose by --pods one of a, b"),
        (&valid_trace, &["--pods", "c"], "has no pods \"c\"; --pods is one of a, b"),
        (&invalid_trace, &[], "line 3: cpu_milli is \"eight\", not a whole number"),
        (&incomplete_trace, &[], "column cpu_milli is missing"),
        (&invalid_trace, &["--load", "0"], "0 is not from 0.01 to 10"),
        (&invalid_trace, &["--queue"], "--departures"),
        (&invalid_trace, &["--policy", "windles"], "windlass"),
    ];
    for (trace, flags, expected) in cases {
        let (code, stdout, stderr) = simulate(trace, flags);
        assert_eq!(code, USAGE, "{flags:?}: {stderr}");
        assert!(stderr.contains(expected), "{flags:?}: {stderr}");
        assert_eq!(stdout, "");
    }
}
