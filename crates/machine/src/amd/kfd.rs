//! KFD's topology: one node for each processor and each partition of a GPU, with links between nodes.
//!
//! Names and order of the properties come from the kernel's `kfd_topology.c`. The numbers for `MI300X` come
//! from AMD's recordings of real machines.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    path::{Path, PathBuf},
};

use super::{FIRST_RENDER_MINOR, GpuPartition, unique_id};
use crate::{
    profile::{Amd, Device, NumaNode, PartitionNames},
    state::hash,
};

const NODES_DIR: &str = "sys/devices/virtual/kfd/kfd/topology/nodes";

/// Link types, from the kernel's `kfd_crat.h`.
const LINK_PCIE: u32 = 2;
const LINK_XGMI: u32 = 11;

/// Link weights, from `kfd_crat.h`: nearby processor, far processor, xGMI between GPUs, xGMI between partitions
/// of one GPU. A link between partitions of two GPUs adds both.
const NEAR_CPU_WEIGHT: u32 = 20;
const FAR_CPU_WEIGHT: u32 = 41;
const XGMI_WEIGHT: u32 = 15;
const INTRA_GPU_WEIGHT: u32 = 13;

/// SIMD units per compute unit.
const SIMDS_PER_COMPUTE_UNIT: u32 = 4;

/// KFD topology of a machine.
pub(super) struct Topology<'a> {
    pub amd: &'a Amd,
    pub numa: &'a [NumaNode],
    pub partitions: &'a [GpuPartition<'a>],
    pub seed: &'a str,
}

/// Link from one node to another.
struct Link {
    kind: u32,
    node_to: usize,
    weight: u32,
}

// === impl Topology ===

impl Topology<'_> {
    /// Device shared by all GPUs: `/dev/kfd`, the module's version, and the processor nodes.
    pub(super) fn device(&self) -> Device {
        let mut files = BTreeMap::new();
        for (node, numa) in self.numa.iter().enumerate() {
            let folder = Path::new(NODES_DIR).join(node.to_string());
            let cpus = numa.cpus.iter().count().to_string();
            let properties = [("cpu_cores_count", cpus), ("simd_count", "0".to_owned())];
            files.insert(folder.join("properties"), lines(&properties));
            files.insert(folder.join("gpu_id"), "0".to_owned());
            files.insert(folder.join("name"), String::new());
        }
        files.insert("sys/module/amdgpu/version".into(), self.amd.driver.clone());
        files.insert("sys/module/amdgpu/initstate".into(), "live".to_owned());
        Device {
            name: "kfd".to_owned(),
            folder: Some("virtual/kfd/kfd".into()),
            class: "kfd".to_owned(),
            number: Some("234:0".to_owned()),
            node: Some("kfd".into()),
            elsewhere: files,
            ..Device::default()
        }
    }

    /// Files of the topology node for a partition of a GPU.
    pub(super) fn gpu(
        &self,
        partition: &GpuPartition<'_>,
        node: usize,
    ) -> BTreeMap<PathBuf, String> {
        let folder = Path::new(NODES_DIR).join(node.to_string());
        let (io_links, p2p_links) = (self.io_links(partition, node), self.p2p_links(partition));
        let counts = [io_links.len(), p2p_links.len()];
        let mut files = BTreeMap::from([
            (folder.join("properties"), self.properties(partition, counts)),
            (folder.join("gpu_id"), (hash(&format!("{}/{node}", self.seed)) % 65_536).to_string()),
            (folder.join("name"), "ip discovery".to_owned()),
            (folder.join("mem_banks/0/properties"), self.memory(partition)),
        ]);
        for (kind, links) in [("io_links", &io_links), ("p2p_links", &p2p_links)] {
            for (index, link) in links.iter().enumerate() {
                let path = folder.join(kind).join(index.to_string()).join("properties");
                files.insert(path, link.properties(node));
            }
        }
        files
    }

    fn properties(
        &self,
        partition: &GpuPartition<'_>,
        [io_links, p2p_links]: [usize; 2],
    ) -> String {
        let (card, address) = (&self.amd.card, partition.gpu.path.address());
        let dies = card.dies / partition.gpu.compute.partition_count(card.dies);
        let number = |number: u64| number.to_string();
        lines(&[
            ("cpu_cores_count", number(0)),
            (
                "simd_count",
                number((card.compute_units * dies / card.dies * SIMDS_PER_COMPUTE_UNIT).into()),
            ),
            ("mem_banks_count", number(1)),
            ("io_links_count", number(io_links as u64)),
            ("p2p_links_count", number(p2p_links as u64)),
            ("max_waves_per_simd", number(8)),
            ("lds_size_in_kb", number(64)),
            ("wave_front_size", number(64)),
            ("simd_per_cu", number(SIMDS_PER_COMPUTE_UNIT.into())),
            ("gfx_target_version", number(card.gfx_target.into())),
            ("vendor_id", number(card.pci.vendor.into())),
            ("device_id", number(card.pci.device.into())),
            ("location_id", number(self.location_id(partition).into())),
            ("domain", number(address.domain.into())),
            ("drm_render_minor", number((FIRST_RENDER_MINOR + partition.minor(self.amd)).into())),
            ("hive_id", number(if self.is_linked(partition) { hash(self.seed) } else { 0 })),
            ("num_sdma_engines", number(2)),
            ("unique_id", number(self.unique_id(partition))),
            ("num_xcc", number(dies.into())),
        ])
    }

    /// Location id of a partition. Its index is in the lowest bits; newer drivers use the highest.
    fn location_id(&self, partition: &GpuPartition<'_>) -> u32 {
        let address = u32::from(partition.gpu.path.address().routing_id());
        match self.amd.partitions {
            PartitionNames::Underscore => address | partition.partition_index,
            PartitionNames::Dot => address | partition.partition_index << 28,
        }
    }

    /// Unique id of a partition. Newer drivers report the id of the partition's first die.
    fn unique_id(&self, partition: &GpuPartition<'_>) -> u64 {
        match self.amd.partitions {
            PartitionNames::Dot if !partition.is_unpartitioned(self.amd) => hash(&format!(
                "amd/{}/{}/{}",
                self.seed, partition.index, partition.partition_index
            )),
            _ => unique_id(self.seed, partition.index),
        }
    }

    fn memory(&self, partition: &GpuPartition<'_>) -> String {
        let (card, gpu) = (&self.amd.card, partition.gpu);
        // Partitions of one memory domain share the memory; each reports an equal share.
        let bytes = (card.memory_mib << 20) / u64::from(gpu.compute.partition_count(card.dies));
        lines(&[
            ("heap_type", "1".to_owned()),
            ("size_in_bytes", bytes.to_string()),
            ("flags", "0".to_owned()),
            ("width", "8192".to_owned()),
            ("mem_clk_max", "1300".to_owned()),
        ])
    }

    /// Links to the nearby processor, and to every partition that xGMI reaches.
    fn io_links(&self, partition: &GpuPartition<'_>, own_node: usize) -> Vec<Link> {
        let near_node = partition.gpu.numa.unwrap_or(0) as usize;
        let others = self.partitions.iter().filter_map(|other| {
            let node_to = other.node.filter(|node| *node != own_node)?;
            let weight = if other.index == partition.index {
                INTRA_GPU_WEIGHT
            } else if !partition.is_linked_with(other) {
                return None;
            } else if partition.is_unpartitioned(self.amd) && other.is_unpartitioned(self.amd) {
                XGMI_WEIGHT
            } else {
                XGMI_WEIGHT + 2 * INTRA_GPU_WEIGHT
            };
            Some(Link { kind: LINK_XGMI, node_to, weight })
        });
        [Link { kind: LINK_PCIE, node_to: near_node, weight: NEAR_CPU_WEIGHT }]
            .into_iter()
            .chain(others)
            .collect()
    }

    /// Links through a processor: to far processors, and to GPUs without xGMI.
    fn p2p_links(&self, partition: &GpuPartition<'_>) -> Vec<Link> {
        let near_node = partition.gpu.numa.unwrap_or(0) as usize;
        let processors = (0..self.numa.len()).filter(|node| *node != near_node);
        let gpus = self.partitions.iter().filter_map(|other| {
            other
                .node
                .filter(|_| other.index != partition.index && !partition.is_linked_with(other))
        });
        let targets = processors
            .map(|node_to| (node_to, FAR_CPU_WEIGHT))
            .chain(gpus.map(|node_to| (node_to, 2 * NEAR_CPU_WEIGHT)));
        targets.map(|(node_to, weight)| Link { kind: LINK_PCIE, node_to, weight }).collect()
    }

    fn is_linked(&self, partition: &GpuPartition<'_>) -> bool {
        self.partitions
            .iter()
            .any(|other| other.index != partition.index && partition.is_linked_with(other))
    }
}

// === impl GpuPartition ===

impl GpuPartition<'_> {
    fn is_linked_with(&self, other: &Self) -> bool {
        let peers = self.gpu.peers.as_ref();
        peers.is_none_or(|peers| peers.contains(&(other.index as usize)))
    }

    fn is_unpartitioned(&self, amd: &Amd) -> bool {
        self.gpu.compute.partition_count(amd.card.dies) == 1
    }
}

// === impl Link ===

impl Link {
    fn properties(&self, from: usize) -> String {
        let bandwidth = if self.kind == LINK_XGMI { "64000" } else { "0" };
        lines(&[
            ("type", self.kind.to_string()),
            ("version_major", "0".to_owned()),
            ("version_minor", "0".to_owned()),
            ("node_from", from.to_string()),
            ("node_to", self.node_to.to_string()),
            ("weight", self.weight.to_string()),
            ("min_latency", "0".to_owned()),
            ("max_latency", "0".to_owned()),
            ("min_bandwidth", bandwidth.to_owned()),
            ("max_bandwidth", bandwidth.to_owned()),
            ("recommended_transfer_size", "0".to_owned()),
            ("flags", "1".to_owned()),
        ])
    }
}

fn lines(properties: &[(&str, String)]) -> String {
    let mut text = String::new();
    for (name, value) in properties {
        writeln!(text, "{name} {value}").expect("a string accepts all text");
    }
    text.trim_end().to_owned()
}
