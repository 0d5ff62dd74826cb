//! Faults that are injected while a client runs.

use std::time::{Duration, Instant};

use nvml_wrapper_sys::bindings::*;
use windlass_machine::Fault;

use crate::rig::{Device, Rig};

#[test]
fn an_xid_wakes_whoever_waits_for_it() {
    let rig = Rig::started("dgx-h100");
    let gpu = rig.gpu(3);
    let set = rig.xids_of(gpu);
    rig.inject("xid:31@2");
    assert_eq!(rig.wait(&set, 0).0, nvmlReturn_enum_NVML_ERROR_TIMEOUT, "another GPU's");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let (code, data) = rig.wait(&set, 30_000);
            (code, data.eventData, data.eventType, data.device as usize, Instant::now())
        });
        let injected = Instant::now();
        rig.inject("xid:79@3");
        let (code, xid, kind, device, woken) = waiting.join().expect("no panic");
        assert_eq!((code, xid, kind), (0, 79, u64::from(nvmlEventTypeXidCriticalError)));
        assert_eq!(device, gpu as usize);
        assert!(woken - injected < Duration::from_secs(5), "a file event, not a timeout");
    });
}

#[test]
fn events_are_told_once_in_order_and_only_those_after_the_registration() {
    let rig = Rig::started("dgx-h100");
    rig.inject("xid:1@0");
    let set = rig.xids_of(rig.gpu(0));
    for fault in ["xid:13@0", "ecc@0", "xid:31@0"] {
        rig.inject(fault);
    }
    assert_eq!(rig.wait(&set, 0).1.eventData, 13);
    assert_eq!(rig.wait(&set, 0).1.eventData, 31);
    assert_eq!(rig.wait(&set, 0).0, nvmlReturn_enum_NVML_ERROR_TIMEOUT);
}

#[test]
fn a_lost_gpu_answers_so_and_the_others_go_on() {
    let rig = Rig::started("dgx-h100");
    let (lost, well) = (rig.gpu(3), rig.gpu(4));
    let set = rig.xids_of(lost);
    rig.inject("lost@3");
    assert_eq!(rig.index_code(lost), nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST);
    assert_eq!(rig.index_code(well), 0);
    assert_eq!(rig.count(), 8);
    assert_eq!(rig.wait(&set, 0).0, nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST);
    assert_eq!(rig.wait(&set, 0).0, nvmlReturn_enum_NVML_ERROR_TIMEOUT, "told once");
    rig.inject("recover@3");
    assert_eq!(rig.index_code(lost), 0);
}

#[test]
fn an_injected_error_is_what_calls_return() {
    let rig = Rig::started("dgx-h100");
    let gpu = rig.gpu(0);
    rig.inject("error:16@0");
    assert_eq!(rig.index_code(gpu), nvmlReturn_enum_NVML_ERROR_RESET_REQUIRED);
}

#[test]
fn a_call_on_a_hanging_gpu_returns_when_it_recovers() {
    let rig = Rig::started("dgx-h100");
    let (hung, well) = (Device(rig.gpu(1)), rig.gpu(2));
    rig.inject("hang@1");
    std::thread::scope(|scope| {
        let device = hung;
        let rig = &rig;
        let (begun, begins) = std::sync::mpsc::channel();
        let hanging = scope.spawn(move || {
            let device = { device };
            begun.send(()).expect("someone listens");
            rig.index_code(device.0)
        });
        begins.recv().expect("it begins");
        assert_eq!(rig.index_code(well), 0, "the others go on");
        assert!(!hanging.is_finished());
        rig.inject("recover@1");
        assert_eq!(hanging.join().expect("no panic"), 0);
    });
}

#[test]
fn a_slow_gpu_takes_its_time() {
    let rig = Rig::started("t4-edge");
    let gpu = rig.gpu(0);
    rig.inject("slow:30@0");
    let begin = Instant::now();
    assert_eq!(rig.index_code(gpu), 0);
    assert!(begin.elapsed() >= Duration::from_millis(30));
}

#[test]
fn an_added_gpu_is_counted_and_handles_stay_good() {
    let rig = Rig::started("dgx-h100");
    let first = rig.gpu(0);
    rig.inject("add");
    assert_eq!(rig.count(), 9);
    assert_eq!(rig.name(rig.gpu(8)), "NVIDIA H100 80GB HBM3");
    rig.inject("remove@0");
    assert_eq!(rig.count(), 8);
    assert_eq!(rig.index_code(first), nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST);
}

#[test]
fn without_a_driver_init_fails_and_it_works_again_after_installation() {
    let rig = Rig::started("t4-edge");
    let gpu = rig.gpu(0);
    rig.machine.remove_driver().expect("removed");
    assert_eq!(rig.index_code(gpu), nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED);
    rig.machine.install_driver().expect("installed");
    assert_eq!(rig.index_code(gpu), 0);
}

#[test]
fn two_machines_in_one_process_do_not_meet() {
    let (one, other) = (Rig::started("dgx-h100"), Rig::started("t4-edge"));
    assert_eq!((one.count(), other.count()), (8, 1));
    one.machine.inject(&Fault::Lost { gpu: 0 }).expect("injected");
    assert_eq!(other.index_code(other.gpu(0)), 0);
}
