//! AMD's GPUs and their partitions.
//!
//! A GPU is a PCI function. Its compute driver lists a node for it, or one for each partition that it is
//! cut into, and names the render node of each. The first partition has the nodes that the whole GPU had;
//! the others hang from devices that the driver invents, `amdgpu_xcp_30` or `amdgpu_xcp.30`. Their names
//! and numbers mean nothing: a partition is found by its render node, and called by its GPU.

mod describe;
mod kfd;

use std::{collections::BTreeMap, path::Path};

use jiff::Timestamp;
use windlass_core::{
    device::{Device, DeviceKind, DeviceNode, SourceName},
    health::{Observation, Reason},
    inventory::SourceState,
    pci::PciAddress,
};

use super::{
    family::{Family, Look},
    graphics,
    trouble::{self, Trouble},
};
use crate::host::{Host, PciFunction, PciIndex};

pub(crate) use describe::resource;

/// The family.
#[derive(Debug, Default)]
pub(super) struct Amd {
    pci: PciIndex,
    topology: kfd::Topology,
    /// The number that each GPU said it has for life: a GPU without a driver does not tell it.
    unique: BTreeMap<PciAddress, String>,
}

/// A GPU while it is looked at.
struct Seen<'a> {
    host: &'a Host,
    index: u32,
    function: &'a PciFunction,
    /// What it is called; its partitions have more behind.
    id: String,
    cut: Option<describe::Cut>,
    /// Its nodes of the compute driver's topology.
    nodes: &'a [&'a kfd::Node],
    /// Its links to other GPUs.
    xgmi: BTreeMap<PciAddress, u32>,
}

const VENDOR: &str = "1002";

/// Adapters with and without a screen, and processing accelerators (PCI code and ID assignment).
const CLASSES: [&str; 2] = ["0x03", "0x1200"];

const DRIVER: &str = "amdgpu";

/// How a GPU says that its compute units are not cut.
const WHOLE: &str = "spx";

/// The node that all programs compute through.
const KFD: &str = "/dev/kfd";

// === impl Amd ===

impl Family for Amd {
    fn names(&self) -> Vec<SourceName> {
        vec![SourceName::AMD]
    }

    fn look(&mut self, host: &Host) -> Look {
        let mut functions = self.pci.of_class(host, &CLASSES);
        functions.retain(|function| function.vendor.as_deref() == Some(VENDOR));
        self.topology.refresh(host);
        let addresses = functions.iter().map(|function| function.address).collect();
        let nodes = self.topology.by_function(&addresses);
        remember(&mut self.unique, host, &functions, &nodes);
        let seen = |(index, function): (u32, &PciFunction)| {
            let own = nodes.get(&function.address).map_or(&[][..], Vec::as_slice);
            let others = nodes.iter().filter(|(address, _)| **address != function.address);
            let link =
                |others: &Vec<&kfd::Node>| own.iter().filter_map(|node| node.link_to(others)).max();
            let xgmi = others.filter_map(|(address, nodes)| Some((*address, link(nodes)?)));
            let seen = Seen {
                host,
                index,
                function,
                id: self.id(function),
                cut: describe::cut(host, &function.folder()),
                nodes: own,
                xgmi: xgmi.collect(),
            };
            seen.devices()
        };
        let found: Vec<_> = (0..).zip(&functions).flat_map(seen).collect();
        Look {
            states: [(SourceName::AMD, state(host, functions.len()))].into(),
            found,
            ..Look::default()
        }
    }
}

impl Amd {
    /// By the number it has for life, if it has one of its own, else by where it sits.
    fn id(&self, function: &PciFunction) -> String {
        let unique = self.unique.get(&function.address);
        let is_own = |unique: &&String| self.unique.values().filter(|it| it == unique).count() == 1;
        let place = || function.id();
        format!("{}-{}", SourceName::AMD, unique.filter(is_own).cloned().unwrap_or_else(place))
    }
}

fn remember(
    unique: &mut BTreeMap<PciAddress, String>,
    host: &Host,
    functions: &[PciFunction],
    nodes: &BTreeMap<PciAddress, Vec<&kfd::Node>>,
) {
    for function in functions {
        let by_driver = host.text(function.folder().join("unique_id"));
        let by_driver = by_driver.and_then(|number| u64::from_str_radix(&number, 16).ok());
        // Of a GPU that is cut newer drivers tell here the number of one of its dies.
        let by_topology = || Some(nodes.get(&function.address)?.first()?.unique_id);
        let number = by_driver.or_else(by_topology);
        if let Some(number) = number.filter(|number| *number > 0) {
            unique.insert(function.address, format!("{number:016x}"));
        }
    }
}

fn state(host: &Host, gpus: usize) -> SourceState {
    let version = host.text("/sys/module/amdgpu/version");
    let version = version.map(|version| format!("{DRIVER} {version}, ")).unwrap_or_default();
    match gpus {
        0 => SourceState::Absent("no PCI function is a GPU of AMD's".to_owned()),
        1 => SourceState::Ready(format!("{version}1 GPU")),
        several => SourceState::Ready(format!("{version}{several} GPUs")),
    }
}

// === impl Seen ===

impl Seen<'_> {
    /// The GPU, and its partitions if it is cut.
    fn devices(self) -> Vec<(Device, Observation)> {
        let trouble = self.trouble();
        match self.nodes {
            [] => vec![(self.gpu(), trouble::observation(trouble))],
            [node] => {
                let device = self.computing(self.gpu(), node, &self.function.folder());
                vec![self.judged(device, trouble)]
            }
            several => {
                let whole = Device { partitioned: true, ..self.gpu() };
                let parts = kfd::numbered(several, self.function.address);
                let parts = parts.filter_map(|(part, node)| self.part(&whole, part, node));
                let parts: Vec<_> =
                    parts.map(|device| self.judged(device, trouble.clone())).collect();
                let whole = (whole, trouble::observation(trouble));
                [whole].into_iter().chain(parts).collect()
            }
        }
    }

    fn gpu(&self) -> Device {
        let id = self.id.parse().expect("made of letters, digits and '-'");
        let mut place = self.function.place();
        place.xgmi.clone_from(&self.xgmi);
        Device {
            index: self.index,
            attributes: describe::of_gpu(self.host, self.function, self.cut.as_ref()),
            place,
            withheld: trouble::of_driver(self.function, &[DRIVER]).map(|(_, why)| why),
            ..Device::new(id, DeviceKind::Gpu, SourceName::AMD, Timestamp::UNIX_EPOCH)
        }
    }

    /// A partition is where its GPU is. Its name says how the GPU is cut: the third of four is another
    /// device than the third of eight.
    fn part(&self, whole: &Device, part: u32, node: &kfd::Node) -> Option<Device> {
        let cut = self.cut.as_ref().map(|cut| format!("{}-{}-", cut.compute, cut.memory));
        let id = format!("{}-{}{part}", self.id, cut.unwrap_or_default()).parse().ok()?;
        let device = Device {
            id,
            partitioned: false,
            parent: Some(whole.id.clone()),
            part: Some(part),
            ..whole.clone()
        };
        let folder = format!("/sys/class/drm/renderD{}/device", node.render_minor);
        Some(self.computing(device, node, Path::new(&folder)))
    }

    /// A device with what it computes with.
    fn computing(&self, device: Device, node: &kfd::Node, folder: &Path) -> Device {
        let folder = self.host.resolved(folder);
        let own = folder.iter().flat_map(|folder| graphics::nodes(self.host, folder));
        let attributes = device.attributes.into_iter().chain(describe::of_node(node)).collect();
        let nodes = [DeviceNode::shared(KFD)].into_iter().chain(own).collect();
        Device { attributes, capacity: describe::amounts(node), nodes, ..device }
    }

    fn judged(&self, device: Device, trouble: Option<Trouble>) -> (Device, Observation) {
        let trouble = trouble.or_else(|| trouble::of_nodes(self.host, &device.nodes));
        (device, trouble::observation(trouble))
    }

    /// What is wrong with the GPU, and so with all its partitions.
    fn trouble(&self) -> Option<Trouble> {
        let folder = self.function.folder();
        trouble::of_driver(self.function, &[DRIVER])
            .or_else(|| self.unlisted())
            .or_else(|| uncorrected(self.host, &folder))
            .or_else(|| trouble::of_heat(self.host, &folder))
    }

    fn unlisted(&self) -> Option<Trouble> {
        let is_cut = self.cut.as_ref().is_some_and(|cut| cut.compute != WHOLE);
        let detail = match self.nodes {
            [] => "the compute driver does not list it: it cannot compute, or is being reset",
            // The driver lists the parts one by one; the first is not the whole.
            [_] if is_cut => "it is being cut: the compute driver lists one part so far",
            _ => return None,
        };
        Some((Reason::NotReady, detail.to_owned()))
    }
}

/// Errors of memory and engines since the driver was loaded that ECC could not correct. Each block has a
/// file with lines such as `ue: 0`, <https://docs.kernel.org/gpu/amdgpu/ras.html>.
fn uncorrected(host: &Host, folder: &Path) -> Option<Trouble> {
    let folder = folder.join("ras");
    let names = host.names(&folder).into_iter().filter(|name| name.ends_with("_err_count"));
    let counted = names.filter_map(|name| {
        let text = host.text(folder.join(&name))?;
        let count = text.lines().find_map(|line| line.strip_prefix("ue:"))?.trim().parse().ok()?;
        Some((name.trim_end_matches("_err_count").to_owned(), count))
    });
    let (block, count): (_, u64) = counted.into_iter().find(|(_, count)| *count > 0)?;
    Some((Reason::UncorrectedEcc, format!("{count} in block {block}")))
}
