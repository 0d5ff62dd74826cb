//! Candidates by pattern of device nodes: a walk below `/dev` that goes only where the pattern does, and
//! through the whole of a folder that it fits.

use std::{
    cell::OnceCell,
    collections::{BTreeMap, BTreeSet},
    fs::{self, FileType},
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use rustix::fs::{major, minor};
use windlass_config::danger;
use windlass_core::device::DeviceNode;
use windlass_host::{
    Host,
    glob::{fits, is_pattern, literally, open_parts},
};

use super::{
    find::{Candidate, Found, MOST_ENTRIES, entries, natural},
    sysfs::{Sysfs, number_parts},
    usb::Serials,
};

/// The nodes of a host, while one source looks at them.
pub(super) struct Nodes<'a> {
    host: &'a Host,
    sysfs: Sysfs<'a>,
    /// Where sysfs tells of each node, for a host whose nodes have no numbers of their own.
    told: OnceCell<BTreeMap<String, PathBuf>>,
}

/// A node, and the name by which it was found: links may lead from the one to the other.
pub(super) struct Named {
    pub(super) name: PathBuf,
    pub(super) node: PathBuf,
}

/// What fits, and each node once: by the first pattern that it fits, and by its own name rather than by a
/// link's.
pub(super) fn matching(nodes: &Nodes<'_>, patterns: &[String]) -> Result<Found, String> {
    let mut found = Found::default();
    let mut seen = BTreeSet::new();
    for (pattern, text) in patterns.iter().enumerate() {
        let mut paths = nodes.paths(text)?;
        paths.sort_by_cached_key(|path| nodes.host.followed(path).as_ref() != Some(path));
        for path in paths {
            let target = match nodes.target(&path) {
                Ok(target) => target,
                Err(remark) => {
                    found.remarks.push(remark);
                    continue;
                }
            };
            let mut named = nodes.at(&path, &target)?;
            named.retain(|it| seen.insert(it.node.clone()));
            let candidate = nodes.candidate(&path, &target, named);
            let open = open_parts(text, path.to_str().unwrap_or_default());
            found.candidates.extend(candidate.map(|it| Candidate { pattern, open, ..it }));
        }
    }
    number_parts(&mut found.candidates);
    Ok(found)
}

/// Where all nodes are.
const DEV: &str = "/dev";

/// File systems there that have no devices, but other programs' terminals, memory and messages.
const NO_DEVICES: [&str; 4] = ["/dev/hugepages", "/dev/mqueue", "/dev/pts", "/dev/shm"];

/// The nodes that fit patterns which are no source of their own.
///
/// # Errors
///
/// When too much fits to look at, or something that must not be handed out.
pub(crate) fn fitting(host: &Host, patterns: &[String]) -> Result<Vec<DeviceNode>, String> {
    let serials = Serials::default();
    let nodes = Nodes::new(host, &serials);
    let found = matching(&nodes, patterns)?.candidates;
    let found: Vec<_> = found.into_iter().flat_map(|candidate| candidate.nodes).collect();
    found.iter().find_map(|node| nodes.danger(node)).map_or(Ok(found.clone()), Err)
}

// === impl Nodes ===

impl<'a> Nodes<'a> {
    pub(super) fn new(host: &'a Host, serials: &'a Serials) -> Self {
        Self { host, sysfs: Sysfs::new(host, serials), told: OnceCell::new() }
    }

    /// The paths that fit a pattern; what is written without a pattern is there or not.
    pub(super) fn paths(&self, pattern: &str) -> Result<Vec<PathBuf>, String> {
        let mut paths = vec![PathBuf::from("/")];
        for part in pattern.split('/').filter(|part| !part.is_empty()) {
            let mut next = Vec::new();
            for folder in paths {
                if is_pattern(part) {
                    let names = entries(self.host, &folder)?.unwrap_or_default();
                    let names = names.iter().filter(|name| fits(part, name));
                    next.extend(names.map(|name| folder.join(name)));
                } else {
                    let path = folder.join(part);
                    let is_there = self.host.try_has(&path);
                    let unread = |error| format!("cannot read {}: {error}", path.display());
                    next.extend(is_there.map_err(unread)?.then_some(path));
                }
            }
            if next.len() > MOST_ENTRIES {
                return Err(format!("{pattern} fits more than {MOST_ENTRIES} files: narrow it"));
            }
            paths = next;
        }
        Ok(paths)
    }

    /// The node itself, or the folder, where links lead to it, such as those of `/dev/serial/by-id`. A link
    /// on the way counts as much as the last: what is judged is the path that the kernel opens.
    pub(super) fn target(&self, path: &Path) -> Result<PathBuf, String> {
        let target = self.host.followed(path);
        target
            .filter(|target| target.starts_with(DEV) && target != Path::new(DEV))
            .ok_or_else(|| format!("{} leads to no device node", path.display()))
    }

    /// The node at a path, or all below the folder that it is, links left out as container runtimes do.
    pub(super) fn at(&self, path: &Path, target: &Path) -> Result<Vec<Named>, String> {
        if !self.host.path(target).is_dir() {
            return Ok(vec![Named { name: path.to_owned(), node: target.to_owned() }]);
        }
        let named = |node: PathBuf| {
            let below = node.strip_prefix(target).unwrap_or(&node);
            Named { name: path.join(below), node }
        };
        Ok(self.below(target)?.into_iter().map(named).collect())
    }

    fn below(&self, folder: &Path) -> Result<Vec<PathBuf>, String> {
        let (mut nodes, mut open, mut seen) = (Vec::new(), vec![folder.to_owned()], 0);
        while let Some(next) = open.pop() {
            if NO_DEVICES.iter().any(|other| next == Path::new(other)) {
                continue;
            }
            let names = entries(self.host, &next)?.unwrap_or_default();
            seen += names.len();
            if seen > MOST_ENTRIES {
                let folder = folder.display();
                return Err(format!("more than {MOST_ENTRIES} files are below {folder}"));
            }
            for path in names.iter().map(|name| next.join(name)) {
                // A file that is gone by now was there as little as one that comes a moment later.
                let Ok(file) = fs::symlink_metadata(self.host.path(&path)) else { continue };
                let kind = file.file_type();
                if kind.is_dir() {
                    open.push(path);
                } else if self.is_node(kind) {
                    nodes.push(path);
                }
            }
        }
        nodes.sort_by_cached_key(|node| natural(&node.display().to_string()));
        Ok(nodes)
    }

    /// The nodes of a simulated machine may be plain files.
    fn is_node(&self, kind: FileType) -> bool {
        kind.is_char_device() || kind.is_block_device() || (kind.is_file() && !self.host.is_real())
    }

    /// What was found at a path; `None` for a folder that has no node, or none that is not found already.
    fn candidate(&self, path: &Path, target: &Path, named: Vec<Named>) -> Option<Candidate> {
        let mut candidate = match &named[..] {
            [] => return None,
            [only] if only.node == target => self.described(target),
            _ => {
                let mut folder = Candidate::default();
                folder.rename(&name_of(target));
                folder
            }
        };
        candidate.note("path", target.to_str());
        candidate.origin = path.display().to_string();
        let node = |Named { name, node }: Named| {
            let inside = (name != node).then_some(name);
            DeviceNode { inside, proof: self.folder(&node), ..DeviceNode::new(node) }
        };
        candidate.nodes = named.into_iter().map(node).collect();
        Some(candidate)
    }

    /// A node with what sysfs says of it, if it says anything.
    fn described(&self, path: &Path) -> Candidate {
        let (name, folder) = (name_of(path), self.folder(path));
        let mut candidate = match &folder {
            Some(folder) => {
                let own = folder.file_name().and_then(|name| name.to_str()).unwrap_or(&name);
                self.sysfs.candidate(folder, own)
            }
            None => Candidate::default(),
        };
        // What no bus has is known by its node alone.
        if folder.as_deref().and_then(|folder| self.host.device_of(folder)).is_none() {
            candidate.rename(&name);
        }
        candidate
    }

    /// The folder of sysfs whose node this is.
    pub(super) fn folder(&self, path: &Path) -> Option<PathBuf> {
        let name = path.strip_prefix(DEV).ok()?.to_str()?;
        let by_number = self.by_number(path);
        let is_it = |folder: &PathBuf| self.host.uevent(folder, "DEVNAME").as_deref() == Some(name);
        by_number.filter(is_it).or_else(|| {
            // On a simulated machine all nodes are the same, or plain files; a recording has names only.
            (!self.host.is_real()).then_some(())?;
            self.told.get_or_init(|| self.all_told()).get(name).cloned()
        })
    }

    fn by_number(&self, path: &Path) -> Option<PathBuf> {
        let node = fs::metadata(self.host.path(path)).ok()?;
        let list = if node.file_type().is_block_device() { "block" } else { "char" };
        let number = node.rdev();
        self.host.real(format!("/sys/dev/{list}/{}:{}", major(number), minor(number)))
    }

    fn all_told(&self) -> BTreeMap<String, PathBuf> {
        let listed = ["/sys/dev/char", "/sys/dev/block"].into_iter().flat_map(|list| {
            let names = self.host.some_names(list, MOST_ENTRIES).unwrap_or_default();
            names.into_iter().filter_map(move |name| self.host.real(Path::new(list).join(name)))
        });
        listed.filter_map(|folder| Some((self.host.uevent(&folder, "DEVNAME")?, folder))).collect()
    }

    /// Why a node must not be handed out.
    pub(super) fn danger(&self, node: &DeviceNode) -> Option<String> {
        let path = node.path.to_str()?;
        let block = || self.is_block(node).then(|| format!("{path}: {}", danger::BLOCK));
        danger::of_nodes(&literally(path)).or_else(block)
    }

    /// Whether a node is a block device, by the kernel's word or by its own kind.
    fn is_block(&self, node: &DeviceNode) -> bool {
        let class = |folder: &PathBuf| self.host.link_name(folder.join("subsystem"));
        let told = node.proof.as_ref().and_then(class);
        told.as_deref() == Some("block")
            || fs::metadata(self.host.path(&node.path))
                .is_ok_and(|node| node.file_type().is_block_device())
    }
}

/// What a node or folder is called below `/dev`.
fn name_of(path: &Path) -> String {
    path.strip_prefix(DEV).unwrap_or(path).display().to_string()
}
