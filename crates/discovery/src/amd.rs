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
use windlass_host::{Host, PciFunction, PciKind};

pub(super) use describe::resource;

use super::{
    family::{Family, Look, PCI},
    graphics,
    trouble::{self, Conditions, Trouble},
};

/// The family.
#[derive(Debug, Default)]
pub(super) struct Amd {
    topology: kfd::Topology,
    /// The number that each GPU said it has for life: a GPU without a driver does not tell it.
    unique: BTreeMap<PciAddress, String>,
    conditions: Conditions,
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
    /// What that driver may have of it besides.
    kept: Kept,
    /// What it says of its own condition.
    condition: Option<Trouble>,
    /// Its links to other GPUs.
    xgmi: BTreeMap<PciAddress, u32>,
}

/// What the compute driver keeps from the agent of a GPU that it does not seem to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    /// Nothing.
    Nothing,
    /// One node: it lists the GPU, which is whole.
    Whole,
    /// It is not to be told which GPUs it lists, and in how many parts.
    Unclear,
}

const VENDOR: &str = "1002";

/// Adapters with and without a screen, and processing accelerators (PCI code and ID assignment).
const CLASSES: [&str; 2] = ["0x03", "0x1200"];

const DRIVER: &str = "amdgpu";

/// The node that all programs compute through.
const KFD: &str = "/dev/kfd";

// === impl Amd ===

impl Family for Amd {
    fn names(&self) -> Vec<SourceName> {
        vec![SourceName::AMD]
    }

    fn folders(&self) -> &'static [&'static str] {
        &[PCI, kfd::NODES, "/sys/class/drm"]
    }

    fn look(&mut self, host: &Host) -> Look {
        let is_meant = |it: &PciKind| it.is_of_class(&CLASSES) && it.is_of_vendor(&[VENDOR]);
        let functions = host.pci_functions(is_meant);
        self.topology.refresh(host);
        let addresses = functions.iter().map(|function| function.address).collect();
        let nodes = self.topology.by_function(&addresses);
        remember(&mut self.unique, host, &functions, &nodes);
        let unlisted = functions.iter().filter(|function| !nodes.contains_key(&function.address));
        let kept = kept(host, &unlisted.collect::<Vec<_>>(), self.topology.kept);
        let mut conditions = self.conditions.of(host, &functions, condition);
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
                kept,
                condition: conditions.remove(&function.address),
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
    // A GPU that was moved takes its number along: two addresses with one number have none.
    unique.retain(|address, _| functions.iter().any(|function| function.address == *address));
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

/// What the driver keeps of the GPUs that it does not list: as many nodes as there are whole GPUs are theirs.
fn kept(host: &Host, unlisted: &[&PciFunction], nodes: usize) -> Kept {
    let has_driver = |function: &&&PciFunction| function.driver.as_deref() == Some(DRIVER);
    let unlisted: Vec<_> = unlisted.iter().filter(has_driver).collect();
    let is_cut = |function: &PciFunction| {
        describe::cut(host, &function.folder()).is_some_and(|cut| cut.is_cut())
    };
    match nodes {
        0 => Kept::Nothing,
        _ if nodes == unlisted.len() && !unlisted.iter().any(|it| is_cut(it)) => Kept::Whole,
        _ => Kept::Unclear,
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
            [] if self.kept != Kept::Whole => vec![(self.gpu(), trouble::observation(trouble))],
            [] | [_] => {
                let node = self.nodes.first().copied();
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
            partition: None,
            partitions: [].into(),
            parent: Some(whole.id.clone()),
            part: Some(part),
            ..whole.clone()
        };
        let folder = format!("/sys/class/drm/renderD{}/device", node.render_minor);
        Some(self.computing(device, Some(node), Path::new(&folder)))
    }

    /// A device with what it computes with. Where the compute driver tells nothing of it, the graphics
    /// driver tells what there is to open, and how much memory it has.
    fn computing(&self, device: Device, node: Option<&kfd::Node>, folder: &Path) -> Device {
        let folder = self.host.followed(folder);
        let own = folder.iter().flat_map(|folder| graphics::nodes(self.host, folder));
        let nodes = [DeviceNode::shared(KFD)].into_iter().chain(own).collect();
        let told = node.map(describe::of_node).unwrap_or_default();
        let attributes = device.attributes.into_iter().chain(told).collect();
        let without = || describe::memory(self.host, self.function);
        let capacity = node.map_or_else(without, describe::amounts);
        Device { attributes, capacity, nodes, ..device }
    }

    fn judged(&self, device: Device, trouble: Option<Trouble>) -> (Device, Observation) {
        let trouble = trouble.or_else(|| trouble::of_nodes(self.host, &device.nodes));
        (device, trouble::observation(trouble))
    }

    /// What is wrong with the GPU, and so with all its partitions.
    fn trouble(&self) -> Option<Trouble> {
        trouble::of_driver(self.function, &[DRIVER])
            .or_else(|| self.unlisted())
            .or_else(|| self.condition.clone())
    }

    fn unlisted(&self) -> Option<Trouble> {
        let is_cut = self.cut.as_ref().is_some_and(describe::Cut::is_cut);
        let detail = match self.nodes {
            [] if self.kept == Kept::Whole => return None,
            [] if self.kept == Kept::Unclear => {
                "the compute driver tells this process nothing of it: run the agent privileged, see \
                 deploy/daemonset.yaml"
            }
            [] => "the compute driver does not list it: it cannot compute, or is being reset",
            // The driver lists the parts one by one; the first is not the whole.
            [_] if is_cut => "it is being cut: the compute driver lists one part so far",
            _ => return None,
        };
        Some((Reason::NotReady, detail.to_owned()))
    }
}

/// What a GPU has to be asked for: its errors and temperatures.
fn condition(host: &Host, folder: &Path) -> Option<Trouble> {
    uncorrected(host, folder).or_else(|| trouble::of_heat(host, folder))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn function(address: &str) -> PciFunction {
        let address = address.parse().expect("an address");
        Host::new("/nowhere", "/").pci_function(address)
    }

    #[test]
    fn a_gpu_that_is_plugged_in_elsewhere_keeps_its_number() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let host = Host::new(root.path(), "/");
        let (before, after) = (function("0000:0a:00.0"), function("0000:1b:00.0"));
        for at in [&before, &after] {
            let folder = host.path(at.folder());
            std::fs::create_dir_all(&folder).expect("made");
            std::fs::write(folder.join("unique_id"), "20381e03f416f184\n").expect("written");
        }
        let mut amd = Amd::default();
        for at in [&before, &after] {
            remember(&mut amd.unique, &host, std::slice::from_ref(at), &BTreeMap::new());
            assert_eq!(amd.id(at), "amd-20381e03f416f184");
        }
    }
}
