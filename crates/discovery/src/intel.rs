//! Intel GPUs, discrete and integrated, under the drivers i915 and xe.

use std::path::Path;

use jiff::Timestamp;
use windlass_config::{IntelRules, Policy};
use windlass_core::{
    attribute::{AttributeName, AttributeValue, Attributes, Quantity},
    device::{Device, DeviceKind, DeviceNode, SourceName},
    health::{Observation, Reason},
    inventory::SourceState,
    pci::PciAddress,
    resource::ResourceName,
    telemetry::Sample,
};
use windlass_host::{
    Host, PciFunction, PciKind, drm_nodes,
    hwmon::{Monitor, is_suspended, number},
    pci_folder,
};

use super::{
    facts::{attributes, count_text, function_attributes, text_value},
    failure::{self, ConditionReader, Failure},
    scanner::{Scan, Scanner},
};

#[derive(Debug, Default)]
pub(super) struct Intel {
    rules: IntelRules,
    conditions: ConditionReader,
}

const VENDOR: &str = "8086";

/// Display controllers (PCI Code and ID Assignment).
const CLASSES: [&str; 1] = ["0x03"];

const DRIVERS: [&str; 2] = ["i915", "xe"];

const DOMAIN: &str = "gpu.intel.com";

const DRIVER: AttributeName = AttributeName::new(DOMAIN, "driver");
const MEMORY: AttributeName = AttributeName::new(DOMAIN, "memory");

/// PCI address of the integrated GPU in every Intel processor, 00:02.0.
const INTEGRATED_ADDRESS: [u8; 2] = [0, 2 << 3];

/// Render node of the first GPU, which many programs hard-code.
const FIRST_RENDER_NODE: &str = "/dev/dri/renderD128";

/// Product lines by leading digits of the PCI device id, the attribute `family`
/// (<https://dgpu-docs.intel.com/devices/hardware-table.html>).
const PRODUCT_LINES: &[(&str, &str)] = &[
    ("490", "DG1"),
    ("569", "Arc"),
    ("56a", "Arc"),
    ("56b", "Arc"),
    ("56c", "Flex"),
    ("0bd", "Max"),
    ("e2", "Battlemage"),
];

/// Default resource of a device: that of its driver, as in Intel's plugin.
pub(super) fn resource(_: &Policy, device: &Device) -> Option<ResourceName> {
    let driver = device.attributes.get(&DRIVER)?;
    format!("{DOMAIN}/{driver}").parse().ok()
}

/// Sensors of a GPU. Virtual functions have none.
/// <https://docs.kernel.org/admin-guide/abi-testing.html>: `sysfs-driver-intel-i915-hwmon`,
/// `sysfs-driver-intel-xe-hwmon`
pub(super) fn sample(host: &Host, device: &Device) -> Sample {
    let Some(address) = device.place.pci else { return Sample::default() };
    let folder = pci_folder(address);
    if is_suspended(host, &folder) {
        return Sample::default();
    }
    let Some(monitor) = Monitor::find(host, &folder, &DRIVERS) else { return Sample::default() };
    Sample {
        memory_bytes: device.memory_capacity().map(|(_, bytes)| bytes),
        compute_clock_hertz: clock_hertz(host, &folder),
        ..monitor.sample()
    }
}

/// Clock of the first graphics engine: of the tile under xe, of the card under i915. 0 while the engine sleeps.
fn clock_hertz(host: &Host, folder: &Path) -> Option<u64> {
    let cards = folder.join("drm");
    let cards = host.entry_names(&cards).into_iter().map(|name| cards.join(name));
    let by_card = cards.map(|card| card.join("gt/gt0/rps_act_freq_mhz"));
    let files = [folder.join("tile0/gt0/freq0/act_freq")].into_iter().chain(by_card);
    let megahertz = files.into_iter().find_map(|file| number(host, &file))?;
    megahertz.checked_mul(1_000_000)
}

// === impl Intel ===

impl Scanner for Intel {
    fn names(&self) -> Vec<SourceName> {
        vec![SourceName::INTEL]
    }

    fn scan(&mut self, host: &Host) -> Scan {
        let is_intel_gpu =
            |kind: &PciKind| kind.is_of_class(&CLASSES) && kind.is_of_vendor(&[VENDOR]);
        let functions = host.pci_functions(is_intel_gpu);
        let mut conditions =
            self.conditions.read_failures(host, &functions, failure::overheating_failure);
        let gpu_of = |(index, function): (u32, &PciFunction)| {
            let condition = conditions.remove(&function.address);
            IntelGpu { host, rules: &self.rules, function, condition }.gpu(index)
        };
        let devices: Vec<_> = (0..).zip(&functions).map(gpu_of).collect();
        let state = match devices.len() {
            0 => SourceState::Absent("no PCI function is a GPU of Intel's".to_owned()),
            count => SourceState::Ready(count_text(count, "GPU")),
        };
        Scan { states: [(SourceName::INTEL, state)].into(), devices, ..Scan::default() }
    }

    fn apply_policy(&mut self, policy: &Policy) {
        self.rules.clone_from(&policy.families.intel);
    }
}

/// A GPU during a scan.
struct IntelGpu<'a> {
    host: &'a Host,
    rules: &'a IntelRules,
    function: &'a PciFunction,
    /// Failure that the GPU reports.
    condition: Option<Failure>,
}

// === impl IntelGpu ===

impl IntelGpu<'_> {
    fn gpu(&self, index: u32) -> (Device, Observation) {
        let id = format!("{}-{}", SourceName::INTEL, self.function.id());
        let id = id.parse().expect("made of letters, digits and '-'");
        let folder = self.function.folder();
        let resolved = self.host.canonicalize(&folder).unwrap_or(folder);
        let nodes = drm_nodes::nodes(self.host, &resolved);
        let memory = self.memory(&resolved).map(Quantity::Bytes);
        let failure = self.failure(&nodes);
        let device = Device {
            index,
            attributes: self.attributes(),
            capacity: memory.map(|bytes| (MEMORY, bytes)).into_iter().collect(),
            place: self.function.location(),
            nodes: nodes.into_iter().map(|node| self.with_container_path(node)).collect(),
            withheld: self.withhold_reason(),
            ..Device::new(id, DeviceKind::Gpu, SourceName::INTEL, Timestamp::UNIX_EPOCH)
        };
        (device, failure::observation(failure))
    }

    fn attributes(&self) -> Attributes {
        let function = self.function;
        let id = function.device.as_deref().unwrap_or_default();
        let line = PRODUCT_LINES.iter().find(|(prefix, _)| id.starts_with(prefix));
        let driver = function.driver.as_deref().filter(|driver| DRIVERS.contains(driver));
        let intel_attributes = attributes(
            DOMAIN,
            [
                ("driver", driver.and_then(text_value)),
                ("family", line.and_then(|(_, name)| text_value(name))),
                ("pciId", text_value(id)),
                ("integrated", self.is_integrated().map(AttributeValue::Bool)),
                ("virtualFunction", Some(AttributeValue::Bool(self.is_virtual()))),
            ],
        );
        intel_attributes.into_iter().chain(function_attributes(self.host, function)).collect()
    }

    /// True for the integrated GPU's fixed function on the root bus. Cards are below a port, or elsewhere on
    /// that bus in a virtual machine.
    fn is_integrated(&self) -> Option<bool> {
        let path = self.function.path.as_ref()?;
        let is_at_fixed_address =
            self.function.address == PciAddress::from_requester_id(0, INTEGRATED_ADDRESS);
        Some(is_at_fixed_address && path.bridges().is_empty())
    }

    fn is_virtual(&self) -> bool {
        self.host.exists(self.function.folder().join("physfn"))
    }

    /// Local memory: reported by the card under i915, by its tiles under xe.
    fn memory(&self, folder: &Path) -> Option<u64> {
        let number = |path: &Path| self.host.read_text(path)?.parse::<u64>().ok();
        let cards = self.host.entry_names(folder.join("drm")).into_iter();
        let by_card = cards.map(|card| folder.join("drm").join(card).join("lmem_total_bytes"));
        let tiles =
            self.host.entry_names(folder).into_iter().filter(|name| name.starts_with("tile"));
        let by_tile = tiles.map(|tile| folder.join(tile).join("physical_vram_size_bytes"));
        let sizes: Vec<_> = by_card.chain(by_tile).filter_map(|path| number(&path)).collect();
        (!sizes.is_empty()).then(|| sizes.iter().sum())
    }

    /// Reason to withhold the GPU.
    fn withhold_reason(&self) -> Option<String> {
        let virtual_functions = self.host.read_text(self.function.folder().join("sriov_numvfs"));
        let virtual_functions =
            virtual_functions.and_then(|count| count.parse().ok()).filter(|count: &u32| *count > 0);
        let replacement_reason =
            |count| format!("its {count} virtual functions are offered in its place");
        let driver_reason =
            || failure::driver_failure(self.function, &DRIVERS).map(|(_, reason)| reason);
        driver_reason().or_else(|| virtual_functions.map(replacement_reason))
    }

    fn failure(&self, nodes: &[DeviceNode]) -> Option<Failure> {
        failure::driver_failure(self.function, &DRIVERS)
            .or_else(|| self.power_state_failure())
            .or_else(|| failure::node_failure(self.host, nodes))
            .or_else(|| self.condition.clone())
    }

    /// The kernel reports the power state `error` for a function that does not respond.
    fn power_state_failure(&self) -> Option<Failure> {
        let state = self.host.read_text(self.function.folder().join("power_state"))?;
        let detail = format!("its power state is {state}");
        (state == "error").then_some((Reason::Lost, detail))
    }

    /// Sets the path of a render node inside the container to `renderD128`, if the configuration asks for it.
    fn with_container_path(&self, node: DeviceNode) -> DeviceNode {
        let container_path = Path::new(FIRST_RENDER_NODE);
        if !self.rules.render_as_128 || !drm_nodes::is_render(&node) || node.path == container_path
        {
            return node;
        }
        DeviceNode { inside: Some(container_path.to_owned()), ..node }
    }
}
