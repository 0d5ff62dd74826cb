//! The chart's files, without Helm: its version, its copies of manifests, and a value for every option.

use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
};

use serde_json::Value;
use windlass_config::schema;

use super::{CHART, DEPLOY, file, folders, yaml};

/// Manifests without a copy in the chart: a template, whose content depends on values, and a test of rules.
const WITHOUT_COPY: [&str; 2] = ["options/pods/networkpolicy.yaml", "monitoring/rules.test.yaml"];

/// Manifests of the options, of the cluster half and of monitoring, as paths below `deploy/`.
fn manifests() -> BTreeSet<PathBuf> {
    let files = ["options", "scheduler", "monitoring"].into_iter().flat_map(|folder| {
        let files = below(&Path::new(DEPLOY).join(folder)).into_iter();
        files.map(move |file| Path::new(folder).join(file))
    });
    let is_copied = |path: &PathBuf| {
        !path.ends_with("kustomization.yaml")
            && !WITHOUT_COPY.iter().any(|name| path == Path::new(name))
    };
    files.filter(is_copied).collect()
}

/// Files below a folder, as paths below it.
fn below(folder: &Path) -> BTreeSet<PathBuf> {
    let mut files = BTreeSet::new();
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.expect("readable").path();
        let name = PathBuf::from(path.file_name().expect("a name"));
        if path.is_dir() {
            files.extend(below(&path).into_iter().map(|nested_path| name.join(nested_path)));
        } else {
            files.insert(name);
        }
    }
    files
}

#[test]
fn the_chart_and_its_image_have_the_version_of_the_program() {
    let chart = yaml(&file("Chart.yaml"));
    for key in ["version", "appVersion"] {
        assert_eq!(chart[key], env!("CARGO_PKG_VERSION"), "{key} in Chart.yaml");
    }
}

/// The chart has copies, because tools that fetch a chart may leave links out, and would then install a chart without
/// rights. `WINDLASS_BLESS=1` updates the copies.
#[test]
fn the_manifests_in_the_chart_are_those_of_kustomize() {
    let copies = Path::new(CHART).join("objects");
    if env::var_os("WINDLASS_BLESS").is_some() {
        fs::remove_dir_all(&copies).expect("the copies are removed");
        for path in manifests() {
            let copy = copies.join(&path);
            fs::create_dir_all(copy.parent().expect("a folder")).expect("a folder is made");
            fs::copy(Path::new(DEPLOY).join(&path), copy).expect("a manifest is copied");
        }
    }
    assert_eq!(below(&copies), manifests(), "WINDLASS_BLESS=1 copies the manifests");
    for path in manifests() {
        let read = |folder: &Path| fs::read_to_string(folder.join(&path)).expect("a text file");
        let is_same = read(&copies) == read(Path::new(DEPLOY));
        assert!(is_same, "WINDLASS_BLESS=1 copies {} into the chart", path.display());
    }
}

/// Names of options in comments: words of parentheses that begin with `option`.
fn named_options(values: &str) -> BTreeSet<&str> {
    let parentheses = values.split("(option").skip(1).filter_map(|rest| rest.split(')').next());
    parentheses.flat_map(|names| names.split([' ', ',', '\n', '#'])).collect()
}

#[test]
fn every_option_has_a_value_that_comment_and_page_name() {
    let text = file("values.yaml");
    let (values, names) = (yaml(&text), named_options(&text));
    let page = fs::read_to_string(Path::new(DEPLOY).join("../docs/install.md")).expect("a page");
    for option in folders("options") {
        assert!(names.contains(option.as_str()), "values.yaml does not name the option {option}");
        let row = page.lines().find_map(|line| line.strip_prefix(&format!("| `{option}` | ")));
        let cell = row.and_then(|row| row.split('|').next()).expect("a row in docs/install.md");
        if cell.trim() == "the same" {
            continue;
        }
        let code_spans = cell.split('`').skip(1).step_by(2);
        let paths: Vec<_> = code_spans.filter_map(|code| code.split(':').next()).collect();
        assert!(!paths.is_empty(), "docs/install.md shows no value of {option}");
        for path in paths {
            let pointer = format!("/{}", path.replace('.', "/"));
            assert!(values.pointer(&pointer).is_some(), "{option}: values.yaml has no {path}");
        }
    }
}

#[test]
fn every_value_has_a_comment_and_a_type() {
    let text = file("values.yaml");
    let schema: Value = serde_json::from_str(&file("values.schema.json")).expect("JSON");
    check_keys(&yaml(&text), &schema, &schema, "values");
    let lines: Vec<_> = text.lines().collect();
    for pair in lines.windows(2) {
        let is_key = pair[1].starts_with(|letter: char| letter.is_ascii_lowercase());
        assert!(!is_key || pair[0].starts_with('#'), "{:?} has no comment", pair[1]);
    }
}

/// Fails unless the schema lists exactly the keys of the values, wherever it lists keys.
fn check_keys(values: &Value, schema: &Value, root: &Value, path: &str) {
    let target = schema["$ref"].as_str().and_then(|target| root.pointer(&target[1..]));
    let schema = target.unwrap_or(schema);
    let Some(properties) = schema["properties"].as_object() else { return };
    assert_eq!(schema["additionalProperties"], false, "{path} may have any key");
    let Some(keys) = values.as_object().filter(|keys| !keys.is_empty()) else { return };
    // Helm passes `global` to subcharts.
    let known_keys: BTreeSet<_> = properties.keys().filter(|key| *key != "global").collect();
    assert_eq!(keys.keys().collect::<BTreeSet<_>>(), known_keys, "{path}");
    for (key, value) in keys {
        check_keys(value, &properties[key], root, &format!("{path}.{key}"));
    }
}

#[test]
fn the_chart_lists_the_keys_of_the_agents_configuration() {
    let text = file("templates/_config.tpl");
    let definition = text.split("define \"windlass.configKeys\" -}}").nth(1).expect("a list");
    let listed: BTreeSet<_> =
        definition.split("{{-").next().expect("the words of the list").split_whitespace().collect();
    let schema = schema();
    let keys = schema["properties"].as_object().expect("keys");
    assert_eq!(listed, keys.keys().map(String::as_str).collect());
}

#[test]
fn every_overlay_has_the_values_of_the_same_objects() {
    for overlay in folders("overlays") {
        let path = Path::new(DEPLOY).join("overlays").join(&overlay).join("values.yaml");
        assert!(path.is_file(), "deploy/overlays/{overlay} lacks values.yaml");
    }
}
