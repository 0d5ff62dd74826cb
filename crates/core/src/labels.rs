//! The labels of a node: what a scheduler may know of its GPUs without asking them.
//!
//! Names and values under `nvidia.com` are those of NVIDIA's gpu-feature-discovery. That has one set of
//! labels for all GPUs of a node; where models differ, it describes the one that most of them are. The
//! labels under `windlass.dev` describe each model by itself. Those under `amd.com` are AMD's labeller's.

mod amd;
mod device;
mod model;
mod node;
mod resource;
mod spelling;

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::{device::DeviceId, inventory::Inventory};

/// Labels by key.
pub type Labels = BTreeMap<String, String>;

/// What labels are made from.
#[derive(Clone, Debug)]
pub struct LabelInput<'a> {
    /// The devices. One that vanished has no labels; one that failed keeps them.
    pub inventory: &'a Inventory,
    /// How devices are offered; one that is missing here is kept back.
    pub offerings: &'a BTreeMap<DeviceId, Offering>,
    /// What MIG instances are offered as.
    pub instances: InstanceNames,
    /// What the host says beside the devices.
    pub host: &'a HostFacts,
    /// When the labels were asked for, if that is to be a label too.
    pub timestamp: Option<Timestamp>,
}

/// How a device is offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offering {
    /// How many containers it serves at a time.
    pub replicas: u32,
    /// What keeps them apart.
    pub sharing: Sharing,
    /// Whether the resource has another name than devices of its kind usually have.
    pub renamed: bool,
}

/// What keeps the containers on one device apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// There is only one.
    Exclusive,
    /// Time slices.
    TimeSlicing,
    /// An MPS daemon.
    Mps,
}

/// What MIG instances are offered as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstanceNames {
    /// Not at all.
    None,
    /// As if they were whole GPUs.
    Single,
    /// By their profiles.
    Mixed,
}

/// What the host says beside the devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostFacts {
    /// What sort of machine it is, `DGXH100`.
    pub machine: Option<String>,
    /// The driver's version as the driver spells it, `550.163.01`. Without it, the devices' own
    /// attribute counts, which has no leading zeros.
    pub driver_version: Option<String>,
    /// Whether the machine is a guest with virtual GPUs.
    pub vgpu: Vgpu,
}

/// Whether a machine is a guest with virtual GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Vgpu {
    /// It could not be found out.
    #[default]
    Unknown,
    /// It is not.
    Absent,
    /// It is.
    Present(VgpuHost),
}

/// The driver of the machine that lends its GPUs, as far as it is told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VgpuHost {
    /// `460.16`
    pub driver_version: Option<String>,
    /// `r460_00`
    pub driver_branch: Option<String>,
}

/// A label.
type Label = (String, String);

/// All labels of a node; the same input gives the same labels.
pub fn labels(input: &LabelInput<'_>) -> Labels {
    let gpus = device::gpus(input);
    let mut labels: Labels = node::always(input).collect();
    labels.extend(amd::gpus(input));
    if !gpus.is_empty() {
        let instances = device::instances(input);
        labels.extend(node::with_gpus(input, &gpus));
        labels.extend(resource::gpus(&gpus));
        labels.extend(resource::instances(input.instances, &gpus, &instances));
        labels.extend(model::each(&gpus, &instances));
    }
    labels
}

/// Labels as node-feature-discovery reads them from a file: one `key=value` a line.
pub fn feature_file(labels: &Labels) -> String {
    labels.iter().map(|(key, value)| format!("{key}={value}\n")).collect::<Vec<_>>().concat()
}

// === impl Offering ===

impl Offering {
    fn is_shared(self) -> bool {
        self.replicas > 1
    }

    fn strategy(self) -> &'static str {
        match self.sharing {
            Sharing::TimeSlicing if self.is_shared() => "time-slicing",
            Sharing::Mps if self.is_shared() => "mps",
            _ => "none",
        }
    }
}

#[cfg(test)]
mod tests;
