//! Container edits of one allocation: a pure function of devices and configuration.

mod annotation;
mod extras;
mod nics;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use windlass_config::{Delivery, DeviceListStrategy, Feature, NicPolicy};
use windlass_core::{
    cdi::Kind,
    device::{Device, DeviceNode},
    resource::ResourceName,
};

/// Container edits of one allocation, as the kubelet takes them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllocationEdits {
    /// Environment variables.
    pub envs: BTreeMap<String, String>,
    /// Annotations for the runtime.
    pub annotations: BTreeMap<String, String>,
    /// Bind mounts.
    pub mounts: Vec<Mount>,
    /// Qualified CDI names, in the order of the request.
    pub cdi_devices: Vec<String>,
    /// Device nodes that the kubelet adds, because no CDI document has them.
    pub nodes: BTreeSet<DeviceNode>,
}

/// A bind mount, with paths as the container runtime sees them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The path on the node.
    pub host_path: PathBuf,
    /// The path in the container.
    pub container_path: PathBuf,
    /// Access of the container.
    pub access: Access,
}

/// Access to a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read-only.
    ReadOnly,
    /// Read and write.
    ReadWrite,
}

/// An allocation, and the configuration for it.
#[derive(Clone, Copy, Debug)]
pub struct AllocationRequest<'a> {
    /// The requested resource.
    pub resource: &'a ResourceName,
    /// The allocated devices, each once, in the order of the request.
    pub devices: &'a [&'a Device],
    /// Delivery of devices to containers.
    pub delivery: &'a Delivery,
    /// Rules for network interfaces.
    pub nics: &'a NicPolicy,
    /// Node-wide extras.
    pub node_extras: &'a NodeExtras,
    /// Edits for a client of the device's MPS daemon.
    pub mps: Option<&'a MpsClientEdits>,
    /// CDI names of the memory limits of replicas, in the same document as the devices.
    pub limits: &'a [String],
    /// Machine profile, if the host is simulated.
    pub simulated: Option<&'a str>,
}

/// Edits that make a container a client of an MPS daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MpsClientEdits {
    /// Environment variables.
    pub envs: BTreeMap<String, String>,
    /// Writable mounts: path in the container to path on the node.
    pub mounts: BTreeMap<PathBuf, PathBuf>,
}

/// Node-wide extras of containers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeExtras {
    /// Device nodes of the driver that belong to no GPU.
    pub control_nodes: Vec<PathBuf>,
    /// Configured IMEX channels that exist.
    pub imex_channels: BTreeSet<u32>,
    /// Qualified CDI names for every container of an NVIDIA resource.
    pub cdi_extras: Vec<String>,
}

/// Variable that marks a simulated machine, with its machine profile.
const SIMULATED: &str = "WINDLASS_SIMULATED";

/// Variable that NVIDIA's container runtime reads.
const VISIBLE_DEVICES: &str = "NVIDIA_VISIBLE_DEVICES";

/// Folder of mounts in which NVIDIA's container runtime finds device names.
const MOUNTED_DEVICES: &str = "/var/run/nvidia-container-devices";

/// Edits for an allocation. Equal requests get equal edits.
pub fn allocation_edits(request: AllocationRequest<'_>) -> AllocationEdits {
    let mut edits = AllocationEdits::default();
    if let Some(profile) = request.simulated {
        edits.envs.insert(SIMULATED.to_owned(), profile.to_owned());
    }
    if let Some(mps) = request.mps {
        edits.envs.extend(mps.envs.clone());
        edits.mounts.extend(mps.mounts.iter().map(|(container_path, host_path)| Mount {
            host_path: host_path.clone(),
            container_path: container_path.clone(),
            access: Access::ReadWrite,
        }));
    }
    if request.delivery.uses_cdi() {
        request.add_cdi_names(&mut edits);
    }
    if request.has_toolkit() {
        request.add_nvidia_edits(&mut edits);
    } else {
        request.add_extras(&mut edits);
        request.add_nic_variables(&mut edits);
    }
    edits
}

/// Edits for a share by amounts. `name` is its CDI name, whose document is written before the container starts.
pub fn share_edits(
    name: String,
    resource: &ResourceName,
    delivery: &Delivery,
    node_extras: &NodeExtras,
    simulated: Option<&str>,
) -> AllocationEdits {
    let mut edits = AllocationEdits::default();
    if let Some(profile) = simulated {
        edits.envs.insert(SIMULATED.to_owned(), profile.to_owned());
    }
    let names: Vec<_> = [name].into_iter().chain(node_extras.cdi_extras.iter().cloned()).collect();
    let uses_annotations = delivery.strategies.contains(&DeviceListStrategy::CdiAnnotations);
    if uses_annotations && !delivery.strategies.contains(&DeviceListStrategy::CdiCri) {
        let key = annotation::key(&delivery.annotation_prefix, resource);
        edits.annotations.insert(key, names.join(","));
    } else {
        edits.cdi_devices = names;
    }
    edits
}

// === impl NodeExtras ===

impl NodeExtras {
    /// True if a container with this device gets names of this kind.
    pub fn gets_names_of(&self, device: &Device, kind: &Kind) -> bool {
        let prefix = format!("{kind}=");
        let has_extra_name = || self.cdi_extras.iter().any(|name| name.starts_with(&prefix));
        *kind == crate::kind_of(device) || (device.family().has_toolkit && has_extra_name())
    }
}

// === impl AllocationRequest ===

impl AllocationRequest<'_> {
    fn uses(&self, strategy: DeviceListStrategy) -> bool {
        self.delivery.strategies.contains(&strategy)
    }

    fn has_toolkit(&self) -> bool {
        self.devices.iter().all(|device| device.family().has_toolkit)
    }

    fn ids(&self) -> Vec<&str> {
        self.devices.iter().map(|device| device.id.as_str()).collect()
    }

    /// Names of the devices for NVIDIA's runtime.
    fn names(&self) -> Vec<String> {
        self.devices.iter().map(|device| crate::device_name(device, self.delivery.ids)).collect()
    }

    fn add_cdi_names(&self, edits: &mut AllocationEdits) {
        edits.envs.insert(resource_variable(self.resource), self.ids().join(","));
        let ids = self.delivery.ids;
        let named_devices = self.devices.iter().filter(|device| crate::has_edits(device));
        let mut names: Vec<_> = named_devices
            .map(|device| crate::kind_of(device).qualify(crate::device_name(device, ids)))
            .collect();
        if let Some(kind) = self.devices.first().map(|device| crate::kind_of(device)) {
            names.extend(self.limits.iter().map(|name| kind.qualify(name)));
        }
        if self.has_toolkit() {
            names.extend(self.node_extras.cdi_extras.iter().cloned());
        }
        if self.uses(DeviceListStrategy::CdiAnnotations) && !names.is_empty() {
            let key = annotation::key(&self.delivery.annotation_prefix, self.resource);
            edits.annotations.insert(key, names.join(","));
        }
        if self.uses(DeviceListStrategy::CdiCri) {
            edits.cdi_devices = names;
        }
    }

    /// Variables, mounts and nodes for NVIDIA's runtime and the container's programs.
    fn add_nvidia_edits(&self, edits: &mut AllocationEdits) {
        for feature in &self.delivery.features {
            edits.envs.insert(feature_variable(*feature).to_owned(), "enabled".to_owned());
        }
        if self.uses(DeviceListStrategy::Envvar) {
            edits.envs.insert(VISIBLE_DEVICES.to_owned(), self.names().join(","));
            let channels: Vec<_> =
                self.node_extras.imex_channels.iter().map(ToString::to_string).collect();
            if !channels.is_empty() {
                edits.envs.insert("NVIDIA_IMEX_CHANNELS".to_owned(), channels.join(","));
            }
        }
        if self.uses(DeviceListStrategy::VolumeMounts) {
            self.add_name_mounts(edits);
        }
        let is_by_runtime =
            self.uses(DeviceListStrategy::Envvar) || self.uses(DeviceListStrategy::VolumeMounts);
        // With CDI the nodes are in the container's own configuration, so the kubelet need not add them.
        if is_by_runtime && self.delivery.pass_device_specs {
            let devices = self.devices.iter().flat_map(|device| device.nodes.clone());
            let channels =
                self.node_extras.imex_channels.iter().map(|channel| crate::imex_node(*channel));
            let control_nodes = self.node_extras.control_nodes.iter().cloned();
            let shared_nodes = control_nodes.chain(channels).map(DeviceNode::shared);
            edits.nodes = devices.chain(shared_nodes).collect();
        }
    }

    /// Names the devices by mounts. A pod can set the variable itself, but cannot forge these mounts.
    fn add_name_mounts(&self, edits: &mut AllocationEdits) {
        let folder = Path::new(MOUNTED_DEVICES);
        edits.envs.insert(VISIBLE_DEVICES.to_owned(), MOUNTED_DEVICES.to_owned());
        let channels = self.node_extras.imex_channels.iter();
        let channels = channels.map(|channel| folder.join("imex").join(channel.to_string()));
        let devices = self.names().into_iter().map(|name| folder.join(name));
        edits.mounts.extend(devices.chain(channels).map(|container_path| Mount {
            host_path: "/dev/null".into(),
            container_path,
            access: Access::ReadWrite,
        }));
    }
}

fn feature_variable(feature: Feature) -> &'static str {
    match feature {
        Feature::Gds => "NVIDIA_GDS",
        Feature::Mofed => "NVIDIA_MOFED",
        Feature::Gdrcopy => "NVIDIA_GDRCOPY",
    }
}

/// True for a variable whose value depends on the allocated devices. The values of others are the same for all
/// containers of a node.
pub fn depends_on_devices(name: &str) -> bool {
    name != SIMULATED && !Feature::ALL.iter().any(|feature| feature_variable(*feature) == name)
}

/// Variable that lists the allocated ids of a resource. The kubelet merges the variables of a container's resources
/// by name, so each resource has its own. Resources whose names differ only in punctuation share one.
pub fn resource_variable(resource: &ResourceName) -> String {
    format!("WINDLASS_{}", to_env_name(resource.as_str()))
}

/// The text in capitals, with `_` for other characters than letters and digits.
pub fn to_env_name(text: &str) -> String {
    replace_punctuation(text).to_ascii_uppercase()
}

/// The text with `_` for other characters than letters and digits, for the name of a variable.
pub fn replace_punctuation(text: &str) -> String {
    text.replace(|letter: char| !letter.is_ascii_alphanumeric(), "_")
}

#[cfg(test)]
mod tests;
