//! What a container runtime makes of CDI names: it reads the documents and gathers the edits.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};
use serde_json::Value;

/// The edits that a container gets.
#[derive(Debug, Default)]
pub(super) struct Edits {
    pub(super) env: Vec<String>,
    pub(super) device_nodes: Vec<String>,
}

/// Resolves qualified names, `vendor/class=device`, against the documents of a CDI directory.
pub(super) fn resolve(dir: &Path, names: &[String]) -> Result<Edits> {
    let documents = documents(dir)?;
    let mut edits = Edits::default();
    for name in names {
        let (kind, device) =
            name.split_once('=').with_context(|| format!("{name} is no CDI name"))?;
        let document = documents.iter().find(|document| document["kind"] == kind);
        let document = document.with_context(|| format!("no CDI document defines {kind}"))?;
        let found = items(&document["devices"]).find(|entry| entry["name"] == device);
        let found = found.with_context(|| format!("the document of {kind} has no {device}"))?;
        edits.add(&found["containerEdits"]);
        edits.add(&document["containerEdits"]);
    }
    Ok(edits)
}

fn documents(dir: &Path) -> Result<Vec<Value>> {
    let mut documents = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            let text =
                fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            let document = serde_json::from_slice(&text);
            documents.push(document.with_context(|| format!("{} does not parse", path.display()))?);
        }
    }
    Ok(documents)
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

// === impl Edits ===

impl Edits {
    fn add(&mut self, edits: &Value) {
        let new = |known: &Vec<String>, text: Option<&str>| {
            text.filter(|text| !known.iter().any(|known| known == text)).map(str::to_owned)
        };
        for value in items(&edits["env"]) {
            self.env.extend(new(&self.env, value.as_str()));
        }
        for node in items(&edits["deviceNodes"]) {
            self.device_nodes.extend(new(&self.device_nodes, node["path"].as_str()));
        }
    }
}
