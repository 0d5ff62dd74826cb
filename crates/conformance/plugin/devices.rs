//! Devices that the plugin lists and grants.

use std::{collections::BTreeMap, fs, path::Path, time::SystemTime};

use windlass_kubelet_api::deviceplugin::{self as wire, HEALTHY, UNHEALTHY};

use crate::defect::Defect;

/// Devices of a resource, numbered from 0.
#[derive(Clone, Debug)]
pub(crate) struct Devices {
    resource: &'static str,
    count: usize,
    defect: Defect,
    started_at: u128,
}

/// Number of devices whose list exceeds 4 MiB: each takes 26 bytes.
const HUGE_LIST_DEVICES: usize = 200_000;

// === impl Devices ===

impl Devices {
    pub(crate) fn new((resource, count): (&'static str, usize), defect: Defect) -> Self {
        let started_at = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_nanos());
        Self { resource, count, defect, started_at }
    }

    pub(crate) fn id(&self, number: usize, registration: usize) -> String {
        let Self { resource, started_at: started, .. } = self;
        match self.defect {
            Defect::IdsInTwoResources => format!("d{number}"),
            Defect::LongIds => format!("{resource}-{number}-{}", "x".repeat(64)),
            Defect::NewIdsEachStart => format!("{resource}-{number}-{started}"),
            Defect::NewIdsEachRegistration => format!("{resource}-{number}-{registration}"),
            _ => format!("{resource}-{number}"),
        }
    }

    pub(crate) fn ids(&self, registration: usize) -> Vec<String> {
        (0..self.count).map(|number| self.id(number, registration)).collect()
    }

    pub(crate) fn list(&self, registration: usize, is_broken: bool) -> Vec<wire::Device> {
        let count = if self.defect == Defect::HugeList { HUGE_LIST_DEVICES } else { self.count };
        let is_broken = is_broken && self.defect != Defect::HidesFaults;
        let device = |number: usize| {
            let is_failed = is_broken && number == 0 && self.resource == "one";
            if is_failed && self.defect == Defect::DropsFailedDevices {
                return None;
            }
            let health = match self.defect {
                _ if is_failed => UNHEALTHY,
                Defect::LowerCaseHealth if number == 1 => "healthy",
                _ => HEALTHY,
            };
            let nodes = vec![wire::NumaNode { id: 0 }];
            let nodes = if self.defect == Defect::EmptyTopology { Vec::new() } else { nodes };
            let topology = Some(wire::TopologyInfo { nodes });
            Some(wire::Device {
                id: self.id(number, registration),
                health: health.to_owned(),
                topology,
            })
        };
        let mut list: Vec<_> = (0..count).filter_map(device).collect();
        if self.defect == Defect::ListsADeviceTwice {
            list.push(list[0].clone());
        }
        list
    }

    /// Response for a container that gets these devices.
    pub(crate) fn grant(&self, ids: &[String]) -> wire::ContainerAllocateResponse {
        if self.defect == Defect::GrantsNothing {
            return wire::ContainerAllocateResponse::default();
        }
        let node = |_: &String| wire::DeviceSpec {
            container_path: "/dev/null".to_owned(),
            host_path: match self.defect {
                Defect::NodesThatDoNotExist => "/dev/no-such-node".to_owned(),
                _ => "/dev/null".to_owned(),
            },
            permissions: if self.defect == Defect::OddPermissions { "rwx" } else { "rw" }
                .to_owned(),
        };
        let mount = wire::Mount {
            container_path: if self.defect == Defect::RelativeMounts { "etc" } else { "/etc/x" }
                .to_owned(),
            host_path: "/etc".to_owned(),
            read_only: true,
        };
        let variable = if self.defect == Defect::OddVariables { "ONE=TWO" } else { "DEVICES" };
        let annotation =
            if self.defect == Defect::OddAnnotations { "a/b/c" } else { "example.com/devices" };
        let cdi = |id: &String| wire::CdiDevice {
            name: match self.defect {
                Defect::OddCdiNames => id.clone(),
                _ => format!("example.com/device={id}"),
            },
        };
        wire::ContainerAllocateResponse {
            envs: BTreeMap::from([(variable.to_owned(), ids.join(","))]),
            mounts: vec![mount],
            devices: ids.iter().map(node).collect(),
            annotations: BTreeMap::from([(annotation.to_owned(), ids.join("_"))]),
            cdi_devices: ids.iter().map(cdi).collect(),
        }
    }
}

/// Writes the CDI spec of both resources to `SCRATCH/cdi`.
pub(crate) fn write_cdi_specs(scratch: &Path, defect: Defect) {
    if defect == Defect::CdiNamesWithoutDocuments {
        return;
    }
    let ids =
        [("one", 4), ("two", 2)].map(|resource| Devices::new(resource, defect).ids(0)).concat();
    let devices: Vec<_> = ids.iter().map(|id| format!(r#"{{"name": "{id}"}}"#)).collect();
    let devices = devices.join(", ");
    let text = format!(
        r#"{{"cdiVersion": "0.5.0", "kind": "example.com/device", "devices": [{devices}]}}"#
    );
    fs::create_dir_all(scratch.join("cdi")).expect("the case's folder is writable");
    fs::write(scratch.join("cdi/example.json"), text).expect("the case's folder is writable");
}
