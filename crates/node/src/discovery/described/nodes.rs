//! Candidates by pattern of device nodes: a walk below `/dev` that goes only where the pattern does.

use std::{
    cell::OnceCell,
    collections::BTreeMap,
    fs,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use rustix::fs::{major, minor};
use windlass_core::device::DeviceNode;

use super::{
    find::{Candidate, Found, MOST_ENTRIES, entries},
    sysfs::{Sysfs, number_parts},
    usb::Serials,
};
use crate::{
    config::danger,
    glob::{fits, is_pattern, literally, open_parts},
    host::Host,
};

/// The nodes of a host, while one source looks at them.
pub(super) struct Nodes<'a> {
    host: &'a Host,
    sysfs: Sysfs<'a>,
    /// Where sysfs tells of each node, for a host whose nodes have no numbers of their own.
    told: OnceCell<BTreeMap<String, PathBuf>>,
}

/// The nodes that fit, each once: by the first pattern that it fits.
pub(super) fn matching(nodes: &Nodes<'_>, patterns: &[String]) -> Result<Found, String> {
    let mut found = Found::default();
    let mut seen = std::collections::BTreeSet::new();
    for (pattern, text) in patterns.iter().enumerate() {
        for path in nodes.paths(text)? {
            match nodes.target(&path) {
                Ok(target) if seen.insert(target.clone()) => {
                    let candidate = nodes.candidate(&target);
                    let open = open_parts(text, path.to_str().unwrap_or_default());
                    found.candidates.push(Candidate { pattern, open, ..candidate });
                }
                Ok(_) => {}
                Err(remark) => found.remarks.push(remark),
            }
        }
    }
    number_parts(&mut found.candidates);
    Ok(found)
}

/// The nodes that fit patterns which are no source of their own.
///
/// # Errors
///
/// When too much fits to look at, or something that must not be handed out.
pub(in crate::discovery) fn fitting(
    host: &Host,
    patterns: &[String],
) -> Result<Vec<DeviceNode>, String> {
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

    /// The paths that fit a pattern, folders left out; what is written without a pattern is there or not.
    pub(super) fn paths(&self, pattern: &str) -> Result<Vec<PathBuf>, String> {
        let mut paths = vec![PathBuf::from("/")];
        for part in pattern.split('/').filter(|part| !part.is_empty()) {
            let mut next = Vec::new();
            for folder in paths {
                if is_pattern(part) {
                    let names = entries(self.host, &folder)?.unwrap_or_default();
                    let names = names.iter().filter(|name| fits(part, name));
                    next.extend(names.map(|name| folder.join(name)));
                } else if self.host.has(folder.join(part)) {
                    next.push(folder.join(part));
                }
            }
            if next.len() > MOST_ENTRIES {
                return Err(format!("{pattern} fits more than {MOST_ENTRIES} files: narrow it"));
            }
            paths = next;
        }
        paths.retain(|path| !self.host.path(path).is_dir());
        Ok(paths)
    }

    /// The node itself, where links lead to it, such as those of `/dev/serial/by-id`.
    pub(super) fn target(&self, path: &Path) -> Result<PathBuf, String> {
        let target = self.host.real(path);
        target
            .filter(|target| target.starts_with("/dev"))
            .ok_or_else(|| format!("{} leads to no device node", path.display()))
    }

    /// A node with what sysfs says of it, if it says anything.
    fn candidate(&self, path: &Path) -> Candidate {
        let name = path.strip_prefix("/dev").unwrap_or(path).display().to_string();
        let folder = self.folder(path);
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
        candidate.note("path", path.to_str());
        candidate.origin = path.display().to_string();
        candidate.nodes = vec![DeviceNode { proof: folder, ..DeviceNode::new(path) }];
        candidate
    }

    /// The folder of sysfs whose node this is.
    pub(super) fn folder(&self, path: &Path) -> Option<PathBuf> {
        let name = path.strip_prefix("/dev").ok()?.to_str()?;
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
