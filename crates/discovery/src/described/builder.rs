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
    missing_nodes: Vec<String>,
}

// === impl DeviceBuilder ===

impl DeviceBuilder<'_> {
    /// Device of a single candidate, for the evaluation of the selector.
    pub(super) fn preview(&self, index: u32, candidate: &Candidate) -> Device {
        let Candidate { attributes, location: place, origin, folder, nodes, .. } =
            candidate.clone();
        let id = id(&self.rule.name, &candidate.identity);
        let device =
            Device::new(id, DeviceKind::Other, self.rule.name.clone(), Timestamp::UNIX_EPOCH);
        Device { index, attributes, place, origin: Some(origin), folder, nodes, ..device }
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
        let mut built_device =
            BuiltDevice { device, failure, missing_nodes: group.missing.clone() };
        built_device.device.withheld =
            group.members.iter().find_map(|member| member.withheld.clone());
        self.add_found_nodes(&mut built_device, group);
        for template in &self.rule.give.nodes {
            self.add_node(&mut built_device, template, group);
        }
        built_device.report_missing_nodes();
        for template in &self.rule.give.mounts {
            self.add_mount(&mut built_device, template);
        }
        self.add_env_and_cdi_names(&mut built_device);
        self.check_not_empty(&mut built_device, group);
        self.check_nodes(&mut built_device);
        Some(built_device)
    }

    fn add_found_nodes(&self, built_device: &mut BuiltDevice, group: &Group) {
        let Some(access) = self.rule.give.found else { return };
        let candidate_nodes = group.members.iter().flat_map(|member| &member.nodes);
        built_device
            .device
            .nodes
            .extend(candidate_nodes.map(|node| DeviceNode { access, ..node.clone() }));
    }

    fn add_node(&self, built_device: &mut BuiltDevice, template: &NodeTemplate, group: &Group) {
        let pattern = match fill_with(&template.path, &built_device.device, escaped) {
            Ok(pattern) => pattern,
            Err(_) if template.optional => return,
            Err(missing) => return built_device.withhold(format!("{}: {missing}", template.path)),
        };
        if let Some(reason) = denylist::node_path_error(&pattern) {
            return built_device.withhold(reason);
        }
        let paths = match self.nodes.paths(&pattern) {
            Ok(paths) => paths,
            Err(reason) => return built_device.withhold(reason),
        };
        let mut exists = false;
        for path in paths {
            let target = match self.nodes.target(&path) {
                Ok(target) => target,
                Err(reason) => {
                    built_device.fail(Reason::NodeMissing, reason);
                    continue;
                }
            };
            let named_nodes = match self.nodes.nodes_at(&path, &target) {
                Ok(named_nodes) => named_nodes,
                Err(reason) => return built_device.withhold(reason),
            };
            exists |= !named_nodes.is_empty();
            for named_node in named_nodes {
                self.add_named_node(built_device, template, &path, named_node, group);
            }
        }
        if !exists && !template.optional {
            built_device.missing_nodes.push(pattern);
        }
    }

    /// Adds a node. Nodes below a folder keep their relative paths in the container.
    fn add_named_node(
        &self,
        built_device: &mut BuiltDevice,
        template: &NodeTemplate,
        path: &Path,
        named_node: NamedNode,
        group: &Group,
    ) {
        let NamedNode { matched_path, resolved_path } = named_node;
        let container_path =
            match template.inside.as_deref().map(|text| fill(text, &built_device.device)) {
                None => matched_path,
                Some(Ok(text)) => {
                    let file_name = path.file_name().filter(|_| text.ends_with('/')).map(Path::new);
                    let relative_path = matched_path.strip_prefix(path).ok();
                    let parts =
                        [Some(Path::new(&text)), file_name, relative_path].into_iter().flatten();
                    parts.flat_map(Path::components).collect()
                }
                Some(Err(missing)) => return built_device.withhold(missing.to_string()),
            };
        let inside = Some(container_path).filter(|inside| *inside != resolved_path);
        if built_device
            .device
            .nodes
            .iter()
            .any(|other| other.path == resolved_path && other.inside == inside)
        {
            return;
        }
        let proof =
            if template.shared { None } else { self.confirming_folder(&resolved_path, group) };
        let (access, shared) = (template.access, template.shared);
        built_device.device.nodes.push(DeviceNode {
            path: resolved_path,
            inside,
            access,
            shared,
            proof,
        });
    }

    /// Sysfs folder that confirms the node's device number at allocation. The number of a VFIO group may
    /// change, so the confirming folder is that of a function in the group.
    fn confirming_folder(&self, path: &Path, group: &Group) -> Option<PathBuf> {
        let function = || {
            let folders = group.members.iter().filter_map(|member| member.folder.clone());
            let name = path.file_name()?.to_str()?.trim_start_matches("noiommu-");
            let mut function_folders = folders.filter(|folder| {
                self.host.link_name(folder.join("iommu_group")).as_deref() == Some(name)
            });
            function_folders.next()
        };
        let function_folder = path.starts_with("/dev/vfio").then(function).flatten();
        function_folder.or_else(|| self.nodes.folder(path))
    }

    fn add_mount(&self, built_device: &mut BuiltDevice, template: &MountTemplate) {
        let fill = |text: &str| {
            fill(text, &built_device.device).map_err(|missing| format!("{text}: {missing}"))
        };
        let host = fill(&template.host);
        let container = template.container.as_deref().map_or_else(|| host.clone(), fill);
        let (host, container) = match (host, container) {
            (Ok(host), Ok(container)) => (PathBuf::from(host), PathBuf::from(container)),
            (Err(reason), _) | (_, Err(reason)) => return built_device.withhold(reason),
        };
        let text = host.display().to_string();
        let mount_refusal = || {
            let resolved = self.host.canonicalize(&host);
            let mut paths = std::iter::once(&host).chain(&resolved);
            let reason =
                paths.find_map(|path| self.rule.mount_refusal(template, path, self.kubelet_dir));
            reason.filter(|_| !self.rule.allow_dangerous)
        };
        if let Some(reason) = denylist::plain_path_error(&text).or_else(mount_refusal) {
            return built_device.withhold(reason);
        }
        if !self.host.exists(&host) {
            built_device.fail(Reason::NotReady, format!("{text} is not there"));
        }
        let writable = template.writable;
        built_device.device.extras.mounts.push(Mount { host, container, writable });
    }

    /// Adds variables and CDI names. A variable without value is omitted. A CDI name without value withholds
    /// the device, since its container would be incomplete.
    fn add_env_and_cdi_names(&self, built_device: &mut BuiltDevice) {
        let device = with_container_paths(&built_device.device);
        let variable = |(name, value): (&String, &String)| {
            Some((fill(name, &device).ok()?, fill(value, &device).ok()?))
        };
        built_device.device.extras.env = self.rule.give.env.iter().filter_map(variable).collect();
        for name in &self.rule.give.cdi {
            match fill(name, &built_device.device) {
                Ok(name) => built_device.device.extras.cdi.push(name),
                Err(missing) => built_device.withhold(format!("{name}: {missing}")),
            }
        }
    }

    /// Fails a device without container edits if its source adds the nodes that it finds.
    fn check_not_empty(&self, built_device: &mut BuiltDevice, group: &Group) {
        let is_empty =
            built_device.device.nodes.is_empty() && built_device.device.extras.is_empty();
        if !is_empty || self.rule.give.found.is_none() {
            return;
        }
        let is_on_bus = |member: &Candidate| member.folder.is_some();
        let has_driver = group.members.iter().any(|member| member.text("driver").is_some());
        if group.members.iter().any(is_on_bus) && !has_driver {
            built_device.fail(Reason::DriverUnbound, "no driver is bound to it".to_owned());
        } else {
            built_device.fail(Reason::NodeMissing, "its driver made no device node".to_owned());
        }
    }

    fn check_nodes(&self, built_device: &mut BuiltDevice) {
        let missing = built_device.device.nodes.iter().filter(|node| !self.host.exists(&node.path));
        built_device.missing_nodes = missing.map(|node| node.path.display().to_string()).collect();
        built_device.report_missing_nodes();
        if !self.rule.allow_dangerous {
            let refusal =
                built_device.device.nodes.iter().find_map(|node| self.nodes.access_refusal(node));
            built_device.device.withheld = built_device.device.withheld.take().or(refusal);
        }
    }
}

// === impl BuiltDevice ===

impl BuiltDevice {
    /// Withholds the device. The first reason stays.
    fn withhold(&mut self, reason: String) {
        self.device.withheld.get_or_insert(reason);
    }

    fn report_missing_nodes(&mut self) {
        let missing_nodes = std::mem::take(&mut self.missing_nodes);
        match missing_nodes.as_slice() {
            [] => {}
            [node] => self.fail(Reason::NodeMissing, format!("{node} is not there")),
            nodes => {
                let nodes = nodes.join(", ");
                self.fail(Reason::NodeMissing, format!("{nodes} are not there"));
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
    let is_common =
        |differs: &dyn Fn(&Location) -> bool| !others.iter().any(|other| differs(&other.location));
    let Location { pci, path, numa_node, .. } = &first.location;
    Location {
        pci: pci.filter(|_| is_common(&|other| other.pci != *pci)),
        path: path.clone().filter(|_| is_common(&|other| other.path != *path)),
        numa_node: numa_node.filter(|_| is_common(&|other| other.numa_node != *numa_node)),
        ..Location::default()
    }
}
