//! Forms for issues have the keys that GitHub requires. GitHub does not offer a form without them.

use std::{collections::BTreeSet, fs};

use serde_json::Value;

use super::root;

/// The folder that GitHub reads.
const FOLDER: &str = ".github/ISSUE_TEMPLATE";

/// Every form, with its name.
fn forms() -> Vec<(String, Value)> {
    let entries = fs::read_dir(root().join(FOLDER)).expect("a folder");
    let names = entries.map(|entry| entry.expect("readable").file_name());
    let names = names.map(|name| name.into_string().expect("text"));
    let parse = |name: String| {
        let text = fs::read_to_string(root().join(FOLDER).join(&name)).expect("a text file");
        let form = serde_saphyr::from_str(&text);
        (name.clone(), form.unwrap_or_else(|error| panic!("{name}: {error}")))
    };
    // `config.yml` configures the list of forms.
    names.filter(|name| name != "config.yml").map(parse).collect()
}

#[test]
fn every_form_for_issues_has_a_name_and_fields_with_labels() {
    let forms = forms();
    assert!(forms.len() >= 3, "only {} forms", forms.len());
    for (name, form) in forms {
        let has_text =
            |value: &Value, key: &str| value[key].as_str().is_some_and(|text| !text.is_empty());
        assert!(has_text(&form, "name") && has_text(&form, "description"), "{name}");
        let fields = form["body"].as_array().unwrap_or_else(|| panic!("{name} has no body"));
        let mut ids = BTreeSet::new();
        for field in fields {
            let (kind, attributes) = (field["type"].as_str(), &field["attributes"]);
            let required_key = if kind == Some("markdown") { "value" } else { "label" };
            assert!(has_text(attributes, required_key), "{name}: {field}");
            let known_types = ["markdown", "input", "textarea", "dropdown", "checkboxes"];
            assert!(kind.is_some_and(|kind| known_types.contains(&kind)), "{name}: {field}");
            let is_new = field["id"].as_str().is_none_or(|id| ids.insert(id.to_owned()));
            assert!(is_new, "{name} has two fields of one id: {field}");
        }
        let has_input = fields.iter().any(|field| field["type"] != "markdown");
        assert!(has_input, "{name} asks for nothing");
    }
}
