//! Documentation matches the program: configurations are accepted, metrics exist, demo transcripts are current.

mod attributes;
mod book;
mod commands;
mod events;
mod forms;
mod labels;
mod pages;
mod troubleshooting;

use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
};

use crate::program::{run, text};
use serde_json::Value;
use windlass_config::{Config, schema};
use windlass_pipeline::{Fleet, Pipeline};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn page(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Table of contents of the site, which is not a page.
const CONTENTS: &str = "docs/SUMMARY.md";

/// Every page of the documentation, with its name.
fn pages() -> Vec<(String, String)> {
    let mut names = vec!["README.md".to_owned(), "README.zh-CN.md".to_owned()];
    for folder in ["docs", "docs/devices", "docs/guides"] {
        let entries = fs::read_dir(root().join(folder)).expect("a folder");
        let files = entries.map(|entry| entry.expect("readable").file_name());
        let files = files.map(|name| name.into_string().expect("text"));
        let page_names = files
            .filter(|name| Path::new(name).extension().is_some_and(|extension| extension == "md"));
        names.extend(page_names.map(|name| format!("{folder}/{name}")));
    }
    names.retain(|name| name != CONTENTS);
    names.sort();
    names.into_iter().map(|name| (name.clone(), page(&name))).collect()
}

/// YAML blocks of a page with their first line number, without list indentation.
fn yaml_blocks(page: &str) -> Vec<(usize, String)> {
    let mut blocks = Vec::new();
    let mut lines = page.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        if line.trim() == "```yaml" {
            let margin = line.len() - line.trim_start().len();
            let block =
                lines.by_ref().map(|(_, line)| line).take_while(|line| line.trim() != "```");
            let block: Vec<_> = block.map(|line| line.get(margin..).unwrap_or_default()).collect();
            blocks.push((number + 2, block.join("\n") + "\n"));
        }
    }
    blocks
}

/// Configuration that an example is, or is a part of. `None` for other YAML.
fn configuration(example: &str) -> Option<String> {
    let document: Value = serde_saphyr::from_str(example).unwrap_or_else(|error| panic!("{error}"));
    if document.is_array() {
        return Some(format!("sources:\n{example}"));
    }
    let keys: Vec<_> = document.as_object().expect("keys").keys().map(String::as_str).collect();
    let schema = schema();
    if keys.iter().all(|key| schema["properties"].get(*key).is_some()) {
        return Some(example.to_owned());
    }
    let source_keys = ["give", "prepare", "probe", "release", "sharing", "unit"];
    let source = "sources:\n- name: example\n  resource: example.com/it\n  find: {nodes: [/dev/example*, /dev/other*]}\n";
    let margin = first_margin(example);
    let lines = example.lines().map(|line| line.strip_prefix(margin).unwrap_or(line));
    let indented: Vec<_> = lines.map(|line| format!("  {line}")).collect();
    let indented = indented.join("\n");
    keys.iter().all(|key| source_keys.contains(key)).then(|| format!("{source}{indented}\n"))
}

/// Indentation of an example's first line.
fn first_margin(example: &str) -> &str {
    &example[..example.len() - example.trim_start_matches(' ').len()]
}

/// The schema that the program embeds.
const SCHEMA: &str = "crates/windlass/src/commands/config/schema.json";

/// `WINDLASS_BLESS=1` rewrites the file.
#[test]
fn the_schema_that_the_program_prints_is_current() {
    let current_schema = serde_json::to_string_pretty(&schema()).expect("JSON") + "\n";
    if env::var_os("WINDLASS_BLESS").is_some() {
        fs::write(root().join(SCHEMA), &current_schema).expect("the schema is written");
    }
    assert!(current_schema == page(SCHEMA), "WINDLASS_BLESS=1 rewrites {SCHEMA}");
}

#[test]
fn every_configuration_in_the_documentation_is_accepted() {
    let (mut accepted_count, mut other_examples) = (0, Vec::new());
    for (name, page) in pages() {
        for (line, example) in yaml_blocks(&page) {
            match configuration(&example) {
                Some(config) => {
                    let result = Config::parse(Path::new(&name), &config);
                    result.unwrap_or_else(|error| {
                        panic!("the example at line {line}: {error}\n{config}")
                    });
                    accepted_count += 1;
                }
                None if is_pipeline_file(&example) => {}
                None => other_examples.push(format!("{name}:{line}")),
            }
        }
    }
    assert!(
        accepted_count >= 30,
        "only {accepted_count} are configurations; not {other_examples:#?}"
    );
    assert!(other_examples.len() <= 12, "not recognised as configurations: {other_examples:#?}");
}

/// True for a file of a pipeline or of boards.
fn is_pipeline_file(example: &str) -> bool {
    let path = Path::new("example.yaml");
    Pipeline::parse(path, example).is_ok() || Fleet::parse(path, example).is_ok()
}

/// Crates that register metrics.
const METRIC_CRATES: [&str; 4] = ["deviceplugin", "dra", "lifecycle", "node"];

/// Names of the metrics in the agent's source, without the suffixes of their types and units.
fn registered_metrics() -> BTreeSet<String> {
    let source_folder = |name: &str| fs::read_dir(root().join("crates").join(name).join("src"));
    let mut sources: Vec<_> =
        METRIC_CRATES.iter().flat_map(|name| source_folder(name).expect("a folder")).collect();
    let mut names = BTreeSet::new();
    while let Some(entry) = sources.pop() {
        let path = entry.expect("readable").path();
        if path.ends_with("tests") || path.ends_with("tests.rs") {
            continue;
        }
        if path.is_dir() {
            sources.extend(fs::read_dir(&path).expect("a folder"));
            continue;
        }
        let source = fs::read_to_string(&path).expect("a text file");
        let source = source.split("#[cfg(test)]").next().unwrap_or_default();
        let prefix = if path.ends_with("metrics/process.rs") { "process_" } else { "windlass_" };
        let calls = [
            "FamilyDescriptor::new(",
            ".register(",
            ".register_with_unit(",
            "LabeledCounter::register(registry,",
            "let name = ",
        ];
        for call in calls {
            let arguments = source.split(call).skip(1).map(str::trim_start);
            let literals =
                arguments.filter_map(|argument| argument.strip_prefix('"')?.split('"').next());
            names.extend(literals.map(|name| format!("{prefix}{name}")));
        }
    }
    names
}

#[test]
fn the_documentation_lists_exactly_the_metrics() {
    let page = page("docs/metrics.md");
    let is_metric = |line: &&str| {
        ["windlass_", "process_"].iter().any(|prefix| line.starts_with(&format!("| `{prefix}")))
    };
    let rows = page.lines().filter(is_metric);
    let names = rows.filter_map(|line| line.split('|').nth(1));
    let names: BTreeSet<_> = names.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    let without_units = |name: &str| {
        let units = [
            "_total", "_info", "_seconds", "_bytes", "_ratio", "_celsius", "_watts", "_joules",
            "_hertz",
        ];
        let mut base_name = name;
        while let Some(unit) = units.iter().find(|unit| base_name.ends_with(**unit)) {
            base_name = base_name.trim_end_matches(unit);
        }
        base_name.to_owned()
    };
    let documented: BTreeSet<_> = names.into_iter().map(without_units).collect();
    assert_eq!(documented, registered_metrics());
}

/// A line without times and the folder's name, which differ between runs.
fn without_times(line: &str) -> String {
    if line.starts_with("in /") {
        return "in #".to_owned();
    }
    let mut words: Vec<_> = line.split(' ').map(str::to_owned).collect();
    for index in 1..words.len() {
        let is_unit = words[index].starts_with("ms") || words[index] == "s" || words[index] == "s.";
        let number = words[index - 1].trim_start_matches('(');
        if is_unit && number.parse::<f64>().is_ok() {
            words[index - 1] = words[index - 1].replace(number, "#");
        }
    }
    words.join(" ")
}

/// Demo transcript of a page.
fn transcript(name: &str) -> Vec<String> {
    let page = page(name);
    let block = page.split("```\n").find(|block| block.starts_with("Windlass demo on"));
    block.unwrap_or_else(|| panic!("{name} has no transcript")).lines().map(without_times).collect()
}

/// Fails unless a transcript has the lines of the demo. `...` stands for any number of lines.
fn assert_transcript(documented_lines: &[String], printed_lines: &[String]) {
    let (mut remaining, mut skips_lines) = (printed_lines, false);
    for line in documented_lines {
        // After `...`, an empty line does not locate the next line.
        if line.trim() == "..." || skips_lines && line.is_empty() {
            skips_lines = true;
            continue;
        }
        let position = if skips_lines {
            remaining.iter().position(|candidate| candidate == line)
        } else {
            Some(0)
        };
        let index = position.unwrap_or_else(|| {
            panic!("not found after the previous line: {line:?}\n{}", printed_lines.join("\n"))
        });
        assert_eq!(remaining.get(index), Some(line), "in\n{}", printed_lines.join("\n"));
        (remaining, skips_lines) = (&remaining[index + 1..], false);
    }
    assert_eq!(remaining, [""; 0], "the transcript lacks the last lines");
}

#[test]
fn the_demos_in_the_documentation_are_current() {
    let output = run(&["demo"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let printed_lines: Vec<_> = text(&output.stdout).lines().map(without_times).collect();
    let readme_lines = transcript("README.md");
    assert_eq!(readme_lines, transcript("README.zh-CN.md"), "the transcripts differ");
    assert_transcript(&readme_lines, &printed_lines);
    let long_transcript = transcript("docs/try.md");
    assert!(long_transcript.len() > 50, "the page lacks the long transcript");
    assert_transcript(&long_transcript, &printed_lines);
}

#[test]
fn the_profiles_of_machines_and_devices_are_counted_and_listed() {
    let (english, chinese) = (page("README.md"), page("README.zh-CN.md"));
    let machines = windlass_machine::MachineProfile::names().count();
    assert!(english.contains(&format!("{machines} machine profiles")), "{machines}");
    assert!(chinese.contains(&format!("{machines} 种模拟机型")), "{machines}");
    let list = text(&run(&["config", "profiles"]).stdout);
    assert!(
        page("docs/devices/profiles.md").contains(&list),
        "docs/devices/profiles.md lacks\n{list}"
    );
    let devices = list.lines().count() - 1;
    let unwrapped = english.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(unwrapped.contains(&format!("{devices} [device profiles]")), "{devices}");
    assert!(chinese.contains(&format!("{devices} 份[设备描述]")), "{devices}");
}

#[test]
fn every_fault_is_documented() {
    let page = page("docs/devices/simulation.md");
    for (example, _) in windlass_machine::Fault::examples() {
        let is_gpu_fault = example == "add" || example.contains('@');
        let fault_name = example.split(':').next().unwrap_or_default();
        let code_span =
            if is_gpu_fault { format!("`{example}`") } else { format!("`{fault_name}:") };
        assert!(page.contains(&code_span), "{example} is not documented");
    }
}
