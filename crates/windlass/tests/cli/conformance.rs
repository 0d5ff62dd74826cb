//! `windlass conformance` of programs that cannot be judged: each is answered at once.

use std::process::Output;

use crate::{
    cli::USAGE,
    program::{run, text, windlass},
};

/// Output before the first case, with the exit code of a wrong command line.
fn misused(arguments: &[&str], expected: &str) {
    let words: Vec<_> = ["conformance"].iter().chain(arguments).copied().collect();
    let output = run(&words);
    let (said, found) = (text(&output.stderr), text(&output.stdout));
    assert_eq!(output.status.code(), USAGE, "{arguments:?}: {said}");
    assert!(said.contains(expected) && found.is_empty(), "{arguments:?}: {said}{found}");
}

#[test]
fn a_program_or_a_machine_that_is_not_there_is_a_wrong_command_line() {
    misused(&["--", "/nope"], "there is no program /nope");
    misused(&["--", "no-such-word"], "no program no-such-word in a folder of PATH");
    misused(&["--", "/etc/passwd"], "nobody may execute it");
    misused(&["--itself", "--machine", "nope"], "nope");
    misused(&["--jobs", "0", "--", "/bin/true"], "--jobs");
}

#[test]
fn a_program_that_ends_before_it_serves_is_the_finding_with_its_last_words() {
    let script = "echo $KUBECONFIG $NODE_NAME $KUBERNETES_SERVICE_HOST; exit 3";
    let mut command = windlass(&["conformance", "--", "sh", "-c", script, "{kubelet}"]);
    for name in ["KUBECONFIG", "NODE_NAME", "KUBERNETES_SERVICE_HOST"] {
        command.env(name, "elsewhere");
    }
    let Output { status, stdout, .. } = command.output().expect("it runs");
    let found = text(&stdout);
    assert_eq!(status.code(), Some(1), "{found}");
    assert!(found.contains("before it served anything: exit status: 3"), "{found}");
    assert!(found.contains("/kubeconfig node\n") && !found.contains("elsewhere"), "{found}");
    assert!(found.contains("0 passed, 1 failed, 0 not applicable"), "{found}");
}

#[test]
fn a_run_in_which_nothing_passed_is_no_success() {
    // A plugin that never registers, without {kubeconfig}: cases of drivers are not applicable.
    let arguments = ["conformance", "--case", "D01", "--", "sh", "-c", "sleep 60", "{kubelet}"];
    let output = run(&arguments);
    let found = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{found}");
    assert!(found.contains("0 passed, 0 failed, 1 not applicable"), "{found}");
}
