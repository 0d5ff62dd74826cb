//! Run options: the settings that plugins return for a container in their `Allocate` answers.

use std::collections::{BTreeMap, BTreeSet};

use windlass_kubelet_api::deviceplugin::ContainerAllocateResponse;

/// A plugin's answer to `Allocate`, or the merged answers of all plugins of one container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunContainerOptions {
    /// Environment variables.
    pub envs: BTreeMap<String, String>,
    /// Bind mounts, in the plugin's order.
    pub mounts: Vec<Mount>,
    /// Device nodes, in the plugin's order.
    pub devices: Vec<DeviceNode>,
    /// Annotations for the container runtime.
    pub annotations: BTreeMap<String, String>,
    /// Qualified CDI device names, in the plugin's order. In a started container's options, the names
    /// of its claims come first.
    pub cdi_devices: Vec<String>,
}

/// A bind mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Path in the container.
    pub container_path: String,
    /// Path on the host.
    pub host_path: String,
    /// Access of the container.
    pub access: MountAccess,
}

/// Write access of a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountAccess {
    /// `read_only` is set.
    ReadOnly,
    /// `read_only` is not set.
    ReadWrite,
}

/// A device node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceNode {
    /// Path in the container.
    pub container_path: String,
    /// Path on the host.
    pub host_path: String,
    /// Cgroup permissions, as the plugin wrote them. The kubelet does not validate them.
    pub permissions: String,
}

/// An item with a path in the container and a path on the host.
trait ContainerItem: Clone {
    fn container_path(&self) -> &str;
    fn host_path(&self) -> &str;
}

/// A setting for which two resources of a container have different values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergeConflict {
    /// `env`, `device`, `mount` or `annotation`.
    pub kind: &'static str,
    /// Name of the environment variable or annotation, or path in the container.
    pub key: String,
    /// Value of the earlier resource, which stays in effect. A host path for devices and mounts.
    pub kept: String,
    /// Value of the later resource, which has no effect.
    pub dropped: String,
}

// === impl RunContainerOptions ===

impl RunContainerOptions {
    /// Converts a protobuf message.
    pub(crate) fn from_proto(response: &ContainerAllocateResponse) -> Self {
        Self {
            envs: response.envs.clone().into_iter().collect(),
            mounts: response.mounts.iter().map(Mount::from_proto).collect(),
            devices: response.devices.iter().map(DeviceNode::from_proto).collect(),
            annotations: response.annotations.clone().into_iter().collect(),
            cdi_devices: response.cdi_devices.iter().map(|cdi| cdi.name.clone()).collect(),
        }
    }

    /// Merges the answers for one container, as `deviceRunContainerOptions` does. The first value of a
    /// key wins, and each CDI name appears once. Also returns the conflicts.
    pub(crate) fn merge<'a>(
        all_options: impl IntoIterator<Item = &'a Self>,
    ) -> (Self, Vec<MergeConflict>) {
        let mut merged = Self::default();
        let mut conflicts = Vec::new();
        for options in all_options {
            conflicts.extend(merge_map("env", &mut merged.envs, &options.envs));
            conflicts.extend(merge_paths("device", &mut merged.devices, &options.devices));
            conflicts.extend(merge_paths("mount", &mut merged.mounts, &options.mounts));
            let annotations = &mut merged.annotations;
            conflicts.extend(merge_map("annotation", annotations, &options.annotations));
            merged.add_cdi_devices(&options.cdi_devices);
        }
        (merged, conflicts)
    }

    fn add_cdi_devices(&mut self, names: &[String]) {
        let mut seen: BTreeSet<String> = self.cdi_devices.iter().cloned().collect();
        self.cdi_devices.extend(names.iter().filter(|name| seen.insert((*name).clone())).cloned());
    }
}

// === impl Mount ===

impl Mount {
    fn from_proto(mount: &windlass_kubelet_api::deviceplugin::Mount) -> Self {
        Self {
            container_path: mount.container_path.clone(),
            host_path: mount.host_path.clone(),
            access: if mount.read_only { MountAccess::ReadOnly } else { MountAccess::ReadWrite },
        }
    }
}

impl ContainerItem for Mount {
    fn container_path(&self) -> &str {
        &self.container_path
    }

    fn host_path(&self) -> &str {
        &self.host_path
    }
}

// === impl DeviceNode ===

impl DeviceNode {
    fn from_proto(device: &windlass_kubelet_api::deviceplugin::DeviceSpec) -> Self {
        Self {
            container_path: device.container_path.clone(),
            host_path: device.host_path.clone(),
            permissions: device.permissions.clone(),
        }
    }
}

impl ContainerItem for DeviceNode {
    fn container_path(&self) -> &str {
        &self.container_path
    }

    fn host_path(&self) -> &str {
        &self.host_path
    }
}

// === impl MergeConflict ===

impl MergeConflict {
    /// A conflict if the two values differ.
    fn if_different(kind: &'static str, key: &str, values: (&str, &str)) -> Option<Self> {
        let (kept, dropped) = values;
        (kept != dropped).then(|| Self {
            kind,
            key: key.to_owned(),
            kept: kept.to_owned(),
            dropped: dropped.to_owned(),
        })
    }
}

fn merge_map(
    kind: &'static str,
    merged: &mut BTreeMap<String, String>,
    later: &BTreeMap<String, String>,
) -> Vec<MergeConflict> {
    let mut conflicts = Vec::new();
    for (key, value) in later {
        let kept = merged.entry(key.clone()).or_insert_with(|| value.clone());
        conflicts.extend(MergeConflict::if_different(kind, key, (kept, value)));
    }
    conflicts
}

fn merge_paths<T: ContainerItem>(
    kind: &'static str,
    merged: &mut Vec<T>,
    later: &[T],
) -> Vec<MergeConflict> {
    let mut conflicts = Vec::new();
    for item in later {
        let path = item.container_path();
        match merged.iter().find(|earlier| earlier.container_path() == path) {
            None => merged.push(item.clone()),
            Some(earlier) => {
                let values = (earlier.host_path(), item.host_path());
                conflicts.extend(MergeConflict::if_different(kind, path, values));
            }
        }
    }
    conflicts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options_with(env: &str, host_path: &str, cdi: &[&str]) -> RunContainerOptions {
        let text = |value: &str| value.to_owned();
        RunContainerOptions {
            envs: BTreeMap::from([(text("E"), text(env))]),
            mounts: vec![Mount {
                container_path: text("/m"),
                host_path: text(host_path),
                access: MountAccess::ReadOnly,
            }],
            devices: vec![DeviceNode {
                container_path: text("/dev/d"),
                host_path: text(host_path),
                permissions: text("rw"),
            }],
            annotations: BTreeMap::from([(text("a"), text(env))]),
            cdi_devices: cdi.iter().map(|name| text(name)).collect(),
        }
    }

    #[test]
    fn the_first_resource_wins_each_conflict_and_conflicts_are_reported() {
        let first = options_with("1", "/host/1", &["v/c=a", "v/c=b", "v/c=a"]);
        let second = options_with("2", "/host/2", &["v/c=b", "v/c=c"]);
        let (merged, conflicts) = RunContainerOptions::merge([&first, &second]);
        assert_eq!(
            merged,
            RunContainerOptions { cdi_devices: merged.cdi_devices.clone(), ..first }
        );
        assert_eq!(merged.cdi_devices, ["v/c=a", "v/c=b", "v/c=c"]);
        let kinds: Vec<_> = conflicts.iter().map(|conflict| conflict.kind).collect();
        assert_eq!(kinds, ["env", "device", "mount", "annotation"]);
        assert_eq!((&*conflicts[1].kept, &*conflicts[1].dropped), ("/host/1", "/host/2"));
    }

    #[test]
    fn the_same_setting_twice_is_no_conflict() {
        let (merged, conflicts) = RunContainerOptions::merge([
            &options_with("1", "/h", &[]),
            &options_with("1", "/h", &[]),
        ]);
        assert_eq!((merged, conflicts), (options_with("1", "/h", &[]), vec![]));
    }
}
