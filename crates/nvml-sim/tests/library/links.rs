//! Tests of NVLink, PCI topology and field values.

use std::ffi::CStr;

use nvml_wrapper_sys::bindings::*;

use crate::rig::TestMachine;

/// Status of the remote PCI call, bus id, and type of the remote end.
fn remote_end(rig: &TestMachine, index: u32, link: u32) -> (nvmlReturn_t, String, u32) {
    // SAFETY: a struct of numbers.
    let mut pci: nvmlPciInfo_t = unsafe { std::mem::zeroed() };
    let mut kind = 99;
    let gpu = rig.gpu(index);
    // SAFETY: pointers to valid outputs.
    let code = unsafe {
        let code = rig.nvml.nvmlDeviceGetNvLinkRemotePciInfo_v2(gpu, link, &raw mut pci);
        rig.nvml.nvmlDeviceGetNvLinkRemoteDeviceType(gpu, link, &raw mut kind);
        code
    };
    // SAFETY: the text is zeroed, or the library wrote it with a final NUL.
    let bus_id = unsafe { CStr::from_ptr(pci.busId.as_ptr()) };
    (code, bus_id.to_str().expect("ASCII").to_owned(), kind)
}

fn active_links(rig: &TestMachine, index: u32) -> usize {
    let gpu = rig.gpu(index);
    let is_active = |link: &u32| {
        let mut state = 0;
        // SAFETY: a pointer to a valid number.
        let code = unsafe { rig.nvml.nvmlDeviceGetNvLinkState(gpu, *link, &raw mut state) };
        code == 0 && state == nvmlEnableState_enum_NVML_FEATURE_ENABLED
    };
    (0..NVML_NVLINK_MAX_LINKS).filter(is_active).count()
}

fn common_ancestor(rig: &TestMachine, one: u32, other: u32) -> u32 {
    let (one, other) = (rig.gpu(one), rig.gpu(other));
    // SAFETY: a pointer to a valid number.
    rig.read_number(|nvml, level| unsafe {
        nvml.nvmlDeviceGetTopologyCommonAncestor(one, other, level)
    })
}

#[test]
fn links_of_a_dgx_lead_to_its_switches() {
    let rig = TestMachine::started("dgx-h100");
    assert_eq!(active_links(&rig, 7), 18);
    let switch = nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_SWITCH;
    assert_eq!(remote_end(&rig, 0, 0), (0, "00000000:05:00.0".to_owned(), switch));
    assert_eq!(remote_end(&rig, 0, 17), (0, "00000000:08:00.0".to_owned(), switch));
    assert_eq!(remote_end(&rig, 0, 18).0, nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT);
}

#[test]
fn a_hidden_switch_has_the_bus_id_that_nccl_expects() {
    let rig = TestMachine::started("hgx-b200");
    assert_eq!(remote_end(&rig, 0, 0).1, "FFFFFFF:FFFF:FF");
}

#[test]
fn bridged_cards_are_linked_and_cards_without_nvlink_are_not_supported() {
    let rig = TestMachine::started("mixed-models");
    assert_eq!(active_links(&rig, 0), 12);
    let gpu = nvmlIntNvLinkDeviceType_enum_NVML_NVLINK_DEVICE_TYPE_GPU;
    assert_eq!(remote_end(&rig, 0, 3), (0, "00000000:25:00.0".to_owned(), gpu));
    assert_eq!(remote_end(&rig, 2, 0).0, nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED);
}

#[test]
fn levels_follow_switches_bridges_and_numa_nodes() {
    let rig = TestMachine::started("16-gpu");
    assert_eq!(common_ancestor(&rig, 0, 1), nvmlGpuLevel_enum_NVML_TOPOLOGY_SINGLE);
    assert_eq!(common_ancestor(&rig, 0, 2), nvmlGpuLevel_enum_NVML_TOPOLOGY_MULTIPLE);
    assert_eq!(common_ancestor(&rig, 0, 4), nvmlGpuLevel_enum_NVML_TOPOLOGY_NODE);
    assert_eq!(common_ancestor(&rig, 0, 8), nvmlGpuLevel_enum_NVML_TOPOLOGY_SYSTEM);
    assert_eq!(active_links(&rig, 15), 6);
    let mixed = TestMachine::started("mixed-models");
    assert_eq!(common_ancestor(&mixed, 0, 1), nvmlGpuLevel_enum_NVML_TOPOLOGY_HOSTBRIDGE);
}

#[test]
fn the_cpus_of_a_gpu_are_those_of_its_numa_node() {
    let rig = TestMachine::started("dgx-h100");
    let mut words = [0; 4];
    // SAFETY: an array and its length.
    let code = unsafe { rig.nvml.nvmlDeviceGetCpuAffinity(rig.gpu(0), 4, words.as_mut_ptr()) };
    assert_eq!(code, 0);
    // CPUs 0 to 55 and 112 to 167.
    assert_eq!(words, [(1 << 56) - 1, 0xffff << 48, (1 << 40) - 1, 0]);
}

#[test]
fn each_field_has_its_own_status_and_value() {
    let rig = TestMachine::started("dgx-h100");
    rig.inject("ecc@0");
    // SAFETY: structs of numbers.
    let mut fields: [nvmlFieldValue_t; 3] = unsafe { std::mem::zeroed() };
    fields[0].fieldId = field_id::NVML_FI_DEV_NVLINK_LINK_COUNT;
    fields[1].fieldId = field_id::NVML_FI_DEV_ECC_DBE_VOL_TOTAL;
    fields[2].fieldId = field_id::NVML_FI_DEV_RETIRED_PENDING;
    // SAFETY: an array and its length.
    let code = unsafe { rig.nvml.nvmlDeviceGetFieldValues(rig.gpu(0), 3, fields.as_mut_ptr()) };
    assert_eq!(code, 0);
    assert_eq!(fields.map(|field| field.nvmlReturn), [0, 0, 3]);
    // SAFETY: any number is valid in each member of the union.
    let values = fields.map(|field| unsafe { field.value.ullVal });
    assert_eq!(values[..2], [18, 1]);
}
