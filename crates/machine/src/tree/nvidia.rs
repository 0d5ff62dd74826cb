//! Entries of the loaded NVIDIA driver: /proc/driver/nvidia, capabilities, device nodes.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
};

use super::{Tree, pci::sysfs_folder};
use crate::{
    card::Architecture,
    profile::Driver,
    state::{Gpu, MigInstance, Model},
};

const PROC: &str = "proc/driver/nvidia";
const CAPS_DIR: &str = "proc/driver/nvidia-caps";

/// Content of `/proc/devices`. On real machines, the numbers of nvidia-caps and nvidia-uvm differ between boots.
const PROC_DEVICES: &str = "Character devices:
195 nvidia
195 nvidiactl
235 nvidia-caps
511 nvidia-uvm

Block devices:";

/// Device nodes of the loaded driver, independent of GPUs.
const CONTROL_NODES: &[&str] = &[
    "dev/nvidiactl",
    "dev/nvidia-uvm",
    "dev/nvidia-uvm-tools",
    "dev/nvidia-modeset",
    "dev/nvidia-caps/nvidia-cap1",
    "dev/nvidia-caps/nvidia-cap2",
];

/// Minor number of the kernel's first render node.
const FIRST_RENDER_MINOR: u32 = 128;

/// Minor numbers of `/dev/nvidia-caps`: 1 configures MIG, and 2 monitors it. From 3 on, each GPU has a minor for each
/// of 15 GPU instances, and for each of their 8 compute instances: `/proc/driver/nvidia-caps/mig-minors`.
const FIRST_CAPABILITY_MINOR: u32 = 3;
const MAX_GPU_INSTANCES: u32 = 15;
const MAX_COMPUTE_INSTANCES: u32 = 8;
const MINORS_PER_INSTANCE: u32 = 1 + MAX_COMPUTE_INSTANCES;

// === impl Tree ===

impl Tree {
    /// Adds all entries of the driver.
    pub(super) fn driver(&mut self, model: &Model, driver: &Driver) {
        for node in CONTROL_NODES {
            self.device(node);
        }
        self.file("sys/module/nvidia/version", &driver.version);
        self.file("sys/module/nvidia/initstate", "live");
        self.file(Path::new(PROC).join("version"), &version(model, driver));
        self.file("proc/devices", PROC_DEVICES);
        self.mig_minors(model);
        for gpu in &model.gpus {
            self.gpu_driver(gpu);
        }
    }

    fn gpu_driver(&mut self, gpu: &Gpu) {
        self.device(&node(gpu));
        self.display(gpu);
        let folder = Path::new(PROC).join("gpus").join(gpu.address().to_string());
        self.file(folder.join("information"), &information(gpu));
        for instance in gpu.mig.iter().flatten() {
            self.instance(gpu, instance);
        }
    }

    /// Adds entries of the display driver: DRM nodes, numbered as if the machine had no other card.
    fn display(&mut self, gpu: &Gpu) {
        let function = sysfs_folder(&gpu.path);
        let names = [("card", gpu.minor), ("renderD", FIRST_RENDER_MINOR + gpu.minor)];
        for ((name, minor), role) in names.into_iter().zip(["card", "render"]) {
            let name = format!("{name}{minor}");
            self.file(function.join("drm").join(&name).join("dev"), &format!("226:{minor}"));
            self.device(&format!("dev/dri/{name}"));
            let link = format!("dev/dri/by-path/pci-{}-{role}", gpu.address());
            self.link_literal(link, format!("../{name}"));
        }
    }

    /// Adds capability files and nodes of a GPU instance and its compute instance.
    fn instance(&mut self, gpu: &Gpu, instance: &MigInstance) {
        let gi = instance.gpu_instance;
        let folder = PathBuf::from(format!("{PROC}/capabilities/gpu{}/mig/gi{gi}", gpu.minor));
        let minor = minor_of_instance(gpu.minor, gi);
        let compute = instance.compute.as_ref().map(|compute| {
            (folder.join(format!("ci{}/access", compute.id)), minor + 1 + compute.id)
        });
        for (path, minor) in [(folder.join("access"), minor)].into_iter().chain(compute) {
            self.file(path, &capability(minor));
            self.device(&format!("dev/nvidia-caps/nvidia-cap{minor}"));
        }
    }

    fn mig_minors(&mut self, model: &Model) {
        let mut lines = "config 1\nmonitor 2".to_owned();
        for gpu in &model.gpus {
            for gi in 0..MAX_GPU_INSTANCES {
                let minor = minor_of_instance(gpu.minor, gi);
                let name = format!("gpu{}/gi{gi}", gpu.minor);
                write!(lines, "\n{name}/access {minor}").expect("a string accepts all text");
                for ci in 0..MAX_COMPUTE_INSTANCES {
                    write!(lines, "\n{name}/ci{ci}/access {}", minor + 1 + ci)
                        .expect("a string accepts all text");
                }
            }
        }
        self.file(Path::new(CAPS_DIR).join("mig-minors"), &lines);
        self.file(Path::new(PROC).join("capabilities/mig/config"), &capability(1));
        self.file(Path::new(PROC).join("capabilities/mig/monitor"), &capability(2));
    }
}

/// Text of `/proc/driver/nvidia/version`. The open kernel module supports Turing and newer cards; a machine with an
/// older card has the proprietary module.
fn version(model: &Model, driver: &Driver) -> String {
    let version = &driver.version;
    let is_proprietary = model.gpus.iter().any(|gpu| gpu.card.architecture == Architecture::Volta);
    let module = if is_proprietary {
        format!("NVIDIA UNIX x86_64 Kernel Module  {version}  (windlass@simulated)")
    } else {
        format!(
            "NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build  \
             (windlass@simulated)"
        )
    };
    format!("NVRM version: {module}\nGCC version:  simulated")
}

fn node(gpu: &Gpu) -> String {
    format!("dev/nvidia{}", gpu.minor)
}

fn minor_of_instance(gpu_minor: u32, gpu_instance: u32) -> u32 {
    FIRST_CAPABILITY_MINOR + (gpu_minor * MAX_GPU_INSTANCES + gpu_instance) * MINORS_PER_INSTANCE
}

fn capability(minor: u32) -> String {
    format!("DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1")
}

fn information(gpu: &Gpu) -> String {
    [
        format!("Model: \t\t {}", gpu.card.name),
        format!("IRQ:   \t\t {}", 100 + gpu.number),
        format!("GPU UUID: \t {}", gpu.uuid),
        format!("Video BIOS: \t {}", gpu.vbios()),
        "Bus Type: \t PCIe".to_owned(),
        "DMA Size: \t 52 bits".to_owned(),
        "DMA Mask: \t 0xfffffffffffff".to_owned(),
        format!("Bus Location: \t {}", gpu.address()),
        format!("Device Minor: \t {}", gpu.minor),
        "GPU Firmware: \t simulated".to_owned(),
        "GPU Excluded:\t No".to_owned(),
    ]
    .join("\n")
}
