//! A group of paths: the first matches of all paths form a device, the second matches form the next, and so on.
//!
//! The plugin pairs the matches of all paths by position, up to the length of the shortest list. A path without
//! wildcards has one match, so a group with such a path is one device. A `limit` on such a path repeats its match that
//! many times.

use windlass_config::{
    DiscoveryRule, EditTemplates, Grouping, NodeTemplate, document::Diagnostics,
};

use super::{group::SourceParts, path::PathEntry};

/// Form of a group, which decides how its devices are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// All paths are optional. The existing nodes are one device.
    AllOptional,
    /// The path at this index is searched. The other paths have no wildcards, and belong to each match.
    OneSearched(usize),
    /// Several paths are searched, and their matches are paired by position.
    Zipped,
}

pub(super) fn parts(
    group: Vec<PathEntry>,
    line: u64,
    diagnostics: &mut Diagnostics,
) -> Option<SourceParts> {
    match Shape::of(&group) {
        Ok(shape) => Some(shape.parts(group)),
        Err(problem) => {
            diagnostics.warn(line, format!("this group is left out: {problem}"));
            None
        }
    }
}

// === impl Shape ===

impl Shape {
    fn of(group: &[PathEntry]) -> Result<Self, &'static str> {
        let nodes: Vec<&PathEntry> = group.iter().filter(|path| path.is_node()).collect();
        if group.iter().any(|path| !path.is_node() && path.is_pattern()) {
            return Err("the path of a mount cannot be a pattern");
        }
        if nodes.is_empty() {
            return Err("mounts need a device node, and the group has none");
        }
        if !nodes.iter().all(|path| path.is_below_dev()) {
            return Err("a device node is below /dev; for another file write type: Mount");
        }
        if nodes.iter().all(|path| path.is_optional()) {
            return require_alike(&nodes).map(|()| Self::AllOptional);
        }
        let patterns = nodes.iter().filter(|path| path.is_pattern()).count();
        let paired = nodes.iter().filter(|path| path.is_pattern() || !path.is_repeated()).count();
        if patterns > 1 || (patterns == 1 && paired > 1) {
            let paired: Vec<_> =
                nodes.into_iter().filter(|it| it.is_pattern() || !it.is_repeated()).collect();
            return require_alike(&paired)
                .and_then(|()| require_mandatory(&paired))
                .map(|()| Self::Zipped);
        }
        let is_required_node = |path: &PathEntry| path.is_node() && !path.is_optional();
        let by_pattern = group.iter().position(|path| is_required_node(path) && path.is_pattern());
        match by_pattern {
            None if patterns > 0 => Err("the only pattern of a group cannot be optional"),
            None => {
                Ok(Self::OneSearched(group.iter().position(is_required_node).unwrap_or_default()))
            }
            Some(pattern) => Ok(Self::OneSearched(pattern)),
        }
    }

    fn parts(self, group: Vec<PathEntry>) -> SourceParts {
        let (mut give, mut found) = (EditTemplates::default(), Vec::new());
        for (index, path) in group.into_iter().enumerate() {
            if !path.is_node() {
                give.mounts.push(path.into_mount());
            } else if !self.is_searched(index, &path) {
                give.nodes.push(path.into_node());
            } else {
                found.push(path.pattern());
                match path.container_path() {
                    None => give.found = Some(path.access()),
                    Some(container_path) => give.nodes.push(renamed(&path, container_path)),
                }
            }
        }
        SourceParts { find: DiscoveryRule::Nodes(found), expression: None, unit: self.unit(), give }
    }

    fn unit(self) -> Grouping {
        match self {
            Self::AllOptional => Grouping::All,
            Self::OneSearched(_) => Grouping::Each,
            Self::Zipped => Grouping::Zipped,
        }
    }

    /// True for a path that is searched, false for a path that belongs to each match.
    fn is_searched(self, index: usize, path: &PathEntry) -> bool {
        match self {
            Self::AllOptional => true,
            Self::OneSearched(searched) => searched == index,
            Self::Zipped => path.is_pattern() || !path.is_repeated(),
        }
    }
}

/// Requires that searched paths have the same access, and the same path in the container as on the host: a source has
/// one rule for all of them.
fn require_alike(nodes: &[&PathEntry]) -> Result<(), &'static str> {
    let one_access = nodes.windows(2).all(|pair| pair[0].access() == pair[1].access());
    let same_paths = nodes.len() < 2 || nodes.iter().all(|path| path.container_path().is_none());
    (one_access && same_paths).then_some(()).ok_or(
        "paths that are found together have the same permissions and no mountPath here: write a \
         group for each",
    )
}

fn require_mandatory(nodes: &[&PathEntry]) -> Result<(), &'static str> {
    let required = nodes.iter().all(|path| !path.is_optional());
    required.then_some(()).ok_or("paired patterns cannot be optional here")
}

/// The searched node, under another path in the container.
fn renamed(path: &PathEntry, container_path: String) -> NodeTemplate {
    NodeTemplate {
        path: "{path}".to_owned(),
        inside: Some(container_path),
        access: path.access(),
        optional: false,
        shared: false,
    }
}
