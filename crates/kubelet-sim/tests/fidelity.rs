//! Comparison of the embedded kubelet with transcripts of a real one.
//!
//! A transcript in `snapshots` is the behaviour of a real kubelet 1.36.2 during one script: the calls to
//! plugins, the checkpoint, the pod resources answers, the node's counts and the status of pods. The
//! embedded kubelet has to produce the same transcript.
//!
//! If `WINDLASS_E2E_KUBELET` has the path of a kubelet's program, that kubelet runs the scripts too;
//! `real` lists the requirements.

mod devices;
mod embedded;
mod node;
mod observation;
mod play;
mod plugin;
mod real;
mod script;
mod scripts;

use real::{KUBELET, Real, RunMode};
use script::Script;

/// Compares a transcript with the snapshot of its script.
fn compare(script: &Script, transcript: &str) {
    insta::with_settings!({
        snapshot_path => "fidelity/snapshots",
        prepend_module_to_snapshot => false,
        omit_expression => true,
    }, {
        insta::assert_snapshot!(script.name, transcript);
    });
}

/// Runs a script on a new embedded kubelet, and compares the transcript.
async fn embedded(script: Script) {
    let mut node = embedded::Embedded::start();
    let transcript = play::transcript(&mut node, &script).await;
    compare(&script, &transcript);
}

#[tokio::test]
async fn registrations_fail_and_succeed_as_with_a_real_kubelet() {
    embedded(scripts::registration()).await;
}

#[tokio::test]
async fn device_lists_have_the_effects_of_a_real_kubelet() {
    embedded(scripts::lists()).await;
}

#[tokio::test]
async fn pods_are_admitted_and_rejected_as_by_a_real_kubelet() {
    embedded(scripts::pods()).await;
}

#[tokio::test]
async fn init_containers_pass_devices_on_as_with_a_real_kubelet() {
    embedded(scripts::init_containers()).await;
}

#[tokio::test]
async fn get_preferred_allocation_is_called_and_applied_as_by_a_real_kubelet() {
    embedded(scripts::preference()).await;
}

#[tokio::test]
async fn pre_start_container_is_called_as_by_a_real_kubelet() {
    embedded(scripts::pre_start()).await;
}

#[tokio::test]
async fn failed_allocate_calls_have_the_effects_of_a_real_kubelet() {
    embedded(scripts::failed_allocate_calls()).await;
}

#[tokio::test]
async fn numa_nodes_are_recorded_and_reported_as_by_a_real_kubelet() {
    embedded(scripts::numa_nodes()).await;
}

#[tokio::test]
async fn ended_streams_have_the_effects_of_a_real_kubelet() {
    embedded(scripts::lost_streams()).await;
}

#[tokio::test]
async fn a_plugin_lost_after_a_failed_registration_stays_listed_as_with_a_real_kubelet() {
    embedded(scripts::lost_plugin_after_failed_registration()).await;
}

#[tokio::test]
async fn a_restart_keeps_and_loses_state_as_in_a_real_kubelet() {
    embedded(scripts::restarts()).await;
}

#[tokio::test]
async fn after_a_reboot_pods_fail_before_their_plugin_as_with_a_real_kubelet() {
    embedded(scripts::reboots()).await;
}

#[tokio::test]
async fn a_corrupt_checkpoint_is_ignored_as_by_a_real_kubelet() {
    embedded(scripts::broken_checkpoint()).await;
}

#[test]
fn a_real_kubelet_does_what_the_transcripts_say() {
    let scripts = scripts::all();
    match real::run_mode() {
        RunMode::Skip => report_skip(),
        RunMode::Parent => {
            // All scripts run, so that one run of the test shows all differences.
            let names = scripts.iter().map(|script| script.name);
            let test = "fidelity::a_real_kubelet_does_what_the_transcripts_say";
            let differing: Vec<_> = names.filter(|name| !real::run_child(test, name)).collect();
            assert!(differing.is_empty(), "a real kubelet differs in {differing:?}");
        }
        RunMode::Child { script, cgroup } => {
            let script = scripts.into_iter().find(|candidate| candidate.name == script);
            compare_real(&script.expect("a known script"), &cgroup);
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn compare_real(script: &Script, cgroup: &str) {
    let mut node = Real::start(cgroup).await;
    let transcript = play::transcript(&mut node, script).await;
    compare(script, &transcript);
}

#[expect(clippy::print_stderr, reason = "a skipped test reports this")]
fn report_skip() {
    eprintln!("SKIPPED: set {KUBELET} to a kubelet's program to compare with it, as root");
}
