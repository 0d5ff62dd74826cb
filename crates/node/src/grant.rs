//! What a container is given for its devices: a pure answer to "which devices, told how".

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use windlass_core::{
    device::{Device, DeviceKind},
    resource::ResourceName,
};

use crate::{
    cdi,
    config::{Delivery, Strategy},
};

/// What a container is given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Grant {
    /// Environment variables.
    pub(crate) envs: BTreeMap<String, String>,
    /// Qualified CDI names, in the order of the request.
    pub(crate) cdi_devices: Vec<String>,
    /// Device nodes under `/dev` that no runtime adds by itself.
    pub(crate) nodes: BTreeSet<PathBuf>,
}

/// Tells a container that its machine is simulated.
const SIMULATED: &str = "WINDLASS_SIMULATED";

/// What NVIDIA's container runtime reads.
const VISIBLE_DEVICES: &str = "NVIDIA_VISIBLE_DEVICES";

/// The grant for these devices. The same devices, the same grant.
pub(crate) fn grant(
    resource: &ResourceName,
    devices: &[&Device],
    delivery: &Delivery,
    simulated: Option<&str>,
) -> Grant {
    let mut grant = Grant::default();
    if let Some(profile) = simulated {
        grant.envs.insert(SIMULATED.to_owned(), profile.to_owned());
    }
    let ids = devices.iter().map(|device| device.id.as_str()).collect::<Vec<_>>().join(",");
    if delivery.uses_cdi() {
        grant.envs.insert(variable(resource), ids);
        let name = |device: &&Device| cdi::kind_of(device.kind).qualify(&device.id);
        grant.cdi_devices = devices.iter().map(name).collect();
    } else if delivery.strategies.contains(&Strategy::Envvar)
        && devices.iter().all(|device| is_nvidia(device.kind))
    {
        grant.envs.insert(VISIBLE_DEVICES.to_owned(), ids);
    } else {
        // NVIDIA's runtime knows nothing of these.
        grant.envs.insert(variable(resource), ids);
        grant.nodes = devices.iter().flat_map(|device| device.nodes.clone()).collect();
    }
    grant
}

fn is_nvidia(kind: DeviceKind) -> bool {
    matches!(kind, DeviceKind::Gpu | DeviceKind::Mig)
}

/// The variable that lists a resource's ids. The kubelet merges the variables of all resources of a
/// container and keeps the first of a name, so each resource has a name of its own.
fn variable(resource: &ResourceName) -> String {
    let upper = resource.as_str().to_ascii_uppercase();
    let plain = upper.replace(|letter: char| !letter.is_ascii_alphanumeric(), "_");
    format!("WINDLASS_{plain}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_resource_has_a_variable_of_its_own() {
        for (resource, expected) in [
            ("nvidia.com/gpu", "WINDLASS_NVIDIA_COM_GPU"),
            ("nvidia.com/mig-1g.10gb", "WINDLASS_NVIDIA_COM_MIG_1G_10GB"),
        ] {
            assert_eq!(variable(&resource.parse().expect("valid")), expected);
        }
    }
}
