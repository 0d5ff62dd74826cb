//! What a source finds: candidates, of which its selector then picks those that are meant.

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
};

use windlass_config::{Find, SourceRule};
use windlass_core::{
    attribute::{AttributeName, AttributeValue, Attributes},
    device::{DeviceNode, Place},
    health::Reason,
};
use windlass_host::Host;

use super::{
    endpoints, files,
    nodes::{self, Nodes},
    sysfs::{self, Sysfs},
    usb::Serials,
};

/// The domain of attributes that are not Kubernetes' own.
pub(super) const DOMAIN: &str = "windlass.dev";

/// Entries of one folder that are looked at: the largest machines have some thousand PCI functions.
pub(super) const MOST_ENTRIES: usize = 10_000;

/// Something that was found.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Candidate {
    /// What tells it from others, the same after a restart and in another place on the bus.
    pub(super) identity: String,
    /// Where it was found: a folder of sysfs, a node, a file, an address.
    pub(super) origin: String,
    /// The device of a bus that it is, or is a part of, by the name that this one keeps.
    pub(super) device: Option<String>,
    /// The folder in which the files of the configuration are: where it was found in sysfs, or of a node the
    /// folder that tells of it.
    pub(super) folder: Option<PathBuf>,
    pub(super) attributes: Attributes,
    pub(super) place: Place,
    /// The nodes that its drivers made.
    pub(super) nodes: Vec<DeviceNode>,
    /// Why it is not handed out.
    pub(super) withheld: Option<String>,
    /// Why it cannot be used, though it is there.
    pub(super) trouble: Option<(Reason, String)>,
    /// Which of the source's patterns found it.
    pub(super) pattern: usize,
    /// What stands where that pattern leaves it open.
    pub(super) open: Vec<String>,
}

/// What is where a source looks.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) candidates: Vec<Candidate>,
    /// What was passed over, and why.
    pub(super) remarks: Vec<String>,
}

/// Everything that is where the source looks, in the order of identities; or why nothing can be said.
pub(super) fn find(rule: &SourceRule, host: &Host, serials: &Serials) -> Result<Found, String> {
    let mut found = match &rule.find {
        Find::Bus(bus) => sysfs::bus(&Sysfs::new(host, serials), bus)?,
        Find::Class(class) => sysfs::class(&Sysfs::new(host, serials), class)?,
        Find::Nodes(patterns) => nodes::matching(&Nodes::new(host, serials), patterns)?,
        Find::Files(folder) => files::inside(host, folder)?,
        Find::Endpoints(endpoints) => endpoints::of(endpoints),
    };
    for candidate in &mut found.candidates {
        candidate.attributes.extend(rule.facts.clone());
    }
    let order = |it: &Candidate| (it.pattern, natural(&it.identity), it.identity.clone());
    found.candidates.sort_by_cached_key(order);
    Ok(found)
}

// === impl Candidate ===

impl Candidate {
    /// Notes a fact; what there already is stays.
    pub(super) fn note(&mut self, name: &'static str, value: Option<impl Into<String>>) {
        let Some(value) = value.map(Into::into).filter(|value| !value.is_empty()) else { return };
        let name = AttributeName::new(DOMAIN, name);
        self.attributes.entry(name).or_insert_with(|| AttributeValue::string(value));
    }

    /// Goes by another name, which is all that tells it from others.
    pub(super) fn rename(&mut self, name: &str) {
        name.clone_into(&mut self.identity);
        let value = AttributeValue::string(name);
        self.attributes.insert(AttributeName::new(DOMAIN, "name"), value);
    }

    /// A text among its facts.
    pub(super) fn text(&self, name: &'static str) -> Option<&str> {
        match self.attributes.get(&AttributeName::new(DOMAIN, name)) {
            Some(AttributeValue::String(text)) => Some(text),
            _ => None,
        }
    }
}

/// The names in a folder, `None` where there is no such folder; an error where it has more than any
/// machine, or cannot be read: that says nothing of what is in it.
pub(super) fn entries(host: &Host, folder: &Path) -> Result<Option<Vec<String>>, String> {
    let names = match host.some_names(folder, MOST_ENTRIES + 1) {
        Ok(names) => names,
        Err(error) if is_no_folder(error.kind()) => return Ok(None),
        Err(error) => return Err(format!("cannot read {}: {error}", folder.display())),
    };
    if names.len() > MOST_ENTRIES {
        let folder = folder.display();
        return Err(format!("{folder} has more than {MOST_ENTRIES} entries: none is looked at"));
    }
    Ok(Some(names))
}

fn is_no_folder(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// Numbers in a name count as numbers: `video10` comes after `video9`.
pub(super) fn natural(name: &str) -> Vec<(String, u64)> {
    let (mut parts, mut rest) = (Vec::new(), name);
    while !rest.is_empty() {
        let text = rest.find(|letter: char| letter.is_ascii_digit()).unwrap_or(rest.len());
        let digits = rest[text..].find(|letter: char| !letter.is_ascii_digit());
        let end = digits.map_or(rest.len(), |digits| text + digits);
        parts.push((rest[..text].to_owned(), rest[text..end].parse().unwrap_or_default()));
        rest = &rest[end..];
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_names_are_counted() {
        let mut names = ["video10", "video9", "a", "0000:0a:00.0", "video"];
        names.sort_by_key(|name| natural(name));
        assert_eq!(names, ["0000:0a:00.0", "a", "video", "video9", "video10"]);
    }
}
