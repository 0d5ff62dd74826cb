//! Devices from candidates: id, attributes, and the configured nodes, mounts and variables.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use windlass_config::{MountTemplate, NodeTemplate, SourceRule, denylist};
use windlass_core::{
    device::{Device, DeviceKind, DeviceNode, Location, Mount},
    health::Reason,
};
use windlass_host::{
    Host,
    glob::escaped,
    template::{fill, fill_with},
};

use super::{
    find::Candidate,
    identity::id,
    nodes::{NamedNode, Nodes},
    unit::Group,
};

pub(super) struct DeviceBuilder<'a> {
    pub(super) host: &'a Host,
    pub(super) rule: &'a SourceRule,
    pub(super) kubelet_dir: &'a Path,
    pub(super) nodes: &'a Nodes<'a>,
}

pub(super) struct BuiltDevice {
    pub(super) device: Device,
    pub(super) failure: Option<(Reason, String)>,
    /// Missing nodes that are not reported as a failure yet.
    missing: Vec<String>,
}

// === impl DeviceBuilder ===

impl DeviceBuilder<'_> {
    /// Device of a single candidate, for the evaluation of the selector.
    pub(super) fn preview(&self, index: u32, candidate: &Candidate) -> Device {
        let Candidate { attributes, location: place, origin, folder, nodes, .. } =
            candidate.clone();
        let id = id(&self.rule.name, &candidate.identity);
        let new = Device::new(id, DeviceKind::Other, self.rule.name.clone(), Timestamp::UNIX_EPOCH);
        Device { index, attributes, place, origin: Some(origin), folder, nodes, ..new }
    }

    pub(super) fn build(&self, index: u32, group: &Group) -> Option<BuiltDevice> {
        let first = group.members.first()?;
        let id = id(&self.rule.name, &group.identity);
        let device = Device { id, ..self.preview(index, first) };
        let device = Device { place: common_location(&group.members), nodes: Vec::new(), ..device };
        let failure = group.members.iter().find_map(|member| member.failure.clone());
        let ambiguity =
            || group.ambiguity.clone().map(|ambiguity| (Reason::NodeMissing, ambiguity));
        let failure = failure.or_else(ambiguity);
        let mut built = BuiltDevice { device, failure, missing: group.missing.clone() };
        built.device.withheld = group.members.iter().find_map(|member| member.withheld.clone());
        self.add_found_nodes(&mut built, group);
        for given in &self.rule.give.nodes {
            self.add_node(&mut built, given, group);
        }
        built.report_missing_nodes();
        for given in &self.rule.give.mounts {
            self.add_mount(&mut built, given);
        }
        self.add_env_and_cdi_names(&mut built);
        self.check_not_empty(&mut built, group);
        self.check_nodes(&mut built);
        Some(built)
    }

    fn add_found_nodes(&self, built: &mut BuiltDevice, group: &Group) {
        let Some(access) = self.rule.give.found else { return };
        let found = group.members.iter().flat_map(|member| &member.nodes);
        built.device.nodes.extend(found.map(|node| DeviceNode { access, ..node.clone() }));
    }

    fn add_node(&self, built: &mut BuiltDevice, given: &NodeTemplate, group: &Group) {
        let pattern = match fill_with(&given.path, &built.device, escaped) {
            Ok(pattern) => pattern,
            Err(_) if given.optional => return,
            Err(missing) => return built.withhold(format!("{}: {missing}", given.path)),
        };
        if let Some(why) = denylist::node_path_error(&pattern) {
            return built.withhold(why);
        }
        let paths = match self.nodes.paths(&pattern) {
            Ok(paths) => paths,
            Err(why) => return built.withhold(why),
        };
        let mut exists = false;
        for path in paths {
            let target = match self.nodes.target(&path) {
                Ok(target) => target,
                Err(why) => {
                    built.fail(Reason::NodeMissing, why);
                    continue;
                }
            };
            let named = match self.nodes.nodes_at(&path, &target) {
                Ok(named) => named,
                Err(why) => return built.withhold(why),
            };
            exists |= !named.is_empty();
            for named in named {
                self.add_named_node(built, given, &path, named, group);
            }
        }
        if !exists && !given.optional {
            built.missing.push(pattern);
        }
    }

    /// Adds a node. Nodes below a folder keep their relative paths in the container.
    fn add_named_node(
        &self,
        built: &mut BuiltDevice,
        given: &NodeTemplate,
        path: &Path,
        named: NamedNode,
        group: &Group,
    ) {
        let NamedNode { matched_path: name, resolved_path: target } = named;
        let path_inside = match given.inside.as_deref().map(|text| fill(text, &built.device)) {
            None => name,
            Some(Ok(text)) => {
                let last = path.file_name().filter(|_| text.ends_with('/')).map(Path::new);
                let below = name.strip_prefix(path).ok();
                let parts = [Some(Path::new(&text)), last, below].into_iter().flatten();
                parts.flat_map(Path::components).collect()
            }
            Some(Err(missing)) => return built.withhold(missing.to_string()),
        };
        let inside = Some(path_inside).filter(|inside| *inside != target);
        if built.device.nodes.iter().any(|other| other.path == target && other.inside == inside) {
            return;
        }
        let proof = if given.shared { None } else { self.confirming_folder(&target, group) };
        let (access, shared) = (given.access, given.shared);
        built.device.nodes.push(DeviceNode { path: target, inside, access, shared, proof });
    }

    /// Sysfs folder that confirms the node's device number at allocation. The number of a VFIO group may
    /// change, so the confirming folder is that of a function in the group.
    fn confirming_folder(&self, path: &Path, group: &Group) -> Option<PathBuf> {
        let function = || {
            let folders = group.members.iter().filter_map(|member| member.folder.clone());
            let name = path.file_name()?.to_str()?.trim_start_matches("noiommu-");
            let mut own = folders.filter(|folder| {
                self.host.link_name(folder.join("iommu_group")).as_deref() == Some(name)
            });
            own.next()
        };
        let of_group = path.starts_with("/dev/vfio").then(function).flatten();
        of_group.or_else(|| self.nodes.folder(path))
    }

    fn add_mount(&self, built: &mut BuiltDevice, given: &MountTemplate) {
        let fill =
            |text: &str| fill(text, &built.device).map_err(|missing| format!("{text}: {missing}"));
        let host = fill(&given.host);
        let container = given.container.as_deref().map_or_else(|| host.clone(), fill);
        let (host, container) = match (host, container) {
            (Ok(host), Ok(container)) => (PathBuf::from(host), PathBuf::from(container)),
            (Err(why), _) | (_, Err(why)) => return built.withhold(why),
        };
        let text = host.display().to_string();
        let dangerous = || {
            let real = self.host.canonicalize(&host);
            let mut paths = std::iter::once(&host).chain(&real);
            let why = paths.find_map(|path| self.rule.mount_refusal(given, path, self.kubelet_dir));
            why.filter(|_| !self.rule.allow_dangerous)
        };
        if let Some(why) = denylist::plain_path_error(&text).or_else(dangerous) {
            return built.withhold(why);
        }
        if !self.host.exists(&host) {
            built.fail(Reason::NotReady, format!("{text} is not there"));
        }
        let writable = given.writable;
        built.device.extras.mounts.push(Mount { host, container, writable });
    }

    /// Adds variables and CDI names. A variable without value is omitted. A CDI name without value withholds
    /// the device, since its container would be incomplete.
    fn add_env_and_cdi_names(&self, built: &mut BuiltDevice) {
        let device = with_container_paths(&built.device);
        let variable = |(name, value): (&String, &String)| {
            Some((fill(name, &device).ok()?, fill(value, &device).ok()?))
        };
        built.device.extras.env = self.rule.give.env.iter().filter_map(variable).collect();
        for name in &self.rule.give.cdi {
            match fill(name, &built.device) {
                Ok(name) => built.device.extras.cdi.push(name),
                Err(missing) => built.withhold(format!("{name}: {missing}")),
            }
        }
    }

    /// Fails a device without container edits if its source adds the nodes that it finds.
    fn check_not_empty(&self, built: &mut BuiltDevice, group: &Group) {
        let nothing = built.device.nodes.is_empty() && built.device.extras.is_empty();
        if !nothing || self.rule.give.found.is_none() {
            return;
        }
        let of_bus = |member: &Candidate| member.folder.is_some();
        let has_driver = group.members.iter().any(|member| member.text("driver").is_some());
        if group.members.iter().any(of_bus) && !has_driver {
            built.fail(Reason::DriverUnbound, "no driver is bound to it".to_owned());
        } else {
            built.fail(Reason::NodeMissing, "its driver made no device node".to_owned());
        }
    }

    fn check_nodes(&self, built: &mut BuiltDevice) {
        let missing = built.device.nodes.iter().filter(|node| !self.host.exists(&node.path));
        built.missing = missing.map(|node| node.path.display().to_string()).collect();
        built.report_missing_nodes();
        if !self.rule.allow_dangerous {
            let why = built.device.nodes.iter().find_map(|node| self.nodes.access_refusal(node));
            built.device.withheld = built.device.withheld.take().or(why);
        }
    }
}

// === impl BuiltDevice ===

impl BuiltDevice {
    /// Withholds the device. The first reason stays.
    fn withhold(&mut self, why: String) {
        self.device.withheld.get_or_insert(why);
    }

    fn report_missing_nodes(&mut self) {
        let missing = std::mem::take(&mut self.missing);
        match missing.as_slice() {
            [] => {}
            [one] => self.fail(Reason::NodeMissing, format!("{one} is not there")),
            several => {
                let several = several.join(", ");
                self.fail(Reason::NodeMissing, format!("{several} are not there"));
            }
        }
    }

    /// Sets a failure. The first failure stays.
    fn fail(&mut self, reason: Reason, detail: String) {
        self.failure.get_or_insert((reason, detail));
    }
}

/// The device with its nodes at their paths inside the container.
fn with_container_paths(device: &Device) -> Device {
    let as_in_container = |node: &DeviceNode| DeviceNode::new(node.container_path());
    let nodes = device.own_nodes().map(as_in_container);
    Device { nodes: nodes.collect(), ..device.clone() }
}

/// Topology that all members share: PCI address, PCI path and NUMA node.
fn common_location(members: &[Candidate]) -> Location {
    let Some((first, others)) = members.split_first() else { return Location::default() };
    let same =
        |differs: &dyn Fn(&Location) -> bool| !others.iter().any(|other| differs(&other.location));
    let Location { pci, path, numa_node, .. } = &first.location;
    Location {
        pci: pci.filter(|_| same(&|other| other.pci != *pci)),
        path: path.clone().filter(|_| same(&|other| other.path != *path)),
        numa_node: numa_node.filter(|_| same(&|other| other.numa_node != *numa_node)),
        ..Location::default()
    }
}
