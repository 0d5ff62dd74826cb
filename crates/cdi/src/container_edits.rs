//! What a container is given for its devices: a pure answer to "which devices, told how".

mod annotation;
mod extras;
mod nics;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use windlass_config::{Delivery, DeviceNodes, Feature, NicPolicy, Strategy};
use windlass_core::{
    cdi::Kind,
    device::{Device, DeviceNode},
    resource::ResourceName,
};

/// What a container is given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// Environment variables.
    pub envs: BTreeMap<String, String>,
    /// Annotations for the runtime.
    pub annotations: BTreeMap<String, String>,
    /// Bind mounts.
    pub mounts: Vec<Mount>,
    /// Qualified CDI names, in the order of the request.
    pub cdi_devices: Vec<String>,
    /// Device nodes under `/dev` that no runtime adds by itself.
    pub nodes: BTreeSet<DeviceNode>,
}

/// A bind mount, both paths as the container runtime knows them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The path on the node.
    pub host_path: PathBuf,
    /// The path in the container.
    pub container_path: PathBuf,
    /// Whether the container may write.
    pub access: Access,
}

/// What a container may do with a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The container reads.
    ReadOnly,
    /// The container reads and writes.
    ReadWrite,
}

/// What a grant is made from.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// The resource that was asked for.
    pub resource: &'a ResourceName,
    /// The devices, each once, in the order of the request.
    pub devices: &'a [&'a Device],
    /// How devices are handed out.
    pub delivery: &'a Delivery,
    /// What containers get with network interfaces.
    pub nics: &'a NicPolicy,
    /// What the node has besides its devices.
    pub surroundings: &'a Surroundings,
    /// What makes the container a client of its device's MPS daemon.
    pub mps: Option<&'a MpsGrant>,
    /// The profile of a simulated machine.
    pub simulated: Option<&'a str>,
}

/// What a container gets to be a client of a device's daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MpsGrant {
    /// Environment variables.
    pub envs: BTreeMap<String, String>,
    /// Folders to mount, writable: by path in the container, the path on the node.
    pub mounts: BTreeMap<PathBuf, PathBuf>,
}

/// What the node has besides its devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// Device nodes of the driver that belong to no GPU.
    pub control_nodes: Vec<PathBuf>,
    /// IMEX channels that are configured and there.
    pub imex_channels: BTreeSet<u32>,
    /// CDI names that every container of an NVIDIA resource gets besides.
    pub cdi_extras: Vec<String>,
}

/// Tells a container that its machine is simulated.
const SIMULATED: &str = "WINDLASS_SIMULATED";

/// What NVIDIA's container runtime reads.
const VISIBLE_DEVICES: &str = "NVIDIA_VISIBLE_DEVICES";

/// Where NVIDIA's container runtime looks for mounts that name devices.
const MOUNTED_DEVICES: &str = "/var/run/nvidia-container-devices";

/// The grant for these devices. The same question, the same grant.
pub fn grant(question: Question<'_>) -> Grant {
    let mut grant = Grant::default();
    if let Some(profile) = question.simulated {
        grant.envs.insert(SIMULATED.to_owned(), profile.to_owned());
    }
    if let Some(mps) = question.mps {
        grant.envs.extend(mps.envs.clone());
        grant.mounts.extend(mps.mounts.iter().map(|(container_path, host_path)| Mount {
            host_path: host_path.clone(),
            container_path: container_path.clone(),
            access: Access::ReadWrite,
        }));
    }
    if question.delivery.uses_cdi() {
        question.by_cdi(&mut grant);
    }
    if question.has_toolkit() {
        question.nvidia(&mut grant);
    } else {
        question.extras(&mut grant);
        question.nics(&mut grant);
    }
    grant
}

// === impl Surroundings ===

impl Surroundings {
    /// Whether a container that gets a device gets names of this kind.
    pub fn gets_names_of(&self, device: &Device, kind: &Kind) -> bool {
        let begins = format!("{kind}=");
        let extra = || self.cdi_extras.iter().any(|name| name.starts_with(&begins));
        *kind == crate::kind_of(device) || (device.family().has_toolkit && extra())
    }
}

// === impl Question ===

impl Question<'_> {
    fn uses(&self, strategy: Strategy) -> bool {
        self.delivery.strategies.contains(&strategy)
    }

    fn has_toolkit(&self) -> bool {
        self.devices.iter().all(|device| device.family().has_toolkit)
    }

    fn ids(&self) -> Vec<&str> {
        self.devices.iter().map(|device| device.id.as_str()).collect()
    }

    /// What NVIDIA's runtime calls the devices.
    fn names(&self) -> Vec<String> {
        self.devices.iter().map(|device| crate::device_name(device, self.delivery.ids)).collect()
    }

    fn by_cdi(&self, grant: &mut Grant) {
        grant.envs.insert(variable(self.resource), self.ids().join(","));
        let ids = self.delivery.ids;
        let qualified =
            |device: &&Device| crate::kind_of(device).qualify(crate::device_name(device, ids));
        let in_documents = self.devices.iter().copied().filter(|device| crate::has_edits(device));
        let mut names: Vec<_> = in_documents.map(|device| qualified(&device)).collect();
        if self.has_toolkit() {
            names.extend(self.surroundings.cdi_extras.iter().cloned());
        }
        if self.uses(Strategy::CdiAnnotations) && !names.is_empty() {
            let key = annotation::key(&self.delivery.annotation_prefix, self.resource);
            grant.annotations.insert(key, names.join(","));
        }
        if self.uses(Strategy::CdiCri) {
            grant.cdi_devices = names;
        }
    }

    /// What NVIDIA's runtime and the programs in the container look for.
    fn nvidia(&self, grant: &mut Grant) {
        for feature in &self.delivery.features {
            grant.envs.insert(feature_variable(*feature).to_owned(), "enabled".to_owned());
        }
        if self.uses(Strategy::Envvar) {
            grant.envs.insert(VISIBLE_DEVICES.to_owned(), self.names().join(","));
            let channels: Vec<_> =
                self.surroundings.imex_channels.iter().map(ToString::to_string).collect();
            if !channels.is_empty() {
                grant.envs.insert("NVIDIA_IMEX_CHANNELS".to_owned(), channels.join(","));
            }
        }
        if self.uses(Strategy::VolumeMounts) {
            self.by_mounts(grant);
        }
        let by_runtime_alone = self.uses(Strategy::Envvar) || self.uses(Strategy::VolumeMounts);
        // CDI writes nodes into the container's own configuration, where they are not forgotten.
        if by_runtime_alone && self.delivery.nodes == DeviceNodes::ByKubelet {
            let devices = self.devices.iter().flat_map(|device| device.nodes.clone());
            let channels = self.surroundings.imex_channels.iter().map(|n| crate::imex_node(*n));
            let control = self.surroundings.control_nodes.iter().cloned();
            let beside = control.chain(channels).map(DeviceNode::shared);
            grant.nodes = devices.chain(beside).collect();
        }
    }

    /// A pod cannot mount what the kubelet did not give it, so these cannot be forged as a variable
    /// can.
    fn by_mounts(&self, grant: &mut Grant) {
        let folder = Path::new(MOUNTED_DEVICES);
        grant.envs.insert(VISIBLE_DEVICES.to_owned(), MOUNTED_DEVICES.to_owned());
        let channels = self.surroundings.imex_channels.iter();
        let channels = channels.map(|channel| folder.join("imex").join(channel.to_string()));
        let devices = self.names().into_iter().map(|name| folder.join(name));
        grant.mounts.extend(devices.chain(channels).map(|container_path| Mount {
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

/// Whether a variable depends on the devices that a container gets, and not on the node alone.
pub fn tells_of_devices(name: &str) -> bool {
    let features = [Feature::Gds, Feature::Mofed, Feature::Gdrcopy];
    name != SIMULATED && !features.iter().any(|feature| feature_variable(*feature) == name)
}

/// The variable that lists a resource's ids. The kubelet merges the variables of all resources of a
/// container and keeps the first of a name, so each resource has a name of its own, unless two differ
/// in their punctuation alone.
pub fn variable(resource: &ResourceName) -> String {
    format!("WINDLASS_{}", upper(resource.as_str()))
}

/// A text as variables' names have it.
pub fn upper(text: &str) -> String {
    plain(text).to_ascii_uppercase()
}

/// The same with its letters as they are.
pub fn plain(text: &str) -> String {
    text.replace(|letter: char| !letter.is_ascii_alphanumeric(), "_")
}

#[cfg(test)]
mod tests;
