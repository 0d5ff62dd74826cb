//! From NVML's facts to devices: names, attributes, place, device nodes.
//!
//! Attribute names are those of NVIDIA's DRA driver where they mean the same.

use jiff::Timestamp;
use windlass_config::{MigStrategy, Policy};
use windlass_core::{
    attribute::{AttributeName, AttributeValue, Attributes, Quantity},
    device::{Device, DeviceId, DeviceKind, DeviceNode, Extras, Partition, Place, SourceName},
    nvlink::NvLinks,
    pci::PciAddress,
    resource::ResourceName,
};
use windlass_host::Host;
use windlass_nvml::Remote;

use super::{
    facts::{DriverFacts, GpuFacts, InstanceFacts, LinkFacts, MigFacts},
    partition::capacities,
    procfs::{ListedGpu, mig_minor},
};
use crate::facts::attributes;

/// What is the same for every device of one description.
pub(super) struct Describe<'a> {
    pub(super) host: &'a Host,
    pub(super) driver: &'a DriverFacts,
    pub(super) now: Timestamp,
}

const DOMAIN: &str = "nvidia.com";

pub(super) const fn named(name: &'static str) -> AttributeName {
    AttributeName::new(DOMAIN, name)
}

/// The attribute that holds a MIG instance's profile.
pub const PROFILE: AttributeName = named("profile");

/// The attribute that holds a MIG instance's position on its GPU.
const INSTANCE_INDEX: AttributeName = named("instanceIndex");

/// What the profile of a MIG instance that can draw has in its name.
const GRAPHICS: &str = "gfx";

/// Why a device without a minor number cannot be used.
pub(super) const NO_NODE: &str = "the driver tells no device node";

/// The attribute that makes a simulation visible wherever a device is listed.
const SIMULATED: AttributeName = AttributeName::new("windlass.dev", "simulated");

/// The resource that such a device is part of where nothing is configured, as NVIDIA's plugin names it.
pub(crate) fn resource(policy: &Policy, device: &Device) -> Option<ResourceName> {
    if !device.kind.is_instance() || policy.mig == MigStrategy::Single {
        return "nvidia.com/gpu".parse().ok();
    }
    let profile = device.attributes.get(&PROFILE)?.to_string();
    // A `+` is no part of a resource name.
    format!("nvidia.com/mig-{}", profile.replace('+', ".")).parse().ok()
}

// === impl Describe ===

impl Describe<'_> {
    /// A GPU and its instances, the GPU first.
    pub(super) fn gpu(&self, index: u32, facts: &GpuFacts) -> Vec<Device> {
        let place = self.place(facts);
        let memory = facts.memory_bytes.map(Quantity::Bytes);
        let gpu = Device {
            index,
            attributes: self.gpu_attributes(index, facts, &place),
            capacity: memory.map(|bytes| (named("memory"), bytes)).into_iter().collect(),
            place,
            nodes: facts.minor.map(node).into_iter().collect(),
            extras: facts.graphics.clone(),
            partitioned: facts.is_in_mig_mode(),
            partitions: facts.partitions.clone().unwrap_or_default(),
            ..self.device(&facts.id, DeviceKind::Gpu)
        };
        let parts = facts.instances().iter().map(|part| self.instance(&gpu, facts, part));
        let parts: Vec<_> = parts.collect();
        std::iter::once(gpu).chain(parts).collect()
    }

    /// A GPU that NVML cannot describe, from what the kernel module and sysfs say.
    pub(super) fn failed(&self, index: u32, listed: Option<&ListedGpu>) -> Device {
        let attributes = listed.map(|gpu| gpu.function.attributes()).into_iter().flatten();
        Device {
            index,
            attributes: self.common("gpu").into_iter().chain(attributes).collect(),
            place: listed.map(|gpu| gpu.function.place()).unwrap_or_default(),
            nodes: listed.and_then(|gpu| gpu.minor).map(node).into_iter().collect(),
            extras: listed.map(|gpu| gpu.graphics.clone()).unwrap_or_default(),
            ..self.device(&placeholder_id(index, listed), DeviceKind::Gpu)
        }
    }

    fn device(&self, id: &DeviceId, kind: DeviceKind) -> Device {
        Device::new(id.clone(), kind, SourceName::NVIDIA, self.now)
    }

    /// Why an instance cannot be used, although the driver lists it: without its capability nodes a
    /// container would see the GPU and be refused.
    pub(super) fn obstacle(&self, facts: &GpuFacts, part: &InstanceFacts) -> Option<String> {
        let Some(minor) = facts.minor else { return Some(NO_NODE.to_owned()) };
        let missing = capabilities(minor, part)
            .into_iter()
            .find(|capability| mig_minor(self.host, capability).is_none())?;
        Some(format!("the driver names no device node for capability {missing}"))
    }

    fn place(&self, facts: &GpuFacts) -> Place {
        let nvlinks = nvlinks(&facts.links);
        match facts.pci_bus_id.as_deref().unwrap_or_default().parse() {
            Ok(address) => Place { nvlinks, ..self.host.pci_function(address).place() },
            Err(_) => Place { nvlinks, ..Place::default() },
        }
    }

    fn common(&self, kind: &str) -> Attributes {
        let driver = self.driver;
        let simulated = driver.simulated.as_deref().map(AttributeValue::string);
        let own = [
            ("type", Some(AttributeValue::string(kind))),
            ("driverVersion", Some(AttributeValue::version(&driver.version))),
            ("cudaDriverVersion", driver.cuda.as_deref().map(AttributeValue::version)),
        ];
        let simulated = simulated.map(|profile| (SIMULATED, profile));
        attributes(DOMAIN, own).into_iter().chain(simulated).collect()
    }

    /// What a GPU and its instances have in common.
    fn model(&self, kind: &str, facts: &GpuFacts, place: &Place) -> Attributes {
        let capability = facts.compute_capability.map(|(major, minor)| format!("{major}.{minor}"));
        let function = place.pci.map(|address| self.host.pci_function(address).attributes());
        let own = [
            ("productName", Some(AttributeValue::string(&facts.name))),
            ("brand", facts.brand.as_deref().map(AttributeValue::string)),
            ("architecture", facts.architecture.map(AttributeValue::string)),
            ("cudaComputeCapability", capability.as_deref().map(AttributeValue::version)),
        ];
        let own = attributes(DOMAIN, own);
        self.common(kind).into_iter().chain(own).chain(function.into_iter().flatten()).collect()
    }

    fn gpu_attributes(&self, index: u32, facts: &GpuFacts, place: &Place) -> Attributes {
        let own = [
            ("uuid", Some(AttributeValue::string(facts.id.as_str()))),
            ("index", Some(AttributeValue::Int(index.into()))),
            ("minor", facts.minor.map(|minor| AttributeValue::Int(minor.into()))),
            ("serial", facts.serial.as_deref().map(AttributeValue::string)),
            ("migCapable", Some(AttributeValue::Bool(facts.mig != MigFacts::Unsupported))),
            ("migEnabled", Some(AttributeValue::Bool(facts.is_in_mig_mode()))),
            ("nvlinkGeneration", place.nvlinks.generation.map(|it| AttributeValue::Int(it.into()))),
        ];
        let own = attributes(DOMAIN, own);
        let conditions = facts.conditions.attributes(&facts.links);
        self.model("gpu", facts, place).into_iter().chain(own).chain(conditions).collect()
    }

    fn instance(&self, gpu: &Device, facts: &GpuFacts, part: &InstanceFacts) -> Device {
        let own = [
            (named("uuid"), AttributeValue::string(part.id.as_str())),
            (named("parentUUID"), AttributeValue::string(gpu.id.as_str())),
            (named("parentIndex"), AttributeValue::Int(gpu.index.into())),
            (INSTANCE_INDEX, AttributeValue::Int(part.index.into())),
            (PROFILE, AttributeValue::string(&part.profile)),
        ];
        let model = self.model("mig", facts, &gpu.place);
        let draws = part.profile.contains(GRAPHICS);
        Device {
            index: gpu.index,
            attributes: model.into_iter().chain(own).collect(),
            capacity: capacities(&part.share),
            place: Place { nvlinks: NvLinks::default(), ..gpu.place.clone() },
            nodes: self.instance_nodes(facts.minor, part),
            extras: if draws { gpu.extras.clone() } else { Extras::default() },
            parent: Some(gpu.id.clone()),
            part: Some(part.index),
            partition: standing(gpu, part),
            ..self.device(&part.id, DeviceKind::Mig)
        }
    }

    /// The GPU's node, and the capabilities of the GPU instance and the compute instance.
    fn instance_nodes(&self, minor: Option<u32>, part: &InstanceFacts) -> Vec<DeviceNode> {
        let Some(minor) = minor else { return Vec::new() };
        let numbers = capabilities(minor, part).into_iter();
        let numbers = numbers.filter_map(|capability| mig_minor(self.host, &capability));
        let guards = numbers.map(|n| DeviceNode::new(format!("/dev/nvidia-caps/nvidia-cap{n}")));
        let whole = DeviceNode { shared: true, ..node(minor) };
        std::iter::once(whole).chain(guards).collect()
    }
}

/// What guards an instance, as the driver's table names it.
fn capabilities(minor: u32, part: &InstanceFacts) -> [String; 2] {
    let (gi, ci) = (part.gpu_instance, part.compute_instance);
    [format!("gpu{minor}/gi{gi}/access"), format!("gpu{minor}/gi{gi}/ci{ci}/access")]
}

fn node(minor: u32) -> DeviceNode {
    DeviceNode::new(format!("/dev/nvidia{minor}"))
}

fn standing(gpu: &Device, part: &InstanceFacts) -> Option<Partition> {
    let place = part.place?;
    Some(Partition {
        gpu: gpu.id.clone(),
        profile: part.profile.as_str().into(),
        profile_id: place.profile_id,
        start: place.placement.start,
        size: place.placement.size,
    })
}

/// Sums up single links by where they end.
fn nvlinks(links: &LinkFacts) -> NvLinks {
    let mut sum = NvLinks { generation: links.generation, ..NvLinks::default() };
    for remote in &links.remotes {
        match remote {
            Remote::Gpu(address) => {
                if let Ok(peer) = address.parse::<PciAddress>() {
                    *sum.peers.entry(peer).or_default() += 1;
                }
            }
            Remote::Switch(address) => {
                sum.to_switches += 1;
                let switch = address.as_deref().map(str::parse::<PciAddress>);
                sum.switches.extend(switch.and_then(Result::ok));
            }
            Remote::Other => {}
        }
    }
    sum
}

/// The best name there is for a GPU that does not tell its own: what the kernel module knows, its
/// PCI address, its position.
fn placeholder_id(index: u32, listed: Option<&ListedGpu>) -> DeviceId {
    if let Some(id) = listed.and_then(|gpu| gpu.id.clone()) {
        return id;
    }
    let address = listed.map(|gpu| gpu.function.address.to_string().replace([':', '.'], "-"));
    let name = address.map(|address| format!("nvidia-pci-{address}"));
    let name = name.unwrap_or_else(|| format!("nvidia-index-{index}"));
    name.parse().expect("made of letters, digits and '-'")
}
