//! The demo of claims.

use serde_json::Value;

use crate::program::{json_lines, run, text};

fn events(arguments: &[&str]) -> Vec<Value> {
    let arguments = [&["demo", "--dra", "--output", "json"], arguments].concat();
    let output = run(&arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    json_lines(&output.stdout)
}

fn names(events: &[Value]) -> Vec<&str> {
    events.iter().filter_map(|event| event["event"].as_str()).collect()
}

#[test]
fn the_demo_of_claims_reports_every_step_as_json_and_succeeds() {
    let events = events(&[]);
    let names = names(&events);
    let mut remaining_names = names.as_slice();
    for expected in [
        "started",
        "discovered",
        "published",
        "podRuns",
        "fault",
        "withheld",
        "notScheduled",
        "givenAgain",
        "kubeletRestarted",
        "republished",
        "released",
        "finished",
    ] {
        let position = remaining_names.iter().position(|name| *name == expected);
        let position = position.unwrap_or_else(|| panic!("no {expected} in order: {names:?}"));
        remaining_names = &remaining_names[position + 1..];
    }
    assert_eq!(events[0]["simulated"], true, "the simulation is not labelled");
    assert!(!names.contains(&"notShown"), "this machine supports every step: {names:?}");
    let joint_pod = events.iter().find(|event| event["pod"] == "joint").expect("reported");
    assert_eq!(joint_pod["devices"].as_array().map(Vec::len), Some(2), "{joint_pod}");
}

#[test]
fn the_demo_of_claims_skips_steps_that_a_machine_does_not_support() {
    for machine in [
        &["--machine", "kria", "--device", "kvm"],
        &["--machine", "mi300x-cpx", "--device", "fuse"],
    ] {
        let events = events(machine);
        let last_event = events.last().expect("reported");
        assert_eq!(last_event["event"], "finished", "{machine:?}");
        assert!(names(&events).contains(&"notShown"), "{machine:?}: {:?}", names(&events));
    }
}

#[test]
fn the_claims_demo_fits_the_screen_and_is_labelled_as_simulated() {
    let output = run(&["demo", "--dra", "--machine", "mig-a100"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let stdout = text(&output.stdout);
    let long_line = stdout.lines().find(|line| line.chars().count() > 120);
    assert_eq!(long_line, None);
    assert!(stdout.contains("SIMULATED") && !stdout.contains("\n\n\n"), "{stdout}");
}
