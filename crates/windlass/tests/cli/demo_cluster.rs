//! The cluster demo.

use crate::program::{json_lines, run, text};

#[test]
fn the_cluster_demo_reports_every_step_and_allocates_more_than_kube_scheduler() {
    let output = run(&["demo", "--cluster", "--output", "json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let events = json_lines(&output.stdout);
    let names: Vec<_> = events.iter().filter_map(|event| event["event"].as_str()).collect();
    assert_eq!(
        names,
        [
            "started",
            "agentJoined",
            "onRealNode",
            "podRuns",
            "podRuns",
            "podRuns",
            "arriving",
            "load",
            "load",
            "extenderReplaced",
            "load",
            "drawn",
            "load",
            "load",
            "load",
            "pending",
            "remedyHelped",
            "finished",
        ]
    );
    let last_load = events.iter().rfind(|event| event["event"] == "load").expect("reported");
    let allocated =
        |scheduler: &str| last_load[scheduler]["allocatedPercent"].as_f64().expect("a number");
    assert!(allocated("ours") > 99.0 && allocated("stock") < 80.0, "{last_load}");
    let finished = events.last().expect("reported");
    assert!(finished["asDecided"].as_u64() > Some(0), "{finished}");
}

#[test]
fn a_machine_without_a_whole_gpu_is_refused_before_anything_starts() {
    let output = run(&["demo", "--cluster", "--machine", "mi300x"]);
    assert_eq!(output.status.code(), super::USAGE, "{}", text(&output.stdout));
    assert!(text(&output.stderr).contains("needs a machine with a whole NVIDIA GPU"));
    assert_eq!(text(&output.stdout), "");
}
