//! Machines on disk: contents of the fake tree, and effects of faults.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use tempfile::TempDir;
use windlass_machine::{Fault, Machine, MachineProfile};

/// Machine with an arbitrary file as library: these tests do not load the library.
fn machine(profile: &str) -> (TempDir, Machine) {
    // Prefer a folder in memory: a simulated machine has about a thousand small files.
    let dir = TempDir::new_in("/dev/shm").or_else(|_| TempDir::new()).expect("a folder");
    let driver = dir.path().join("driver.so");
    fs::write(&driver, "not loaded").expect("a file");
    let profile = MachineProfile::named(profile).expect("built in");
    let machine =
        Machine::create(&dir.path().join("machine"), &profile, &driver).expect("a machine");
    (dir, machine)
}

fn read(machine: &Machine, path: &str) -> String {
    let path = machine.host_root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn exists(machine: &Machine, path: &str) -> bool {
    machine.host_root().join(path).exists()
}

#[test]
fn every_profile_makes_a_machine_marked_as_simulated() {
    for name in MachineProfile::names() {
        let (_dir, machine) = machine(name);
        assert_eq!(read(&machine, "run/windlass/simulated"), format!("{name}\n"));
        let model = machine.model().expect("written");
        for gpu in &model.gpus {
            let function = format!("sys/bus/pci/devices/{}", gpu.address());
            assert_eq!(read(&machine, &format!("{function}/vendor")), "0x10de\n");
            assert!(exists(&machine, &format!("{function}/driver")), "{function}");
            assert!(exists(&machine, &format!("dev/nvidia{}", gpu.minor)));
        }
    }
}

#[test]
fn a_dgx_h100_looks_like_one_in_sysfs() {
    let (_dir, machine) = machine("dgx-h100");
    let check = |path: &str, expected: &str| assert_eq!(read(&machine, path).trim(), expected);
    check("sys/bus/pci/devices/0000:1b:00.0/class", "0x030200");
    check("sys/bus/pci/devices/0000:1b:00.0/device", "0x2330");
    check("sys/bus/pci/devices/0000:9d:00.0/numa_node", "1");
    check("sys/bus/pci/devices/0000:9d:00.0/local_cpulist", "56-111,168-223");
    check("sys/bus/pci/devices/0000:1b:00.0/current_link_speed", "32.0 GT/s PCIe");
    check("sys/bus/pci/devices/0000:16:00.0/class", "0x060400");
    check("sys/bus/pci/devices/0000:05:00.0/class", "0x068000");
    check("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE");
    check("sys/class/infiniband/mlx5_0/device/vendor", "0x15b3");
    check("sys/class/infiniband_verbs/uverbs3/ibdev", "mlx5_3");
    check("sys/class/net/ib0/device/class", "0x020700");
    check("sys/devices/system/node/online", "0-1");
    check("sys/devices/system/node/node1/distance", "21 10");
    check("sys/class/dmi/id/product_name", "DGXH100");
    assert!(exists(&machine, "dev/infiniband/uverbs0"));
}

#[test]
fn an_ethernet_interface_has_its_own_class() {
    let (_dir, machine) = machine("dgx-a100");
    assert_eq!(read(&machine, "sys/class/net/eth0/device/class").trim(), "0x020000");
}

#[test]
fn a_gpu_and_its_nic_share_a_switch_in_the_device_tree() {
    let (_dir, machine) = machine("dgx-h100");
    let switch_folder = |address: &str| {
        let link = machine.host_root().join("sys/bus/pci/devices").join(address);
        let folder = fs::canonicalize(link).expect("a link");
        folder.ancestors().nth(2).map(Path::to_owned).expect("two bridges above")
    };
    assert_eq!(switch_folder("0000:1b:00.0"), switch_folder("0000:18:00.0"));
    assert!(
        switch_folder("0000:1b:00.0").ends_with("sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0")
    );
}

#[test]
fn mig_instances_have_capabilities_with_the_driver_s_minors() {
    let (_dir, machine) = machine("mig-a100");
    let minors = read(&machine, "proc/driver/nvidia-caps/mig-minors");
    for line in ["config 1", "gpu0/gi7/access 66", "gpu0/gi7/ci0/access 67"] {
        assert!(minors.lines().any(|other| other == line), "{line}");
    }
    assert!(exists(&machine, "dev/nvidia-caps/nvidia-cap66"));
    let access = read(&machine, "proc/driver/nvidia/capabilities/gpu0/mig/gi7/access");
    assert!(access.starts_with("DeviceFileMinor: 66\n"), "{access}");
}

#[test]
fn an_added_gpu_appears_in_the_tree_and_a_removed_gpu_disappears() {
    let (_dir, machine) = machine("dgx-h100");
    machine.inject(&Fault::AddGpu).expect("a ninth GPU");
    let model = machine.model().expect("written");
    let added_gpu = model.gpus.last().expect("nine GPUs");
    assert_eq!((added_gpu.minor, added_gpu.address().to_string().as_str()), (8, "0000:e0:00.0"));
    assert!(exists(&machine, "sys/bus/pci/devices/0000:e0:00.0/vendor"));
    assert!(exists(&machine, "proc/driver/nvidia/gpus/0000:e0:00.0/information"));

    machine.inject(&Fault::RemoveGpu { gpu: 8 }).expect("the GPU exists");
    assert!(!exists(&machine, "sys/bus/pci/devices/0000:e0:00.0"));
    assert!(!exists(&machine, "dev/nvidia8"));
    machine.inject(&Fault::AddGpu).expect("another one");
    let model = machine.model().expect("written");
    let second_gpu = model.gpus.last().expect("nine GPUs");
    assert_eq!(second_gpu.number, 9, "a number is reused");
}

/// Every path below a folder, with its content and its file identity.
fn listing(machine: &Machine) -> BTreeMap<PathBuf, (String, u64)> {
    let root = machine.host_root();
    let mut entries = BTreeMap::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let metadata = fs::symlink_metadata(&path).expect("an entry");
            let content = if metadata.is_symlink() {
                assert!(path.exists(), "{} dangles", path.display());
                format!("-> {}", fs::read_link(&path).expect("a link").display())
            } else if metadata.is_dir() {
                folders.push(path.clone());
                "folder".to_owned()
            } else if metadata.is_file() {
                String::from_utf8_lossy(&fs::read(&path).expect("a file")).into_owned()
            } else {
                "node".to_owned()
            };
            let inode = if metadata.is_dir() { 0 } else { metadata.ino() };
            entries
                .insert(path.strip_prefix(&root).expect("below it").to_owned(), (content, inode));
        }
    }
    entries
}

#[test]
fn adding_and_removing_a_gpu_leaves_all_other_files_untouched() {
    for name in ["dgx-h100", "mig-a100", "t4-edge"] {
        let (_dir, machine) = machine(name);
        let before = listing(&machine);
        let index = machine.model().expect("written").gpus.len();
        machine.inject(&Fault::AddGpu).expect("one more");
        let extended = listing(&machine);
        let minors = Path::new("proc/driver/nvidia-caps/mig-minors");
        for (path, entry) in before.iter().filter(|(path, _)| *path != minors) {
            assert_eq!(extended.get(path), Some(entry), "{}", path.display());
        }
        machine.inject(&Fault::RemoveGpu { gpu: index }).expect("the GPU exists");
        let paths = |listing: &BTreeMap<PathBuf, _>| listing.keys().cloned().collect::<Vec<_>>();
        assert_eq!(paths(&listing(&machine)), paths(&before), "{name}");
    }
}

#[test]
fn without_the_driver_the_tree_has_no_driver_files_and_bindings() {
    let (_dir, machine) = machine("mig-a100");
    let before = listing(&machine);
    machine.remove_driver().expect("removed");
    let without = listing(&machine);
    let is_driver_file = |path: &&PathBuf| path.to_string_lossy().contains("nvidia");
    assert_eq!(without.keys().find(is_driver_file), None);
    assert!(!exists(&machine, "sys/bus/pci/devices/0000:07:00.0/driver"));
    assert!(!read(&machine, "sys/bus/pci/devices/0000:07:00.0/uevent").contains("DRIVER"));
    assert!(machine.host_root().join("dev").is_dir(), "programs may watch the folder");
    machine.install_driver().expect("installed");
    assert!(listing(&machine).keys().eq(before.keys()));
}

#[test]
fn the_control_program_of_mps_comes_with_the_driver_and_can_be_run() {
    let (_dir, machine) = machine("t4-edge");
    let program = machine.host_root().join("usr/bin/nvidia-cuda-mps-control");
    let run = || {
        let mut command = std::process::Command::new(&program);
        command.env("CUDA_MPS_PIPE_DIRECTORY", machine.dir()).stdin(std::process::Stdio::null());
        command.output().expect("it runs")
    };
    let output = run();
    assert!(!output.status.success(), "no daemon runs");
    assert!(String::from_utf8_lossy(&output.stderr).contains("Cannot find"), "{output:?}");
    machine.remove_driver().expect("removed");
    assert!(!program.exists());
}

#[test]
fn device_nodes_follow_the_creation_and_destruction_of_mig_instances() {
    let (_dir, machine) = machine("mig-a100");
    let uuid = |gpu: usize| {
        let model = machine.model().expect("written");
        model.gpus[gpu].mig.as_ref().expect("MIG is on")[0].compute.clone()
    };
    assert!(!exists(&machine, "dev/nvidia-caps/nvidia-cap282"));
    machine.set_mig(2, Some(&["3g.20gb"])).expect("there is room");
    // Minor of GPU 2, GPU instance 1, as in mig-minors.
    assert!(read(&machine, "proc/driver/nvidia-caps/mig-minors").contains("gpu2/gi1/access 282\n"));
    assert!(exists(&machine, "dev/nvidia-caps/nvidia-cap282"));
    let first = uuid(2);
    machine.set_mig(2, Some(&["3g.20gb", "2g.10gb"])).expect("there is room");
    assert_eq!(uuid(2), first, "the unchanged instance has another UUID");
    machine.update(|model| model.gpus[2].mig = None).expect("MIG off");
    assert!(!exists(&machine, "dev/nvidia-caps/nvidia-cap282"));
    assert!(!exists(&machine, "proc/driver/nvidia/capabilities/gpu2"));
}

#[test]
fn impossible_mig_partitions_are_refused_with_the_reason() {
    let (_dir, machine) = machine("mixed-models");
    let check = |gpu, names: &[&str], expected: &str| {
        let error = machine.set_mig(gpu, Some(names)).expect_err(expected);
        let cause = std::error::Error::source(&error).expect("a cause").to_string();
        assert_eq!(cause, expected);
    };
    check(9, &[], "there is no GPU 9, the machine has 6");
    check(2, &[], "GPU 2, Tesla T4, has no MIG");
    check(0, &["7g.40gb", "1g.5gb"], "there is no room left for MIG instance `1g.5gb`");
    check(
        0,
        &["1g.7gb"],
        "there is no MIG profile `1g.7gb` for its card; there are 1g.5gb, 1g.5gb+me, 1g.10gb, \
         2g.10gb, 3g.20gb, 4g.20gb, 7g.40gb",
    );
}

#[test]
fn a_foreign_folder_is_refused_and_not_touched() {
    let dir = TempDir::new().expect("a folder");
    let driver = dir.path().join("driver.so");
    fs::write(&driver, "not loaded").expect("a file");
    let profile = MachineProfile::named("t4-edge").expect("built in");
    let foreign_dir = dir.path().join("theirs");
    for name in ["host/notes", "libnvidia-ml.so.1", "libcuda.so.1", "state.json"] {
        let file = foreign_dir.join(name);
        fs::create_dir_all(file.parent().expect("a folder")).expect("a new folder");
        fs::write(&file, "theirs").expect("a file");
        let error = Machine::create(&foreign_dir, &profile, &driver).expect_err(name).to_string();
        assert!(error.contains("does not belong to a simulated machine"), "{error}");
        assert_eq!(fs::read_to_string(&file).expect("still there"), "theirs");
        assert!(!foreign_dir.join("state.lock").exists());
        fs::remove_dir_all(&foreign_dir).expect("the test's own folder");
    }
    let machine =
        Machine::create(&foreign_dir, &profile, &driver).expect("a folder that is missing");
    machine.remove_driver().expect("removed");
    Machine::create(&foreign_dir, &profile, &driver).expect("a machine created by the test");
    let entries: Vec<_> = fs::read_dir(&foreign_dir).expect("a folder").collect();
    // Expected entries: host, three names of the library, state.json, state.lock.
    assert_eq!(entries.len(), 6, "{entries:?}");
}

#[test]
fn the_kernel_module_and_the_processors_are_in_the_kernel_s_format() {
    let (_dir, volta) = machine("16-gpu");
    let (_other, hopper) = machine("dgx-h100");
    let version = |machine| read(machine, "proc/driver/nvidia/version");
    assert!(!version(&volta).contains("Open Kernel Module"));
    assert!(version(&hopper).contains("Open Kernel Module"));
    assert_eq!(read(&hopper, "sys/devices/system/cpu/online"), "0-223\n");
}

#[test]
fn a_card_without_ecc_refuses_ecc_faults() {
    let (_dir, machine) = machine("t4-edge");
    machine.update(|model| model.gpus[0].card.ecc = false).expect("another card");
    let error = machine.inject(&Fault::DoubleBitEcc { gpu: 0 }).expect_err("no ECC");
    let cause = std::error::Error::source(&error).expect("a cause").to_string();
    assert_eq!(cause, "`ecc@0`: Tesla T4 has no ECC");
}

#[test]
fn a_fault_of_a_missing_gpu_names_the_number_of_gpus() {
    let (_dir, machine) = machine("t4-edge");
    let error = machine.inject(&Fault::Lost { gpu: 3 }).expect_err("one GPU");
    let cause = std::error::Error::source(&error).expect("a cause").to_string();
    assert_eq!(cause, "`lost@3`: there is no GPU 3, the machine has 1");
}

#[test]
fn a_fault_of_a_missing_feature_is_refused_with_the_reason() {
    for (profile, fault, expected) in [
        ("t4-edge", "remap-failed@0", "Tesla T4 does not remap memory rows"),
        ("t4-edge", "nvlink:0@0", "the GPU has no such link"),
        ("dgx-h100", "nvlink:18@0", "the GPU has no such link"),
        ("dgx-h100", "nvlink:200@0", "the GPU has no such link"),
        ("dgx-a100", "fabric@0", "the GPU has no such link"),
        ("dgx-h100", "xid:79@0/1", "the GPU has no GPU instance with that id"),
    ] {
        let (_dir, machine) = machine(profile);
        let error = machine.inject(&fault.parse().expect(fault)).expect_err(fault);
        let cause = std::error::Error::source(&error).expect("a cause").to_string();
        assert_eq!(cause, format!("`{fault}`: {expected}"));
    }
}

#[test]
fn a_reset_ends_faults_and_keeps_failed_remapping() {
    let (_dir, machine) = machine("dgx-h100");
    for fault in ["nvlink:5@0", "fabric@0", "thermal@0", "power@0", "remap-failed@0", "recover@0"] {
        machine.inject(&fault.parse().expect(fault)).expect(fault);
    }
    let model = machine.model().expect("written");
    assert_eq!(model.gpus[0].faults, windlass_machine::state::Faults::default());
    assert!(model.gpus[0].live.remapped.failed);
}

#[test]
fn recovery_ends_faults_and_remaps_the_broken_row() {
    let (_dir, machine) = machine("t4-edge");
    for fault in ["ecc@0", "lost@0", "slow:5@0", "recover@0"] {
        machine.inject(&fault.parse().expect(fault)).expect(fault);
    }
    let model = machine.model().expect("written");
    let gpu = &model.gpus[0];
    assert_eq!(gpu.faults, windlass_machine::state::Faults::default());
    assert_eq!((gpu.live.ecc_volatile.uncorrected, gpu.live.ecc_aggregate.uncorrected), (0, 1));
    assert_eq!((gpu.live.remapped.pending, gpu.live.remapped.uncorrected), (false, 1));
}

#[test]
fn the_driver_can_be_removed_and_installed_again() {
    let (_dir, machine) = machine("t4-edge");
    let paths = ["proc/driver/nvidia/version", "dev/nvidia0", "dev/nvidiactl"];
    machine.remove_driver().expect("removed");
    assert!(!machine.nvml_library().exists());
    assert!(paths.iter().all(|path| !exists(&machine, path)));
    assert!(exists(&machine, "sys/bus/pci/devices/0000:3b:00.0/vendor"), "the card stays");
    machine.install_driver().expect("installed");
    assert!(machine.nvml_library().exists());
    assert!(paths.iter().all(|path| exists(&machine, path)));
}

#[test]
fn concurrent_writers_lose_no_change() {
    let (_dir, machine) = machine("t4-edge");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for code in 0..8 {
                    machine.inject(&Fault::Xid { gpu: 0, code }).expect("injected");
                }
            });
        }
    });
    assert_eq!(machine.model().expect("written").events.last(), 32);
}

#[test]
fn the_driver_s_files_exist_while_the_driver_is_installed() {
    let (_dir, machine) = machine("t4-edge");
    let version = machine.model().expect("written").driver.expect("it has one").version;
    let libraries = "usr/lib/x86_64-linux-gnu";
    let link = machine.host_root().join(libraries).join("libcuda.so.1");
    let target = fs::read_link(&link).expect("a link");
    assert_eq!(target, PathBuf::from(format!("libcuda.so.{version}")));
    for path in [
        "usr/bin/nvidia-smi",
        "dev/dri/renderD128",
        &format!("{libraries}/vdpau/libvdpau_nvidia.so.1"),
        &format!("lib/firmware/nvidia/{version}/gsp_tu10x.bin"),
    ] {
        assert!(exists(&machine, path), "{path}");
    }
    machine.remove_driver().expect("removed");
    assert!(!exists(&machine, "usr/bin/nvidia-smi") && fs::symlink_metadata(link).is_err());
}
