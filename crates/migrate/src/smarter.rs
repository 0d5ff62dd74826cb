//! `smarter-device-manager`: a list of patterns for names below `/dev`. Each matching node is a separate resource.

mod pattern;

use serde::Deserialize;
use windlass_config::{
    DeviceProfile, DiscoveryRule, Sharing, SourceRule,
    document::{Diagnostics, Spanned, YamlNode},
    source::resource_of_node,
};

use self::pattern::NodePattern;
use super::{Imported, expression::checked, names::SourceNames, nics, read as read_document};

#[derive(Debug, Default, Deserialize)]
#[serde(transparent)]
struct File(Vec<Spanned<Entry>>);

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Entry {
    devicematch: Option<Spanned<String>>,
    nummaxdevices: Option<Spanned<i64>>,
}

const DOMAIN: &str = "smarter-devices";

/// Keyword for the GPUs of a Jetson.
const JETSON: &str = "nvidia-gpu";

pub(super) fn read(root: &YamlNode, diagnostics: &mut Diagnostics) -> Imported {
    let File(entries) = read_document(root, diagnostics);
    let mut names = SourceNames::default();
    let sources = entries.into_iter().flat_map(|entry| {
        let line = entry.line;
        entry.value.into_rules(line, &mut names, diagnostics)
    });
    Imported { sources: sources.collect(), ..Imported::default() }
}

// === impl Entry ===

impl Entry {
    fn into_rules(
        self,
        line: u64,
        names: &mut SourceNames,
        diagnostics: &mut Diagnostics,
    ) -> Vec<Spanned<SourceRule>> {
        let Some(devicematch) = self.devicematch else {
            diagnostics.error(line, "an entry without devicematch");
            return Vec::new();
        };
        let Some(sharing) = sharing(self.nummaxdevices, line, diagnostics) else {
            return Vec::new();
        };
        if devicematch.value == JETSON {
            diagnostics.warn(devicematch.line, JETSON_WARNING);
            return vec![Spanned { line, value: jetson(sharing) }];
        }
        let regex = match pattern::parse(&devicematch.value) {
            Ok(regex) => regex,
            Err(problem) => {
                diagnostics.error(devicematch.line, problem);
                return Vec::new();
            }
        };
        match pattern::read(&devicematch.value, &regex) {
            Ok(alternatives) => {
                let rule = |nodes| rule(nodes, sharing, devicematch.line, names, diagnostics);
                alternatives.into_iter().filter_map(rule).collect()
            }
            Err(problem) => {
                diagnostics.warn(devicematch.line, format!("{problem}; this entry is left out"));
                Vec::new()
            }
        }
    }
}

/// Source of the one GPU of a Jetson.
fn jetson(sharing: Sharing) -> SourceRule {
    let profile: DeviceProfile = "jetson".parse().expect("a shipped profile");
    let resource = resource_of_node(DOMAIN, "nvidia-gpu0");
    SourceRule { resource, sharing, ..profile.rule() }
}

/// Source of nodes, whose resources have the names of the nodes.
fn rule(
    nodes: NodePattern,
    sharing: Sharing,
    line: u64,
    names: &mut SourceNames,
    diagnostics: &mut Diagnostics,
) -> Option<Spanned<SourceRule>> {
    let name = names.unique(nodes.path.trim_start_matches("/dev/"));
    let mut rule = SourceRule::new(name, DiscoveryRule::Nodes(vec![nodes.path]));
    match nodes.name {
        Some(name) => rule.resource = resource_of_node(DOMAIN, &name),
        None => rule.resource_domain = Some(DOMAIN.to_owned()),
    }
    rule.expression = match nodes.expression.map(|text| checked(&text)).transpose() {
        Ok(expression) => expression,
        Err(problem) => {
            diagnostics.error(line, problem);
            return None;
        }
    };
    rule.sharing = sharing;
    Some(Spanned { line, value: rule })
}

fn sharing(
    count: Option<Spanned<i64>>,
    line: u64,
    diagnostics: &mut Diagnostics,
) -> Option<Sharing> {
    match count {
        Some(count) if count.value > 1 => Some(nics::device_sharing(&count, diagnostics)),
        Some(count) if count.value == 1 => Some(Sharing::Exclusive),
        Some(count) if count.value < 0 => {
            diagnostics.error(count.line, "nummaxdevices cannot be negative");
            None
        }
        _ => {
            diagnostics.warn(line, "without nummaxdevices nothing is offered; it is left out");
            None
        }
    }
}

const JETSON_WARNING: &str = "the GPU of a Jetson is found by its nodes, and offered as \
    smarter-devices/nvidia-gpu0";
