//! A group of paths: the first matches of all paths form a device, then the second ones, and so on.
//!
//! The plugin pairs the matches of all paths by position, up to the length of the shortest list. A path without
//! wildcards has one match, so a group with such a path is one device. A `limit` on such a path repeats its match that
//! many times.

use windlass_config::{Find, Give, GivenNode, Unit, document::Diagnostics};

use super::{group::Parts, path::Member};

/// Form of a group, which decides how its devices are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// All paths are optional: the present ones are one device.
    AllOptional,
    /// The path at this index is searched. The others have no wildcards, and belong to each match.
    Led(usize),
    /// Several paths are searched, and their matches paired.
    Zipped,
}

pub(super) fn parts(group: Vec<Member>, line: u64, diagnostics: &mut Diagnostics) -> Option<Parts> {
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
    fn of(group: &[Member]) -> Result<Self, &'static str> {
        let nodes: Vec<&Member> = group.iter().filter(|path| path.is_node()).collect();
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
            return alike(&nodes).map(|()| Self::AllOptional);
        }
        let patterns = nodes.iter().filter(|path| path.is_pattern()).count();
        let paired = nodes.iter().filter(|path| path.is_pattern() || !path.is_repeated()).count();
        if patterns > 1 || (patterns == 1 && paired > 1) {
            let paired: Vec<_> =
                nodes.into_iter().filter(|it| it.is_pattern() || !it.is_repeated()).collect();
            return alike(&paired).and_then(|()| all_required(&paired)).map(|()| Self::Zipped);
        }
        let leads = |path: &Member| path.is_node() && !path.is_optional();
        let by_pattern = group.iter().position(|path| leads(path) && path.is_pattern());
        match by_pattern {
            None if patterns > 0 => Err("the only pattern of a group cannot be optional"),
            None => Ok(Self::Led(group.iter().position(leads).unwrap_or_default())),
            Some(pattern) => Ok(Self::Led(pattern)),
        }
    }

    fn parts(self, group: Vec<Member>) -> Parts {
        let (mut give, mut found) = (Give::default(), Vec::new());
        for (index, path) in group.into_iter().enumerate() {
            if !path.is_node() {
                give.mounts.push(path.into_mount());
            } else if !self.finds(index, &path) {
                give.nodes.push(path.into_node());
            } else {
                found.push(path.pattern());
                match path.inside() {
                    None => give.found = Some(path.access()),
                    Some(inside) => give.nodes.push(renamed(&path, inside)),
                }
            }
        }
        Parts { find: Find::Nodes(found), expression: None, unit: self.unit(), give }
    }

    fn unit(self) -> Unit {
        match self {
            Self::AllOptional => Unit::All,
            Self::Led(_) => Unit::Each,
            Self::Zipped => Unit::Zipped,
        }
    }

    /// True for a path that is searched, false for one that belongs to each match.
    fn finds(self, index: usize, path: &Member) -> bool {
        match self {
            Self::AllOptional => true,
            Self::Led(leader) => leader == index,
            Self::Zipped => path.is_pattern() || !path.is_repeated(),
        }
    }
}

/// Checks that searched paths have the same access and no other path in the container: a source has one rule for all.
fn alike(nodes: &[&Member]) -> Result<(), &'static str> {
    let one_access = nodes.windows(2).all(|two| two[0].access() == two[1].access());
    let kept = nodes.len() < 2 || nodes.iter().all(|path| path.inside().is_none());
    (one_access && kept).then_some(()).ok_or(
        "paths that are found together have the same permissions and no mountPath here: write a \
         group for each",
    )
}

fn all_required(nodes: &[&Member]) -> Result<(), &'static str> {
    let required = nodes.iter().all(|path| !path.is_optional());
    required.then_some(()).ok_or("paired patterns cannot be optional here")
}

/// The found node, under another path in the container.
fn renamed(path: &Member, inside: String) -> GivenNode {
    GivenNode {
        path: "{path}".to_owned(),
        inside: Some(inside),
        access: path.access(),
        optional: false,
        shared: false,
    }
}
