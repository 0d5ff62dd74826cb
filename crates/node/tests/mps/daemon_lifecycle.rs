//! A daemon's lifecycle: started, limited, restarted, adopted, stopped.

use std::time::Duration;

use windlass_core::device::DeviceId;
use windlass_host::{Host, container::GpuProcess};
use windlass_lifecycle::mps::{MpsClients, MpsState, stop_all};
use windlass_machine::MpsFault;
use windlass_testkit::until;

use crate::mps::rig::{Rig, RunningMps, is_running, shares};

/// One GPU, whose daemon is ready.
async fn start_daemon_with_four_shares() -> (Rig, RunningMps, DeviceId) {
    let rig = Rig::new();
    let (mps, gpu) = (rig.run(), rig.gpu(0));
    mps.require([(gpu.clone(), shares(4))]);
    mps.until_ready(&gpu).await;
    (rig, mps, gpu)
}

#[tokio::test]
async fn a_required_daemon_is_ready_once_its_limits_are_set() {
    let (rig, mps, _) = start_daemon_with_four_shares().await;
    assert_eq!(rig.send_command(0, "get_default_active_thread_percentage"), "25.0");
    assert_eq!(rig.send_command(0, "get_default_device_pinned_mem_limit 0"), "20G");
    assert_eq!([0, 1].map(|index| rig.compute_mode(index)), [3, 0], "only its GPU is exclusive");
    mps.stop().await;
}

#[tokio::test]
async fn every_gpu_has_a_separate_daemon() {
    let rig = Rig::new();
    let mps = rig.run();
    let gpus = [0, 1].map(|index| rig.gpu(index));
    mps.require(gpus.iter().cloned().zip([shares(2), shares(10)]));
    for gpu in &gpus {
        mps.until_ready(gpu).await;
    }
    assert_eq!(rig.send_command(0, "get_default_active_thread_percentage"), "50.0");
    assert_eq!(rig.send_command(1, "get_default_active_thread_percentage"), "10.0");
    let second = rig.pid(1);
    rig.kill(0);
    mps.until_failed(&gpus[0]).await;
    mps.until_ready(&gpus[0]).await;
    assert!(rig.pid(1) == second && is_running(second), "the other daemon continues");
}

#[tokio::test]
async fn a_daemon_that_crashed_is_started_again() {
    let (rig, mps, gpu) = start_daemon_with_four_shares().await;
    let first = rig.pid(0);
    rig.kill(0);
    let reason = mps.until_failed(&gpu).await;
    assert_eq!(reason, "MPS daemon: the daemon ended with signal: 9 (SIGKILL)");
    mps.until_ready(&gpu).await;
    assert_ne!(rig.pid(0), first);
    assert_eq!(
        rig.send_command(0, "get_default_active_thread_percentage"),
        "25.0",
        "limits are set again"
    );
}

#[tokio::test]
async fn a_daemon_that_hangs_is_killed_and_started_again() {
    let (rig, mps, gpu) = start_daemon_with_four_shares().await;
    let first = rig.pid(0);
    rig.machine.set_mps_fault(gpu.as_str(), Some(&MpsFault::Hangs)).expect("set");
    let reason = mps.until_failed(&gpu).await;
    assert!(
        reason.contains("no answer to get_default_active_thread_percentage within 1s"),
        "{reason}"
    );
    rig.machine.set_mps_fault(gpu.as_str(), None).expect("unset");
    mps.until_ready(&gpu).await;
    assert!(rig.pid(0) != first && !is_running(first));
}

#[tokio::test]
async fn a_daemon_whose_server_accepts_no_clients_is_started_again() {
    let (rig, mps, gpu) = start_daemon_with_four_shares().await;
    let first = rig.pid(0);
    rig.send_command(0, "start_server -uid 0");
    rig.machine.set_mps_fault(gpu.as_str(), Some(&MpsFault::ServerFault)).expect("set");
    let reason = mps.until_failed(&gpu).await;
    assert!(reason.contains("had a fatal fault"), "{reason}");
    until("another daemon", async || if is_running(first) { Err(()) } else { Ok(()) }).await;
    rig.machine.set_mps_fault(gpu.as_str(), None).expect("unset");
    mps.until_ready(&gpu).await;
    assert!(rig.pid(0) != first && !is_running(first));
}

#[tokio::test]
async fn a_client_is_terminated_by_its_daemon() {
    let (rig, mps, gpu) = start_daemon_with_four_shares().await;
    let clients = MpsClients::new(&rig.config.places, &rig.config.mps);
    let host = Host::new(rig.machine.host_root(), "/");
    let folder = rig.machine.host_root().join("proc/71");
    std::fs::create_dir_all(&folder).expect("created");
    let set_pod = |pod: &str| {
        let group = format!("0::/kubepods/pod{pod:0>32}/c0ffee");
        std::fs::write(folder.join("cgroup"), group).expect("written");
    };
    set_pod("a");
    let container = host.container_of(71).expect("it runs").expect("a container of a pod");
    let client = GpuProcess { pid: 71, container, memory_bytes: 1, compute_percent: None };
    let terminate =
        async || clients.terminate(&gpu, &host, &[&client], Duration::from_secs(20)).await;
    let error = terminate().await.expect_err("there is no server");
    assert!(error.contains("the process 71 as a client"), "{error}");
    rig.send_command(0, "start_server -uid 0");
    rig.machine.set_mps_clients(gpu.as_str(), &[7, 71, 77]).expect("set");
    // Now a process of another container has this PID.
    set_pod("b");
    terminate().await.expect("the process of another container is skipped");
    assert_eq!(rig.machine.mps_clients(gpu.as_str()).expect("set"), [7, 71, 77]);
    set_pod("a");
    terminate().await.expect("terminated");
    assert_eq!(rig.machine.mps_clients(gpu.as_str()).expect("set"), [7, 77]);
    mps.stop().await;
}

#[tokio::test]
async fn a_daemon_that_is_no_longer_required_quits_and_resets_the_compute_mode() {
    let (rig, mps, gpu) = start_daemon_with_four_shares().await;
    let pid = rig.pid(0);
    mps.require([]);
    mps.until_removed(&rig, 0).await;
    assert!(!is_running(pid) && rig.compute_mode(0) == 0);
    mps.until(|states| states.is_empty()).await;
    mps.require([(gpu.clone(), shares(2))]);
    mps.until_ready(&gpu).await;
    assert_eq!(
        rig.send_command(0, "get_default_active_thread_percentage"),
        "50.0",
        "it is started again"
    );
}

#[tokio::test]
async fn a_daemon_that_hangs_is_stopped_too() {
    let (rig, mps, gpu) = start_daemon_with_four_shares().await;
    let pid = rig.pid(0);
    rig.machine.set_mps_fault(gpu.as_str(), Some(&MpsFault::Hangs)).expect("set");
    mps.require([]);
    mps.until_removed(&rig, 0).await;
    assert!(!is_running(pid) && rig.compute_mode(0) == 0);
}

#[tokio::test]
async fn a_daemon_outlives_the_agent_and_is_adopted_by_the_next() {
    let (rig, mps, gpu) = start_daemon_with_four_shares().await;
    let pid = rig.pid(0);
    mps.stop().await;
    assert!(is_running(pid), "programs use it");
    let mps = rig.run();
    mps.require([(gpu.clone(), shares(5))]);
    mps.until_ready(&gpu).await;
    assert_eq!((rig.pid(0), is_running(pid)), (pid, true), "the same process");
    assert_eq!(rig.send_command(0, "get_default_active_thread_percentage"), "20.0");
    rig.kill(0);
    assert_eq!(mps.until_failed(&gpu).await, "MPS daemon: the daemon is gone");
    mps.until_ready(&gpu).await;
    assert_ne!(rig.pid(0), pid);
}

#[tokio::test]
async fn a_daemon_of_an_earlier_agent_is_stopped_once_it_is_known_not_to_be_required() {
    let rig = Rig::new();
    let gpus = [0, 1].map(|index| rig.gpu(index));
    let mps = rig.run();
    mps.require(gpus.iter().map(|gpu| (gpu.clone(), shares(4))));
    for gpu in &gpus {
        mps.until_ready(gpu).await;
    }
    let pids = [0, 1].map(|index| rig.pid(index));
    mps.stop().await;
    let mps = rig.run();
    mps.require([(gpus[1].clone(), shares(4))]);
    mps.until_removed(&rig, 0).await;
    mps.until_ready(&gpus[1]).await;
    assert_eq!(pids.map(is_running), [false, true]);
    assert_eq!([0, 1].map(|index| rig.compute_mode(index)), [0, 3]);
}

#[tokio::test]
async fn all_daemons_can_be_stopped_without_an_agent() {
    let (rig, mps, gpu) = start_daemon_with_four_shares().await;
    let pid = rig.pid(0);
    mps.stop().await;
    assert_eq!(stop_all(&rig.config.places, &rig.config.mps).await, [(gpu, Ok(()))].into());
    assert_eq!(stop_all(&rig.config.places, &rig.config.mps).await, [].into(), "no daemon remains");
    assert!(!is_running(pid) && !rig.has_folder(0) && rig.compute_mode(0) == 0);
}

#[tokio::test]
async fn changed_limits_are_set_on_the_running_daemon() {
    let (rig, mps, gpu) = start_daemon_with_four_shares().await;
    let pid = rig.pid(0);
    rig.send_command(0, "start_server -uid 0");
    let server = rig.send_command(0, "get_server_list");
    mps.require([(gpu.clone(), shares(100))]);
    let reason = mps.until_failed(&gpu).await;
    assert_eq!(reason, "MPS daemon: 100 replicas: MPS serves at most 48 clients on this GPU");
    mps.require([(gpu.clone(), shares(8))]);
    mps.until_ready(&gpu).await;
    assert_eq!(rig.send_command(0, "get_default_active_thread_percentage"), "12.0");
    assert_eq!(rig.send_command(0, &format!("get_active_thread_percentage {server}")), "12.0");
    assert_eq!(rig.send_command(0, &format!("get_device_pinned_mem_limit {server} 0")), "10G");
    assert!(rig.pid(0) == pid && is_running(pid), "programs continue");
    let states = mps.until(|states| !states.is_empty()).await;
    assert_eq!(states[&gpu], MpsState::Ready);
}

#[tokio::test]
async fn a_retained_daemon_keeps_running_without_a_spec() {
    let rig = Rig::new();
    let mps = rig.run();
    let gpus = [0, 1].map(|index| rig.gpu(index));
    mps.require([(gpus[0].clone(), shares(4))]);
    mps.until_ready(&gpus[0]).await;
    let pid = rig.pid(0);
    mps.require_and_retain([], [gpus[0].clone()]);
    mps.stop().await;
    let next = rig.run();
    next.require_and_retain([(gpus[1].clone(), shares(4))], [gpus[0].clone()]);
    next.until_ready(&gpus[1]).await;
    assert!(rig.pid(0) == pid && is_running(pid), "also over a restart of the agent");
    next.require([]);
    next.until_removed(&rig, 0).await;
}
