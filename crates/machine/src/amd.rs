//! AMD's GPUs as devices: PCI functions with their partitions, and the nodes of KFD's topology.

use std::{collections::BTreeMap, path::PathBuf};

use crate::{
    profile::{Amd, AmdGpu, ChildDevice, Device, MachineProfile, PartitionNames, PciFunction},
    state::hash,
};

mod kfd;

/// "Processing accelerator", in the PCI code and ID assignment specification.
const CLASS_PROCESSING_ACCELERATOR: u32 = 0x12_00_00;

/// Minor number of the first render node, as the kernel assigns them.
const FIRST_RENDER_MINOR: u32 = 128;

/// Major number of the kernel's graphics subsystem (DRM).
const DRM_MAJOR: u32 = 226;

/// Hardware monitor of an idle MI300X: no edge sensor, power of the socket, clocks of compute units and memory.
const HWMON_FILES: &[(&str, &str)] = &[
    ("name", "amdgpu"),
    ("temp2_label", "junction"),
    ("temp2_input", "41000"),
    ("temp2_crit", "100000"),
    ("temp3_label", "mem"),
    ("temp3_input", "33000"),
    ("power1_input", "142000000"),
    ("power1_cap", "750000000"),
    ("freq1_label", "sclk"),
    ("freq1_input", "132000000"),
    ("freq2_label", "mclk"),
    ("freq2_input", "900000000"),
];

/// Unpartitioned GPU, or one partition of a GPU.
struct GpuPartition<'a> {
    gpu: &'a AmdGpu,
    /// Index of the GPU.
    index: u32,
    /// Index of the partition within the GPU.
    partition_index: u32,
    /// Index of the KFD topology node. `None` for a partition that the driver reserves for another mode.
    node: Option<usize>,
}

/// Devices that AMD's driver creates for the GPUs of a machine.
pub(crate) fn devices(profile: &MachineProfile, seed: &str) -> Vec<Device> {
    let Some(amd) = &profile.amd else { return Vec::new() };
    let partitions = gpu_partitions(amd, profile.numa.len());
    let topology = kfd::Topology { amd, numa: &profile.numa, partitions: &partitions, seed };
    let mut devices = vec![topology.device()];
    for gpu_partition in &partitions {
        let kfd =
            gpu_partition.node.map(|node| topology.gpu(gpu_partition, node)).unwrap_or_default();
        let device = if gpu_partition.partition_index == 0 {
            gpu(amd, gpu_partition, seed)
        } else {
            partition(amd, gpu_partition)
        };
        devices.push(Device { elsewhere: kfd, ..device });
    }
    devices
}

/// Partitions in the order of KFD's nodes. KFD numbers the NUMA nodes first.
fn gpu_partitions(amd: &Amd, numa_nodes: usize) -> Vec<GpuPartition<'_>> {
    let mut nodes = numa_nodes..;
    let mut partitions = Vec::new();
    for (index, gpu) in (0..).zip(&amd.gpus) {
        let partition_count = gpu.compute.partition_count(amd.card.dies);
        let listed_count = match amd.partitions {
            PartitionNames::Underscore => amd.card.dies,
            PartitionNames::Dot => partition_count,
        };
        for partition_index in 0..listed_count {
            let node = if partition_index < partition_count { nodes.next() } else { None };
            partitions.push(GpuPartition { gpu, index, partition_index, node });
        }
    }
    partitions
}

fn gpu(amd: &Amd, partition: &GpuPartition<'_>, seed: &str) -> Device {
    let (card, gpu) = (&amd.card, partition.gpu);
    let bytes = (card.memory_mib << 20).to_string();
    let modes = "SPX, DPX, QPX, CPX".to_owned();
    let monitor = format!("hwmon/hwmon{}", partition.index);
    let sensors = HWMON_FILES.iter();
    let sensors = sensors.map(|(file, text)| (format!("{monitor}/{file}"), (*text).to_owned()));
    let files = [
        ("product_name", card.name.clone()),
        ("unique_id", format!("{:016x}", unique_id(seed, partition.index))),
        ("current_compute_partition", gpu.compute.to_string()),
        ("available_compute_partition", modes),
        ("current_memory_partition", gpu.memory.to_string()),
        ("available_memory_partition", "NPS1, NPS2, NPS4".to_owned()),
        ("mem_info_vram_total", bytes.clone()),
        ("mem_info_vis_vram_total", bytes),
        ("mem_info_vram_used", "0".to_owned()),
        ("gpu_busy_percent", "0".to_owned()),
        ("mem_busy_percent", "0".to_owned()),
        ("pcie_replay_count", "0".to_owned()),
    ];
    let files = files.map(|(name, text)| (name.to_owned(), text)).into_iter().chain(sensors);
    Device {
        name: format!("amd{}", partition.index),
        pci: Some(PciFunction {
            path: gpu.path.clone(),
            id: card.pci,
            subsystem: Some(card.subsystem),
            class: CLASS_PROCESSING_ACCELERATOR,
            numa: gpu.numa,
            group: None,
        }),
        driver: Some("amdgpu".to_owned()),
        files: files.map(|(name, text)| (name.into(), text)).collect(),
        children: drm(partition.minor(amd)),
        ..Device::default()
    }
}

/// Partitions after the first are platform devices without a PCI address.
fn partition(amd: &Amd, partition: &GpuPartition<'_>) -> Device {
    // The driver numbers partitions across all GPUs.
    let additional = |gpu: &AmdGpu| match amd.partitions {
        PartitionNames::Underscore => amd.card.dies - 1,
        PartitionNames::Dot => gpu.compute.partition_count(amd.card.dies) - 1,
    };
    let preceding_count: u32 = amd.gpus[..partition.index as usize].iter().map(additional).sum();
    let number = preceding_count + partition.partition_index - 1;
    let separator = match amd.partitions {
        PartitionNames::Underscore => '_',
        PartitionNames::Dot => '.',
    };
    let name = format!("amdgpu_xcp{separator}{number}");
    Device {
        name: format!("amd{}.{}", partition.index, partition.partition_index),
        folder: Some(PathBuf::from("platform").join(&name)),
        bus: Some("platform".to_owned()),
        uevent: BTreeMap::from([("MODALIAS".to_owned(), format!("platform:{name}"))]),
        children: drm(partition.minor(amd)),
        ..Device::default()
    }
}

fn drm(minor: u32) -> Vec<ChildDevice> {
    let nodes = [
        (format!("card{minor}"), minor),
        (format!("renderD{}", FIRST_RENDER_MINOR + minor), FIRST_RENDER_MINOR + minor),
    ];
    let child = |(name, minor): (String, u32)| ChildDevice {
        folder: PathBuf::from("drm").join(&name),
        class: "drm".to_owned(),
        number: Some(format!("{DRM_MAJOR}:{minor}")),
        node: Some(PathBuf::from("dri").join(&name)),
        uevent: BTreeMap::from([("DEVTYPE".to_owned(), "drm_minor".to_owned())]),
        ..ChildDevice::default()
    };
    nodes.map(child).into()
}

fn unique_id(seed: &str, index: u32) -> u64 {
    hash(&format!("amd/{seed}/{index}"))
}

// === impl GpuPartition ===

impl GpuPartition<'_> {
    /// Minor number offset of the partition's nodes. The driver reserves minors for every possible partition of
    /// a GPU.
    fn minor(&self, amd: &Amd) -> u32 {
        self.index * amd.card.dies + self.partition_index
    }
}
