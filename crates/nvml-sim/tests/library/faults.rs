//! Tests of faults that are injected under a running client.

use std::{
    sync::mpsc,
    time::{Duration, Instant},
};

use nvml_wrapper_sys::bindings::*;
use windlass_machine::Fault;

use crate::rig::{Device, TestMachine};

/// Time in which a thread that does not block returns.
const SHORT_WAIT: Duration = Duration::from_millis(100);

#[test]
fn an_xid_wakes_a_waiting_client() {
    let rig = TestMachine::started("dgx-h100");
    let gpu = Device(rig.gpu(3));
    let set = rig.xid_event_set(gpu.0);
    rig.inject("xid:31@2");
    assert_eq!(rig.wait(&set, 0).0, nvmlReturn_enum_NVML_ERROR_TIMEOUT, "an event of another GPU");
    std::thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        let (rig, set) = (&rig, &set);
        scope.spawn(move || {
            let (code, data) = rig.wait(set, 30_000);
            let event = (code, data.eventData, data.eventType, data.device as usize);
            sender.send((event, Instant::now())).expect("the test receives");
        });
        assert_eq!(receiver.recv_timeout(SHORT_WAIT), Err(mpsc::RecvTimeoutError::Timeout));
        let inject_time = Instant::now();
        rig.inject("xid:79@3");
        let (event, wake_time) = receiver.recv_timeout(Duration::from_secs(20)).expect("an event");
        let xid = u64::from(nvmlEventTypeXidCriticalError);
        assert_eq!(event, (0, 79, xid, gpu.0 as usize));
        assert!(wake_time - inject_time < Duration::from_secs(5), "a file event, not a timeout");
    });
}

#[test]
fn two_waits_on_one_set_return_different_events() {
    let rig = TestMachine::started("dgx-h100");
    let set = rig.xid_event_set(rig.gpu(0));
    std::thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        // The first waiter gives up early, so that another takes over the polling.
        for timeout_ms in [20, 30_000, 30_000] {
            let (rig, set, sender) = (&rig, &set, sender.clone());
            scope.spawn(move || {
                let (code, data) = rig.wait(set, timeout_ms);
                sender.send((code, data.eventData)).expect("the test receives");
            });
        }
        let next = || receiver.recv_timeout(Duration::from_secs(20)).expect("an answer");
        assert_eq!(next().0, nvmlReturn_enum_NVML_ERROR_TIMEOUT);
        rig.inject("xid:13@0");
        assert_eq!(next(), (0, 13));
        assert!(receiver.recv_timeout(SHORT_WAIT).is_err(), "there was one event");
        rig.inject("xid:31@0");
        assert_eq!(next(), (0, 31));
    });
}

#[test]
fn event_sets_may_outnumber_the_kernel_s_inotify_instances() {
    let rig = TestMachine::started("t4-edge");
    let sets: Vec<_> = (0..300).map(|_| rig.xid_event_set(rig.gpu(0))).collect();
    rig.inject("xid:79@0");
    assert!(sets.iter().all(|set| rig.wait(set, 0).1.eventData == 79));
}

#[test]
fn the_last_shutdown_frees_event_sets() {
    let rig = TestMachine::started("t4-edge");
    let set = rig.event_set();
    // SAFETY: the function has no parameters.
    assert_eq!(unsafe { rig.nvml.nvmlInit_v2() }, 0);
    let shutdown = || {
        // SAFETY: the function has no parameters.
        assert_eq!(unsafe { rig.nvml.nvmlShutdown() }, 0);
    };
    shutdown();
    assert_eq!(rig.wait(&set, 0).0, nvmlReturn_enum_NVML_ERROR_TIMEOUT, "still initialised");
    shutdown();
    // SAFETY: the function has no parameters.
    assert_eq!(unsafe { rig.nvml.nvmlInit_v2() }, 0);
    assert_eq!(rig.wait(&set, 0).0, nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT);
}

#[test]
fn a_later_registration_delivers_no_older_events() {
    let rig = TestMachine::started("dgx-h100");
    let gpu = rig.gpu(0);
    let set = rig.xid_event_set(gpu);
    rig.inject("ecc@0");
    rig.register(&set, gpu, nvmlEventTypeDoubleBitEccError);
    rig.inject("xid:79@0");
    assert_eq!(rig.wait(&set, 0).1.eventData, 79);
    rig.inject("ecc@0");
    let double_bit = u64::from(nvmlEventTypeDoubleBitEccError);
    assert_eq!(rig.wait(&set, 0).1.eventType, double_bit);
}

#[test]
fn events_after_the_registration_are_delivered_once_and_in_order() {
    let rig = TestMachine::started("dgx-h100");
    rig.inject("xid:1@0");
    let set = rig.xid_event_set(rig.gpu(0));
    for fault in ["xid:13@0", "ecc@0", "xid:31@0"] {
        rig.inject(fault);
    }
    assert_eq!(rig.wait(&set, 0).1.eventData, 13);
    assert_eq!(rig.wait(&set, 0).1.eventData, 31);
    assert_eq!(rig.wait(&set, 0).0, nvmlReturn_enum_NVML_ERROR_TIMEOUT);
}

#[test]
fn a_lost_gpu_returns_an_error_and_the_others_work() {
    let rig = TestMachine::started("dgx-h100");
    let (lost, healthy) = (rig.gpu(3), rig.gpu(4));
    rig.inject("lost@3");
    assert_eq!(rig.index_status(lost), nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST);
    assert_eq!(rig.index_status(healthy), 0);
    assert_eq!(rig.count(), 8);
    rig.inject("recover@3");
    assert_eq!(rig.index_status(lost), 0);
}

#[test]
fn a_lost_gpu_blocks_the_events_of_other_gpus_in_its_set() {
    let rig = TestMachine::started("dgx-h100");
    let set = rig.xid_event_set(rig.gpu(3));
    rig.register(&set, rig.gpu(4), nvmlEventTypeXidCriticalError);
    rig.inject("lost@3");
    rig.inject("xid:79@4");
    for _ in 0..3 {
        assert_eq!(rig.wait(&set, 30_000).0, nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST);
    }
    rig.inject("recover@3");
    assert_eq!(rig.wait(&set, 0).1.eventData, 79);
    rig.inject("remove@3");
    assert_eq!(rig.wait(&set, 0).0, nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST, "the GPU is removed");
}

#[test]
fn the_recovery_action_is_a_reset_until_the_reset() {
    let rig = TestMachine::started("dgx-h100");
    let gpu = rig.gpu(0);
    let action = || rig.field(gpu, field_id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION);
    assert_eq!(action(), (0, 0));
    for fault in ["ecc@0", "lost@0"] {
        rig.inject(fault);
        let reset = nvmlDeviceGpuRecoveryAction_s_NVML_GPU_RECOVERY_ACTION_GPU_RESET;
        assert_eq!(action(), (0, reset.into()), "{fault}");
        if fault == "lost@0" {
            let (code, _) = rig.field(gpu, field_id::NVML_FI_DEV_POWER_INSTANT);
            assert_eq!(
                code, nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST,
                "other fields report the loss"
            );
        }
        rig.inject("recover@0");
        assert_eq!(action(), (0, 0), "{fault}");
    }
}

#[test]
fn cards_before_ampere_retire_pages_and_remap_no_rows() {
    let rig = TestMachine::started("t4-edge");
    let gpu = rig.gpu(0);
    rig.inject("ecc@0");
    let not_supported = nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED;
    assert_eq!(rig.field(gpu, field_id::NVML_FI_DEV_REMAPPED_PENDING).0, not_supported);
    assert_eq!(rig.field(gpu, field_id::NVML_FI_DEV_RETIRED_PENDING), (0, 1));
    rig.inject("recover@0");
    let cause = nvmlPageRetirementCause_enum_NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR;
    let (mut count, mut pages) = (8, [0; 8]);
    let (count_out, pages_out) = (&raw mut count, pages.as_mut_ptr());
    // SAFETY: an array and its length.
    let code = unsafe { rig.nvml.nvmlDeviceGetRetiredPages(gpu, cause, count_out, pages_out) };
    assert_eq!((code, count), (0, 1));
}

#[test]
fn calls_return_an_injected_error() {
    let rig = TestMachine::started("dgx-h100");
    let gpu = rig.gpu(0);
    rig.inject("error:16@0");
    assert_eq!(rig.index_status(gpu), nvmlReturn_enum_NVML_ERROR_RESET_REQUIRED);
}

#[test]
fn a_call_on_a_hanging_gpu_returns_when_it_recovers() {
    let rig = TestMachine::started("dgx-h100");
    let (hung, healthy) = (Device(rig.gpu(1)), rig.gpu(2));
    rig.inject("hang@1");
    std::thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        let rig = &rig;
        scope.spawn(move || {
            let device = { hung };
            sender.send(rig.index_status(device.0)).expect("the test receives");
        });
        assert_eq!(receiver.recv_timeout(SHORT_WAIT), Err(mpsc::RecvTimeoutError::Timeout));
        assert_eq!(rig.index_status(healthy), 0, "another GPU works");
        rig.inject("recover@1");
        assert_eq!(receiver.recv_timeout(Duration::from_secs(20)), Ok(0));
    });
}

#[test]
fn a_slow_gpu_answers_from_the_state_after_the_delay() {
    let rig = TestMachine::started("t4-edge");
    let gpu = Device(rig.gpu(0));
    rig.inject("slow:300@0");
    std::thread::scope(|scope| {
        let rig = &rig;
        let call = scope.spawn(move || {
            let gpu = { gpu };
            rig.index_status(gpu.0)
        });
        rig.inject("lost@0");
        assert_eq!(call.join().expect("no panic"), nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST);
    });
}

#[test]
fn a_read_after_each_of_many_fast_changes_sees_the_change() {
    let rig = TestMachine::started("t4-edge");
    let gpu = rig.gpu(0);
    for celsius in 0..200 {
        rig.machine.update(|model| model.gpus[0].live.temperature_c = celsius % 10).expect("set");
        // SAFETY: a pointer to a valid number.
        let temperature =
            rig.read_number(|nvml, out| unsafe { nvml.nvmlDeviceGetTemperature(gpu, 0, out) });
        assert_eq!(temperature, celsius % 10);
    }
}

#[test]
fn a_state_of_another_version_is_an_error() {
    let rig = TestMachine::started("mig-a100");
    let path = rig.machine.state_file();
    let state = std::fs::read_to_string(&path).expect("written");
    assert!(state.contains("\"profile_id\":19"));
    std::fs::write(&path, state.replace("\"profile_id\":19", "\"profile_id\":99")).expect("a file");
    let mut number = 0;
    // SAFETY: a pointer to a valid number.
    let code = unsafe { rig.nvml.nvmlDeviceGetCount_v2(&raw mut number) };
    assert_eq!(code, nvmlReturn_enum_NVML_ERROR_UNKNOWN);
}

#[test]
fn a_slow_gpu_delays_each_call() {
    let rig = TestMachine::started("t4-edge");
    let gpu = rig.gpu(0);
    rig.inject("slow:30@0");
    let begin = Instant::now();
    assert_eq!(rig.index_status(gpu), 0);
    assert!(begin.elapsed() >= Duration::from_millis(30));
}

#[test]
fn an_added_gpu_is_counted_and_handles_stay_valid() {
    let rig = TestMachine::started("dgx-h100");
    let first = rig.gpu(0);
    rig.inject("add");
    assert_eq!(rig.count(), 9);
    assert_eq!(rig.name(rig.gpu(8)), "NVIDIA H100 80GB HBM3");
    rig.inject("remove@0");
    assert_eq!(rig.count(), 8);
    assert_eq!(rig.index_status(first), nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST);
}

#[test]
fn calls_fail_without_a_driver_and_work_after_its_installation() {
    let rig = TestMachine::started("t4-edge");
    let gpu = rig.gpu(0);
    rig.machine.remove_driver().expect("removed");
    assert_eq!(rig.index_status(gpu), nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED);
    rig.machine.install_driver().expect("installed");
    assert_eq!(rig.index_status(gpu), 0);
}

#[test]
fn two_machines_in_one_process_are_independent() {
    let (one, other) = (TestMachine::started("dgx-h100"), TestMachine::started("t4-edge"));
    assert_eq!((one.count(), other.count()), (8, 1));
    one.machine.inject(&Fault::Lost { gpu: 0 }).expect("injected");
    assert_eq!(other.index_status(other.gpu(0)), 0);
}
