//! A group of paths: the first matches of all paths form a device, then the second ones, and so on.
//!
//! The plugin pairs the matches of all paths by position, up to the length of the shortest list. A path without
//! wildcards has one match, so a pattern beside it is found once. If such a path has a limit, it is paired that many
//! times.

use windlass_config::{Find, Give, GivenNode, Unit, document::Diagnostics};

use super::{group::Parts, path::Member};

/// The kind of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// Paths of which each may be absent: the present ones are one device.
    AllOptional,
    /// One path is searched. The others have no wildcards, and are given with each match.
    Led(usize),
    /// Patterns, paired.
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
            return Err("a pattern of files to mount goes with no device");
        }
        if nodes.is_empty() {
            return Err("files to mount go with a device, and there is none");
        }
        if !nodes.iter().all(|path| path.is_below_dev()) {
            return Err("a device node lies below /dev; for another file write type: Mount");
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
            None if patterns > 0 => Err("a pattern that may be absent leads no group"),
            None => Ok(Self::Led(group.iter().position(leads).unwrap_or_default())),
            Some(pattern) => Ok(Self::Led(pattern)),
        }
    }

    fn parts(self, group: Vec<Member>) -> Parts {
        let (mut give, mut found) = (Give::default(), Vec::new());
        for (index, path) in group.into_iter().enumerate() {
            if !path.is_node() {
                give.mounts.push(path.into_mount());
            } else if !self.looks_for(index, &path) {
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

    /// True for a path that is searched, false for one that is given with each match.
    fn looks_for(self, index: usize, path: &Member) -> bool {
        match self {
            Self::AllOptional => true,
            Self::Led(leader) => leader == index,
            Self::Zipped => path.is_pattern() || !path.is_repeated(),
        }
    }
}

/// Nodes that are found together are given in one way.
fn alike(nodes: &[&Member]) -> Result<(), &'static str> {
    let one_access = nodes.windows(2).all(|two| two[0].access() == two[1].access());
    let kept = nodes.len() < 2 || nodes.iter().all(|path| path.inside().is_none());
    (one_access && kept).then_some(()).ok_or(
        "paths that are found together have no mountPath and the same permissions here: write a \
         group for each",
    )
}

fn all_required(nodes: &[&Member]) -> Result<(), &'static str> {
    let required = nodes.iter().all(|path| !path.is_optional());
    required.then_some(()).ok_or("patterns that are paired are not optional here")
}

/// The node that is found, under another path.
fn renamed(path: &Member, inside: String) -> GivenNode {
    GivenNode {
        path: "{path}".to_owned(),
        inside: Some(inside),
        access: path.access(),
        optional: false,
        shared: false,
    }
}
