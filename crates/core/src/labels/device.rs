//! Device facts that labels use.

use super::{LabelInput, Offering, spelling};
use crate::{
    attribute::{AttributeName, AttributeValue, Quantity},
    device::{Device, DeviceKind},
};

/// A GPU whose product name is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gpu<'a> {
    device: &'a Device,
    /// True if it is divided into MIG instances.
    pub(super) is_partitioned: bool,
    /// Offering of the whole GPU.
    pub(super) offering: Option<Offering>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Instance<'a> {
    device: &'a Device,
    pub(super) offering: Option<Offering>,
}

const PRODUCT: AttributeName = nvidia("productName");
const DRIVER: AttributeName = nvidia("driverVersion");
const CUDA: AttributeName = nvidia("cudaDriverVersion");
const MIG_CAPABLE: AttributeName = nvidia("migCapable");
const FABRIC_CLUSTER: AttributeName = nvidia("fabricClusterUUID");
const FABRIC_CLIQUE: AttributeName = nvidia("fabricCliqueID");
const PCI_CLASS: AttributeName = AttributeName::new("windlass.dev", "pciClass");

/// Capacities of an instance, with their names in gpu-feature-discovery.
static ENGINES: &[(AttributeName, &str)] = &[
    (nvidia("multiprocessors"), "multiprocessors"),
    (nvidia("copyEngines"), "engines.copy"),
    (nvidia("decoders"), "engines.decoder"),
    (nvidia("encoders"), "engines.encoder"),
    (nvidia("jpegEngines"), "engines.jpeg"),
    (nvidia("ofaEngines"), "engines.ofa"),
];

const fn nvidia(name: &'static str) -> AttributeName {
    AttributeName::new("nvidia.com", name)
}

/// The node's GPUs, in order.
pub(super) fn gpus<'a>(input: &LabelInput<'a>) -> Vec<Gpu<'a>> {
    let gpu = |device: &'a Device| {
        let offering = input.offerings.get(&device.id).copied().filter(|_| !device.partitioned);
        Gpu { device, is_partitioned: device.partitioned, offering }
    };
    present_devices(input, DeviceKind::Gpu).map(gpu).collect()
}

/// The node's MIG instances, in order.
pub(super) fn instances<'a>(input: &LabelInput<'a>) -> Vec<Instance<'a>> {
    let instance = |device: &'a Device| Instance {
        device,
        offering: input.offerings.get(&device.id).copied(),
    };
    let with_profile =
        present_devices(input, DeviceKind::Mig).filter(|device| device.mig_profile().is_some());
    with_profile.map(instance).collect()
}

/// Present devices of a kind whose product name is known.
fn present_devices<'a>(
    input: &LabelInput<'a>,
    kind: DeviceKind,
) -> impl Iterator<Item = &'a Device> {
    let devices = input.inventory.of_kind(kind).filter(|device| !device.health.has_vanished());
    devices.filter(|device| device.text_attribute(&PRODUCT).is_some())
}

// === impl Gpu ===

impl Gpu<'_> {
    /// Product name in label spelling.
    pub(super) fn model(&self) -> String {
        spelling::sanitised(self.device.text_attribute(&PRODUCT).unwrap_or_default())
    }

    pub(super) fn memory_mib(&self) -> Option<u64> {
        self.device.memory_mib()
    }

    /// CUDA compute capability, major and minor.
    pub(super) fn compute(&self) -> Option<(u32, u32)> {
        self.device.compute_capability()
    }

    pub(super) fn driver_version(&self) -> Option<&str> {
        self.device.text_attribute(&DRIVER)
    }

    pub(super) fn cuda_version(&self) -> Option<&str> {
        self.device.text_attribute(&CUDA)
    }

    pub(super) fn is_mig_capable(&self) -> bool {
        self.device.attributes.get(&MIG_CAPABLE) == Some(&AttributeValue::Bool(true))
    }

    /// NVLink domain: cluster UUID and clique.
    pub(super) fn fabric(&self) -> Option<(&str, String)> {
        let cluster = self.device.text_attribute(&FABRIC_CLUSTER)?;
        let clique = self.device.attributes.get(&FABRIC_CLIQUE)?;
        Some((cluster, clique.to_string()))
    }

    /// PCI base class and subclass, `0302`.
    pub(super) fn pci_class(&self) -> Option<&str> {
        let class = self.device.text_attribute(&PCI_CLASS)?;
        class.trim_start_matches("0x").get(..4)
    }

    pub(super) fn has_instances(&self, instances: &[Instance<'_>]) -> bool {
        instances.iter().any(|part| part.device.parent.as_ref() == Some(&self.device.id))
    }
}

// === impl Instance ===

impl Instance<'_> {
    /// Product name of the GPU in label spelling.
    pub(super) fn model(&self) -> String {
        spelling::sanitised(self.device.text_attribute(&PRODUCT).unwrap_or_default())
    }

    /// Profile in label spelling: keys cannot contain `+`.
    pub(super) fn mig_profile(&self) -> String {
        let profile = self.device.mig_profile().unwrap_or_default().replace('+', ".");
        spelling::sanitised(&profile)
    }

    /// Capacities under their label names.
    pub(super) fn amounts(&self) -> Vec<(&'static str, u64)> {
        let engine = |(name, label): &(AttributeName, &'static str)| {
            let (Quantity::Count(amount) | Quantity::Bytes(amount)) =
                *self.device.capacity.get(name)?;
            Some((*label, amount))
        };
        let memory = self.device.memory_mib().map(|mib| ("memory", mib));
        let slices = slices(self.device.mig_profile().unwrap_or_default());
        let slices = slices.map(|(gi, ci)| [("slices.gi", gi), ("slices.ci", ci)]);
        let engines = ENGINES.iter().filter_map(engine);
        memory.into_iter().chain(slices.into_iter().flatten()).chain(engines).collect()
    }
}

/// GPU and compute slices of a profile: `3g.20gb` has three of each, `1c.3g.20gb` one compute slice of three.
fn slices(profile: &str) -> Option<(u64, u64)> {
    let count = |unit: char| {
        profile.split('.').find_map(|part| part.strip_suffix(unit)?.parse::<u64>().ok())
    };
    let gi = count('g')?;
    Some((gi, count('c').unwrap_or(gi)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_name_contains_its_slices() {
        for (profile, expected) in [
            ("1g.5gb", Some((1, 1))),
            ("1c.3g.20gb", Some((3, 1))),
            ("1g.10gb+me", Some((1, 1))),
            ("7g.80gb", Some((7, 7))),
            ("odd", None),
        ] {
            assert_eq!(slices(profile), expected, "{profile}");
        }
    }
}
