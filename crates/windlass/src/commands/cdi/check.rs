//! `windlass cdi check`: mistakes in documents, and missing files of the host.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use anyhow::{Result, ensure};
use windlass_core::cdi::{ContainerEdits, Spec, check};
use windlass_host::Host;

use super::{
    counted,
    documents::{CdiDocument, read},
};
use crate::{
    cli::{CheckArgs, paths_or_default},
    screen::{pluralized, print_line},
};

/// Mount options that make the source a path of the host.
const BINDS: [&str; 2] = ["bind", "rbind"];

pub(super) fn run(args: CheckArgs) -> Result<()> {
    let documents = read(&paths_or_default(args.paths))?;
    let host = Host::new(args.host_root, args.host_root_on_node);
    let mut names = DefinedNames::default();
    let mut mistakes = 0;
    for document in &documents {
        let path = document.path.display();
        let document_mistakes = mistakes_of(document, &host, &mut names);
        match &document.content {
            Ok(spec) if document_mistakes.is_empty() => {
                print_line(format!("{path}: valid, {}", pluralized(spec.devices.len(), "device")))?;
            }
            _ => document_mistakes
                .iter()
                .try_for_each(|mistake| print_line(format!("{path}: {mistake}")))?,
        }
        mistakes += document_mistakes.len();
    }
    let documents = counted(documents.len(), "document");
    ensure!(mistakes == 0, "{} in {documents}", pluralized(mistakes, "mistake"));
    Ok(print_line(format!("no mistake in {documents}"))?)
}

fn mistakes_of(document: &CdiDocument, host: &Host, names: &mut DefinedNames) -> Vec<String> {
    match &document.content {
        Err(error) => vec![error.clone()],
        Ok(spec) => {
            let format_mistakes = check(spec).into_iter().map(|mistake| mistake.to_string());
            format_mistakes
                .chain(missing_files(spec, host))
                .chain(names.duplicates(&document.path, spec))
                .collect()
        }
    }
}

/// Files of the host that a document names and the host lacks.
fn missing_files(spec: &Spec, host: &Host) -> Vec<String> {
    let devices = spec.devices.iter().map(|device| (device.name.as_str(), &device.container_edits));
    let named_edits = devices.chain([("every device", &spec.container_edits)]);
    let missing_of = |(name, edits): (&str, &ContainerEdits)| {
        let is_absent =
            |path: &PathBuf| path.has_root() && !host.exists(host.runtime_to_host_path(path));
        let absent_paths = host_paths(edits).into_iter().filter(is_absent);
        let text = |path: PathBuf| format!("{name}: the host has no {}", path.display());
        absent_paths.map(text).collect::<Vec<_>>()
    };
    named_edits.flat_map(missing_of).collect()
}

fn host_paths(edits: &ContainerEdits) -> Vec<PathBuf> {
    let nodes = edits.device_nodes.iter();
    let nodes = nodes.map(|node| node.host_path.as_ref().unwrap_or(&node.path));
    let binds = edits
        .mounts
        .iter()
        .filter(|mount| mount.options.iter().any(|option| BINDS.contains(&option.as_str())));
    let mounts = binds.map(|mount| &mount.host_path);
    nodes.chain(mounts).chain(edits.hooks.iter().map(|hook| &hook.path)).cloned().collect()
}

/// Document that defines each name, by folder and name. A runtime does not resolve a name that two documents define.
#[derive(Default)]
struct DefinedNames(BTreeMap<(PathBuf, String), PathBuf>);

// === impl DefinedNames ===

impl DefinedNames {
    /// Names of the document that another document in its folder defines too.
    fn duplicates(&mut self, path: &Path, spec: &Spec) -> Vec<String> {
        let folder = path.parent().unwrap_or(Path::new(""));
        let mut duplicates = Vec::new();
        for device in &spec.devices {
            let name = format!("{}={}", spec.kind, device.name);
            let key = (folder.to_owned(), name);
            match self.0.get(&key) {
                Some(other) if other != path => {
                    duplicates.push(format!("{} is in {} too: remove one", key.1, other.display()));
                }
                Some(_) => {}
                None => drop(self.0.insert(key, path.to_owned())),
            }
        }
        duplicates
    }
}
