//! The configuration file: strict reading of YAML or JSON, with the line of every mistake.

mod check;

use std::path::Path;

use schemars::{Schema, transform::transform_subschemas};
use serde_json::{Value, json};

use crate::{
    Config, HostPaths, Policy,
    delivery::Delivery,
    document::{self, Diagnostic, UnknownKeys, YamlNode},
    families::Families,
    mistake::{ConfigError, InvalidConfig},
    shipped::{self, DeviceProfile},
    source::SourceRule,
};

/// The structs that share the top level of the file.
type Parts = (Config, HostPaths, Policy, Delivery, Families);

/// The JSON schema of the file.
pub fn schema() -> Value {
    let mut schema = schemars::schema_for!(Config);
    allow_absent_keys(&mut schema);
    schema.to_value()
}

/// Allows null for an optional key, unless its value is a list. Removes the defaults of lists and maps: the default of
/// a map repeats the defaults of its keys.
fn allow_absent_keys(schema: &mut Schema) {
    // The keys of a source are in the alternative to its profile.
    let required = schema.get("required").or_else(|| schema.pointer("/anyOf/1/required")).cloned();
    let required = required.unwrap_or_default();
    let is_required =
        |key: &str| required.as_array().is_some_and(|keys| keys.contains(&json!(key)));
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        for (key, property) in properties.iter_mut() {
            let Some(property) = property.as_object_mut() else { continue };
            property.retain(|key, value| {
                key != "default"
                    || !matches!(value, Value::Null | Value::Array(_) | Value::Object(_))
            });
            if !is_required(key) {
                allow_null(property);
            }
        }
    }
    transform_subschemas(&mut allow_absent_keys, schema);
}

fn allow_null(property: &mut serde_json::Map<String, Value>) {
    if let Some(kind) = property.get_mut("type") {
        if kind.is_string() && kind != "array" {
            *kind = json!([kind, "null"]);
            if let Some(Value::Array(words)) = property.get_mut("enum") {
                words.push(Value::Null);
            }
        }
    } else if let Some(reference) = property.remove("$ref") {
        property.insert("anyOf".to_owned(), json!([{ "$ref": reference }, { "type": "null" }]));
    } else if let Some(Value::Array(kinds)) = property.get_mut("anyOf") {
        kinds.push(json!({ "type": "null" }));
    } else if let Some(Value::Array(kinds)) = property.get_mut("oneOf") {
        kinds.push(json!({ "type": "null" }));
    }
}

/// A configuration as a file: all keys that differ from their defaults.
pub fn to_yaml(config: &Config) -> String {
    let mut root = document::to_tree(config);
    root.remove_equal(&document::to_tree(&Config::default()));
    serde_saphyr::to_string(&root).expect("every tree has a form in YAML")
}

// === impl Config ===

impl Config {
    /// Applies a document to the defaults; `path` appears in messages only.
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let invalid = |diagnostics| InvalidConfig::new(path, diagnostics);
        let root = document::parse(text).map_err(|error| invalid(vec![error]))?;
        Ok(Self::read(&root).map_err(invalid)?)
    }

    /// Applies a parsed document to the defaults.
    pub fn read(root: &YamlNode) -> Result<Self, Vec<Diagnostic>> {
        let mut root = shipped::with_profiles(root.clone());
        let reading = document::read::<Parts>(&root, UnknownKeys::Denied);
        let mut errors = reading.errors;
        let (config, places, policy, delivery, families) = reading.value.unwrap_or_default();
        let policy = Policy { delivery, families, ..policy };
        let config = Self { places, policy, ..config };
        root.remove_items(&reading.omitted);
        errors.extend(check::validate(&config, &root, &errors));
        if errors.is_empty() { Ok(config) } else { Err(errors) }
    }

    /// Top-level keys of the file whose values differ, in the order of the file.
    pub fn changed_keys(&self, other: &Self) -> Vec<String> {
        let mut changed = document::to_tree(self);
        changed.remove_equal(&document::to_tree(other));
        changed.keys().map(str::to_owned).collect()
    }
}

// === impl DeviceProfile ===

impl DeviceProfile {
    /// The source of an entry that has the profile and no other key.
    pub fn rule(&self) -> SourceRule {
        let entry = format!("sources: [{{profile: {}}}]", self.name);
        let config = Config::parse(Path::new(self.name), &entry);
        let mut sources = config.expect("every profile is valid, see the tests").policy.sources;
        sources.pop().expect("the entry is a source")
    }
}

#[cfg(test)]
mod tests;
