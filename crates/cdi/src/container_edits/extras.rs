//! Edits for devices that NVIDIA's container toolkit does not serve.

use std::collections::BTreeMap;

use windlass_core::device::Device;

use super::{Access, AllocationEdits, AllocationRequest, Mount, resource_variable};

/// Placeholder in a variable's name: the device's position in the container.
const POSITION: &str = "{position}";

// === impl AllocationRequest ===

impl AllocationRequest<'_> {
    /// Adds variables, and without CDI also nodes and mounts. Variables never come from CDI documents: of several
    /// documents only the last value would count, and here the values of several devices are joined.
    pub(super) fn add_extras(&self, edits: &mut AllocationEdits) {
        edits.envs.insert(resource_variable(self.resource), self.ids().join(","));
        edits.envs.extend(joined_env(self.devices));
        let cdi_names = self.devices.iter().flat_map(|device| device.extras.cdi.iter().cloned());
        edits.cdi_devices.extend(cdi_names);
        if self.delivery.uses_cdi() {
            return;
        }
        // Several devices may bring the same node; the kubelet gets it once.
        let nodes = self.devices.iter().flat_map(|device| &device.nodes);
        let nodes: BTreeMap<_, _> = nodes.map(|node| (node.container_path(), node)).collect();
        edits.nodes = nodes.into_values().cloned().collect();
        let mounts = self.devices.iter().flat_map(|device| &device.extras.mounts);
        edits.mounts.extend(mounts.map(|mount| Mount {
            host_path: mount.host.clone(),
            container_path: mount.container.clone(),
            access: if mount.writable { Access::ReadWrite } else { Access::ReadOnly },
        }));
    }
}

/// Variables of all devices, each with its distinct values.
fn joined_env(devices: &[&Device]) -> BTreeMap<String, String> {
    let mut values_by_name: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (position, device) in devices.iter().enumerate() {
        for (name, value) in &device.extras.env {
            let values =
                values_by_name.entry(name.replace(POSITION, &position.to_string())).or_default();
            if !values.contains(&value.as_str()) {
                values.push(value);
            }
        }
    }
    values_by_name.into_iter().map(|(name, values)| (name, values.join(","))).collect()
}
