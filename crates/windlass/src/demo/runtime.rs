//! CDI resolution as in a container runtime: reads documents and collects edits.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

#[derive(Debug, Default)]
pub(super) struct Edits {
    pub(super) env: Vec<String>,
    pub(super) device_nodes: Vec<String>,
    /// Mounted host files; a file may have several paths in the container.
    mounted: BTreeSet<String>,
}

/// Resolves qualified names, `vendor/class=device`, in the documents of a CDI folder.
pub(super) fn resolve(dir: &Path, names: &[String]) -> Result<Edits> {
    let documents = documents(dir)?;
    let mut edits = Edits::default();
    let mut common = Edits::default();
    for name in names {
        let (kind, device) =
            name.split_once('=').with_context(|| format!("{name} is not a CDI name"))?;
        let kind_documents: Vec<_> =
            documents.iter().filter(|document| document["kind"] == kind).collect();
        ensure!(!kind_documents.is_empty(), "no CDI document defines {kind}");
        // Each claim has its own document of the kind.
        let entry = kind_documents.into_iter().find_map(|document| {
            let entry = items(&document["devices"]).find(|entry| entry["name"] == device)?;
            Some((document, entry))
        });
        let (document, entry) =
            entry.with_context(|| format!("no document of {kind} has {device}"))?;
        edits.add(&entry["containerEdits"]);
        common.add(&document["containerEdits"]);
    }
    // Device edits come first, then the edits for all devices.
    edits.env.extend(common.env);
    edits.device_nodes.extend(common.device_nodes);
    edits.mounted.extend(common.mounted);
    Ok(edits)
}

/// File names of the CDI documents of claims.
pub(super) fn claim_documents(dir: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    Ok(names.filter(|name| name.contains("-claim-")).collect())
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
    /// Number of files by type.
    pub(super) fn files(&self) -> BTreeMap<&'static str, usize> {
        let mut files = BTreeMap::new();
        for path in &self.mounted {
            *files.entry(file_type(path)).or_default() += 1;
        }
        files
    }

    fn add(&mut self, edits: &Value) {
        let if_new = |existing: &Vec<String>, text: Option<&str>| {
            text.filter(|text| !existing.iter().any(|value| value == text)).map(str::to_owned)
        };
        for value in items(&edits["env"]) {
            self.env.extend(if_new(&self.env, value.as_str()));
        }
        for node in items(&edits["deviceNodes"]) {
            self.device_nodes.extend(if_new(&self.device_nodes, node["path"].as_str()));
        }
        let sources = items(&edits["mounts"]).filter_map(|mount| mount["hostPath"].as_str());
        self.mounted.extend(sources.map(str::to_owned));
    }
}

/// Type of a mounted file, by its path.
fn file_type(path: &str) -> &'static str {
    if path.contains(".so") {
        "library"
    } else if path.contains("/bin/") || path.contains("/sbin/") {
        "program"
    } else {
        "other file"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_devices_own_nodes_come_first_in_the_order_of_the_names() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let document = r#"{"kind": "v/c", "containerEdits": {"deviceNodes": [{"path": "/dev/ctl"}]},
            "devices": [{"name": "a", "containerEdits": {"deviceNodes": [{"path": "/dev/a"}]}},
                        {"name": "b", "containerEdits": {"deviceNodes": [{"path": "/dev/b"}], "mounts": [
                            {"hostPath": "/l/a.so.1", "containerPath": "/l/a.so.1"},
                            {"hostPath": "/l/a.so.1", "containerPath": "/l/a.so"},
                            {"hostPath": "/usr/bin/b", "containerPath": "/usr/bin/b"}]}}]}"#;
        fs::write(folder.path().join("v-c.json"), document).expect("the folder is writable");
        let resolve_names = |names: [&str; 2]| resolve(folder.path(), &names.map(str::to_owned));
        let edits = resolve_names(["v/c=b", "v/c=a"]).expect("the document has both devices");
        assert_eq!(edits.device_nodes, ["/dev/b", "/dev/a", "/dev/ctl"]);
        assert_eq!(edits.files(), [("library", 1), ("program", 1)].into());
        let error = resolve_names(["v/c=a", "v/c=z"]).expect_err("the document has no device z");
        assert_eq!(error.to_string(), "no document of v/c has z");
    }
}
