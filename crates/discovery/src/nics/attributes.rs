//! Attributes of a network function, under the names of Windlass, Kubernetes and DRANET.
//!
//! DRA permits 32 attributes per device, and a virtual function with RDMA and vDPA has more: claims then lack DRANET's
//! names of some. So of DRANET's attributes only those are published by which its users select. Two of these are
//! omitted: the PCI address has Kubernetes' standard name, and the kind of device needs no attribute.

use windlass_core::attribute::{AttributeName, AttributeValue, Attributes};

use super::{
    NicScan,
    function::{Function, PhysicalFunction},
};

const DOMAIN: &str = "windlass.dev";

/// DRANET's domain (github.com/google/dranet, `pkg/apis`).
const DRANET: &str = "dra.net";

/// Driver that is bound to the function.
pub const DRIVER: AttributeName = AttributeName::new(DOMAIN, "driver");
/// Name of a subfunction on its bus.
pub const AUXILIARY_DEVICE: AttributeName = AttributeName::new(DOMAIN, "auxiliaryDevice");
/// Name of the first RDMA device, `mlx5_0`.
pub const RDMA_DEVICE: AttributeName = AttributeName::new(DOMAIN, "rdmaDevice");
/// State of the first port, `ACTIVE`.
pub(super) const PORT_STATE: AttributeName = AttributeName::new(DOMAIN, "portState");
/// PCI address of the physical function, or of a subfunction's parent.
pub const PF_PCI_ADDRESS: AttributeName = AttributeName::new(DOMAIN, "pfPciAddress");
/// Driver of the first vDPA device: `vhost` or `virtio`.
pub const VDPA_TYPE: AttributeName = AttributeName::new(DOMAIN, "vdpaType");
/// Name of the first vDPA device, `vdpa0`.
pub const VDPA_DEVICE: AttributeName = AttributeName::new(DOMAIN, "vdpaDevice");
/// Host interface through which the adapter's switch reaches a virtual function.
pub const REPRESENTOR: AttributeName = AttributeName::new(DOMAIN, "representor");

type NamedValue = (AttributeName, Option<AttributeValue>);

impl NicScan<'_> {
    pub(super) fn attributes(&self, function: &Function) -> Attributes {
        let values = identity(function).into_iter();
        let values = values.chain(interface(function)).chain(self.rdma(function));
        let values = values.chain(virtualization(function)).chain(self.parent(function));
        let values = values.chain(dranet_attributes(function));
        let present = values.filter_map(|(name, value)| Some((name, value?)));
        present.chain(function.pci.attributes()).collect()
    }

    /// Attributes of a subfunction's parent.
    fn parent(&self, function: &Function) -> Vec<NamedValue> {
        if !function.is_subfunction() {
            return Vec::new();
        }
        let is_parent =
            |other: &&Function| other.address == function.address && !other.is_subfunction();
        let parent = self.functions.iter().find(is_parent);
        let interface = parent.and_then(|parent| parent.interfaces.first());
        let number = function.subfunction_number;
        vec![
            windlass("pfName", interface.map(|interface| AttributeValue::string(&interface.name))),
            (PF_PCI_ADDRESS, Some(AttributeValue::string(function.address.to_string()))),
            windlass("sfNumber", number.map(|number| AttributeValue::Int(number.into()))),
        ]
    }

    fn rdma(&self, function: &Function) -> Vec<NamedValue> {
        let device = function.rdma.first();
        let port = device.and_then(|device| device.port_report.ports.first());
        let of_port = |text: Option<&String>| text.map(AttributeValue::string);
        // `4: ACTIVE` without the number.
        let state = port.and_then(|port| port.state.as_deref()?.rsplit(' ').next());
        let netns_mode = device.and_then(|_| self.rdma_netns.name());
        vec![
            windlass("rdma", Some(AttributeValue::Bool(device.is_some()))),
            (RDMA_DEVICE, device.map(|device| AttributeValue::string(&device.name))),
            windlass("linkLayer", of_port(port.and_then(|port| port.link_layer.as_ref()))),
            windlass("rate", of_port(port.and_then(|port| port.rate.as_ref()))),
            (PORT_STATE, state.map(AttributeValue::string)),
            windlass("pKey", of_port(port.and_then(|port| port.pkey.as_ref()))),
            windlass("rdmaNetns", netns_mode.map(AttributeValue::string)),
        ]
    }
}

fn windlass(name: &'static str, value: Option<AttributeValue>) -> NamedValue {
    (AttributeName::new(DOMAIN, name), value)
}

fn text(text: Option<&String>) -> Option<AttributeValue> {
    text.map(AttributeValue::string)
}

fn identity(function: &Function) -> Vec<NamedValue> {
    let subfunction = Some(&function.name).filter(|_| function.is_subfunction());
    vec![
        (DRIVER, text(function.driver.as_ref())),
        windlass("pciVendor", text(function.pci.vendor.as_ref())),
        windlass("pciDevice", text(function.pci.device.as_ref())),
        (AUXILIARY_DEVICE, text(subfunction)),
        windlass("acpiIndex", text(function.acpi_index.as_ref())),
    ]
}

fn interface(function: &Function) -> Vec<NamedValue> {
    let interface = function.interfaces.first();
    vec![
        windlass("ifName", interface.map(|interface| AttributeValue::string(&interface.name))),
        windlass("mac", interface.and_then(|interface| text(interface.mac.as_ref()))),
        windlass("mtu", interface.and_then(|interface| interface.mtu.map(AttributeValue::Int))),
    ]
}

fn virtualization(function: &Function) -> Vec<NamedValue> {
    let physical = function.pf.as_ref();
    let physical_value =
        |read: fn(&PhysicalFunction) -> Option<AttributeValue>| physical.and_then(read);
    let vdpa = function.vdpa.first();
    let vfs = function.virtual_functions.map(|(_, vfs)| AttributeValue::Int(vfs.into()));
    vec![
        windlass("sriov", Some(AttributeValue::Bool(function.virtual_functions.is_some()))),
        windlass("sriovVfs", vfs),
        windlass("isSriovVf", Some(AttributeValue::Bool(physical.is_some()))),
        windlass("pfName", physical_value(|physical| text(physical.interface.as_ref()))),
        (
            PF_PCI_ADDRESS,
            physical_value(|physical| Some(AttributeValue::string(physical.address.to_string()))),
        ),
        windlass(
            "vfIndex",
            physical_value(|physical| {
                physical.index.map(|index| AttributeValue::Int(index.into()))
            }),
        ),
        (REPRESENTOR, physical_value(|physical| text(physical.representor.as_ref()))),
        (VDPA_TYPE, vdpa.map(|vdpa| AttributeValue::string(vdpa.kind.name()))),
        (VDPA_DEVICE, vdpa.map(|vdpa| AttributeValue::string(&vdpa.name))),
    ]
}

fn dranet_attributes(function: &Function) -> Vec<NamedValue> {
    let dranet = |name, value| (AttributeName::new(DRANET, name), value);
    let interface = function.interfaces.first();
    let encapsulation = interface.and_then(|interface| interface.encapsulation);
    vec![
        dranet("ifName", interface.map(|interface| AttributeValue::string(&interface.name))),
        dranet("mac", interface.and_then(|interface| text(interface.mac.as_ref()))),
        dranet("mtu", interface.and_then(|interface| interface.mtu.map(AttributeValue::Int))),
        dranet("encapsulation", encapsulation.map(AttributeValue::string)),
        dranet("state", interface.and_then(|interface| text(interface.operstate.as_ref()))),
        dranet("rdma", Some(AttributeValue::Bool(!function.rdma.is_empty()))),
    ]
}
