//! Devices made of what was found: an id, facts, and what a container gets by the source's templates.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use windlass_config::{GivenMount, GivenNode, SourceRule, danger};
use windlass_core::{
    device::{Device, DeviceKind, DeviceNode, Mount, Place},
    health::Reason,
};
use windlass_host::{
    Host,
    glob::literally,
    template::{fill, fill_with},
};

use super::{
    find::Candidate,
    identity::id,
    nodes::{Named, Nodes},
    unit::Group,
};

/// Makes the devices of one source.
pub(super) struct Maker<'a> {
    pub(super) host: &'a Host,
    pub(super) rule: &'a SourceRule,
    pub(super) kubelet_dir: &'a Path,
    pub(super) nodes: &'a Nodes<'a>,
}

/// A device, and why it cannot be used.
pub(super) struct Made {
    pub(super) device: Device,
    pub(super) trouble: Option<(Reason, String)>,
    /// The nodes that it is to have and that are not there.
    missing: Vec<String>,
}

// === impl Maker ===

impl Maker<'_> {
    /// A candidate as its source's selector sees it.
    pub(super) fn seen(&self, index: u32, candidate: &Candidate) -> Device {
        let Candidate { attributes, place, origin, folder, nodes, .. } = candidate.clone();
        let id = id(&self.rule.name, &candidate.identity);
        let new = Device::new(id, DeviceKind::Other, self.rule.name.clone(), Timestamp::UNIX_EPOCH);
        Device { index, attributes, place, origin: Some(origin), folder, nodes, ..new }
    }

    /// A device of a group.
    pub(super) fn make(&self, index: u32, group: &Group) -> Option<Made> {
        let first = group.members.first()?;
        let id = id(&self.rule.name, &group.identity);
        let device = Device { id, ..self.seen(index, first) };
        let device = Device { place: common_place(&group.members), nodes: Vec::new(), ..device };
        let trouble = group.members.iter().find_map(|member| member.trouble.clone());
        let doubt = || group.doubt.clone().map(|doubt| (Reason::NodeMissing, doubt));
        let trouble = trouble.or_else(doubt);
        let mut made = Made { device, trouble, missing: group.missing.clone() };
        made.device.withheld = group.members.iter().find_map(|member| member.withheld.clone());
        self.give_found(&mut made, group);
        for given in &self.rule.give.nodes {
            self.give_node(&mut made, given, group);
        }
        made.tell_missing();
        for given in &self.rule.give.mounts {
            self.give_mount(&mut made, given);
        }
        self.give_texts(&mut made);
        self.check_anything(&mut made, group);
        self.check_nodes(&mut made);
        Some(made)
    }

    fn give_found(&self, made: &mut Made, group: &Group) {
        let Some(access) = self.rule.give.found else { return };
        let found = group.members.iter().flat_map(|member| &member.nodes);
        made.device.nodes.extend(found.map(|node| DeviceNode { access, ..node.clone() }));
    }

    fn give_node(&self, made: &mut Made, given: &GivenNode, group: &Group) {
        let pattern = match fill_with(&given.path, &made.device, literally) {
            Ok(pattern) => pattern,
            Err(_) if given.optional => return,
            Err(missing) => return made.withhold(format!("{}: {missing}", given.path)),
        };
        if let Some(why) = danger::no_node(&pattern) {
            return made.withhold(why);
        }
        let paths = match self.nodes.paths(&pattern) {
            Ok(paths) => paths,
            Err(why) => return made.withhold(why),
        };
        let mut is_there = false;
        for path in paths {
            let target = match self.nodes.target(&path) {
                Ok(target) => target,
                Err(why) => {
                    made.trouble(Reason::NodeMissing, why);
                    continue;
                }
            };
            let named = match self.nodes.at(&path, &target) {
                Ok(named) => named,
                Err(why) => return made.withhold(why),
            };
            is_there |= !named.is_empty();
            for named in named {
                self.give_named(made, given, (&path, named), group);
            }
        }
        if !is_there && !given.optional {
            made.missing.push(pattern);
        }
    }

    /// A node of a path. What lies in a folder lies in one inside as well.
    fn give_named(&self, made: &mut Made, given: &GivenNode, at: (&Path, Named), group: &Group) {
        let (path, Named { name, node: target }) = at;
        let inside = match given.inside.as_deref().map(|text| fill(text, &made.device)) {
            None => name,
            Some(Ok(text)) => {
                let last = path.file_name().filter(|_| text.ends_with('/')).map(Path::new);
                let below = name.strip_prefix(path).ok();
                let parts = [Some(Path::new(&text)), last, below].into_iter().flatten();
                parts.flat_map(Path::components).collect()
            }
            Some(Err(missing)) => return made.withhold(missing.to_string()),
        };
        let inside = Some(inside).filter(|inside| *inside != target);
        if made.device.nodes.iter().any(|known| known.path == target && known.inside == inside) {
            return;
        }
        let proof = if given.shared { None } else { self.proof(&target, group) };
        let (access, shared) = (given.access, given.shared);
        made.device.nodes.push(DeviceNode { path: target, inside, access, shared, proof });
    }

    /// A group's node has its number from the function's group, which may be another tomorrow.
    fn proof(&self, path: &Path, group: &Group) -> Option<PathBuf> {
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

    fn give_mount(&self, made: &mut Made, given: &GivenMount) {
        let fill =
            |text: &str| fill(text, &made.device).map_err(|missing| format!("{text}: {missing}"));
        let host = fill(&given.host);
        let container = given.container.as_deref().map_or_else(|| host.clone(), fill);
        let (host, container) = match (host, container) {
            (Ok(host), Ok(container)) => (PathBuf::from(host), PathBuf::from(container)),
            (Err(why), _) | (_, Err(why)) => return made.withhold(why),
        };
        let text = host.display().to_string();
        let dangerous = || {
            let real = self.host.followed(&host);
            let mut paths = std::iter::once(&host).chain(&real);
            let of =
                |path: &PathBuf| danger::of_given_mount(self.rule, given, path, self.kubelet_dir);
            let why = paths.find_map(of);
            why.filter(|_| !self.rule.allow_dangerous)
        };
        if let Some(why) = danger::no_plain_path(&text).or_else(dangerous) {
            return made.withhold(why);
        }
        if !self.host.has(&host) {
            made.trouble(Reason::NotReady, format!("{text} is not there"));
        }
        let writable = given.writable;
        made.device.extras.mounts.push(Mount { host, container, writable });
    }

    /// A variable is left out where the device lacks what it is to say; a name of another's document is
    /// not: the container would be less than it was meant to be.
    fn give_texts(&self, made: &mut Made) {
        let device = from_inside(&made.device);
        let variable = |(name, value): (&String, &String)| {
            Some((fill(name, &device).ok()?, fill(value, &device).ok()?))
        };
        made.device.extras.env = self.rule.give.env.iter().filter_map(variable).collect();
        for name in &self.rule.give.cdi {
            match fill(name, &made.device) {
                Ok(name) => made.device.extras.cdi.push(name),
                Err(missing) => made.withhold(format!("{name}: {missing}")),
            }
        }
    }

    /// A device of which a container would get nothing at all serves no one.
    fn check_anything(&self, made: &mut Made, group: &Group) {
        let nothing = made.device.nodes.is_empty() && made.device.extras.is_empty();
        if !nothing || self.rule.give.found.is_none() {
            return;
        }
        let of_bus = |member: &Candidate| member.folder.is_some();
        let has_driver = group.members.iter().any(|member| member.text("driver").is_some());
        if group.members.iter().any(of_bus) && !has_driver {
            made.trouble(Reason::DriverUnbound, "no driver is bound to it".to_owned());
        } else {
            made.trouble(Reason::NodeMissing, "its driver made no device node".to_owned());
        }
    }

    fn check_nodes(&self, made: &mut Made) {
        let missing = made.device.nodes.iter().filter(|node| !self.host.has(&node.path));
        made.missing = missing.map(|node| node.path.display().to_string()).collect();
        made.tell_missing();
        if !self.rule.allow_dangerous {
            let why = made.device.nodes.iter().find_map(|node| self.nodes.danger(node));
            made.device.withheld = made.device.withheld.take().or(why);
        }
    }
}

// === impl Made ===

impl Made {
    /// The first reason is the one that is told.
    fn withhold(&mut self, why: String) {
        self.device.withheld.get_or_insert(why);
    }

    fn tell_missing(&mut self) {
        let missing = std::mem::take(&mut self.missing);
        match missing.as_slice() {
            [] => {}
            [one] => self.trouble(Reason::NodeMissing, format!("{one} is not there")),
            several => {
                let several = several.join(", ");
                self.trouble(Reason::NodeMissing, format!("{several} are not there"));
            }
        }
    }

    fn trouble(&mut self, reason: Reason, detail: String) {
        self.trouble.get_or_insert((reason, detail));
    }
}

/// The device as a container sees it, which may find the nodes under other names.
fn from_inside(device: &Device) -> Device {
    let inside = |node: &DeviceNode| DeviceNode::new(node.inside());
    let nodes = device.own_nodes().map(inside);
    Device { nodes: nodes.collect(), ..device.clone() }
}

/// Where all members are; of several, what they have in common.
fn common_place(members: &[Candidate]) -> Place {
    let Some((first, others)) = members.split_first() else { return Place::default() };
    let same = |differs: &dyn Fn(&Place) -> bool| !others.iter().any(|other| differs(&other.place));
    let Place { pci, path, numa_node, .. } = &first.place;
    Place {
        pci: pci.filter(|_| same(&|other| other.pci != *pci)),
        path: path.clone().filter(|_| same(&|other| other.path != *path)),
        numa_node: numa_node.filter(|_| same(&|other| other.numa_node != *numa_node)),
        ..Place::default()
    }
}
