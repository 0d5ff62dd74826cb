//! The embedded kubelet beside a real one: the same sequences, the same transcripts.
//!
//! A transcript in `snapshots` records a real kubelet, version 1.36.2. The record holds calls to
//! plugins, the checkpoint, pod resources, the node's counts and the status of pods. The embedded
//! kubelet has to do the same.
//!
//! `WINDLASS_E2E_KUBELET` names the path of a kubelet's program. With this variable, that kubelet
//! plays the sequences too; `real` lists its requirements.

mod devices;
mod embedded;
mod look;
mod node;
mod play;
mod plugin;
mod real;
mod script;
mod scripts;

use real::{KUBELET, Place, Real};
use script::Script;

/// Compares with the transcript of this script.
fn compare(script: &Script, transcript: &str) {
    insta::with_settings!({ snapshot_path => "fidelity/snapshots", prepend_module_to_snapshot => false, omit_expression => true }, {
        insta::assert_snapshot!(script.name, transcript);
    });
}

/// Plays on an embedded kubelet of its own.
async fn embedded(script: Script) {
    let mut node = embedded::Embedded::start();
    let transcript = play::transcript(&mut node, &script).await;
    compare(&script, &transcript);
}

#[tokio::test]
async fn registrations_are_refused_and_taken_as_by_a_real_kubelet() {
    embedded(scripts::registration()).await;
}

#[tokio::test]
async fn devices_come_go_fail_and_recover_as_with_a_real_kubelet() {
    embedded(scripts::lists()).await;
}

#[tokio::test]
async fn pods_get_devices_or_not_as_from_a_real_kubelet() {
    embedded(scripts::pods()).await;
}

#[tokio::test]
async fn init_containers_and_sidecars_share_devices_as_with_a_real_kubelet() {
    embedded(scripts::init_containers()).await;
}

#[tokio::test]
async fn preferences_are_asked_for_and_used_as_by_a_real_kubelet() {
    embedded(scripts::preference()).await;
}

#[tokio::test]
async fn containers_are_announced_to_plugins_as_by_a_real_kubelet() {
    embedded(scripts::pre_start()).await;
}

#[tokio::test]
async fn refusals_of_plugins_end_as_with_a_real_kubelet() {
    embedded(scripts::refusals()).await;
}

#[tokio::test]
async fn numa_nodes_are_told_as_by_a_real_kubelet() {
    embedded(scripts::numa_nodes()).await;
}

#[tokio::test]
async fn lost_and_second_plugins_are_treated_as_by_a_real_kubelet() {
    embedded(scripts::lost_streams()).await;
}

#[tokio::test]
async fn a_failed_registration_makes_a_zombie_as_with_a_real_kubelet() {
    embedded(scripts::zombie()).await;
}

#[tokio::test]
async fn a_restart_forgets_and_keeps_what_a_real_kubelets_does() {
    embedded(scripts::restarts()).await;
}

#[tokio::test]
async fn a_reboot_costs_pods_that_come_early_as_with_a_real_kubelet() {
    embedded(scripts::reboots()).await;
}

#[tokio::test]
async fn a_broken_checkpoint_is_ignored_as_by_a_real_kubelet() {
    embedded(scripts::broken_checkpoint()).await;
}

#[test]
fn a_real_kubelet_does_what_the_transcripts_say() {
    let scripts = scripts::all();
    match real::place() {
        Place::Nowhere => say_it_did_not_run(),
        Place::Outside => {
            // One run compares all scripts and shows all differences.
            let names = scripts.iter().map(|script| script.name);
            let test = "fidelity::a_real_kubelet_does_what_the_transcripts_say";
            let differing: Vec<_> = names.filter(|name| !real::plays_inside(test, name)).collect();
            assert!(differing.is_empty(), "a real kubelet differs in {differing:?}");
        }
        Place::Inside { script, cgroup } => {
            let script = scripts.into_iter().find(|known| known.name == script);
            compare_real(&script.expect("one of all"), &cgroup);
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn compare_real(script: &Script, cgroup: &str) {
    let mut node = Real::start(cgroup).await;
    let transcript = play::transcript(&mut node, script).await;
    compare(script, &transcript);
}

#[expect(clippy::print_stderr, reason = "a test that is left out says so")]
fn say_it_did_not_run() {
    eprintln!("SKIPPED: set {KUBELET} to a kubelet's program to compare with it, as root");
}
