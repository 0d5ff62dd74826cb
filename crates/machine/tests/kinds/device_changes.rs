//! Changes of devices: affected files change, and all other files stay.

use std::{collections::BTreeMap, os::unix::fs::MetadataExt as _, path::PathBuf};

use windlass_machine::{Machine, MachineProfile};

use crate::kinds::fixture::{check, create, exists, link, machine, read};

fn inject(machine: &Machine, fault: &str) {
    machine.inject(&fault.parse().expect(fault)).unwrap_or_else(|error| {
        panic!(
            "{fault}: {}",
            std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default()
        )
    });
}

#[track_caller]
fn check_refused(machine: &Machine, fault: &str, expected: &str) {
    let error = machine.inject(&fault.parse().expect(fault)).expect_err(fault);
    let cause = std::error::Error::source(&error).expect("a cause").to_string();
    assert!(cause.starts_with(&format!("`{fault}`: {expected}")), "{cause}");
}

/// Every entry except folders, with its inode. A rewritten file has a new inode.
fn entries(machine: &Machine) -> BTreeMap<PathBuf, u64> {
    let mut inodes = BTreeMap::new();
    let mut folders = vec![machine.host_root()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let metadata = path.symlink_metadata().expect("an entry");
            if metadata.is_dir() {
                folders.push(path);
            } else {
                inodes.insert(path, metadata.ino());
            }
        }
    }
    inodes
}

#[test]
fn an_unplugged_device_disappears_with_all_its_parts_and_returns_unchanged() {
    let (_dir, machine) = machine("rdma");
    let before = entries(&machine);
    inject(&machine, "unplug:ens1f0np0");
    let without = entries(&machine);
    assert!(!exists(&machine, "sys/bus/pci/devices/0000:17:00.0"));
    assert!(
        !exists(&machine, "sys/bus/pci/devices/0000:17:00.3") && !exists(&machine, "dev/vfio/62")
    );
    assert!(
        !exists(&machine, "dev/infiniband/uverbs0") && exists(&machine, "dev/infiniband/uverbs1")
    );
    let rewritten = without.iter().filter(|(path, inode)| before.get(*path) != Some(*inode));
    assert_eq!(rewritten.collect::<Vec<_>>(), [], "unaffected files were rewritten");
    inject(&machine, "plug:mlx5_0");
    assert!(entries(&machine).keys().eq(before.keys()));
}

#[test]
fn an_unbound_driver_removes_its_interfaces_and_nodes() {
    let (_dir, machine) = machine("rdma");
    inject(&machine, "unbind:0000:17:00.2");
    assert!(!exists(&machine, "sys/bus/pci/devices/0000:17:00.2/driver"));
    assert!(
        !exists(&machine, "sys/class/net/ens1f0v0") && !exists(&machine, "dev/infiniband/uverbs6")
    );
    inject(&machine, "bind:0000:17:00.2=vfio-pci");
    assert!(exists(&machine, "dev/vfio/61"));
    inject(&machine, "bind:0000:17:00.3=mlx5_core");
    assert!(exists(&machine, "sys/class/net/ens1f0v1") && !exists(&machine, "dev/vfio/62"));
    inject(&machine, "bind:0000:17:00.2=mlx5_core");
    check(&machine, "sys/class/infiniband/mlx5_5/ports/1/state", "4: ACTIVE");
}

#[test]
fn new_virtual_functions_have_unused_names_and_groups() {
    let (_dir, machine) = machine("rdma");
    inject(&machine, "vfs:mlx5_1=2");
    let parent = "sys/bus/pci/devices/0000:17:00.1";
    check(&machine, &format!("{parent}/sriov_numvfs"), "2");
    assert_eq!(link(&machine, &format!("{parent}/virtfn0")), "../0000:17:01.2");
    check(&machine, "sys/class/net/ens1f1np1v0/device/infiniband/mlx5_9/node_type", "1: CA");
    assert!(exists(&machine, "sys/kernel/iommu_groups/64/devices/0000:17:01.2"));
    inject(&machine, "vfs:mlx5_1=0");
    check(&machine, &format!("{parent}/sriov_numvfs"), "0");
    assert!(!exists(&machine, "sys/class/net/ens1f1np1v0"));
}

#[test]
fn a_renumbered_group_has_another_node() {
    let (_dir, machine) = machine("rdma");
    inject(&machine, "group:0000:17:00.3=17");
    assert!(exists(&machine, "dev/vfio/17") && !exists(&machine, "dev/vfio/62"));
    assert!(link(&machine, "sys/bus/pci/devices/0000:17:00.3/iommu_group").ends_with("/17"));
}

#[test]
fn an_unplugged_cable_shows_in_interface_and_port() {
    let (_dir, machine) = machine("rdma");
    inject(&machine, "link-down:ibs3");
    check(&machine, "sys/class/net/ibs3/operstate", "down");
    check(&machine, "sys/class/infiniband/mlx5_4/ports/1/phys_state", "3: Disabled");
    inject(&machine, "link-up:mlx5_4");
    check(&machine, "sys/class/net/ibs3/carrier", "1");
}

#[test]
fn files_of_a_board_can_be_removed_and_written() {
    let (_dir, machine) = machine("alveo");
    let rom = "sys/bus/pci/devices/0000:3b:00.1/rom.u.31457280";
    inject(&machine, "unset:u250-0:rom.u.31457280");
    inject(&machine, "set:u250-0:ready=0x0");
    assert!(!exists(&machine, rom));
    check(&machine, "sys/bus/pci/devices/0000:3b:00.1/ready", "0x0");
    inject(&machine, "set:u50-1:rom.u.7/VBNV=xilinx_u50_gen3x16_xdma_201920_3");
    check(
        &machine,
        "sys/bus/pci/devices/0000:af:00.1/rom.u.7/VBNV",
        "xilinx_u50_gen3x16_xdma_201920_3",
    );
}

#[test]
fn a_usb_device_keeps_its_serial_number_in_another_port() {
    let mut profile = MachineProfile::named("dgx-h100").expect("built in");
    let yaml = "{name: stick, folder: 'pci0000:00/0000:00:14.0/usb1/1-4', bus: usb, driver: usb, \
                uevent: {DEVTYPE: usb_device}, files: {serial: A1, busnum: '1', devnum: '7'}, \
                children: [{folder: '1-4:1.0/ttyUSB0/tty/ttyUSB0', class: tty, number: '188:0', node: ttyUSB0}]}";
    profile.devices.push(serde_saphyr::from_str(yaml).expect("a device"));
    let (_dir, machine) = create(&profile);
    let uevent = read(&machine, "sys/bus/usb/devices/1-4/uevent");
    assert!(uevent.contains("MAJOR=189\nMINOR=6\nDEVNAME=bus/usb/001/007\n"), "{uevent}");
    inject(&machine, "unplug:stick");
    assert!(
        !exists(&machine, "sys/bus/usb/devices/1-4") && !exists(&machine, "dev/bus/usb/001/007")
    );
    inject(&machine, "replug:stick=2-1.3");
    check(&machine, "sys/bus/usb/devices/2-1.3/serial", "A1");
    assert!(exists(&machine, "dev/bus/usb/002/008") && exists(&machine, "dev/ttyUSB0"));
    assert!(link(&machine, "sys/class/tty/ttyUSB0").contains("/usb2/2-1.3/2-1.3:1.0/"));
}

#[test]
fn impossible_changes_are_refused_with_the_reason() {
    let (_dir, machine) = machine("rdma");
    check_refused(
        &machine,
        "unplug:eth9",
        "there is no device with that name; there are ens1f0np0, ens1f1np1,",
    );
    check_refused(&machine, "vfs:mlx5_0=9", "it has 8 virtual functions at most");
    check_refused(&machine, "vfs:eno1=1", "it has 0 virtual functions at most");
    check_refused(&machine, "unplug:ens1f0v0", "it is a virtual function");
    check_refused(&machine, "replug:eno1=1-2", "it is not a USB device");
    check_refused(&machine, "set:eno1:../x=y", "`../x` is not a file in its folder");
}
