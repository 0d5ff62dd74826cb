//! Time-slice intervals of claims: set on their GPU, and reset when the claims are released.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};
use windlass_testkit::RunningAgent;

use crate::dra::world::{FIRST_GPU, World};

/// Puts a claim whose UID is its name, on the first GPU, with these settings of sharing.
fn put(world: &World, agent: &RunningAgent, (name, sharing): (&str, &Value)) {
    let mut claim = world.claim(agent, name, &[FIRST_GPU]);
    let config = json!({
        "source": "FromClaim", "requests": ["a"],
        "opaque": {"driver": "windlass.dev", "parameters": sharing},
    });
    claim["status"]["allocation"]["devices"]["config"] = json!([config]);
    world.put(&claim);
}

fn nvidia_config(interval: &str) -> Value {
    json!({
        "apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig",
        "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": interval}},
    })
}

fn own_config(interval: &str) -> Value {
    json!({
        "apiVersion": "windlass.dev/v1alpha1", "kind": "DeviceConfig",
        "sharing": {"strategy": "TimeSlicing", "timeSlicing": {"interval": interval}},
    })
}

/// Latest time slice that the program set on the first GPU.
fn current_slice(world: &World) -> Option<String> {
    let gpu = &world.machine.model().expect("a model").gpus[0].uuid;
    let path = world.machine.dir().join(format!("nvidia-smi/{gpu}.timeslice"));
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

fn program(world: &World) -> PathBuf {
    world.machine.host_root().join("usr/bin/nvidia-smi")
}

fn replace(program: &Path, text: &str) {
    fs::write(program, text).expect("written");
    fs::set_permissions(program, fs::Permissions::from_mode(0o755)).expect("set");
}

#[tokio::test]
async fn an_interval_is_set_for_a_claim_and_reset_by_the_next_agent() {
    let (world, agent, mut kubelet) = World::start().await;
    put(&world, &agent, ("c", &nvidia_config("Long")));
    put(&world, &agent, ("d", &own_config("Short")));
    kubelet.prepare("c").await.expect("prepared");
    assert_eq!(current_slice(&world).as_deref(), Some("3"));
    agent.kill().await;
    let (agent, mut kubelet) = world.start_ready().await;
    kubelet.unprepare("c").await.expect("released");
    assert_eq!(current_slice(&world).as_deref(), Some("0"));
    kubelet.prepare("d").await.expect("prepared");
    assert_eq!(current_slice(&world).as_deref(), Some("1"));
    kubelet.unprepare("d").await.expect("released");
    assert_eq!(current_slice(&world).as_deref(), Some("0"));
    agent.stop().await;
}

#[tokio::test]
async fn a_refusal_of_the_program_is_the_claims_error_until_the_program_succeeds() {
    let (world, agent, mut kubelet) = World::start().await;
    put(&world, &agent, ("c", &own_config("Medium")));
    let text = fs::read_to_string(program(&world)).expect("there");
    replace(&program(&world), "#!/bin/sh\necho 'Not Supported'\nexit 3\n");
    let error = kubelet.prepare("c").await.expect_err("refused");
    assert!(
        error.contains("to Medium: nvidia-smi ended with exit status: 3: Not Supported"),
        "{error}"
    );
    fs::remove_file(program(&world)).expect("there");
    let error = kubelet.prepare("c").await.expect_err("missing");
    assert!(error.contains("there is no nvidia-smi in "), "{error}");
    replace(&program(&world), &text);
    kubelet.prepare("c").await.expect("prepared");
    assert_eq!(current_slice(&world).as_deref(), Some("2"));
    // A claim is not released before its GPU is reset.
    fs::remove_file(program(&world)).expect("there");
    let error = kubelet.unprepare("c").await.expect_err("it is not reset");
    assert!(error.contains("to Default: there is no nvidia-smi in "), "{error}");
    replace(&program(&world), &text);
    kubelet.unprepare("c").await.expect("released");
    assert_eq!(current_slice(&world).as_deref(), Some("0"));
    agent.stop().await;
}
