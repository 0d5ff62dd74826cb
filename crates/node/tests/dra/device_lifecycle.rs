//! A device between two claims: its cleanup, its withholding meanwhile, and the reports to the cluster.

use std::time::Duration;

use serde_json::{Value, json};
use windlass_cluster_sim::api::{Effect, Fault as ApiFault};
use windlass_config::{CleanupSteps, Processes, Reset as ResetOf, Step, StepAction};
use windlass_core::{
    attribute::AttributeName,
    device::{Device, DeviceKind},
};
use windlass_machine::{
    BoardEvent::{Frequency, Reset},
    BoardFault, Fault,
    state::Process,
};
use windlass_testkit::{MHZ, RunningAgent, TIMEOUT, UNKNOWN_HISTORY_STEPS, until};

use crate::dra::{
    kubelet::Kubelet,
    lifecycle_rig::{Rig, Tenant, step},
    world::records,
};

/// Rig, agent and kubelet, and a tenant to whom the scheduler has allocated the board.
async fn start_with_tenant() -> (Rig, RunningAgent, Kubelet, Tenant) {
    let rig = Rig::new();
    let (agent, kubelet) = rig.start_ready().await;
    let tenant = rig.schedule("a", "board").expect("it is free");
    (rig, agent, kubelet, tenant)
}

#[tokio::test]
async fn a_device_is_prepared_for_a_claim_once_and_cleaned_when_the_claim_is_released() {
    let (rig, agent, mut kubelet, first) = start_with_tenant().await;
    let devices = kubelet.start_with(&first).await.expect("prepared");
    rig.until_events(&UNKNOWN_HISTORY_STEPS).await;
    let second_answer =
        kubelet.start_with(&first).await.expect("prepared for a second pod of the claim");
    assert_eq!((second_answer, rig.board.take_events()), (devices, vec![]), "it is no new tenant");
    rig.end(&mut kubelet, &first).await;
    rig.until_events(&[Reset]).await;
    rig.until_taints("n1/darwin3", &[]).await;
    let second = rig.schedule("b", "board").expect("it is clean");
    kubelet.start_with(&second).await.expect("prepared");
    rig.until_events(&[Reset, Frequency(MHZ)]).await;
    agent.stop().await;
}

#[tokio::test]
async fn a_device_that_cannot_be_cleaned_is_tainted_and_reported_until_it_is_clean() {
    let (rig, agent, mut kubelet, first) = start_with_tenant().await;
    kubelet.start_with(&first).await.expect("prepared");
    rig.board.inject(BoardFault::Refuses);
    rig.end(&mut kubelet, &first).await;
    rig.until_taints("n1/darwin3", &["windlass.dev/unclean=quarantined"]).await;
    let error = rig.schedule("b", "board").map(drop).expect_err("no clean board");
    assert!(error.contains("0/1 nodes"), "{error}");
    rig.until_event("is withheld: cleanup failed: GET http://").await;
    rig.board.inject(BoardFault::None);
    rig.until_taints("n1/darwin3", &[]).await;
    rig.schedule("c", "board").expect("it is clean");
    agent.stop().await;
}

#[tokio::test]
async fn a_claim_whose_device_cannot_be_prepared_fails_with_the_reason_and_can_be_retried() {
    let (rig, agent, mut kubelet, tenant) = start_with_tenant().await;
    rig.board.inject(BoardFault::Hangs);
    let error = kubelet.start_with(&tenant).await.expect_err("it hangs");
    assert!(error.contains("is not ready for the claim: GET http://"), "{error}");
    assert!(error.contains("not done within 2s"), "{error}");
    rig.board.inject(BoardFault::None);
    rig.board.take_events();
    kubelet.start_with(&tenant).await.expect("the kubelet tries again");
    rig.until_events(&UNKNOWN_HISTORY_STEPS).await;
    rig.end(&mut kubelet, &tenant).await;
    rig.until_events(&[Reset]).await;
    agent.stop().await;
}

#[tokio::test]
async fn a_claim_that_outlives_the_agent_keeps_its_device_unchanged() {
    let (rig, agent, mut kubelet, tenant) = start_with_tenant().await;
    kubelet.start_with(&tenant).await.expect("prepared");
    rig.until_events(&UNKNOWN_HISTORY_STEPS).await;
    agent.stop().await;
    let (agent, mut kubelet) = rig.start_ready().await;
    kubelet.start_with(&tenant).await.expect("prepared");
    assert_eq!(rig.board.take_events(), [], "no step runs on a device in use");
    rig.end(&mut kubelet, &tenant).await;
    rig.until_events(&[Reset]).await;
    agent.stop().await;
}

#[tokio::test]
async fn a_device_that_was_released_without_an_agent_is_cleaned_for_the_next_claim() {
    let (rig, agent, mut kubelet, first) = start_with_tenant().await;
    kubelet.start_with(&first).await.expect("prepared");
    let state = rig.config.places.state_dir.join("claims.json");
    agent.stop().await;
    std::fs::remove_file(state).expect("it was there");
    // The claim's document would show that a claim has the device.
    std::fs::remove_dir_all(&rig.config.places.cdi_dir).expect("it was there");
    rig.cluster.delete_pod("ns", "a").expect("deleted");
    rig.board.take_events();
    let (agent, mut kubelet) = rig.start_ready().await;
    let second = rig.schedule("b", "board").expect("no holder is known");
    kubelet.start_with(&second).await.expect("prepared");
    rig.until_events(&UNKNOWN_HISTORY_STEPS).await;
    agent.stop().await;
}

#[tokio::test]
async fn a_device_is_cleaned_after_a_claim_that_only_the_cleanup_record_knows() {
    let (rig, agent, mut kubelet, tenant) = start_with_tenant().await;
    kubelet.start_with(&tenant).await.expect("prepared");
    rig.until_events(&UNKNOWN_HISTORY_STEPS).await;
    agent.stop().await;
    for record in records(&rig.config.places) {
        std::fs::remove_file(record).expect("it was there");
    }
    let (agent, mut kubelet) = rig.start_ready().await;
    rig.end(&mut kubelet, &tenant).await;
    rig.until_events(&[Reset]).await;
    agent.stop().await;
}

#[tokio::test]
async fn a_claims_status_shows_readiness_and_health_of_its_devices() {
    let (rig, agent, mut kubelet, tenant) = start_with_tenant().await;
    rig.board.inject(BoardFault::Refuses);
    let error = kubelet.start_with(&tenant).await.expect_err("it refuses");
    assert!(error.contains("500 Internal Server Error"), "{error}");
    let failed = rig.until_claim(&tenant, |it| condition(it, "Ready", "PrepareFailed")).await;
    let message = failed["status"]["devices"][0]["conditions"][0]["message"].to_string();
    assert!(message.contains("GET http://"), "{message}");
    rig.board.inject(BoardFault::None);
    kubelet.start_with(&tenant).await.expect("prepared");
    let ready = rig.until_claim(&tenant, |it| condition(it, "Ready", "Prepared")).await;
    assert!(condition(&ready, "Healthy", "Healthy"), "{ready:#}");
    kubelet.unprepare_claim((&tenant.claim, &tenant.uid)).await.expect("released");
    rig.until_claim(&tenant, |it| it["status"]["devices"].is_null()).await;

    let gpu = rig.free_gpu("g").await;
    kubelet.start_with(&gpu).await.expect("prepared");
    rig.until_claim(&gpu, |it| condition(it, "Healthy", "Healthy")).await;
    rig.machine.inject(&Fault::Lost { gpu: 0 }).expect("injected");
    rig.until_claim(&gpu, |it| condition(it, "Healthy", "Lost")).await;
    rig.until_taints("n1/nvidia", &["windlass.dev/unhealthy=lost"]).await;
    agent.stop().await;
}

#[tokio::test]
async fn an_early_refusal_of_a_claim_is_in_its_status_until_it_is_prepared() {
    let rig = Rig::new();
    let (agent, mut kubelet) = rig.start_ready().await;
    let tenant = rig.free_gpu("g").await;
    rig.machine.inject(&Fault::Lost { gpu: 0 }).expect("injected");
    rig.until_taints("n1/nvidia", &["windlass.dev/unhealthy=lost"]).await;
    let error = kubelet.start_with(&tenant).await.expect_err("it is lost");
    let failed = rig.until_claim(&tenant, |it| condition(it, "Ready", "PrepareFailed")).await;
    assert_eq!(failed["status"]["devices"][0]["conditions"][0]["message"], error.as_str());
    assert!(condition(&failed, "Healthy", "Lost"), "{failed:#}");
    rig.machine.inject(&Fault::Recover { gpu: 0 }).expect("injected");
    rig.until_taints("n1/nvidia", &[]).await;
    kubelet.start_with(&tenant).await.expect("it has recovered");
    rig.until_claim(&tenant, |it| condition(it, "Ready", "Prepared")).await;

    let other = rig.schedule("h", "gpu").expect("there are eight");
    rig.machine.inject(&Fault::Lost { gpu: 1 }).expect("injected");
    rig.until_taints("n1/nvidia", &["windlass.dev/unhealthy=lost"]).await;
    kubelet.start_with(&other).await.expect_err("it is lost");
    rig.until_claim(&other, |it| condition(it, "Ready", "PrepareFailed")).await;
    kubelet.unprepare_claim((&other.claim, &other.uid)).await.expect("released");
    rig.until_claim(&other, |it| it["status"]["devices"].is_null()).await;
    agent.stop().await;
}

#[tokio::test]
async fn a_status_that_is_refused_twice_is_written_later_and_delays_no_other() {
    let rig = Rig::new();
    let (agent, mut kubelet) = rig.start_ready().await;
    let (first, second) = (rig.schedule("a", "board").expect("free"), rig.free_gpu("b").await);
    let fault_at =
        |tenant: &Tenant| ApiFault::at(format!("{}/status", tenant.claim), Effect::Forbid);
    rig.cluster.server().inject(fault_at(&first).for_method("PATCH").times(2));
    kubelet.start_with(&first).await.expect("prepared");
    kubelet.start_with(&second).await.expect("prepared");
    rig.until_claim(&second, |it| condition(it, "Ready", "Prepared")).await;
    rig.until_claim(&first, |it| condition(it, "Ready", "Prepared")).await;
    agent.stop().await;
}

/// True if the first device of a claim has this condition with this reason.
fn condition(claim: &Value, kind: &str, reason: &str) -> bool {
    let conditions = claim["status"]["devices"][0]["conditions"].as_array();
    conditions.into_iter().flatten().any(|it| it["type"] == kind && it["reason"] == reason)
}

#[tokio::test]
async fn a_claims_status_names_the_interface_of_its_nic() {
    let rig = Rig::new();
    let (agent, mut kubelet) = rig.start_ready().await;
    rig.until_taints("n1/nics", &[]).await;
    let tenant = rig.schedule("n", "nic").expect("it is free");
    kubelet.start_with(&tenant).await.expect("prepared");
    let claim = rig.until_claim(&tenant, |it| condition(it, "Ready", "Prepared")).await;
    let device = &claim["status"]["devices"][0];
    let state = agent.state.borrow().clone();
    let is_nic = |it: &&Device| device["device"].as_str().is_some_and(|name| is_named(it, name));
    let nic = state.inventory.of_kind(DeviceKind::Nic).find(is_nic).expect("it is there");
    let text_of = |name| nic.attributes[&AttributeName::new("windlass.dev", name)].to_string();
    let expected = json!({"interfaceName": text_of("ifName"), "hardwareAddress": text_of("mac")});
    assert_eq!(device["networkData"], expected, "{claim:#}");
    agent.stop().await;
}

/// True if this is the device's name for claims, which ends with a checksum.
fn is_named(device: &Device, name: &str) -> bool {
    name.starts_with(&device.id.as_str().replace('_', "-"))
}

#[tokio::test]
async fn a_preparation_beyond_the_kubelets_deadline_continues_and_is_done_once() {
    let mut rig = Rig::new();
    let deadline = Duration::from_millis(300);
    rig.config.kubelet_limits.claim_deadline = deadline;
    let [log, may_end] =
        ["begun", "go"].map(|name| rig.config.places.state_dir.with_file_name(name));
    let script = "echo begun >> \"$0\"; until [ -e \"$1\" ]; do sleep 0.02; done";
    let words = ["/bin/sh", "-c", script].map(str::to_owned).into_iter();
    let words = words.chain([&log, &may_end].map(|path| path.display().to_string()));
    let action = StepAction::Command(words.collect());
    let prepare = vec![Step { action, timeout: TIMEOUT }];
    rig.config.policy.sources[0].cleanup = CleanupSteps { prepare, ..CleanupSteps::default() };
    let (agent, mut kubelet) = rig.start_ready().await;
    let tenant = rig.schedule("a", "board").expect("it is free");
    for _ in 0..2 {
        let error = kubelet.start_with(&tenant).await.expect_err("it takes long");
        assert!(error.contains("is still being prepared after 300ms: retry"), "{error}");
    }
    std::fs::write(may_end, "").expect("written");
    until("the claim is prepared", async || kubelet.clone().start_with(&tenant).await).await;
    assert_eq!(std::fs::read_to_string(log).expect("written"), "begun\n");
    agent.stop().await;
}

#[tokio::test]
async fn a_gpu_with_a_remaining_process_is_withheld_until_the_process_ends() {
    let mut rig = Rig::new();
    let release = vec![step(StepAction::Processes(Processes::None))];
    rig.config.policy.families.gpu = CleanupSteps { release, ..CleanupSteps::default() };
    let (agent, mut kubelet) = rig.start_ready().await;
    let tenant = rig.free_gpu("g").await;
    kubelet.start_with(&tenant).await.expect("prepared");
    let process = Process { pid: 4711, memory_mib: 512, gpu_instance: None, sm_percent: 0 };
    rig.machine.update(|it| it.gpus[0].live.processes = vec![process]).expect("changed");
    rig.end(&mut kubelet, &tenant).await;
    rig.until_taints("n1/nvidia", &["windlass.dev/unclean=quarantined"]).await;
    rig.machine.update(|it| it.gpus[0].live.processes.clear()).expect("changed");
    rig.until_taints("n1/nvidia", &[]).await;
    agent.stop().await;
}

#[tokio::test]
async fn a_gpu_whose_memory_remains_used_is_withheld_until_it_is_free() {
    let mut rig = Rig::new();
    let release = vec![step(StepAction::Memory { max_bytes: 128 << 20 })];
    rig.config.policy.families.gpu = CleanupSteps { release, ..CleanupSteps::default() };
    let (agent, mut kubelet) = rig.start_ready().await;
    let tenant = rig.free_gpu("g").await;
    kubelet.start_with(&tenant).await.expect("prepared");
    rig.machine.inject(&Fault::MemoryLeaked { gpu: 0, mib: 4096 }).expect("injected");
    rig.end(&mut kubelet, &tenant).await;
    rig.until_taints("n1/nvidia", &["windlass.dev/unclean=quarantined"]).await;
    rig.until_event("4096 MiB of its memory are used, at most 128 are allowed").await;
    rig.machine.inject(&Fault::MemoryLeaked { gpu: 0, mib: 128 }).expect("injected");
    rig.until_taints("n1/nvidia", &[]).await;
    agent.stop().await;
}

/// A rig whose GPUs are reset when a claim releases them.
fn rig_with_reset(machine: &str) -> Rig {
    let mut rig = Rig::on(machine);
    let reset = StepAction::Reset(ResetOf::Gpu);
    let reset = Step { action: reset, timeout: Duration::from_secs(20) };
    let release = vec![reset, step(StepAction::Memory { max_bytes: 128 << 20 })];
    rig.config.policy.families.gpu = CleanupSteps { release, ..CleanupSteps::default() };
    rig.config.policy.health.event_wait = Duration::from_millis(20);
    rig
}

#[tokio::test]
async fn gpus_are_reset_between_claims_one_after_the_other() {
    let rig = rig_with_reset("l40s-pcie");
    let (agent, mut kubelet) = rig.start_ready().await;
    let tenants = [rig.free_gpu("a").await, rig.free_gpu("b").await];
    for tenant in &tenants {
        kubelet.start_with(tenant).await.expect("prepared");
    }
    for gpu in [0, 1] {
        rig.machine.inject(&Fault::MemoryLeaked { gpu, mib: 4096 }).expect("injected");
    }
    for tenant in &tenants {
        rig.end(&mut kubelet, tenant).await;
    }
    let is_free = || {
        let gpus = rig.machine.model().expect("a model").gpus;
        gpus.iter().all(|gpu| gpu.live.memory_used_mib == 0)
    };
    until("both are reset", async || is_free().then_some(()).ok_or("memory is used")).await;
    rig.until_taints("n1/nvidia", &[]).await;
    agent.stop().await;
}

#[tokio::test]
async fn a_gpu_with_links_to_others_is_not_reset() {
    let rig = rig_with_reset("dgx-h100");
    let (agent, mut kubelet) = rig.start_ready().await;
    // The GPU's history is unknown, so it would be reset before a claim gets it.
    let tenant = rig.free_gpu("a").await;
    let error = kubelet.start_with(&tenant).await.expect_err("it is linked");
    assert!(error.contains("would also take down its NVLinks to other GPUs"), "{error}");
    agent.stop().await;
}
