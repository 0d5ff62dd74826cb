//! Candidates that are files in a folder: whoever runs the boards writes one for each.

use std::{fs::File, io::Read as _, path::Path};

use serde_json::Value;
use windlass_core::attribute::{AttributeName, AttributeValue, MAX_VALUE_CHARS};
use windlass_host::Host;

use super::find::{Candidate, DOMAIN, Found, entries};

/// A file that says more says it to someone else.
const MOST_BYTES: u64 = 64 * 1024;

/// Facts that are taken from one file. DRA takes 32 of a device, ours included.
const MOST_FACTS: usize = 16;

/// Facts that are ours to say.
const OURS: [&str; 3] = ["name", "path", "numa"];

/// The files in a folder, hidden ones left out: a `ConfigMap` keeps its versions in such folders.
pub(super) fn inside(host: &Host, folder: &Path) -> Result<Found, String> {
    let mut found = Found::default();
    host.refusal(&folder.display().to_string()).map_or(Ok(()), Err)?;
    let Some(names) = entries(host, folder)? else {
        found.remarks.push(format!("this node has no {}", folder.display()));
        return Ok(found);
    };
    for name in names.iter().filter(|name| !name.starts_with('.')) {
        let path = folder.join(name);
        match host.real(&path).filter(|target| host.path(target).is_file()) {
            Some(target) => found.candidates.push(board(host, name, &path, &target)),
            // A folder is no device, and a link that leads nowhere may be one soon.
            None if host.path(&path).is_dir() => {}
            None => found.remarks.push(format!("{} is no file", path.display())),
        }
    }
    Ok(found)
}

fn board(host: &Host, name: &str, path: &Path, target: &Path) -> Candidate {
    let (identity, origin) = (name.to_owned(), path.display().to_string());
    let mut board = Candidate { identity, origin, ..Candidate::default() };
    board.note("name", Some(name));
    board.note("path", path.to_str());
    let text = read(host, target).unwrap_or_default();
    // A file may hold anything, or nothing; only what is a list of facts is taken for one.
    if let Ok(Value::Object(facts)) = serde_saphyr::from_str::<Value>(&text) {
        board.take_facts(facts);
    }
    board
}

fn read(host: &Host, path: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(host.path(path)).ok()?.take(MOST_BYTES).read_to_string(&mut text).ok()?;
    Some(text)
}

// === impl Candidate ===

impl Candidate {
    fn take_facts(&mut self, facts: serde_json::Map<String, Value>) {
        let numa = facts.get("numa").and_then(Value::as_u64);
        self.place.numa_node = numa.and_then(|node| node.try_into().ok());
        self.tell_numa();
        let others = facts.into_iter().filter(|(name, _)| !OURS.contains(&name.as_str()));
        for (name, value) in others.take(MOST_FACTS) {
            let name = AttributeName::given(DOMAIN, &name);
            self.attributes.extend(name.zip(attribute(value)));
        }
        if let Some(endpoint) = self.text("endpoint").map(str::to_owned) {
            let (host, port) = super::endpoints::split(&endpoint);
            self.note("host", Some(host));
            self.note("port", port);
        }
    }
}

/// A fact that is one thing. A text that is too long would be another one if it were cut.
fn attribute(value: Value) -> Option<AttributeValue> {
    match value {
        Value::String(text) if text.chars().count() <= MAX_VALUE_CHARS => {
            Some(AttributeValue::String(text))
        }
        Value::Bool(truth) => Some(AttributeValue::Bool(truth)),
        Value::Number(number) => number
            .as_i64()
            .map(AttributeValue::Int)
            .or_else(|| Some(AttributeValue::string(number.to_string()))),
        _ => None,
    }
}
