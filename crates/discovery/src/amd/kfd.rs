//! Topology of AMD's compute driver (KFD): a node per GPU or partition.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::ErrorKind,
};

use windlass_core::pci::PciAddress;
use windlass_host::Host;

/// Cached topology. 64 partitions have four thousand link files, so links are read again only after a change of the
/// nodes' properties or of the generation number.
#[derive(Debug, Default)]
pub(super) struct Topology {
    /// Generation number and properties of all nodes at the last read.
    cached_text: String,
    nodes: Vec<Node>,
    /// Number of nodes that are unreadable to the agent. KFD answers `EPERM` unless the device cgroup permits
    /// the render node (`node_show` of `kfd_topology.c`).
    pub(super) unreadable: usize,
}

/// A GPU or a partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Node {
    number: u32,
    pub(super) render_minor: u32,
    domain: u32,
    /// Bus, device and function. Older drivers add the partition number to the function.
    location: [u8; 2],
    /// Partition number of newer drivers.
    partition: u8,
    pub(super) simds: u64,
    pub(super) simds_per_cu: u64,
    /// Target version: `90402` is `gfx942`.
    pub(super) gfx_target: u64,
    pub(super) memory_bytes: u64,
    pub(super) unique_id: u64,
    /// xGMI bandwidth in MB/s per direction, by peer node number.
    links: BTreeMap<u32, u32>,
}

pub(super) const NODES: &str = "/sys/class/kfd/kfd/topology/nodes";
const GENERATION: &str = "/sys/class/kfd/kfd/topology/generation_id";

/// Limit on nodes, and on links of each node: far above 64 partitions and the CPUs beside them.
const MAX_ENTRIES: usize = 1_024;

/// `HSA_IOLINK_TYPE_XGMI` (`drivers/gpu/drm/amd/amdkfd/kfd_crat.h`).
const XGMI: u64 = 11;

/// Local memory: `HSA_MEM_HEAP_TYPE_FB_PUBLIC` and `_PRIVATE` (`kfd_topology.h`).
const LOCAL_HEAP_TYPES: [u64; 2] = [1, 2];

/// Bandwidth of a link that reports none: the slowest that AMD built, in an MI50.
const DEFAULT_MBPS: u32 = 46_000;

// === impl Topology ===

impl Topology {
    /// Reads the topology if it changed.
    pub(super) fn refresh(&mut self, host: &Host) {
        let numbers = host
            .entry_names(NODES)
            .into_iter()
            .take(MAX_ENTRIES)
            .filter_map(|name| name.parse().ok());
        let (mut nodes, mut unreadable) = (Vec::<(u32, String)>::new(), 0);
        for number in numbers {
            match host.try_read_text(format!("{NODES}/{number}/properties")) {
                Ok(text) => nodes.push((number, text)),
                Err(error) if error.kind() == ErrorKind::PermissionDenied => unreadable += 1,
                // The node disappeared in between.
                Err(_) => {}
            }
        }
        self.unreadable = unreadable;
        nodes.sort_unstable();
        let texts = nodes.iter().map(|(number, text)| format!("{number}\n{text}\n"));
        let text = host.read_text(GENERATION).into_iter().chain(texts).collect::<String>();
        if text != self.cached_text {
            let nodes = nodes.iter().filter_map(|(number, text)| Node::read(host, *number, text));
            (self.cached_text, self.nodes) = (text, nodes.collect());
        }
    }

    /// Nodes by PCI function, in partition order.
    pub(super) fn by_function(
        &self,
        functions: &BTreeSet<PciAddress>,
    ) -> BTreeMap<PciAddress, Vec<&Node>> {
        let mut by_function: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for node in &self.nodes {
            if let Some(function) = node.function(functions) {
                by_function.entry(function).or_default().push(node);
            }
        }
        by_function
    }
}

// === impl Node ===

impl Node {
    /// `None` for CPUs, which have no render node.
    fn read(host: &Host, number: u32, text: &str) -> Option<Self> {
        let value = |name| property(text, name).unwrap_or_default();
        let render_minor = value("drm_render_minor").try_into().ok().filter(|minor| *minor > 0)?;
        let [.., high, _, bus, device_function] = value("location_id").to_be_bytes();
        Some(Self {
            number,
            render_minor,
            domain: value("domain").try_into().ok()?,
            location: [bus, device_function],
            partition: high >> 4,
            simds: value("simd_count"),
            simds_per_cu: value("simd_per_cu"),
            gfx_target: value("gfx_target_version"),
            memory_bytes: memory(host, number),
            unique_id: value("unique_id"),
            links: links(host, number),
        })
    }

    /// The PCI function of a GPU or partition.
    fn function(&self, functions: &BTreeSet<PciAddress>) -> Option<PciAddress> {
        let exact = PciAddress::from_requester_id(self.domain, self.location);
        [exact, exact.first_function()].into_iter().find(|address| functions.contains(address))
    }

    /// Partition number within the function.
    fn partition_number(&self, function: PciAddress) -> u32 {
        let address = PciAddress::from_requester_id(self.domain, self.location);
        match self.partition {
            0 => address.to_requester_id().saturating_sub(function.to_requester_id()),
            number => number.into(),
        }
    }

    /// Highest bandwidth of this node's links to the other nodes, in MB/s.
    pub(super) fn link_to(&self, others: &[&Self]) -> Option<u32> {
        others.iter().filter_map(|other| self.links.get(&other.number)).max().copied()
    }
}

/// Nodes of a function with their partition numbers. During partitioning the first listed node need not be
/// the first partition, so the driver's numbers apply. Without distinct numbers, partitions are numbered in list order.
pub(super) fn with_partition_numbers<'a>(
    nodes: &[&'a Node],
    function: PciAddress,
) -> impl Iterator<Item = (u32, &'a Node)> {
    let numbers: BTreeSet<_> = nodes.iter().map(|node| node.partition_number(function)).collect();
    let are_distinct = numbers.len() == nodes.len();
    let number = move |(index, node): (u32, &'a Node)| {
        (if are_distinct { node.partition_number(function) } else { index }, node)
    };
    (0..).zip(nodes.to_vec()).map(number)
}

fn memory(host: &Host, number: u32) -> u64 {
    let banks = read_properties(host, number, "mem_banks");
    let local_banks = banks.filter(|bank| {
        property(bank, "heap_type").is_some_and(|heap| LOCAL_HEAP_TYPES.contains(&heap))
    });
    local_banks.filter_map(|bank| property(&bank, "size_in_bytes")).sum()
}

/// xGMI bandwidth in MB/s by peer node: of direct links, and of routes through other GPUs.
fn links(host: &Host, number: u32) -> BTreeMap<u32, u32> {
    let mut links = BTreeMap::new();
    for link in
        ["io_links", "p2p_links"].iter().flat_map(|kind| read_properties(host, number, kind))
    {
        let peer = property(&link, "node_to").and_then(|peer| u32::try_from(peer).ok());
        if let (Some(peer), Some(XGMI)) = (peer, property(&link, "type")) {
            let mbps = property(&link, "max_bandwidth").and_then(|mbps| u32::try_from(mbps).ok());
            let mbps = mbps.filter(|mbps| *mbps > 0).unwrap_or(DEFAULT_MBPS);
            links
                .entry(peer)
                .and_modify(|highest: &mut u32| *highest = mbps.max(*highest))
                .or_insert(mbps);
        }
    }
    links
}

/// Texts of the `properties` files below a node's folder `kind`.
fn read_properties(host: &Host, number: u32, kind: &str) -> impl Iterator<Item = String> {
    let folder = format!("{NODES}/{number}/{kind}");
    let names = host.entry_names(&folder).into_iter().take(MAX_ENTRIES);
    names.filter_map(move |name| host.read_text(format!("{folder}/{name}/properties")))
}

/// Value of a `name value` line.
fn property(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.split_once(' '));
    lines.find(|(key, _)| *key == name)?.1.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn write_file(root: &std::path::Path, path: &str, text: &str) {
        let file = root.join("sys/class/kfd/kfd/topology/nodes").join(path);
        fs::create_dir_all(file.parent().expect("below the root")).expect("made");
        fs::write(file, text).expect("written");
    }

    fn write_node(root: &std::path::Path, number: u32, location: u32, minor: u32) {
        let text = format!("location_id {location}\ndomain 0\ndrm_render_minor {minor}\n");
        write_file(root, &format!("{number}/properties"), &text);
    }

    #[test]
    fn partitions_with_function_numbers_belong_to_one_gpu() {
        let root = tempfile::tempdir().expect("a temporary folder");
        write_node(root.path(), 0, 0, 0);
        for (number, location) in [(1, 0xa00), (2, 0xa01), (3, 0xa02), (10, 0x1000_0a03)] {
            write_node(root.path(), number, location, 127 + number);
        }
        let mut topology = Topology::default();
        topology.refresh(&Host::new(root.path(), "/"));
        let function: PciAddress = "0000:0a:00.0".parse().expect("valid");
        let nodes = topology.by_function(&[function].into());
        let minors: Vec<_> = nodes[&function].iter().map(|node| node.render_minor).collect();
        assert_eq!(minors, [128, 129, 130, 137], "in the order of their numbers");
    }

    #[test]
    fn partitions_have_the_numbers_of_the_driver() {
        let function = PciAddress::from_requester_id(0, [0x0a, 0]);
        let numbers = |nodes: &[(u8, u8)]| -> Vec<u32> {
            let node = |(partition, low): &(u8, u8)| Node {
                partition: *partition,
                location: [0x0a, *low],
                ..Node::default()
            };
            let nodes: Vec<_> = nodes.iter().map(node).collect();
            let nodes: Vec<_> = nodes.iter().collect();
            with_partition_numbers(&nodes, function).map(|(number, _)| number).collect()
        };
        assert_eq!(numbers(&[(1, 0), (3, 0)]), [1, 3], "in the highest bits");
        assert_eq!(numbers(&[(0, 2), (0, 5)]), [2, 5], "in the lowest");
        assert_eq!(numbers(&[(0, 0), (0, 0)]), [0, 1], "not reported");
    }

    #[test]
    fn links_and_memory_are_read_again_when_a_node_changes() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let (root, host) = (root.path(), Host::new(root.path(), "/"));
        write_node(root, 1, 0x100, 128);
        write_node(root, 2, 0x200, 129);
        write_file(root, "1/io_links/0/properties", "type 11\nnode_to 2\nmax_bandwidth 64000\n");
        write_file(root, "1/io_links/1/properties", "type 2\nnode_to 0\nmax_bandwidth 32000\n");
        write_file(root, "1/mem_banks/0/properties", "heap_type 1\nsize_in_bytes 4096\n");
        let mut topology = Topology::default();
        topology.refresh(&host);
        let [one, two] = topology.nodes.as_slice() else { panic!("two GPUs") };
        assert_eq!((one.link_to(&[two]), two.link_to(&[one])), (Some(64_000), None));
        assert_eq!((one.memory_bytes, two.memory_bytes), (4_096, 0));
        write_file(root, "1/io_links/0/properties", "type 11\nnode_to 2\nmax_bandwidth 0\n");
        topology.refresh(&host);
        assert_eq!(topology.nodes[0].links[&2], 64_000, "no node changed");
        write_node(root, 2, 0x200, 130);
        topology.refresh(&host);
        assert_eq!(topology.nodes[0].links[&2], DEFAULT_MBPS);
    }
}
