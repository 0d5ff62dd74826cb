//! What the NVIDIA driver adds while it is loaded: /proc/driver/nvidia, capabilities, device nodes.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
};

use super::Tree;
use crate::{
    machine::MachineError,
    state::{Gpu, MigInstance, Model},
};

const PROC: &str = "proc/driver/nvidia";
const CAPS: &str = "proc/driver/nvidia-caps";

/// Major numbers; those of nvidia-caps and nvidia-uvm differ from boot to boot.
const DEVICES: &str = "Character devices:
195 nvidia
195 nvidiactl
235 nvidia-caps
511 nvidia-uvm

Block devices:";

/// Device nodes that are there once the driver is.
const CONTROL_NODES: [&str; 6] = [
    "dev/nvidiactl",
    "dev/nvidia-uvm",
    "dev/nvidia-uvm-tools",
    "dev/nvidia-modeset",
    "dev/nvidia-caps/nvidia-cap1",
    "dev/nvidia-caps/nvidia-cap2",
];

/// Minor numbers of `/dev/nvidia-caps`: 1 configures MIG, 2 monitors it, and each GPU has one for
/// each of 15 GPU instances and each of their 8 compute instances. The driver makes no exceptions,
/// so a minor can be computed; see `/proc/driver/nvidia-caps/mig-minors`.
const FIRST_MINOR: u32 = 3;
const GPU_INSTANCES: u32 = 15;
const COMPUTE_INSTANCES: u32 = 8;
const MINORS_OF_INSTANCE: u32 = 1 + COMPUTE_INSTANCES;

// === impl Tree ===

impl Tree {
    /// Everything that the driver shows of the machine as it is now.
    pub(crate) fn add_driver(&self, model: &Model) -> Result<(), MachineError> {
        CONTROL_NODES.iter().try_for_each(|node| self.device(node))?;
        let version = &model.driver.version;
        self.file("sys/module/nvidia/version", version)?;
        self.file("sys/module/nvidia/initstate", "live")?;
        self.file(
            Path::new(PROC).join("version"),
            &format!(
                "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  \
                 Release Build  (windlass@simulated)\n\
                 GCC version:  simulated"
            ),
        )?;
        self.file("proc/devices", DEVICES)?;
        self.write_mig_minors(model)?;
        model.gpus.iter().try_for_each(|gpu| self.write_gpu_driver(gpu))
    }

    /// The driver is unloaded.
    pub(crate) fn remove_driver(&self, model: &Model) -> Result<(), MachineError> {
        CONTROL_NODES.iter().try_for_each(|node| self.remove(node))?;
        model.gpus.iter().try_for_each(|gpu| self.remove_gpu_driver(gpu))?;
        for path in [PROC, CAPS, "sys/module/nvidia", "dev/nvidia-caps", "proc/devices"] {
            self.remove(path)?;
        }
        Ok(())
    }

    /// What the driver shows of one GPU goes away.
    pub(super) fn remove_gpu_driver(&self, gpu: &Gpu) -> Result<(), MachineError> {
        self.remove(node(gpu))?;
        self.remove(Path::new(PROC).join("gpus").join(gpu.address().to_string()))?;
        self.remove(Path::new(PROC).join(format!("capabilities/gpu{}", gpu.minor)))
    }

    fn write_gpu_driver(&self, gpu: &Gpu) -> Result<(), MachineError> {
        self.device(&node(gpu))?;
        let folder = Path::new(PROC).join("gpus").join(gpu.address().to_string());
        self.file(folder.join("information"), &information(gpu))?;
        let instances = gpu.mig.iter().flatten();
        instances.into_iter().try_for_each(|instance| self.write_instance(gpu, instance))
    }

    /// The capability files and nodes of a MIG instance.
    fn write_instance(&self, gpu: &Gpu, instance: &MigInstance) -> Result<(), MachineError> {
        let (gi, ci) = (instance.gpu_instance, instance.compute_instance);
        let folder = PathBuf::from(format!("{PROC}/capabilities/gpu{}/mig/gi{gi}", gpu.minor));
        let minor = minor_of_instance(gpu.minor, gi);
        let accesses = [
            (folder.join("access"), minor),
            (folder.join(format!("ci{ci}/access")), minor + 1 + ci),
        ];
        for (path, minor) in accesses {
            self.file(path, &capability(minor))?;
            self.device(&format!("dev/nvidia-caps/nvidia-cap{minor}"))?;
        }
        Ok(())
    }

    fn write_mig_minors(&self, model: &Model) -> Result<(), MachineError> {
        let mut lines = "config 1\nmonitor 2".to_owned();
        for gpu in &model.gpus {
            for gi in 0..GPU_INSTANCES {
                let minor = minor_of_instance(gpu.minor, gi);
                let name = format!("gpu{}/gi{gi}", gpu.minor);
                write!(lines, "\n{name}/access {minor}").expect("a string takes all");
                for ci in 0..COMPUTE_INSTANCES {
                    write!(lines, "\n{name}/ci{ci}/access {}", minor + 1 + ci)
                        .expect("a string takes all");
                }
            }
        }
        self.file(Path::new(CAPS).join("mig-minors"), &lines)?;
        self.file(Path::new(PROC).join("capabilities/mig/config"), &capability(1))?;
        self.file(Path::new(PROC).join("capabilities/mig/monitor"), &capability(2))
    }
}

fn node(gpu: &Gpu) -> String {
    format!("dev/nvidia{}", gpu.minor)
}

fn minor_of_instance(gpu_minor: u32, gpu_instance: u32) -> u32 {
    FIRST_MINOR + (gpu_minor * GPU_INSTANCES + gpu_instance) * MINORS_OF_INSTANCE
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
