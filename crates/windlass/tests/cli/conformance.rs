//! `windlass conformance` with programs that it cannot test, which it reports at once.

use std::process::Output;

use crate::{
    cli::USAGE,
    program::{run, text, windlass},
};

/// Checks that the arguments are refused before the first case, as a wrong command line.
fn assert_misuse(arguments: &[&str], expected: &str) {
    let command_line: Vec<_> = ["conformance"].iter().chain(arguments).copied().collect();
    let output = run(&command_line);
    let (stderr, stdout) = (text(&output.stderr), text(&output.stdout));
    assert_eq!(output.status.code(), USAGE, "{arguments:?}: {stderr}");
    assert!(stderr.contains(expected) && stdout.is_empty(), "{arguments:?}: {stderr}{stdout}");
}

#[test]
fn a_missing_program_or_machine_is_a_wrong_command_line() {
    assert_misuse(&["--", "/nope"], "there is no program /nope");
    assert_misuse(&["--", "no-such-word"], "no program no-such-word in a folder of PATH");
    assert_misuse(&["--", "/etc/passwd"], "is not a program: it is a folder, or not executable");
    assert_misuse(&["--itself", "--machine", "nope"], "nope");
    assert_misuse(&["--jobs", "0", "--", "/bin/true"], "--jobs");
}

#[test]
fn a_program_that_exits_before_it_serves_fails_with_its_output() {
    let script = "echo $KUBECONFIG $NODE_NAME $KUBERNETES_SERVICE_HOST; exit 3";
    let mut command = windlass(&["conformance", "--", "sh", "-c", script, "{kubelet}"]);
    for name in ["KUBECONFIG", "NODE_NAME", "KUBERNETES_SERVICE_HOST"] {
        command.env(name, "elsewhere");
    }
    let Output { status, stdout, .. } = command.output().expect("windlass runs");
    let stdout = text(&stdout);
    assert_eq!(status.code(), Some(1), "{stdout}");
    assert!(stdout.contains("before it served anything: exit status: 3"), "{stdout}");
    assert!(stdout.contains("/kubeconfig node\n") && !stdout.contains("elsewhere"), "{stdout}");
    assert!(stdout.contains("0 passed, 1 failed, 0 not applicable"), "{stdout}");
}

#[test]
fn a_run_without_a_passed_case_fails() {
    // A plugin that never registers, without {kubeconfig}: cases of drivers are not applicable.
    let arguments = ["conformance", "--case", "D01", "--", "sh", "-c", "sleep 60", "{kubelet}"];
    let output = run(&arguments);
    let stdout = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{stdout}");
    assert!(stdout.contains("0 passed, 0 failed, 1 not applicable"), "{stdout}");
}
