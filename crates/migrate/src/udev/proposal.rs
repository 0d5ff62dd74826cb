//! Sources as rules propose them: two rules for the same devices are one, and it is called by what either says.

use std::collections::BTreeMap;

use windlass_config::{
    Find, SourceRule,
    document::{Lined, Remarks},
};
use windlass_core::{device::Access, resource::ResourceName};

use super::{line::Rule, query::Asked};
use crate::names::SourceNames;

/// The domain of all resources that are made of rules.
const DOMAIN: &str = "windlass.dev";

/// Tags that say what programs do with a device, and not what it is.
const TAGS: [&str; 7] = [
    "uaccess",
    "systemd",
    "seat",
    "master-of-seat",
    "udev-acl",
    "power-switch",
    "mutter-device-ignore",
];

/// A source before it has a name.
#[derive(Debug)]
pub(super) struct Proposal {
    line: u64,
    asked: Asked,
    /// What the rule calls it.
    name: Option<String>,
    /// What it is called where no rule says it.
    otherwise: String,
    access: Option<Access>,
}

/// All of a file, each by what tells it from others.
#[derive(Debug, Default)]
pub(super) struct Proposals {
    all: Vec<Proposal>,
    known: BTreeMap<String, usize>,
}

// === impl Proposals ===

impl Proposals {
    /// Adds one, or what it says of one that there is.
    pub(super) fn add(&mut self, proposal: Proposal, remarks: &mut Remarks) {
        let Asked { find, expression, attributes, .. } = &proposal.asked;
        let identity = format!("{find:?} {expression:?} {attributes:?}");
        let Some(&nth) = self.known.get(&identity) else {
            self.known.insert(identity, self.all.len());
            self.all.push(proposal);
            return;
        };
        let known = &mut self.all[nth];
        if known.line != proposal.line {
            let text = format!(
                "it fits the same devices as line {}, and is one source with it",
                known.line
            );
            remarks.warn(proposal.line, text);
        }
        known.name = known.name.take().or(proposal.name);
        known.access = proposal.access.or(known.access);
    }

    pub(super) fn into_sources(self, remarks: &mut Remarks) -> Vec<Lined<SourceRule>> {
        let (mut names, mut resources) = (SourceNames::default(), BTreeMap::new());
        let sources = self.all.into_iter().map(|proposal| {
            if let Some(name) = &proposal.name {
                remarks.warn(proposal.line, format!("{name:?} {NAMED}"));
            }
            Lined { line: proposal.line, value: proposal.into_source(&mut names, &mut resources) }
        });
        sources.collect()
    }
}

// === impl Proposal ===

impl Proposal {
    pub(super) fn of(rule: &Rule, asked: Asked) -> Self {
        let values = |key: &'static str| {
            let set = rule.terms.iter().filter(move |term| term.key == key && !term.is_asked());
            set.map(|term| term.value.as_str())
        };
        let links = values("SYMLINK").flat_map(str::split_whitespace).chain(values("NAME"));
        let tags = values("TAG").filter(|tag| !TAGS.contains(tag));
        let name = links.chain(tags).map(constant).find(|name| !name.is_empty());
        let otherwise = what(&asked.find);
        let access = values("MODE").filter_map(access).next_back();
        Self { line: rule.line, asked, name, otherwise, access }
    }

    fn into_source(
        self,
        names: &mut SourceNames,
        resources: &mut BTreeMap<String, ResourceName>,
    ) -> SourceRule {
        let Asked { find, expression, attributes, .. } = self.asked;
        let name = names.after(self.name.as_deref().unwrap_or(&self.otherwise));
        // Several rules that give one name mean devices of one sort.
        let own =
            || format!("{DOMAIN}/{name}").parse().expect("a source's name is one of a resource");
        let resource = match self.name {
            Some(name) => resources.entry(name).or_insert_with(own).clone(),
            None => own(),
        };
        let mut rule = SourceRule::new(name.clone(), find);
        (rule.expression, rule.attributes) = (expression, attributes);
        rule.resource = Some(resource);
        rule.give.found = self.access.or(rule.give.found);
        rule
    }
}

/// What of a name is the same for all devices: `cam%n` is `cam`.
fn constant(name: &str) -> String {
    let end = name.find(['%', '$']).unwrap_or(name.len());
    name[..end].trim_matches(|letter: char| !letter.is_ascii_alphanumeric()).to_owned()
}

/// A name for what is found in a place.
fn what(find: &Find) -> String {
    match find {
        Find::Bus(name) | Find::Class(name) => name.clone(),
        Find::Nodes(patterns) => {
            let first = patterns.first().map_or("", String::as_str).trim_start_matches("/dev/");
            let end = first.find(['*', '?']).unwrap_or(first.len());
            first[..end].trim_matches(['-', '_', '/']).to_owned()
        }
        Find::Files(_) | Find::Endpoints(_) => String::new(),
    }
}

/// What anybody may do with a node of such a mode; what only its owner may, a container's root may too.
fn access(mode: &str) -> Option<Access> {
    let bits = u32::from_str_radix(mode, 8).ok()?;
    match (bits & 0o444 != 0, bits & 0o222 != 0) {
        (true, false) => Some(Access::Read),
        (false, true) => Some(Access::Write),
        (true, true) => Some(Access::ReadWrite),
        (false, false) => None,
    }
}

const NAMED: &str = "names the source; a container finds the nodes under the kernel's names";
