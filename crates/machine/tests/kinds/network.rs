//! Sysfs entries of adapters, functions and RDMA devices.

use crate::kinds::fixture::{check, exists, link, machine, read};

const PF: &str = "sys/bus/pci/devices/0000:17:00.0";

#[test]
fn an_rdma_device_has_nodes_in_every_class_with_its_name() {
    let (_dir, machine) = machine("rdma");
    check(&machine, "sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0");
    check(&machine, "sys/class/infiniband_verbs/uverbs0/dev", "231:192");
    let uevent = read(&machine, "sys/class/infiniband_verbs/uverbs0/uevent");
    assert_eq!(uevent, "MAJOR=231\nMINOR=192\nDEVNAME=infiniband/uverbs0\n");
    check(&machine, "sys/class/infiniband_mad/umad0/ibdev", "mlx5_0");
    check(&machine, "sys/class/infiniband_mad/umad0/port", "1");
    check(&machine, "sys/class/infiniband_mad/abi_version", "5");
    check(
        &machine,
        "sys/class/misc/rdma_cm/uevent",
        "MAJOR=10\nMINOR=122\nDEVNAME=infiniband/rdma_cm",
    );
    for node in ["uverbs0", "umad0", "rdma_cm"] {
        assert!(exists(&machine, &format!("dev/infiniband/{node}")), "{node}");
    }
    // Only InfiniBand has subnet management: an Ethernet port lacks this node.
    assert!(!exists(&machine, "dev/infiniband/issm0"));
    check(&machine, "sys/class/infiniband_mad/issm4/ibdev", "mlx5_4");
    assert!(exists(&machine, "dev/infiniband/issm4"));
}

#[test]
fn links_are_relative_as_in_sysfs() {
    let (_dir, machine) = machine("rdma");
    let bus = "../../../devices/pci0000:15/0000:15:02.0/0000:17:00.0";
    assert_eq!(link(&machine, PF), bus);
    let class = "../../devices/pci0000:15/0000:15:02.0/0000:17:00.0/net/ens1f0np0";
    assert_eq!(link(&machine, "sys/class/net/ens1f0np0"), class);
    assert_eq!(link(&machine, "sys/class/net/ens1f0np0/device"), "../../../0000:17:00.0");
    assert_eq!(
        link(&machine, "sys/class/infiniband/mlx5_0/subsystem"),
        "../../../../../../class/infiniband"
    );
}

#[test]
fn virtual_functions_link_to_their_adapter_and_have_the_entries_of_their_driver() {
    let (_dir, machine) = machine("rdma");
    check(&machine, &format!("{PF}/sriov_totalvfs"), "8");
    check(&machine, &format!("{PF}/sriov_numvfs"), "3");
    for (nth, address) in ["0000:17:00.2", "0000:17:00.3", "0000:17:00.4"].iter().enumerate() {
        assert_eq!(link(&machine, &format!("{PF}/virtfn{nth}")), format!("../{address}"));
        let function = format!("sys/bus/pci/devices/{address}");
        assert_eq!(link(&machine, &format!("{function}/physfn")), "../0000:17:00.0");
        check(&machine, &format!("{function}/device"), "0x101e");
    }
    check(&machine, "sys/class/infiniband/mlx5_5/device/net/ens1f0v0/operstate", "up");
    let vfio = "sys/bus/pci/devices/0000:17:00.3";
    assert!(link(&machine, &format!("{vfio}/driver")).ends_with("bus/pci/drivers/vfio-pci"));
    assert!(
        !exists(&machine, &format!("{vfio}/net")) && !exists(&machine, "sys/class/net/ens1f0v1")
    );
    let vdpa = "sys/bus/vdpa/devices/vdpa0";
    assert!(link(&machine, vdpa).ends_with("0000:17:00.4/vdpa0"));
    assert!(link(&machine, &format!("{vdpa}/driver")).ends_with("vdpa/drivers/vhost_vdpa"));
    check(&machine, &format!("{vdpa}/vhost-vdpa-0/dev"), "511:0");
    assert!(exists(&machine, "dev/vhost-vdpa-0"));
}

#[test]
fn a_group_lists_its_functions_and_vfio_has_a_node_for_it() {
    let (_dir, machine) = machine("rdma");
    let group = link(&machine, "sys/bus/pci/devices/0000:17:00.3/iommu_group");
    assert!(group.ends_with("kernel/iommu_groups/62"), "{group}");
    assert!(exists(&machine, "sys/kernel/iommu_groups/62/devices/0000:17:00.3"));
    assert!(exists(&machine, "dev/vfio/62") && exists(&machine, "dev/vfio/vfio"));
    check(&machine, "sys/class/vfio/62/uevent", "MAJOR=243\nMINOR=62\nDEVNAME=vfio/62");
    assert!(!exists(&machine, "dev/vfio/61"), "a function with a kernel driver has no VFIO node");
}

#[test]
fn a_scalable_function_is_on_the_auxiliary_bus() {
    let (_dir, machine) = machine("rdma");
    let function = "sys/bus/auxiliary/devices/mlx5_core.sf.4";
    check(&machine, &format!("{function}/sfnum"), "88");
    check(&machine, &format!("{function}/net/ens1f0s88/type"), "1");
    check(&machine, "sys/class/infiniband/mlx5_8/device/sfnum", "88");
}

#[test]
fn routes_and_bonds_show_the_interfaces_that_the_machine_needs() {
    let (_dir, machine) = machine("rdma");
    let routes = read(&machine, "proc/net/route");
    let default = routes.lines().find(|line| line.contains("\t00000000\t0100A8C0\t0003"));
    assert!(default.is_some_and(|line| line.starts_with("eno3\t")), "{routes}");
    let v6 = read(&machine, "proc/1/net/ipv6_route");
    assert!(v6.lines().next().is_some_and(|line| line.ends_with("    eno3")), "{v6}");
    assert_eq!(link(&machine, "sys/class/net/eno1/master"), "../../../../../virtual/net/bond0");
    check(&machine, "sys/class/net/bond0/bonding/slaves", "eno1 eno2");
    check(&machine, "sys/class/net/bond0/bonding/mode", "802.3ad 4");
    check(&machine, "sys/class/net/bonding_masters", "bond0");
}
