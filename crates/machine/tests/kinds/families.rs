//! Driver entries of AMD and Intel GPUs, FPGAs and drives.

use crate::kinds::fixture::{check, exists, link, machine, read};

const NODES: &str = "sys/class/kfd/kfd/topology/nodes";

fn property(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name} in\n{text}"))
}

#[test]
fn kfd_lists_processors_and_gpus_with_their_render_nodes() {
    let (_dir, machine) = machine("mi300x");
    let cpu = read(&machine, &format!("{NODES}/0/properties"));
    assert_eq!((property(&cpu, "cpu_cores_count"), property(&cpu, "simd_count")), (192, 0));
    let gpu = read(&machine, &format!("{NODES}/3/properties"));
    assert_eq!(property(&gpu, "location_id"), 0x2600);
    assert_eq!(property(&gpu, "drm_render_minor"), 136, "each GPU reserves eight minors");
    assert_eq!((property(&gpu, "simd_count"), property(&gpu, "device_id")), (1216, 0x74a1));
    assert_eq!((property(&gpu, "io_links_count"), property(&gpu, "p2p_links_count")), (8, 1));
    let peer = read(&machine, &format!("{NODES}/3/io_links/1/properties"));
    assert_eq!(
        (property(&peer, "type"), property(&peer, "node_to"), property(&peer, "weight")),
        (11, 2, 15)
    );
    assert!(!exists(&machine, &format!("{NODES}/10")));

    let function = "sys/module/amdgpu/drivers/pci:amdgpu/0000:26:00.0";
    check(&machine, &format!("{function}/current_compute_partition"), "SPX");
    check(&machine, &format!("{function}/mem_info_vram_total"), "206141652992");
    let unique_id = read(&machine, &format!("{function}/unique_id"));
    let unique_id = u64::from_str_radix(unique_id.trim(), 16).expect("hexadecimal");
    assert_eq!(unique_id, property(&gpu, "unique_id"));
    assert!(exists(&machine, &format!("{function}/drm/renderD136")));
    assert!(exists(&machine, "dev/kfd") && exists(&machine, "dev/dri/card8"));
    assert_eq!(link(&machine, "dev/dri/by-path/pci-0000:26:00.0-render"), "../renderD136");
    check(&machine, "sys/module/amdgpu/version", "6.12.12");
    // Partitions of other modes exist without a KFD node.
    assert!(exists(&machine, "sys/devices/platform/amdgpu_xcp_7/drm/renderD137"));
}

#[test]
fn a_partitioned_gpu_has_several_nodes_with_one_address() {
    let (_dir, machine) = machine("mi300x-cpx");
    let nodes = machine.host_root().join(NODES).read_dir().expect("a folder").count();
    assert_eq!(nodes, 2 + 64);
    let partition = read(&machine, &format!("{NODES}/3/properties"));
    assert_eq!(property(&partition, "location_id"), 1 << 28 | 0x0500);
    assert_eq!(
        (property(&partition, "drm_render_minor"), property(&partition, "num_xcc")),
        (129, 1)
    );
    assert_eq!(property(&partition, "simd_count"), 152);
    assert!(exists(&machine, "sys/devices/platform/amdgpu_xcp.0/drm/renderD129"));
    assert!(
        link(&machine, "sys/bus/platform/devices/amdgpu_xcp.55")
            .ends_with("platform/amdgpu_xcp.55")
    );
    let memory = read(&machine, &format!("{NODES}/3/mem_banks/0/properties"));
    assert_eq!(property(&memory, "size_in_bytes"), (196_592 << 20) / 8);
    let weights = ["io_links/1", "io_links/8"]
        .map(|link| property(&read(&machine, &format!("{NODES}/3/{link}/properties")), "weight"));
    assert_eq!(weights, [13, 41], "within the GPU, and to another GPU");
}

#[test]
fn an_intel_gpu_with_virtual_functions_is_linked_with_them() {
    let (_dir, machine) = machine("flex-170");
    check(&machine, "sys/class/drm/card0/device/vendor", "0x8086");
    check(&machine, "sys/class/drm/card3/device/sriov_numvfs", "2");
    assert!(exists(&machine, "sys/class/drm/card3/device/virtfn1/drm/card5"));
    assert!(link(&machine, "sys/class/drm/card4/device/physfn").ends_with("0000:cb:00.0"));
}

#[test]
fn alveo_cards_have_two_functions_and_one_is_not_ready() {
    let (_dir, machine) = machine("alveo");
    let user = "sys/bus/pci/devices/0000:3b:00.1";
    assert!(exists(&machine, &format!("{user}/user_pf")));
    check(&machine, &format!("{user}/rom.u.31457280/timestamp"), "1643110417");
    check(&machine, "sys/bus/pci/devices/0000:3b:00.0/instance", "15104");
    assert!(exists(&machine, "dev/xclmgmt15104") && exists(&machine, "dev/dri/renderD128"));
    assert!(exists(&machine, "dev/xfpga/dma.qdma.u34305.0"));
    let unready_card = machine.host_root().join("sys/bus/pci/devices/0000:af:00.1");
    let names = unready_card
        .read_dir()
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name());
    assert!(!names.into_iter().any(|name| name.to_string_lossy().starts_with("rom")));
}

#[test]
fn fpgas_of_the_device_feature_list_and_of_the_device_tree_are_in_the_kernel_s_folders() {
    let (_dir, dfl) = machine("dfl");
    check(
        &dfl,
        "sys/class/fpga_region/region0/dfl-port.0/afu_id",
        "d8424dc4a4a3c413f89e433683f9040b",
    );
    let fme = "sys/class/fpga_region/region0/dfl-fme.0";
    check(
        &dfl,
        &format!("{fme}/dfl-fme-region.0/fpga_region/region1/compat_id"),
        "69528db6eb31577a8c3668f9faa081f6",
    );
    assert!(exists(&dfl, "dev/dfl-port.1") && exists(&dfl, "dev/dfl-fme.0"));
    check(&dfl, "sys/bus/platform/devices/dfl-fme.0/ports_num", "1");

    let (_dir, kria) = machine("kria");
    let manager = "sys/class/fpga_manager/fpga0";
    check(&kria, &format!("{manager}/state"), "operating");
    let compatible = read(&kria, &format!("{manager}/device/of_node/compatible"));
    assert_eq!(compatible, "xlnx,zynqmp-pcap-fpga\0");
    assert!(
        exists(&kria, "dev/dri/renderD128") && !exists(&kria, "sys/bus/pci/devices/0000:00:00.0")
    );
    assert!(!kria.nvml_library().exists(), "the machine has no NVIDIA library");
}

#[test]
fn drives_are_block_devices_and_a_controller_has_a_root_hub() {
    let (_dir, machine) = machine("dgx-h100");
    check(&machine, "sys/class/nvme/nvme0/device/class", "0x010802");
    assert!(link(&machine, "sys/block/nvme0n1").ends_with("nvme/nvme0/nvme0n1"));
    assert!(exists(&machine, "sys/dev/block/259:0") && exists(&machine, "dev/nvme0n1"));
    check(&machine, "sys/bus/usb/devices/usb1/idVendor", "1d6b");
}
