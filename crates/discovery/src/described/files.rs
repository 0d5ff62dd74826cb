//! Files in a folder as candidates: external software writes one per board.

use std::{fs::File, io::Read as _, path::Path};

use serde_json::Value;
use windlass_core::attribute::{AttributeName, AttributeValue, MAX_VALUE_CHARS};
use windlass_host::Host;

use super::find::{Candidate, DOMAIN, FindResult, entries};

/// Maximum number of bytes read from a file. Descriptions of boards are far shorter.
const MAX_BYTES: u64 = 64 * 1024;

/// Limit on attributes from one file. DRA permits 32 per device, including those that Windlass adds.
const MAX_ATTRIBUTES: usize = 16;

/// Keys of a file that do not become attributes: Windlass sets `name` and `path`, and `numa` is the NUMA node.
const RESERVED_KEYS: [&str; 3] = ["name", "path", "numa"];

/// Files in a folder. Hidden ones are skipped: a mounted `ConfigMap` keeps its versions there.
pub(super) fn candidates(host: &Host, folder: &Path) -> Result<FindResult, String> {
    let mut result = FindResult::default();
    host.folder_error(&folder.display().to_string()).map_or(Ok(()), Err)?;
    let Some(names) = entries(host, folder)? else {
        result.notes.push(format!("this node has no {}", folder.display()));
        return Ok(result);
    };
    for name in names.iter().filter(|name| !name.starts_with('.')) {
        let path = folder.join(name);
        match host.resolve_link(&path).filter(|target| host.path(target).is_file()) {
            Some(target) => result.candidates.push(candidate(host, name, &path, &target)),
            // A folder is no board. The other case, a dangling link, gets a note: its target may appear later.
            None if host.path(&path).is_dir() => {}
            None => result.notes.push(format!("{} is not a file", path.display())),
        }
    }
    Ok(result)
}

fn candidate(host: &Host, name: &str, path: &Path, target: &Path) -> Candidate {
    let (identity, origin) = (name.to_owned(), path.display().to_string());
    let mut candidate = Candidate { identity, origin, ..Candidate::default() };
    candidate.add_text("name", Some(name));
    candidate.add_text("path", path.to_str());
    let text = read(host, target).unwrap_or_default();
    // A file may have any content; only a mapping gives attributes.
    if let Ok(Value::Object(content)) = serde_saphyr::from_str::<Value>(&text) {
        candidate.add_content(content);
    }
    candidate
}

fn read(host: &Host, path: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(host.path(path)).ok()?.take(MAX_BYTES).read_to_string(&mut text).ok()?;
    Some(text)
}

// === impl Candidate ===

impl Candidate {
    fn add_content(&mut self, content: serde_json::Map<String, Value>) {
        let numa = content.get("numa").and_then(Value::as_u64);
        self.location.numa_node = numa.and_then(|node| node.try_into().ok());
        self.add_numa_node();
        let attribute_entries =
            content.into_iter().filter(|(name, _)| !RESERVED_KEYS.contains(&name.as_str()));
        for (name, value) in attribute_entries.take(MAX_ATTRIBUTES) {
            let name = AttributeName::try_new(DOMAIN, &name);
            self.attributes.extend(name.zip(attribute(value)));
        }
        if let Some(endpoint) = self.text("endpoint").map(str::to_owned) {
            let (host, port) = super::endpoints::split_host_port(&endpoint);
            self.add_text("host", Some(host));
            self.add_text("port", port);
        }
    }
}

/// A scalar as an attribute. Overlong text is dropped, since truncated text may mean something else.
fn attribute(value: Value) -> Option<AttributeValue> {
    match value {
        Value::String(text) if text.chars().count() <= MAX_VALUE_CHARS => {
            Some(AttributeValue::String(text))
        }
        Value::Bool(flag) => Some(AttributeValue::Bool(flag)),
        Value::Number(number) => number
            .as_i64()
            .map(AttributeValue::Int)
            .or_else(|| Some(AttributeValue::string(number.to_string()))),
        _ => None,
    }
}
