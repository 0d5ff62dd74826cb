//! Configurations within manifests: in a `ConfigMap`, or in the arguments of a container.
//!
//! The parser gets an embedded text after as many empty lines as the file has above it, so that diagnostics have the
//! file's line numbers.

use windlass_config::{
    Diagnostic,
    document::{self, YamlNode},
};

/// Line that separates the documents of a file.
const SEPARATOR: &str = "---";

/// Maximum number of documents in a file, which bounds the work of parsing.
const MAX_DOCUMENTS: usize = 100;

/// Finds the only configuration in a file: the file itself, or the configuration in a manifest.
pub(crate) fn find_configuration(
    text: &str,
    is_known: impl Fn(&YamlNode) -> bool,
) -> Result<YamlNode, Vec<Diagnostic>> {
    let documents = documents(text)?;
    let is_manifest = |root: &YamlNode| kind(root).is_some();
    match <[YamlNode; 1]>::try_from(documents) {
        Ok([root]) if !is_manifest(&root) => Ok(root),
        Ok(root) => only_one(configurations(root.into(), &is_known)?),
        Err(documents) if documents.iter().any(is_manifest) => {
            only_one(configurations(documents, &is_known)?)
        }
        Err(documents) => {
            let line = documents.get(1).map_or(1, |second| second.line);
            Err(vec![Diagnostic::new(line, "a second document: a configuration is one document")])
        }
    }
}

/// The kind of a Kubernetes object.
fn kind(root: &YamlNode) -> Option<String> {
    root.child("apiVersion")?;
    root.child("kind")?.text()
}

pub(super) fn containers(root: &YamlNode) -> &[YamlNode] {
    pod(root).and_then(|pod| pod.child("containers")).map_or(&[], YamlNode::items)
}

/// Paths of a workload's `hostPath` volumes, by volume name.
pub(super) fn host_paths(root: &YamlNode) -> Vec<(String, String)> {
    let volumes = pod(root).and_then(|pod| pod.child("volumes")).map_or(&[][..], YamlNode::items);
    let volume_path = |volume: &YamlNode| {
        let path = volume.child("hostPath")?.child("path")?.text()?;
        Some((volume.child("name")?.text()?, path))
    };
    volumes.iter().filter_map(volume_path).collect()
}

/// The pod template of a workload.
fn pod(root: &YamlNode) -> Option<&YamlNode> {
    let spec = root.child("spec")?;
    match kind(root)?.as_str() {
        "DaemonSet" | "Deployment" => spec.child("template")?.child("spec"),
        "Pod" => Some(spec),
        _ => None,
    }
}

/// Parses a text that a document embeds.
pub(super) fn parse_embedded(node: &YamlNode, text: &str) -> Result<YamlNode, Diagnostic> {
    document::parse(&format!("{}{text}", "\n".repeat(lines_above(node))))
}

/// Number of lines above an embedded text. A block scalar begins on the line below its indicator.
fn lines_above(node: &YamlNode) -> usize {
    let lines = if node.is_block() { node.line } else { node.line.saturating_sub(1) };
    usize::try_from(lines).unwrap_or_default()
}

fn documents(text: &str) -> Result<Vec<YamlNode>, Vec<Diagnostic>> {
    let mut documents = vec![String::new()];
    for (number, line) in text.lines().enumerate() {
        if line.trim_end() == SEPARATOR {
            documents.push("\n".repeat(number));
        }
        let content = if line.trim_end() == SEPARATOR { "" } else { line };
        let last = documents.last_mut().expect("the vector begins with one document");
        last.push_str(content);
        last.push('\n');
        if documents.len() > MAX_DOCUMENTS {
            return Err(vec![Diagnostic::new(1, "too many documents in one file")]);
        }
    }
    documents.retain(|document| !document::is_empty_document(document));
    if documents.is_empty() {
        return Err(vec![document::empty_document_error(text)]);
    }
    documents.iter().map(|text| document::parse(text).map_err(|error| vec![error])).collect()
}

/// All configurations in the documents, with their names.
fn configurations(
    documents: Vec<YamlNode>,
    is_known: impl Fn(&YamlNode) -> bool,
) -> Result<Vec<(String, YamlNode)>, Vec<Diagnostic>> {
    let mut found = Vec::new();
    for root in documents {
        match kind(&root).as_deref() {
            Some("ConfigMap") => found.extend(config_map_files(&root, &is_known)?),
            Some(kind) if is_known(&root) => {
                let kind = kind.to_owned();
                found.push((kind, root));
            }
            _ => {}
        }
    }
    Ok(found)
}

/// The configurations among the files of a `ConfigMap`. A single file is always a configuration, so that its
/// mistakes are reported.
fn config_map_files(
    map: &YamlNode,
    is_known: impl Fn(&YamlNode) -> bool,
) -> Result<Vec<(String, YamlNode)>, Vec<Diagnostic>> {
    let data = map.child("data");
    let files: Vec<_> = data.iter().flat_map(|data| data.entries()).collect();
    if let [(name, node)] = files[..] {
        let text = node.text().unwrap_or_default();
        let root = parse_embedded(node, &text).map_err(|error| vec![error])?;
        return Ok(vec![(name.to_owned(), root)]);
    }
    let known_file = |(name, node): (&str, &YamlNode)| {
        let root = parse_embedded(node, &node.text()?).ok()?;
        is_known(&root).then(|| (name.to_owned(), root))
    };
    Ok(files.into_iter().filter_map(known_file).collect())
}

fn only_one(mut found: Vec<(String, YamlNode)>) -> Result<YamlNode, Vec<Diagnostic>> {
    let names: Vec<_> = found.iter().map(|(name, _)| name.as_str()).collect();
    let problem = match names[..] {
        [_] => return Ok(found.remove(0).1),
        [] => "this manifest has no known configuration: give the plugin's own file, its \
               ConfigMap, or the manifest that has the configuration in its arguments"
            .to_owned(),
        _ => {
            let names = names.join(", ");
            format!(
                "several configurations are in this file ({names}): write the intended one into a \
                     separate file"
            )
        }
    };
    Err(vec![Diagnostic::new(found.first().map_or(1, |(_, root)| root.line), problem)])
}
