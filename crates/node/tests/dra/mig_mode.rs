//! GPUs that are allocated to one claim in full and to the next as MIG instances, with a change of MIG mode for each.

use std::fs;

use serde_json::json;
use windlass_config::{
    CleanupSteps, DraMigMode, DraOffer, DraPartitions, DraPolicy, Step, StepAction,
};
use windlass_core::resource::ResourceName;
use windlass_machine::state::Process;
use windlass_resources::NodeState;
use windlass_testkit::{GPU, RunningAgent, TIMEOUT, until};

use crate::dra::world::{World, claim, gpus};

fn world(machine: &str) -> World {
    let dra = DraPolicy {
        offer: DraOffer::Beside,
        partitions: DraPartitions::OnDemand,
        mig_mode: DraMigMode::OnDemand,
        ..DraPolicy::default()
    };
    World::from_profile(machine, dra)
}

/// Puts a claim whose UID is its name, and that got a GPU, or the partition with this suffix of the GPU's name.
fn put(world: &World, agent: &RunningAgent, (name, gpu, suffix): (&str, usize, &str)) {
    let gpu = gpus(&agent.state.borrow())[gpu].id.as_str().to_lowercase();
    let device = format!("{gpu}{suffix}");
    let result =
        json!({"request": "a", "driver": "windlass.dev", "pool": "n1/nvidia", "device": device});
    world.put(&claim(name, &[result]));
}

const PART: &str = "-mig-1g-10gb-19-6";

/// MIG instances of a GPU as text, or `whole` if MIG is off.
fn mig_layout(world: &World, gpu: usize) -> String {
    let model = world.machine.model().expect("a model");
    let Some(instances) = &model.gpus[gpu].mig else { return "whole".to_owned() };
    let places =
        instances.iter().map(|instance| format!("{}@{}", instance.profile, instance.start));
    format!("cut into [{}]", places.collect::<Vec<_>>().join(" "))
}

#[tokio::test]
async fn one_gpu_is_allocated_in_full_then_in_parts_and_in_full_again() {
    let world = world("dgx-h100");
    let (agent, mut kubelet) = world.start_ready().await;
    for (name, suffix) in [("whole", ""), ("part", PART), ("again", "")] {
        put(&world, &agent, (name, 0, suffix));
    }
    let gpu = gpus(&agent.state.borrow())[0].id.clone();
    let whole_gpu = kubelet.prepare("whole").await.expect("prepared");
    assert!(
        whole_gpu[0].cdi_device_ids.contains(&format!("windlass.dev/gpu={gpu}")),
        "{whole_gpu:?}"
    );
    let error = kubelet.prepare("part").await.expect_err("a claim has the whole GPU");
    assert!(error.ends_with("is held by another claim"), "{error}");
    assert_eq!(mig_layout(&world, 0), "whole");
    kubelet.unprepare("whole").await.expect("released");

    kubelet.prepare("part").await.expect("prepared");
    assert_eq!(mig_layout(&world, 0), "cut into [1g.10gb@6]");
    let error = kubelet.prepare("again").await.expect_err("a claim has a part");
    assert!(error.ends_with("is held by another claim"), "{error}");
    kubelet.unprepare("part").await.expect("released");
    assert_eq!(
        mig_layout(&world, 0),
        "cut into []",
        "the next claim of the whole GPU turns the mode off"
    );

    let devices = kubelet.prepare("again").await.expect("prepared");
    assert!(devices[0].cdi_device_ids.contains(&format!("windlass.dev/gpu={gpu}")), "{devices:?}");
    assert_eq!(mig_layout(&world, 0), "whole");
    agent.stop().await;
}

#[tokio::test]
async fn no_instance_is_created_before_the_gpu_is_clean_after_its_full_use() {
    let mut world = world("dgx-h100");
    let clean = world.config.places.state_dir.with_file_name("clean");
    let script = "until [ -e \"$0\" ]; do sleep 0.02; done";
    let words = ["/bin/sh", "-c", script, clean.to_str().expect("text")];
    let action = StepAction::Command(words.map(str::to_owned).into());
    let release = vec![Step { action, timeout: TIMEOUT }];
    world.config.policy.families.gpu = CleanupSteps { release, ..CleanupSteps::default() };
    let (agent, mut kubelet) = world.start_ready().await;
    for (name, suffix) in [("whole", ""), ("part", PART)] {
        put(&world, &agent, (name, 0, suffix));
    }
    // An earlier claim may have left data too.
    fs::write(&clean, "").expect("written");
    kubelet.prepare("whole").await.expect("prepared");
    fs::remove_file(&clean).expect("removed");
    kubelet.unprepare("whole").await.expect("released");
    let error = kubelet.prepare("part").await.expect_err("it is being cleaned");
    assert!(error.ends_with("after its last user"), "{error}");
    assert_eq!(mig_layout(&world, 0), "whole");
    fs::write(clean, "").expect("written");
    until("it is clean, and cut", async || kubelet.clone().prepare("part").await).await;
    assert_eq!(mig_layout(&world, 0), "cut into [1g.10gb@6]");
    agent.stop().await;
}

#[tokio::test]
async fn mig_mode_of_a_gpu_in_use_does_not_change_and_the_pod_shows_the_reason() {
    let world = world("dgx-h100");
    let (agent, mut kubelet) = world.start_ready().await;
    put(&world, &agent, ("part", 0, PART));
    let set_processes = |processes: Vec<Process>| {
        world.machine.update(|model| model.gpus[0].live.processes = processes).expect("changed");
    };
    set_processes(vec![Process { pid: 7, memory_mib: 256, gpu_instance: None, sm_percent: 0 }]);
    let error = kubelet.prepare("part").await.expect_err("busy");
    let gpu = gpus(&agent.state.borrow())[0].id.clone();
    let expected = format!("cannot turn MIG on for {gpu}: it is in use by a process");
    assert!(error.ends_with(&expected), "{error}");
    assert_eq!(mig_layout(&world, 0), "whole");
    set_processes(Vec::new());
    kubelet.prepare("part").await.expect("idle by now");
    assert_eq!(mig_layout(&world, 0), "cut into [1g.10gb@6]");
    agent.stop().await;
}

#[tokio::test]
async fn a_change_of_mig_mode_that_a_kill_interrupted_is_continued() {
    let world = world("dgx-h100");
    let (agent, mut kubelet) = world.start_ready().await;
    put(&world, &agent, ("part", 0, PART));
    put(&world, &agent, ("whole", 1, ""));
    for name in ["part", "whole"] {
        kubelet.prepare(name).await.expect("prepared");
    }
    agent.stop().await;
    // The state after MIG mode was turned on for the instance, and before it was turned off for the full GPU.
    world.mark_prepare_started();
    for (gpu, name) in ["part", "whole"].into_iter().enumerate() {
        world.change_record(|record| record["claims"][name]["devices"][0]["cdi"] = json!([]));
        let document = world.config.places.cdi_dir.join(format!("windlass.dev-claim-{name}.json"));
        fs::remove_file(document).expect("there");
        world.machine.set_mig(gpu, Some(&[])).expect("MIG on");
    }

    let (agent, mut kubelet) = world.start_ready().await;
    for name in ["part", "whole"] {
        kubelet.prepare(name).await.expect("prepared");
    }
    let layouts = [0, 1].map(|gpu| mig_layout(&world, gpu));
    assert_eq!(layouts, ["cut into [1g.10gb@6]", "whole"]);
    agent.stop().await;
}

#[tokio::test]
async fn gpus_leave_the_device_plugin_when_a_new_policy_changes_mig_mode_for_claims() {
    let mut world = world("dgx-h100");
    let policy = world.config.policy.clone();
    world.config.policy.dra.mig_mode = DraMigMode::AsSet;
    let (agent, _kubelet) = world.start_ready().await;
    let resource: ResourceName = GPU.parse().expect("valid");
    let offered = |state: &NodeState| {
        state.offers.get(&resource).map_or(0, |offer| offer.allocatable_count())
    };
    agent.until(|state| offered(state) == 8).await;
    agent.set_policy(policy);
    agent.until(|state| offered(state) == 0).await;
    agent.stop().await;
}

#[tokio::test]
async fn a_gpu_that_needs_a_reset_for_mig_mode_keeps_its_mode() {
    let world = world("mig-a100");
    let whole_gpu =
        (0..8).find(|gpu| mig_layout(&world, *gpu) == "whole").expect("a GPU without MIG");
    let (agent, mut kubelet) = world.start_ready().await;
    put(&world, &agent, ("whole", whole_gpu, ""));
    put(&world, &agent, ("part", whole_gpu, "-mig-1g-5gb-19-6"));
    put(&world, &agent, ("cut", 0, ""));
    for (name, missing) in [("part", "-mig-1g-5gb-19-6"), ("cut", "")] {
        let error = kubelet.prepare(name).await.expect_err("there is no such device");
        assert!(error.contains("has no device") && error.ends_with(missing), "{error}");
    }
    kubelet.prepare("whole").await.expect("prepared");
    assert_eq!(mig_layout(&world, whole_gpu), "whole");
    agent.stop().await;
}
