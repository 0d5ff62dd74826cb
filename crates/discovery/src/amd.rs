//! AMD GPUs and their partitions.
//!
//! The compute driver (KFD) lists a node per PCI function, or one per partition, each with its render node.
//! The first partition keeps the nodes of the whole GPU. Further partitions belong to pseudo devices
//! with arbitrary names, `amdgpu_xcp_30` or `amdgpu_xcp.30`. So this source finds a partition by its render node
//! and names it after its GPU.

mod describe;
mod kfd;

use std::{collections::BTreeMap, path::Path};

use jiff::Timestamp;
use windlass_core::{
    device::{Device, DeviceKind, DeviceNode, SourceName},
    health::{Observation, Reason},
    inventory::SourceState,
    pci::PciAddress,
    telemetry::Sample,
};
use windlass_host::{
    Host, PCI_DEVICES, PciFunction, PciKind, drm_nodes,
    hwmon::{Monitor, is_suspended, number, percent},
    pci_folder,
};

pub(super) use describe::resource;

use super::{
    facts::count_text,
    failure::{self, ConditionReader, Failure},
    scanner::{Scan, Scanner},
};

#[derive(Debug, Default)]
pub(super) struct Amd {
    topology: kfd::Topology,
    /// Last reported unique id of each GPU, because a GPU without a driver reports none.
    unique_ids: BTreeMap<PciAddress, String>,
    conditions: ConditionReader,
}

/// A GPU during a scan.
struct AmdGpu<'a> {
    host: &'a Host,
    index: u32,
    function: &'a PciFunction,
    /// Device id; partitions append to it.
    id: String,
    mode: Option<describe::PartitionMode>,
    nodes: &'a [&'a kfd::Node],
    /// KFD nodes that the agent cannot read.
    unreadable: UnreadableNodes,
    /// Failure that the GPU reports.
    condition: Option<Failure>,
    /// xGMI links to other GPUs.
    xgmi: BTreeMap<PciAddress, u32>,
}

/// KFD nodes that the agent cannot read, compared with the GPUs under `amdgpu` that have no readable node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UnreadableNodes {
    None,
    /// As many unreadable nodes as GPUs without a readable node, none of them partitioned: KFD lists each GPU.
    OnePerGpu,
    /// Any other case: the agent cannot tell which GPUs KFD lists, nor their partitions.
    Ambiguous,
}

const VENDOR: &str = "1002";

/// Display controllers and processing accelerators (PCI Code and ID Assignment).
const CLASSES: [&str; 2] = ["0x03", "0x1200"];

const DRIVER: &str = "amdgpu";

/// Device node for compute, common to all AMD GPUs.
const KFD: &str = "/dev/kfd";

/// Sensors of a GPU, partitioned or not.
/// <https://docs.kernel.org/gpu/amdgpu/driver-misc.html>, <https://docs.kernel.org/gpu/amdgpu/thermal.html>
pub(super) fn sample(host: &Host, device: &Device) -> Sample {
    let Some(address) = device.place.pci else { return Sample::default() };
    let folder = pci_folder(address);
    if is_suspended(host, &folder) {
        return Sample::default();
    }
    let number = |file: &str| number(host, &folder.join(file));
    let percent = |file: &str| percent(host, &folder.join(file));
    let monitor = Monitor::find(host, &folder, &[DRIVER]);
    let clock = |file: &str| monitor.as_ref()?.clock(file);
    Sample {
        memory_used_bytes: number("mem_info_vram_used"),
        memory_bytes: number("mem_info_vram_total"),
        compute_percent: percent("gpu_busy_percent"),
        memory_percent: percent("mem_busy_percent"),
        compute_clock_hertz: clock("freq1_input"),
        memory_clock_hertz: clock("freq2_input"),
        pcie_replays: number("pcie_replay_count"),
        ..monitor.as_ref().map(Monitor::sample).unwrap_or_default()
    }
}

// === impl Amd ===

impl Scanner for Amd {
    fn names(&self) -> Vec<SourceName> {
        vec![SourceName::AMD]
    }

    fn folders(&self) -> &'static [&'static str] {
        &[PCI_DEVICES, kfd::NODES, "/sys/class/drm"]
    }

    fn scan(&mut self, host: &Host) -> Scan {
        let is_amd_gpu =
            |kind: &PciKind| kind.is_of_class(&CLASSES) && kind.is_of_vendor(&[VENDOR]);
        let functions = host.pci_functions(is_amd_gpu);
        self.topology.refresh(host);
        let addresses = functions.iter().map(|function| function.address).collect();
        let nodes = self.topology.by_function(&addresses);
        update_unique_ids(&mut self.unique_ids, host, &functions, &nodes);
        let unlisted_functions =
            functions.iter().filter(|function| !nodes.contains_key(&function.address));
        let unlisted_functions = unlisted_functions.collect::<Vec<_>>();
        let unreadable = unreadable_nodes(host, &unlisted_functions, self.topology.unreadable);
        let mut conditions = self.conditions.read_failures(host, &functions, condition);
        let devices_of = |(index, function): (u32, &PciFunction)| {
            let own_nodes = nodes.get(&function.address).map_or(&[][..], Vec::as_slice);
            let others = nodes.iter().filter(|(address, _)| **address != function.address);
            let link = |others: &Vec<&kfd::Node>| {
                own_nodes.iter().filter_map(|node| node.link_to(others)).max()
            };
            let xgmi = others.filter_map(|(address, nodes)| Some((*address, link(nodes)?)));
            let gpu = AmdGpu {
                host,
                index,
                function,
                id: self.id(function),
                mode: describe::partition_mode(host, &function.folder()),
                nodes: own_nodes,
                unreadable,
                condition: conditions.remove(&function.address),
                xgmi: xgmi.collect(),
            };
            gpu.devices()
        };
        let devices: Vec<_> = (0..).zip(&functions).flat_map(devices_of).collect();
        Scan {
            states: [(SourceName::AMD, state(host, functions.len()))].into(),
            devices,
            ..Scan::default()
        }
    }
}

impl Amd {
    /// Device id from the unique id, or from the PCI address if there is no unique id or two GPUs report the same.
    fn id(&self, function: &PciFunction) -> String {
        let unique_id = self.unique_ids.get(&function.address);
        let is_unique = |unique_id: &&String| {
            self.unique_ids.values().filter(|id| id == unique_id).count() == 1
        };
        let address = || function.id();
        format!(
            "{}-{}",
            SourceName::AMD,
            unique_id.filter(is_unique).cloned().unwrap_or_else(address)
        )
    }
}

/// Updates the unique id of each GPU from its driver, or else from its KFD node.
fn update_unique_ids(
    unique_ids: &mut BTreeMap<PciAddress, String>,
    host: &Host,
    functions: &[PciFunction],
    nodes: &BTreeMap<PciAddress, Vec<&kfd::Node>>,
) {
    // A moved GPU keeps its unique id, so entries of absent addresses are dropped.
    unique_ids.retain(|address, _| functions.iter().any(|function| function.address == *address));
    for function in functions {
        let by_driver = host.read_text(function.folder().join("unique_id"));
        let by_driver = by_driver.and_then(|number| u64::from_str_radix(&number, 16).ok());
        // For partitioned GPUs, newer drivers report the id of one die here.
        let by_topology = || Some(nodes.get(&function.address)?.first()?.unique_id);
        let number = by_driver.or_else(by_topology);
        if let Some(number) = number.filter(|number| *number > 0) {
            unique_ids.insert(function.address, format!("{number:016x}"));
        }
    }
}

/// Compares the number of unreadable nodes with the GPUs that have no readable node.
fn unreadable_nodes(host: &Host, unlisted: &[&PciFunction], node_count: usize) -> UnreadableNodes {
    let has_driver = |function: &&&PciFunction| function.driver.as_deref() == Some(DRIVER);
    let unlisted: Vec<_> = unlisted.iter().filter(has_driver).collect();
    let is_partitioned = |function: &PciFunction| {
        describe::partition_mode(host, &function.folder()).is_some_and(|mode| mode.is_partitioned())
    };
    match node_count {
        0 => UnreadableNodes::None,
        _ if node_count == unlisted.len()
            && !unlisted.iter().any(|function| is_partitioned(function)) =>
        {
            UnreadableNodes::OnePerGpu
        }
        _ => UnreadableNodes::Ambiguous,
    }
}

fn state(host: &Host, gpus: usize) -> SourceState {
    let version = host.read_text("/sys/module/amdgpu/version");
    let version = version.map(|version| format!("{DRIVER} {version}, ")).unwrap_or_default();
    match gpus {
        0 => SourceState::Absent("no PCI function is a GPU of AMD's".to_owned()),
        count => SourceState::Ready(format!("{version}{}", count_text(count, "GPU"))),
    }
}

// === impl AmdGpu ===

impl AmdGpu<'_> {
    fn devices(self) -> Vec<(Device, Observation)> {
        let failure = self.failure();
        match self.nodes {
            [] if self.unreadable != UnreadableNodes::OnePerGpu => {
                vec![(self.gpu(), failure::observation(failure))]
            }
            [] | [_] => {
                let node = self.nodes.first().copied();
                let device = self.with_nodes(self.gpu(), node, &self.function.folder());
                vec![self.with_health(device, failure)]
            }
            nodes => {
                let gpu = Device { partitioned: true, ..self.gpu() };
                let partitions = kfd::with_partition_numbers(nodes, self.function.address);
                let partitions = partitions
                    .filter_map(|(number, node)| self.partition_device(&gpu, number, node));
                let partitions: Vec<_> =
                    partitions.map(|device| self.with_health(device, failure.clone())).collect();
                let gpu = (gpu, failure::observation(failure));
                [gpu].into_iter().chain(partitions).collect()
            }
        }
    }

    fn gpu(&self) -> Device {
        let id = self.id.parse().expect("made of letters, digits and '-'");
        let mut location = self.function.location();
        location.xgmi.clone_from(&self.xgmi);
        Device {
            index: self.index,
            attributes: describe::gpu_attributes(self.host, self.function, self.mode.as_ref()),
            place: location,
            withheld: failure::driver_failure(self.function, &[DRIVER]).map(|(_, reason)| reason),
            ..Device::new(id, DeviceKind::Gpu, SourceName::AMD, Timestamp::UNIX_EPOCH)
        }
    }

    /// Device of a partition, with the topology of its GPU. The id contains the partition mode, because partition 2
    /// of four is a different device from partition 2 of eight.
    fn partition_device(&self, gpu: &Device, number: u32, node: &kfd::Node) -> Option<Device> {
        let mode = self.mode.as_ref().map(|mode| format!("{}-{}-", mode.compute, mode.memory));
        let id = format!("{}-{}{number}", self.id, mode.unwrap_or_default()).parse().ok()?;
        let device = Device {
            id,
            partitioned: false,
            partition: None,
            partitions: [].into(),
            parent: Some(gpu.id.clone()),
            part: Some(number),
            ..gpu.clone()
        };
        let folder = format!("/sys/class/drm/renderD{}/device", node.render_minor);
        Some(self.with_nodes(device, Some(node), Path::new(&folder)))
    }

    /// Adds device nodes, attributes and capacities to a device. Without a KFD node, the graphics driver reports the
    /// memory size.
    fn with_nodes(&self, device: Device, node: Option<&kfd::Node>, folder: &Path) -> Device {
        let folder = self.host.canonicalize(folder);
        let gpu_nodes = folder.iter().flat_map(|folder| drm_nodes::nodes(self.host, folder));
        let nodes = [DeviceNode::shared(KFD)].into_iter().chain(gpu_nodes).collect();
        let node_attributes = node.map(describe::node_attributes).unwrap_or_default();
        let attributes = device.attributes.into_iter().chain(node_attributes).collect();
        let driver_memory = || describe::memory(self.host, self.function);
        let capacity = node.map_or_else(driver_memory, describe::capacities);
        Device { attributes, capacity, nodes, ..device }
    }

    fn with_health(&self, device: Device, failure: Option<Failure>) -> (Device, Observation) {
        let failure = failure.or_else(|| failure::node_failure(self.host, &device.nodes));
        (device, failure::observation(failure))
    }

    /// Failure of the GPU and all its partitions.
    fn failure(&self) -> Option<Failure> {
        failure::driver_failure(self.function, &[DRIVER])
            .or_else(|| self.listing_failure())
            .or_else(|| self.condition.clone())
    }

    /// Failure of a GPU that KFD does not list, or of which KFD lists only some partitions.
    fn listing_failure(&self) -> Option<Failure> {
        let is_partitioned =
            self.mode.as_ref().is_some_and(describe::PartitionMode::is_partitioned);
        let detail = match self.nodes {
            [] if self.unreadable == UnreadableNodes::OnePerGpu => return None,
            [] if self.unreadable == UnreadableNodes::Ambiguous => {
                "the compute driver hides it from this process: run the agent privileged, see \
                 deploy/daemonset.yaml"
            }
            [] => "the compute driver does not list it: it cannot compute, or is being reset",
            // During partitioning the driver lists partitions one by one: a single node is not yet the whole GPU.
            [_] if is_partitioned => {
                "it is being partitioned: the compute driver lists one part so far"
            }
            _ => return None,
        };
        Some((Reason::NotReady, detail.to_owned()))
    }
}

/// Failure of a GPU by its uncorrected errors or its temperature.
fn condition(host: &Host, folder: &Path) -> Option<Failure> {
    uncorrected_error_failure(host, folder).or_else(|| failure::overheating_failure(host, folder))
}

/// Uncorrected errors since the driver was loaded. Each block has a file with lines such as `ue: 0`,
/// <https://docs.kernel.org/gpu/amdgpu/ras.html>.
fn uncorrected_error_failure(host: &Host, folder: &Path) -> Option<Failure> {
    let folder = folder.join("ras");
    let names = host.entry_names(&folder).into_iter().filter(|name| name.ends_with("_err_count"));
    let block_counts = names.filter_map(|name| {
        let text = host.read_text(folder.join(&name))?;
        let count = text.lines().find_map(|line| line.strip_prefix("ue:"))?.trim().parse().ok()?;
        Some((name.trim_end_matches("_err_count").to_owned(), count))
    });
    let (block, count): (_, u64) = block_counts.into_iter().find(|(_, count)| *count > 0)?;
    Some((Reason::UncorrectedEcc, format!("{count} in block {block}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(address: &str) -> PciFunction {
        let address = address.parse().expect("an address");
        Host::new("/nowhere", "/").pci_function(address)
    }

    #[test]
    fn a_gpu_in_another_slot_keeps_its_id() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let host = Host::new(root.path(), "/");
        let (before, after) = (function("0000:0a:00.0"), function("0000:1b:00.0"));
        for gpu in [&before, &after] {
            let folder = host.path(gpu.folder());
            std::fs::create_dir_all(&folder).expect("made");
            std::fs::write(folder.join("unique_id"), "20381e03f416f184\n").expect("written");
        }
        let mut amd = Amd::default();
        for gpu in [&before, &after] {
            update_unique_ids(
                &mut amd.unique_ids,
                &host,
                std::slice::from_ref(gpu),
                &BTreeMap::new(),
            );
            assert_eq!(amd.id(gpu), "amd-20381e03f416f184");
        }
    }
}
