//! Search for the candidates of a configured source. The selector applies later.

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
};

use windlass_config::{DiscoveryRule, SourceRule};
use windlass_core::{
    attribute::{AttributeName, AttributeValue, Attributes},
    device::{DeviceNode, Location},
    health::Reason,
};
use windlass_host::{Host, usb::Serials};

use super::{
    endpoints, files,
    nodes::{self, Nodes},
    sysfs::{self, Sysfs},
};

/// Domain of attributes that Kubernetes does not define.
pub(super) const DOMAIN: &str = "windlass.dev";

/// Maximum number of entries of a folder. The largest machines have a few thousand PCI functions.
pub(super) const MAX_ENTRIES: usize = 10_000;

/// A possible device.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Candidate {
    /// Identity that is stable across restarts and bus numbering.
    pub(super) identity: String,
    /// Origin: sysfs folder, node, file or address.
    pub(super) origin: String,
    /// Identity of the bus device that the candidate is, or belongs to.
    pub(super) device: Option<String>,
    /// Sysfs folder of the candidate or of its device node; the configured attribute files are in it.
    pub(super) folder: Option<PathBuf>,
    pub(super) attributes: Attributes,
    pub(super) location: Location,
    pub(super) nodes: Vec<DeviceNode>,
    /// Reason to withhold the candidate from allocation.
    pub(super) withheld: Option<String>,
    /// Failure that makes the candidate unusable.
    pub(super) failure: Option<(Reason, String)>,
    /// Index of the matching pattern.
    pub(super) pattern: usize,
    /// Text that the pattern's wildcards matched.
    pub(super) wildcards: Vec<String>,
}

/// Candidates of a source, with notes.
#[derive(Debug, Default)]
pub(super) struct FindResult {
    pub(super) candidates: Vec<Candidate>,
    /// Skipped entries with reasons.
    pub(super) notes: Vec<String>,
}

/// All candidates of a source, sorted by pattern and identity; an error if the scan failed.
pub(super) fn find(
    rule: &SourceRule,
    host: &Host,
    serials: &Serials,
) -> Result<FindResult, String> {
    let mut result = match &rule.find {
        DiscoveryRule::Bus(bus) => sysfs::bus(&Sysfs::new(host, serials), bus)?,
        DiscoveryRule::Class(class) => sysfs::class(&Sysfs::new(host, serials), class)?,
        DiscoveryRule::Nodes(patterns) => nodes::candidates(&Nodes::new(host, serials), patterns)?,
        DiscoveryRule::Files(folder) => files::candidates(host, folder)?,
        DiscoveryRule::Endpoints(endpoints) => endpoints::candidates(endpoints),
    };
    for candidate in &mut result.candidates {
        candidate.attributes.extend(rule.facts.clone());
    }
    let sort_key = |candidate: &Candidate| {
        (candidate.pattern, natural_sort_key(&candidate.identity), candidate.identity.clone())
    };
    result.candidates.sort_by_cached_key(sort_key);
    Ok(result)
}

// === impl Candidate ===

impl Candidate {
    /// Sets a string attribute, unless it is set already or the value is empty.
    pub(super) fn add_text(&mut self, name: &'static str, value: Option<impl Into<String>>) {
        let Some(value) = value.map(Into::into).filter(|value| !value.is_empty()) else { return };
        let name = AttributeName::new(DOMAIN, name);
        self.attributes.entry(name).or_insert_with(|| AttributeValue::string(value));
    }

    /// Sets the identity and the attribute `name`.
    pub(super) fn rename(&mut self, name: &str) {
        name.clone_into(&mut self.identity);
        let value = AttributeValue::string(name);
        self.attributes.insert(AttributeName::new(DOMAIN, "name"), value);
    }

    pub(super) fn text(&self, name: &'static str) -> Option<&str> {
        match self.attributes.get(&AttributeName::new(DOMAIN, name)) {
            Some(AttributeValue::String(text)) => Some(text),
            _ => None,
        }
    }
}

/// Names in a folder; `None` if the folder does not exist. An unreadable or too large folder is an error, because its
/// content is unknown.
pub(super) fn entries(host: &Host, folder: &Path) -> Result<Option<Vec<String>>, String> {
    let names = match host.try_entry_names(folder, MAX_ENTRIES + 1) {
        Ok(names) => names,
        Err(error) if is_no_folder(error.kind()) => return Ok(None),
        Err(error) => return Err(format!("cannot read {}: {error}", folder.display())),
    };
    if names.len() > MAX_ENTRIES {
        let folder = folder.display();
        return Err(format!("{folder} has more than {MAX_ENTRIES} entries: none is scanned"));
    }
    Ok(Some(names))
}

fn is_no_folder(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// Sort key with numbers as numbers: `video10` sorts after `video9`.
pub(super) fn natural_sort_key(name: &str) -> Vec<(String, u64)> {
    let (mut parts, mut remaining) = (Vec::new(), name);
    while !remaining.is_empty() {
        let text =
            remaining.find(|letter: char| letter.is_ascii_digit()).unwrap_or(remaining.len());
        let digits = remaining[text..].find(|letter: char| !letter.is_ascii_digit());
        let end = digits.map_or(remaining.len(), |digits| text + digits);
        parts
            .push((remaining[..text].to_owned(), remaining[text..end].parse().unwrap_or_default()));
        remaining = &remaining[end..];
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_names_sort_by_value() {
        let mut names = ["video10", "video9", "a", "0000:0a:00.0", "video"];
        names.sort_by_key(|name| natural_sort_key(name));
        assert_eq!(names, ["0000:0a:00.0", "a", "video", "video9", "video10"]);
    }
}
