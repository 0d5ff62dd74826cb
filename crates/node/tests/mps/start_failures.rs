//! Daemons that do not start: a precise reason, another attempt, and no effect on other GPUs.

use std::fs;

use windlass_lifecycle::mps::{MigRole, MpsSpec, MpsState};
use windlass_machine::{Fault, MpsFault};

use crate::mps::rig::{Rig, shares};

#[tokio::test]
async fn a_daemon_that_fails_to_start_has_a_reason_and_others_serve() {
    let rig = Rig::new();
    let mps = rig.run();
    let gpus = [0, 1].map(|index| rig.gpu(index));
    let fault = MpsFault::Refuses("no room for a control daemon".to_owned());
    rig.machine.set_mps_fault(gpus[0].as_str(), Some(&fault)).expect("set");
    mps.require(gpus.iter().map(|gpu| (gpu.clone(), shares(4))));
    let reason = mps.until_failed(&gpus[0]).await;
    let expected = "the daemon ended with exit status: 1: no room for a control daemon";
    assert_eq!(reason, format!("MPS daemon: {expected}"));
    mps.until_ready(&gpus[1]).await;
    rig.machine.set_mps_fault(gpus[0].as_str(), None).expect("unset");
    mps.until_ready(&gpus[0]).await;
}

#[tokio::test]
async fn a_driver_without_the_program_is_a_reason_until_it_is_installed() {
    let rig = Rig::new();
    let mps = rig.run();
    let gpu = rig.gpu(0);
    let moved = rig.program().with_extension("away");
    fs::rename(rig.program(), &moved).expect("moved");
    mps.require([(gpu.clone(), shares(4))]);
    let reason = mps.until_failed(&gpu).await;
    assert!(reason.contains("there is no nvidia-cuda-mps-control in"), "{reason}");
    assert_eq!(rig.compute_mode(0), 0, "the compute mode is unchanged");
    fs::rename(&moved, rig.program()).expect("moved back");
    mps.until_ready(&gpu).await;
}

#[tokio::test]
async fn a_gpu_whose_compute_mode_cannot_be_set_is_withheld_alone() {
    const NO_PERMISSION: u32 = 4;
    let rig = Rig::new();
    let mps = rig.run();
    let gpus = [0, 1].map(|index| rig.gpu(index));
    rig.machine.inject(&Fault::Error { gpu: 0, code: NO_PERMISSION }).expect("a fault");
    mps.require(gpus.iter().map(|gpu| (gpu.clone(), shares(4))));
    let reason = mps.until_failed(&gpus[0]).await;
    assert!(
        reason.contains("cannot set the compute mode: ") && reason.contains("no permission"),
        "{reason}"
    );
    mps.until_ready(&gpus[1]).await;
    rig.machine.inject(&Fault::Recover { gpu: 0 }).expect("recovered");
    mps.until_ready(&gpus[0]).await;
}

#[tokio::test]
async fn a_hanging_driver_call_affects_only_its_gpu() {
    let rig = Rig::new();
    let mps = rig.run();
    let gpus = [0, 1].map(|index| rig.gpu(index));
    rig.machine.inject(&Fault::Hang { gpu: 0 }).expect("a fault");
    mps.require(gpus.iter().map(|gpu| (gpu.clone(), shares(4))));
    mps.until_ready(&gpus[1]).await;
    let reason = mps.until_failed(&gpus[0]).await;
    assert!(reason.contains("the driver did not answer within 1s"), "{reason}");
    rig.machine.inject(&Fault::Recover { gpu: 0 }).expect("recovered");
    mps.until_ready(&gpus[0]).await;
}

#[tokio::test]
async fn mig_and_old_gpus_are_refused_before_any_change() {
    let rig = Rig::new();
    let mps = rig.run();
    let gpu = rig.gpu(0);
    for (spec, expected) in [
        (MpsSpec { mig_role: MigRole::MigEnabledGpu, ..shares(2) }, "the GPU is in MIG mode"),
        (MpsSpec { compute_capability: Some((6, 1)), ..shares(17) }, "older than Volta"),
    ] {
        mps.require([(gpu.clone(), spec)]);
        mps.until(|states| {
            states
                .get(&gpu)
                .and_then(MpsState::obstacle)
                .is_some_and(|text| text.contains(expected))
        })
        .await;
    }
    assert!(rig.compute_mode(0) == 0 && !rig.has_folder(0));
}

#[tokio::test]
async fn a_daemon_that_clients_could_not_reach_is_not_started() {
    let mut rig = Rig::new();
    rig.config.mps.shm_dir = "/run".into();
    let mps = rig.run();
    let gpu = rig.gpu(0);
    mps.require([(gpu.clone(), shares(4))]);
    let reason = mps.until_failed(&gpu).await;
    assert!(reason.contains("/dev/shm of the daemon is not"), "{reason}");
}
