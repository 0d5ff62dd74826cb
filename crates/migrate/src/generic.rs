//! `generic-device-plugin`: YAML with `devices`, or `--device` among a container's arguments. A device
//! has groups, and each group becomes a source of the device's resource.

mod arguments;
mod group;
mod path;
mod paths;
mod usb;

use std::{collections::BTreeMap, path::Path};

use serde::Deserialize;
use windlass_config::{
    DiscoveryRule, Sharing, SourceRule,
    document::{Diagnostics, Spanned, YamlNode},
};
use windlass_core::resource::ResourceName;
use windlass_host::glob::path_matches;

pub(super) use arguments::has_arguments;

use self::group::Group;
use super::{
    Imported, items,
    names::{self, SourceNames},
    read as read_document,
};

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct File {
    domain: Option<Spanned<String>>,
    /// Same list as `device`: the plugin accepts either key.
    devices: Option<Spanned<Vec<Spanned<Device>>>>,
    device: Option<Spanned<Vec<Spanned<Device>>>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Device {
    name: Option<Spanned<String>>,
    groups: Option<Spanned<Vec<Spanned<Group>>>>,
}

/// State of the conversion of all devices.
#[derive(Debug, Default)]
struct Conversion {
    imported: Imported,
    names: SourceNames,
    /// Sharing of each resource, with the line of its first group.
    shared: BTreeMap<ResourceName, Spanned<Sharing>>,
    /// True if containers can no longer create (mknod) some node.
    could_mknod: bool,
}

/// Maximum number of earlier groups to compare a group with, which bounds the work for a file of many thousand groups.
/// Overlaps beyond the limit get no warning.
const MAX_COMPARED: usize = 1000;

/// The plugin's default domain.
const DOMAIN: &str = "squat.ai";

/// True for a document of this plugin, which has its list under either key.
pub(super) fn is_file(root: &YamlNode) -> bool {
    let is_list = |list: &YamlNode| !list.items().is_empty();
    root.child_ignore_case("devices").is_some()
        || root.child_ignore_case("device").is_some_and(is_list)
}

pub(super) fn read(root: &YamlNode, diagnostics: &mut Diagnostics) -> Imported {
    let mut conversion = Conversion::default();
    if has_arguments(root) {
        let (domain, documents) = arguments::read(root, diagnostics);
        for document in &documents {
            let device: Device = read_document(document, diagnostics);
            conversion.add_device(
                &domain,
                Spanned { line: document.line, value: device },
                diagnostics,
            );
        }
    } else {
        let file: File = read_document(root, diagnostics);
        let domain = file.domain.map_or_else(|| DOMAIN.to_owned(), |domain| domain.value);
        let line = file.devices.as_ref().or(file.device.as_ref()).map_or(1, |list| list.line);
        let devices = items(file.devices).into_iter().chain(items(file.device));
        let before = conversion.shared.len();
        devices.for_each(|device| conversion.add_device(&domain, device, diagnostics));
        if conversion.shared.len() == before && diagnostics.errors.is_empty() {
            diagnostics.warn(line, "no device is named");
        }
    }
    if conversion.could_mknod {
        diagnostics.warn(root.line, MKNOD_WARNING);
    }
    conversion.imported
}

// === impl Conversion ===

impl Conversion {
    fn add_device(&mut self, domain: &str, device: Spanned<Device>, diagnostics: &mut Diagnostics) {
        let Spanned { line, value: Device { name, groups } } = device;
        let Some(name) = name else {
            diagnostics.error(line, "a device without a name");
            return;
        };
        let trimmed = Spanned { line: name.line, value: name.value.trim().to_owned() };
        let is_plain = trimmed.value == trimmed.value.to_ascii_lowercase();
        if !is_plain || !names::is_made_of(&trimmed.value, b"-") {
            let name = &trimmed.value;
            diagnostics
                .error(trimmed.line, format!("name {name:?}: use small letters, digits and '-'"));
            return;
        }
        let Some(resource) = names::resource(domain, &trimmed, diagnostics) else { return };
        for group in items(groups) {
            self.add_group(&trimmed.value, &resource, group, diagnostics);
        }
    }

    fn add_group(
        &mut self,
        name: &str,
        resource: &ResourceName,
        group: Spanned<Group>,
        diagnostics: &mut Diagnostics,
    ) {
        let line = group.line;
        self.could_mknod |= group.value.allows_mknod_by_default();
        let sharing = group.value.sharing(diagnostics);
        if let Some(first) = self.shared.get(resource).filter(|first| first.value != sharing) {
            let text = format!(
                "{resource} has another count on line {}: one resource is shared in one way; \
                 write the same count, or another name",
                first.line
            );
            diagnostics.error(line, text);
        }
        self.shared.entry(resource.clone()).or_insert(Spanned { line, value: sharing });
        let Some(parts) = group.value.into_parts(line, diagnostics) else { return };
        let mut rule = SourceRule::new(self.names.unique(name), parts.find);
        (rule.resource, rule.sharing) = (Some(resource.clone()), sharing);
        (rule.expression, rule.unit, rule.give) = (parts.expression, parts.unit, parts.give);
        if let Some((node, other)) = self.overlap_with_earlier(&rule) {
            let text = format!(
                "{node} is in {other} too. In that plugin both have it; here a node has one owner, and \
                 the other device is withheld: leave one of the groups out"
            );
            diagnostics.warn(line, text);
        }
        self.imported.sources.push(Spanned { line, value: rule });
    }

    /// Finds a node that an earlier source of another resource also has, and that resource. Sources with different
    /// expressions, such as descriptions of USB devices, are not compared: one device may match both.
    fn overlap_with_earlier(&self, rule: &SourceRule) -> Option<(String, ResourceName)> {
        let earlier = self.imported.sources.iter().take(MAX_COMPARED);
        let is_comparable = |earlier: &&SourceRule| {
            earlier.resource != rule.resource && earlier.expression == rule.expression
        };
        earlier.map(|earlier| &earlier.value).filter(is_comparable).find_map(|earlier| {
            let node =
                own_nodes(rule).find(|node| own_nodes(earlier).any(|it| overlap(it, node)))?;
            Some((node.to_owned(), earlier.resource.clone()?))
        })
    }
}

/// Paths and patterns of the nodes that a source does not share.
fn own_nodes(rule: &SourceRule) -> impl Iterator<Item = &str> {
    let found =
        if let DiscoveryRule::Nodes(patterns) = &rule.find { patterns.as_slice() } else { &[] };
    let templates =
        rule.give.nodes.iter().filter(|node| !node.shared && node.path.starts_with('/'));
    found.iter().map(String::as_str).chain(templates.map(|node| node.path.as_str()))
}

/// True if two patterns or paths are sure to match a common node. A pattern for a folder matches all nodes in it.
fn overlap(one: &str, other: &str) -> bool {
    let has = |pattern: &str, path: &str| {
        let mut above = Path::new(path).ancestors().filter_map(Path::to_str);
        above.any(|path| pattern == path || path_matches(pattern, path))
    };
    has(one, other) || has(other, one)
}

const MKNOD_WARNING: &str = "containers may read and write nodes; by default that plugin also lets them \
    create nodes. Write permissions: mrw for a path that needs it";
