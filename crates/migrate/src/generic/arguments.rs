//! The plugin's flags in a manifest: `--device` with YAML as its value, and `--domain`.

use windlass_config::{
    Diagnostic,
    document::{Diagnostics, YamlNode},
};

use crate::manifest;

/// Position of a flag's value.
enum Value {
    /// In the argument itself, after `=`.
    Inline(String),
    /// The next argument.
    Next,
}

/// True if a container of the manifest has `--device` among its arguments.
pub(crate) fn has_arguments(root: &YamlNode) -> bool {
    arguments(root).any(|argument| flag(argument, "device").is_some())
}

/// Returns the domain, and each device as a document.
pub(super) fn read(root: &YamlNode, diagnostics: &mut Diagnostics) -> (String, Vec<YamlNode>) {
    let mut domain = super::DOMAIN.to_owned();
    let mut devices = Vec::new();
    let mut arguments = arguments(root);
    while let Some(argument) = arguments.next() {
        if let Some(value) = flag(argument, "device") {
            let embedded = match value {
                Value::Inline(text) => Some((argument, text)),
                Value::Next => arguments.next().and_then(|next| Some((next, next.text()?))),
            };
            let Some((node, text)) = embedded else { continue };
            match manifest::parse_embedded(node, &text) {
                Ok(device) => devices.push(device),
                Err(Diagnostic { line, text }) => diagnostics.error(line, text),
            }
        } else if let Some(value) = flag(argument, "domain") {
            let text = match value {
                Value::Inline(text) => Some(text),
                Value::Next => arguments.next().and_then(YamlNode::text),
            };
            domain = text.unwrap_or(domain);
        }
    }
    (domain, devices)
}

/// Arguments of a workload's containers, in their order.
fn arguments(root: &YamlNode) -> impl Iterator<Item = &YamlNode> {
    manifest::containers(root).iter().flat_map(lists).flatten().flat_map(YamlNode::items)
}

fn lists(container: &YamlNode) -> [Option<&YamlNode>; 2] {
    [container.child("command"), container.child("args")]
}

/// Value of a flag; `None` for another argument.
fn flag(argument: &YamlNode, name: &str) -> Option<Value> {
    let text = argument.text()?;
    let suffix = text.strip_prefix("--")?.strip_prefix(name)?;
    match suffix.strip_prefix('=') {
        Some(value) => Some(Value::Inline(value.to_owned())),
        None => suffix.is_empty().then_some(Value::Next),
    }
}
