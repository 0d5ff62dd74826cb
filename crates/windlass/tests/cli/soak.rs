//! `windlass demo --soak`: its results, its end after a violation, and its end by a signal.

use std::{
    fs,
    io::{BufRead as _, BufReader, Lines},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::program::{folder, json_lines, run, text, windlass};

/// Deadline of any wait.
const LIMIT: Duration = Duration::from_secs(30);

#[test]
fn a_short_soak_passes_and_reports_its_results() {
    // With this seed, the first ten steps kill the agent while a pod is admitted, and freeze it while it waits for a
    // GPU. Every machine runs ten steps.
    let output = run(&["demo", "--soak", "5s", "--seed", "2749", "--output", "json"]);
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    let events = json_lines(&output.stdout);
    let (first_event, last_event) = (&events[0], events.last().expect("reported"));
    assert_eq!(
        (&first_event["event"], &first_event["seed"]),
        (&"soakStarted".into(), &2749.into())
    );
    assert_eq!(last_event["event"], "soakFinished");
    let tally = &last_event["tally"];
    assert!(tally["admitted"].as_u64() > Some(0), "{tally}");
    assert!(tally["faults"]["agent frozen beside a slow GPU"].is_object(), "{tally}");
    assert!(tally["killedDuringCalls"].as_u64() > Some(0), "{tally}");
    assert!(tally["killedBeforeAnswers"].as_u64() <= tally["killedDuringCalls"].as_u64());
    assert!(tally["atEnd"]["residentKib"].as_u64() > Some(0), "{tally}");
    let dir = first_event["dir"].as_str().expect("a path");
    assert!(!Path::new(dir).exists(), "the folder still exists");
}

#[test]
fn a_soak_with_claims_passes_beside_the_device_plugin() {
    // With this seed, the first ten steps have both allocation APIs, a fault of the API server, and a lost record.
    let output = run(&["demo", "--soak", "5s", "--seed", "5189", "--dra", "--output", "json"]);
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    let events = json_lines(&output.stdout);
    assert_eq!(events[0]["ways"], "both");
    let tally = &events.last().expect("reported")["tally"];
    let has_count = |key: &str| tally[key].as_u64() > Some(0);
    assert!(
        has_count("claims") && has_count("admitted"),
        "an allocation API was not used: {tally}"
    );
    let faults = tally["faults"].as_object().expect("by kind");
    for kind in ["API server", "record of claims lost"] {
        assert!(faults.keys().any(|fault| fault.contains(kind)), "{tally}");
    }
    assert_eq!(events[0]["mounts"], "whole");
}

#[test]
fn the_end_of_the_agent_ends_the_soak_with_its_seed_and_last_steps() {
    let temporary = folder();
    let (child, lines, dir) = start_soak(temporary.path());
    signal("KILL", &wait_for(|| agent_in(&dir)));
    let report = lines.map(|line| line.expect("text")).find(|line| line.contains("\"broken\""));
    let report: Value = serde_json::from_str(&report.expect("reported")).expect("one object");
    assert!(
        report["why"].as_str().expect("why").contains("the agent ended: signal: 9"),
        "{report}"
    );
    assert_eq!(report["seed"], 1);
    assert!(report["lastSteps"].as_array().is_some_and(|steps| !steps.is_empty()), "{report}");
    let output = child.wait_with_output().expect("the soak ends");
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("the soak with seed 1 failed"));
}

#[test]
fn a_killed_soak_ends_its_agent() {
    let temporary = folder();
    let (mut child, _lines, dir) = start_soak(temporary.path());
    wait_for(|| agent_in(&dir));
    child.kill().expect("the soak runs");
    child.wait().expect("the soak ends");
    wait_for(|| agent_in(&dir).is_none().then_some(()));
}

#[test]
fn an_interrupted_soak_reports_its_results() {
    check_early_end("INT");
}

#[test]
fn a_terminated_soak_reports_its_results() {
    check_early_end("TERM");
}

/// Checks that a soak that gets a signal reports its results, and leaves no folder and no process.
fn check_early_end(signal_name: &str) {
    let temporary = folder();
    let (child, lines, dir) = start_soak(temporary.path());
    signal(signal_name, &child.id().to_string());
    let last_line = lines.map(|line| line.expect("text")).last().expect("reported");
    let report: Value = serde_json::from_str(&last_line).expect("one object");
    assert_eq!(
        (&report["event"], &report["end"]),
        (&"soakFinished".into(), &"early".into()),
        "{report}"
    );
    assert!(report["tally"]["steps"].as_u64() > Some(0), "{report}");
    let output = child.wait_with_output().expect("the soak ends");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(agent_in(&dir), None, "the agent still runs");
    assert!(!dir.exists(), "the folder still exists");
}

#[test]
fn wrong_arguments_of_soak_and_demo_are_misuse() {
    for (arguments, expected) in [
        (vec!["demo", "--step"], "run it in a terminal"),
        (vec!["demo", "--soak", "long"], "write 30s, 10m or 8h"),
        (vec!["demo", "--soak", "0s"], "write 30s, 10m or 8h"),
        (vec!["demo", "--seed", "1"], "--soak"),
        (vec!["demo", "--soak", "1s", "--keep"], "cannot be used with"),
        (vec!["demo", "--soak", "1s", "--machine", "mi300x"], "no whole NVIDIA GPUs"),
    ] {
        let output = run(&arguments);
        assert_eq!(output.status.code(), Some(64), "{arguments:?}");
        let stderr = text(&output.stderr);
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
    }
}

/// Starts a soak of a minute, and waits until it has a pod. Returns the process, its output and its folder.
fn start_soak(temporary: &Path) -> (Child, Lines<BufReader<ChildStdout>>, PathBuf) {
    let mut command = windlass(&["demo", "--soak", "60s", "--seed", "1", "--output", "json"]);
    command.env("TMPDIR", temporary).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("windlass runs");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let first_event: Value =
        serde_json::from_str(&lines.next().expect("a line").expect("text")).expect("one object");
    let dir = PathBuf::from(first_event["dir"].as_str().expect("a path"));
    let checkpoint = dir.join("kubelet/device-plugins/kubelet_internal_checkpoint");
    wait_for(|| {
        fs::read_to_string(&checkpoint).is_ok_and(|text| text.contains("\"PodUID\"")).then_some(())
    });
    (child, lines, dir)
}

fn signal(name: &str, pid: &str) {
    let status = Command::new("kill").args(["-s", name, pid]).status().expect("kill runs");
    assert!(status.success());
}

/// Process id of the agent whose state folder is in `dir`.
fn agent_in(dir: &Path) -> Option<String> {
    let state_flag = format!("--state-dir={}", dir.join("state").display());
    let processes = fs::read_dir("/proc").expect("readable").flatten();
    let mut ids = processes.filter_map(|process| process.file_name().into_string().ok());
    ids.find(|id| {
        let command_line = fs::read_to_string(format!("/proc/{id}/cmdline")).unwrap_or_default();
        command_line.split('\0').any(|argument| argument == state_flag)
    })
}

fn wait_for<T>(mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < deadline, "timed out");
        std::thread::yield_now();
    }
}
