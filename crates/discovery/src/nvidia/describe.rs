//! Inventory devices from NVML's facts: ids, attributes, topology, device nodes.
//!
//! Attributes have the names of NVIDIA's DRA driver where the meaning is the same.

use jiff::Timestamp;
use windlass_config::{MigStrategy, Policy};
use windlass_core::{
    attribute::{AttributeName, AttributeValue, Attributes, Quantity},
    device::{
        Device, DeviceId, DeviceKind, DeviceNode, ExtraEdits, Location, MIG_PROFILE, Partition,
        SourceName,
    },
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

/// Builder of inventory devices, with the data that all devices of one probe share.
pub(super) struct Describer<'a> {
    pub(super) host: &'a Host,
    pub(super) driver: &'a DriverFacts,
    pub(super) now: Timestamp,
}

const DOMAIN: &str = "nvidia.com";

/// Attribute in NVIDIA's domain.
pub(super) const fn attribute_name(name: &'static str) -> AttributeName {
    AttributeName::new(DOMAIN, name)
}

/// Position of a MIG instance on its GPU.
const INSTANCE_INDEX: AttributeName = attribute_name("instanceIndex");

/// Infix of MIG profiles with graphics.
const GRAPHICS: &str = "gfx";

/// Reason why a GPU without a minor number is not allocatable.
pub(super) const NO_NODE: &str = "the driver names no device node";

/// Machine profile of a simulated driver, so that every list of devices shows the simulation.
const SIMULATED: AttributeName = AttributeName::new("windlass.dev", "simulated");

/// Default resource of a device, as in NVIDIA's plugin.
pub(crate) fn resource(policy: &Policy, device: &Device) -> Option<ResourceName> {
    if !device.kind.is_mig_instance() || policy.mig == MigStrategy::Single {
        return "nvidia.com/gpu".parse().ok();
    }
    let profile = device.mig_profile()?;
    // Resource names cannot contain `+`.
    format!("nvidia.com/mig-{}", profile.replace('+', ".")).parse().ok()
}

// === impl Describer ===

impl Describer<'_> {
    /// A GPU and its instances, the GPU first.
    pub(super) fn gpu(&self, index: u32, facts: &GpuFacts) -> Vec<Device> {
        let location = self.location(facts);
        let memory = facts.memory_bytes.map(Quantity::Bytes);
        let gpu = Device {
            index,
            attributes: self.gpu_attributes(index, facts, &location),
            capacity: memory.map(|bytes| (attribute_name("memory"), bytes)).into_iter().collect(),
            place: location,
            nodes: facts.minor.map(node).into_iter().collect(),
            extras: facts.graphics.clone(),
            partitioned: facts.is_in_mig_mode(),
            partitions: facts.partitions.clone().unwrap_or_default(),
            ..self.device(&facts.id, DeviceKind::Gpu)
        };
        let instances =
            facts.instances().iter().map(|instance| self.instance(&gpu, facts, instance));
        let instances: Vec<_> = instances.collect();
        std::iter::once(gpu).chain(instances).collect()
    }

    /// A GPU that NVML cannot describe, with data from the kernel module and sysfs.
    pub(super) fn placeholder_gpu(&self, index: u32, listed_gpu: Option<&ListedGpu>) -> Device {
        let attributes = listed_gpu.map(|gpu| gpu.function.attributes()).into_iter().flatten();
        Device {
            index,
            attributes: self.common_attributes("gpu").into_iter().chain(attributes).collect(),
            place: listed_gpu.map(|gpu| gpu.function.location()).unwrap_or_default(),
            nodes: listed_gpu.and_then(|gpu| gpu.minor).map(node).into_iter().collect(),
            extras: listed_gpu.map(|gpu| gpu.graphics.clone()).unwrap_or_default(),
            ..self.device(&placeholder_id(index, listed_gpu), DeviceKind::Gpu)
        }
    }

    fn device(&self, id: &DeviceId, kind: DeviceKind) -> Device {
        Device::new(id.clone(), kind, SourceName::NVIDIA, self.now)
    }

    /// Reason why a listed instance is unusable: without its capability nodes a container sees the GPU but
    /// cannot open the instance.
    pub(super) fn obstacle(&self, facts: &GpuFacts, instance: &InstanceFacts) -> Option<String> {
        let Some(minor) = facts.minor else { return Some(NO_NODE.to_owned()) };
        let missing = capabilities(minor, instance)
            .into_iter()
            .find(|capability| mig_minor(self.host, capability).is_none())?;
        Some(format!("the driver names no device node for capability {missing}"))
    }

    fn location(&self, facts: &GpuFacts) -> Location {
        let nvlinks = nvlinks(&facts.links);
        match facts.pci_bus_id.as_deref().unwrap_or_default().parse() {
            Ok(address) => Location { nvlinks, ..self.host.pci_function(address).location() },
            Err(_) => Location { nvlinks, ..Location::default() },
        }
    }

    fn common_attributes(&self, kind: &str) -> Attributes {
        let driver = self.driver;
        let simulated = driver.simulated.as_deref().map(AttributeValue::string);
        let values = [
            ("type", Some(AttributeValue::string(kind))),
            ("driverVersion", Some(AttributeValue::version(&driver.version))),
            ("cudaDriverVersion", driver.cuda.as_deref().map(AttributeValue::version)),
        ];
        let simulated = simulated.map(|profile| (SIMULATED, profile));
        attributes(DOMAIN, values).into_iter().chain(simulated).collect()
    }

    /// Attributes that a GPU and its instances share.
    fn model_attributes(&self, kind: &str, facts: &GpuFacts, location: &Location) -> Attributes {
        let capability = facts.compute_capability.map(|(major, minor)| format!("{major}.{minor}"));
        let function = location.pci.map(|address| self.host.pci_function(address).attributes());
        let values = [
            ("productName", Some(AttributeValue::string(&facts.name))),
            ("brand", facts.brand.as_deref().map(AttributeValue::string)),
            ("architecture", facts.architecture.map(AttributeValue::string)),
            ("cudaComputeCapability", capability.as_deref().map(AttributeValue::version)),
        ];
        let values = attributes(DOMAIN, values);
        self.common_attributes(kind)
            .into_iter()
            .chain(values)
            .chain(function.into_iter().flatten())
            .collect()
    }

    fn gpu_attributes(&self, index: u32, facts: &GpuFacts, location: &Location) -> Attributes {
        let values = [
            ("uuid", Some(AttributeValue::string(facts.id.as_str()))),
            ("index", Some(AttributeValue::Int(index.into()))),
            ("minor", facts.minor.map(|minor| AttributeValue::Int(minor.into()))),
            ("serial", facts.serial.as_deref().map(AttributeValue::string)),
            ("migCapable", Some(AttributeValue::Bool(facts.mig != MigFacts::Unsupported))),
            ("migEnabled", Some(AttributeValue::Bool(facts.is_in_mig_mode()))),
            (
                "nvlinkGeneration",
                location
                    .nvlinks
                    .generation
                    .map(|generation| AttributeValue::Int(generation.into())),
            ),
        ];
        let values = attributes(DOMAIN, values);
        let conditions = facts.conditions.attributes(&facts.links);
        self.model_attributes("gpu", facts, location)
            .into_iter()
            .chain(values)
            .chain(conditions)
            .collect()
    }

    fn instance(&self, gpu: &Device, facts: &GpuFacts, instance: &InstanceFacts) -> Device {
        let values = [
            (attribute_name("uuid"), AttributeValue::string(instance.id.as_str())),
            (attribute_name("parentUUID"), AttributeValue::string(gpu.id.as_str())),
            (attribute_name("parentIndex"), AttributeValue::Int(gpu.index.into())),
            (INSTANCE_INDEX, AttributeValue::Int(instance.index.into())),
            (MIG_PROFILE, AttributeValue::string(&instance.profile)),
        ];
        let model = self.model_attributes("mig", facts, &gpu.place);
        let has_graphics = instance.profile.contains(GRAPHICS);
        Device {
            index: gpu.index,
            attributes: model.into_iter().chain(values).collect(),
            capacity: capacities(&instance.capacities),
            place: Location { nvlinks: NvLinks::default(), ..gpu.place.clone() },
            nodes: self.instance_nodes(facts.minor, instance),
            extras: if has_graphics { gpu.extras.clone() } else { ExtraEdits::default() },
            parent: Some(gpu.id.clone()),
            part: Some(instance.index),
            partition: partition(gpu, instance),
            ..self.device(&instance.id, DeviceKind::Mig)
        }
    }

    /// Node of the GPU, and the capability nodes of the GPU instance and the compute instance.
    fn instance_nodes(&self, minor: Option<u32>, instance: &InstanceFacts) -> Vec<DeviceNode> {
        let Some(minor) = minor else { return Vec::new() };
        let numbers = capabilities(minor, instance).into_iter();
        let numbers = numbers.filter_map(|capability| mig_minor(self.host, &capability));
        let capability_nodes =
            numbers.map(|n| DeviceNode::new(format!("/dev/nvidia-caps/nvidia-cap{n}")));
        let gpu_node = DeviceNode { shared: true, ..node(minor) };
        std::iter::once(gpu_node).chain(capability_nodes).collect()
    }
}

/// Names of an instance's two capabilities in the driver's table `mig-minors`.
fn capabilities(minor: u32, instance: &InstanceFacts) -> [String; 2] {
    let (gi, ci) = (instance.gpu_instance, instance.compute_instance);
    [format!("gpu{minor}/gi{gi}/access"), format!("gpu{minor}/gi{gi}/ci{ci}/access")]
}

fn node(minor: u32) -> DeviceNode {
    DeviceNode::new(format!("/dev/nvidia{minor}"))
}

fn partition(gpu: &Device, instance: &InstanceFacts) -> Option<Partition> {
    let info = instance.instance_info?;
    Some(Partition {
        gpu: gpu.id.clone(),
        profile: instance.profile.as_str().into(),
        profile_id: info.profile_id,
        start: info.placement.start,
        size: info.placement.size,
    })
}

/// Counts links by their remote end.
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

/// Id of a GPU that does not report its UUID: the UUID from the kernel module, else PCI address, else index.
fn placeholder_id(index: u32, listed_gpu: Option<&ListedGpu>) -> DeviceId {
    if let Some(id) = listed_gpu.and_then(|gpu| gpu.id.clone()) {
        return id;
    }
    let name = listed_gpu.map(|gpu| format!("nvidia-pci-{}", gpu.function.address.to_dashed()));
    let name = name.unwrap_or_else(|| format!("nvidia-index-{index}"));
    name.parse().expect("made of letters, digits and '-'")
}
