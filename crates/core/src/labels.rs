//! Node labels for schedulers: GPU models, counts, sharing, driver.
//!
//! Names and values under `nvidia.com` are those of NVIDIA's gpu-feature-discovery: one set per node, which
//! describes the most frequent model. Labels under `windlass.dev` describe each model. Labels under `amd.com`
//! are those of AMD's node labeller.

mod amd;
mod device;
mod model;
mod node;
mod resource;
mod spelling;

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::{device::DeviceId, enforcement::Enforcement, inventory::Inventory};

/// Labels by key.
pub type Labels = BTreeMap<String, String>;

/// Input of the labels.
#[derive(Clone, Debug)]
pub struct LabelInput<'a> {
    /// All devices. Vanished devices have no labels; failed devices keep their labels.
    pub inventory: &'a Inventory,
    /// Offering of each device; a withheld device has no entry.
    pub offerings: &'a BTreeMap<DeviceId, Offering>,
    /// Resource names of MIG instances.
    pub instances: InstanceNames,
    /// Host facts beside the devices.
    pub host: &'a HostFacts,
    /// The weakest memory enforcement among the shared GPUs; `None` without shared GPUs.
    pub enforcement: Option<Enforcement>,
    /// Time for the timestamp label; `None` omits the label.
    pub timestamp: Option<Timestamp>,
}

/// Offering of a device: replicas and sharing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offering {
    /// Number of containers at a time.
    pub replicas: u32,
    /// Sharing mode.
    pub sharing: Sharing,
    /// True if the resource has another name than the default of its kind.
    pub renamed: bool,
}

/// Sharing mode of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// One container only.
    Exclusive,
    /// Time slices.
    TimeSlicing,
    /// An MPS daemon.
    Mps,
}

/// Resource names of MIG instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstanceNames {
    /// Not offered.
    None,
    /// The name of whole GPUs (strategy `single`).
    Single,
    /// One name per profile (strategy `mixed`).
    Mixed,
}

/// Host facts beside the devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostFacts {
    /// Machine model, `DGXH100`.
    pub machine: Option<String>,
    /// Driver version in the driver's spelling, `550.163.01`. If absent, labels use the devices' attribute,
    /// which has no leading zeros.
    pub driver_version: Option<String>,
    /// Detection of virtual GPUs.
    pub vgpu: Vgpu,
}

/// Detection of virtual GPUs in a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Vgpu {
    /// Detection failed.
    #[default]
    Unknown,
    /// No virtual GPUs.
    Absent,
    /// A guest with virtual GPUs.
    Present(VgpuHost),
}

/// Driver of the vGPU host, as far as the guest sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VgpuHost {
    /// `460.16`
    pub driver_version: Option<String>,
    /// `r460_00`
    pub driver_branch: Option<String>,
}

/// Key and value.
type Label = (String, String);

/// All labels of a node. Deterministic.
pub fn labels(input: &LabelInput<'_>) -> Labels {
    let gpus = device::gpus(input);
    let mut labels: Labels = node::host_labels(input).collect();
    labels.extend(amd::gpu_labels(input));
    if !gpus.is_empty() {
        let instances = device::instances(input);
        labels.extend(node::gpu_labels(input, &gpus));
        labels.extend(resource::gpu_labels(&gpus));
        labels.extend(resource::instance_labels(input.instances, &gpus, &instances));
        labels.extend(model::model_labels(&gpus, &instances));
    }
    labels
}

/// Labels in the file format of node-feature-discovery: one `key=value` per line.
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
