//! Device nodes as candidates, by path pattern below `/dev`.
//!
//! The search enters only folders that match the first components of the pattern. A folder that matches the
//! whole pattern selects every node below it.

use std::{
    cell::OnceCell,
    collections::{BTreeMap, BTreeSet},
    fs::{self, FileType},
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use rustix::fs::{major, minor};
use windlass_config::denylist;
use windlass_core::device::DeviceNode;
use windlass_host::{
    Host,
    glob::{escaped, is_pattern, name_matches, wildcard_texts},
    usb::Serials,
};

use super::{
    find::{Candidate, FindResult, MAX_ENTRIES, entries, natural_sort_key},
    sysfs::{Sysfs, number_parts},
};

/// Device nodes of a host during a scan.
pub(super) struct Nodes<'a> {
    host: &'a Host,
    sysfs: Sysfs<'a>,
    /// Sysfs folder of each node name, for hosts without real device numbers.
    by_name: OnceCell<BTreeMap<String, PathBuf>>,
}

/// A device node and the path that the pattern matched.
pub(super) struct NamedNode {
    /// Path that the pattern matched; may be a link.
    pub(super) matched_path: PathBuf,
    /// Path of the node without links.
    pub(super) resolved_path: PathBuf,
}

/// Candidates for the nodes that match a pattern. A node that several paths lead to counts once: under its first
/// pattern, and under its own name rather than the name of a link.
pub(super) fn candidates(nodes: &Nodes<'_>, patterns: &[String]) -> Result<FindResult, String> {
    let mut result = FindResult::default();
    let mut seen_nodes = BTreeSet::new();
    for (pattern, text) in patterns.iter().enumerate() {
        let mut paths = nodes.paths(text)?;
        paths.sort_by_cached_key(|path| nodes.host.canonicalize(path).as_ref() != Some(path));
        for path in paths {
            let target = match nodes.target(&path) {
                Ok(target) => target,
                Err(note) => {
                    result.notes.push(note);
                    continue;
                }
            };
            let mut named_nodes = nodes.nodes_at(&path, &target)?;
            named_nodes.retain(|node| seen_nodes.insert(node.resolved_path.clone()));
            let candidate = nodes.candidate(&path, &target, named_nodes);
            let wildcards = wildcard_texts(text, path.to_str().unwrap_or_default());
            result.candidates.extend(candidate.map(|candidate| Candidate {
                pattern,
                wildcards,
                ..candidate
            }));
        }
    }
    number_parts(&mut result.candidates);
    Ok(result)
}

const DEV: &str = "/dev";

/// File systems below `/dev` without devices.
const NON_DEVICE_MOUNTS: [&str; 4] = ["/dev/hugepages", "/dev/mqueue", "/dev/pts", "/dev/shm"];

/// Nodes that match the patterns in the configuration of a device family.
///
/// # Errors
///
/// Fails if too many files match, or a node that must not be given to containers.
pub(crate) fn matching_nodes(host: &Host, patterns: &[String]) -> Result<Vec<DeviceNode>, String> {
    let serials = Serials::default();
    let nodes = Nodes::new(host, &serials);
    let matches = candidates(&nodes, patterns)?.candidates;
    let matches: Vec<_> = matches.into_iter().flat_map(|candidate| candidate.nodes).collect();
    matches.iter().find_map(|node| nodes.access_refusal(node)).map_or(Ok(matches.clone()), Err)
}

// === impl Nodes ===

impl<'a> Nodes<'a> {
    pub(super) fn new(host: &'a Host, serials: &'a Serials) -> Self {
        Self { host, sysfs: Sysfs::new(host, serials), by_name: OnceCell::new() }
    }

    /// Paths that match a pattern; a literal path matches if it exists.
    pub(super) fn paths(&self, pattern: &str) -> Result<Vec<PathBuf>, String> {
        let mut paths = vec![PathBuf::from("/")];
        for part in pattern.split('/').filter(|part| !part.is_empty()) {
            let mut next = Vec::new();
            for folder in paths {
                if is_pattern(part) {
                    let names = entries(self.host, &folder)?.unwrap_or_default();
                    let names = names.iter().filter(|name| name_matches(part, name));
                    next.extend(names.map(|name| folder.join(name)));
                } else {
                    let path = folder.join(part);
                    let exists = self.host.try_exists(&path);
                    let read_error = |error| format!("cannot read {}: {error}", path.display());
                    next.extend(exists.map_err(read_error)?.then_some(path));
                }
            }
            if next.len() > MAX_ENTRIES {
                return Err(format!("{pattern} matches more than {MAX_ENTRIES} files: narrow it"));
            }
            paths = next;
        }
        Ok(paths)
    }

    /// The node or folder after resolving all links, such as those of `/dev/serial/by-id`. Checks apply to
    /// the path that the kernel opens.
    pub(super) fn target(&self, path: &Path) -> Result<PathBuf, String> {
        let target = self.host.canonicalize(path);
        target
            .filter(|target| target.starts_with(DEV) && target != Path::new(DEV))
            .ok_or_else(|| format!("{} leads to no device node", path.display()))
    }

    /// The node at a path, or all nodes below a folder. Links are skipped, as in container runtimes.
    pub(super) fn nodes_at(&self, path: &Path, target: &Path) -> Result<Vec<NamedNode>, String> {
        if !self.host.path(target).is_dir() {
            return Ok(vec![NamedNode {
                matched_path: path.to_owned(),
                resolved_path: target.to_owned(),
            }]);
        }
        let named_node = |node: PathBuf| {
            let relative_path = node.strip_prefix(target).unwrap_or(&node);
            NamedNode { matched_path: path.join(relative_path), resolved_path: node }
        };
        Ok(self.nodes_below(target)?.into_iter().map(named_node).collect())
    }

    /// All device nodes below a folder, sorted.
    fn nodes_below(&self, folder: &Path) -> Result<Vec<PathBuf>, String> {
        let (mut nodes, mut folders, mut entry_count) = (Vec::new(), vec![folder.to_owned()], 0);
        while let Some(current) = folders.pop() {
            if NON_DEVICE_MOUNTS.iter().any(|mount| current == Path::new(mount)) {
                continue;
            }
            let names = entries(self.host, &current)?.unwrap_or_default();
            entry_count += names.len();
            if entry_count > MAX_ENTRIES {
                let folder = folder.display();
                return Err(format!("more than {MAX_ENTRIES} files are below {folder}"));
            }
            for path in names.iter().map(|name| current.join(name)) {
                // A file that disappeared in between is skipped.
                let Ok(file) = fs::symlink_metadata(self.host.path(&path)) else { continue };
                let kind = file.file_type();
                if kind.is_dir() {
                    folders.push(path);
                } else if self.is_node(kind) {
                    nodes.push(path);
                }
            }
        }
        nodes.sort_by_cached_key(|node| natural_sort_key(&node.display().to_string()));
        Ok(nodes)
    }

    /// Nodes of a simulated machine may be regular files.
    fn is_node(&self, kind: FileType) -> bool {
        kind.is_char_device() || kind.is_block_device() || (kind.is_file() && !self.host.is_real())
    }

    /// The candidate at a path; `None` for a folder without new nodes.
    fn candidate(
        &self,
        path: &Path,
        target: &Path,
        named_nodes: Vec<NamedNode>,
    ) -> Option<Candidate> {
        let mut candidate = match &named_nodes[..] {
            [] => return None,
            [named_node] if named_node.resolved_path == target => {
                self.candidate_with_attributes(target)
            }
            _ => {
                let mut folder = Candidate::default();
                folder.rename(&name_of(target));
                folder
            }
        };
        candidate.add_text("path", target.to_str());
        candidate.origin = path.display().to_string();
        let node = |NamedNode { matched_path, resolved_path }: NamedNode| {
            let container_path = (matched_path != resolved_path).then_some(matched_path);
            DeviceNode {
                inside: container_path,
                proof: self.folder(&resolved_path),
                ..DeviceNode::new(resolved_path)
            }
        };
        candidate.nodes = named_nodes.into_iter().map(node).collect();
        Some(candidate)
    }

    /// A node with the attributes of its sysfs folder.
    fn candidate_with_attributes(&self, path: &Path) -> Candidate {
        let (name, folder) = (name_of(path), self.folder(path));
        let mut candidate = match &folder {
            Some(folder) => {
                let sysfs_name = folder.file_name().and_then(|name| name.to_str()).unwrap_or(&name);
                self.sysfs.candidate(folder, sysfs_name)
            }
            None => Candidate::default(),
        };
        // Nodes without a bus device are identified by name.
        if folder.as_deref().and_then(|folder| self.host.device_of(folder)).is_none() {
            candidate.rename(&name);
        }
        candidate
    }

    /// Sysfs folder of a node.
    pub(super) fn folder(&self, path: &Path) -> Option<PathBuf> {
        let name = path.strip_prefix(DEV).ok()?.to_str()?;
        let by_number = self.by_number(path);
        let has_node_name =
            |folder: &PathBuf| self.host.uevent(folder, "DEVNAME").as_deref() == Some(name);
        by_number.filter(has_node_name).or_else(|| {
            // The nodes of a simulated machine may be regular files, and a recorded host has only their names.
            (!self.host.is_real()).then_some(())?;
            self.by_name.get_or_init(|| self.folders_by_name()).get(name).cloned()
        })
    }

    fn by_number(&self, path: &Path) -> Option<PathBuf> {
        let node = fs::metadata(self.host.path(path)).ok()?;
        let list = if node.file_type().is_block_device() { "block" } else { "char" };
        let number = node.rdev();
        self.host.resolve_link(format!("/sys/dev/{list}/{}:{}", major(number), minor(number)))
    }

    fn folders_by_name(&self) -> BTreeMap<String, PathBuf> {
        let folders = ["/sys/dev/char", "/sys/dev/block"].into_iter().flat_map(|list| {
            let names = self.host.try_entry_names(list, MAX_ENTRIES).unwrap_or_default();
            names
                .into_iter()
                .filter_map(move |name| self.host.resolve_link(Path::new(list).join(name)))
        });
        folders.filter_map(|folder| Some((self.host.uevent(&folder, "DEVNAME")?, folder))).collect()
    }

    /// Reason why a container must not have access to a node.
    pub(super) fn access_refusal(&self, node: &DeviceNode) -> Option<String> {
        let path = node.path.to_str()?;
        let block_device_refusal =
            || self.is_block(node).then(|| format!("{path}: {}", denylist::BLOCK_DEVICE_DANGER));
        denylist::node_danger(&escaped(path)).or_else(block_device_refusal)
    }

    /// True for a block device, by sysfs or by file type.
    fn is_block(&self, node: &DeviceNode) -> bool {
        let class = |folder: &PathBuf| self.host.link_name(folder.join("subsystem"));
        let class = node.proof.as_ref().and_then(class);
        class.as_deref() == Some("block")
            || fs::metadata(self.host.path(&node.path))
                .is_ok_and(|node| node.file_type().is_block_device())
    }
}

/// Name below `/dev`.
fn name_of(path: &Path) -> String {
    path.strip_prefix(DEV).unwrap_or(path).display().to_string()
}
