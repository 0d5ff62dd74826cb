//! Documentation matches the program: configurations are accepted, metrics exist, demo transcripts are current.

mod book;
mod commands;
mod forms;
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
        let written = files.filter(|name| Path::new(name).extension().is_some_and(|it| it == "md"));
        names.extend(written.map(|name| format!("{folder}/{name}")));
    }
    names.retain(|name| name != CONTENTS);
    names.sort();
    names.into_iter().map(|name| (name.clone(), page(&name))).collect()
}

/// YAML blocks of a page with their first line number, without list indentation.
fn yaml_blocks(page: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut lines = page.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        if line.trim() == "```yaml" {
            let margin = line.len() - line.trim_start().len();
            let block =
                lines.by_ref().map(|(_, line)| line).take_while(|line| line.trim() != "```");
            let block: Vec<_> = block.map(|line| line.get(margin..).unwrap_or_default()).collect();
            found.push((number + 2, block.join("\n") + "\n"));
        }
    }
    found
}

/// Configuration that an example is, or is a part of. `None` for other YAML.
fn configuration(example: &str) -> Option<String> {
    let parsed: Value = serde_saphyr::from_str(example).unwrap_or_else(|error| panic!("{error}"));
    if parsed.is_array() {
        return Some(format!("sources:\n{example}"));
    }
    let keys: Vec<_> = parsed.as_object().expect("keys").keys().map(String::as_str).collect();
    let schema = schema();
    if keys.iter().all(|key| schema["properties"].get(*key).is_some()) {
        return Some(example.to_owned());
    }
    let of_source = ["give", "prepare", "probe", "release", "sharing", "unit"];
    let source = "sources:\n- name: example\n  resource: example.com/it\n  find: {nodes: [/dev/example*, /dev/other*]}\n";
    let margin = first_margin(example);
    let lines = example.lines().map(|line| line.strip_prefix(margin).unwrap_or(line));
    let part: Vec<_> = lines.map(|line| format!("  {line}")).collect();
    let part = part.join("\n");
    keys.iter().all(|key| of_source.contains(key)).then(|| format!("{source}{part}\n"))
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
    let current = serde_json::to_string_pretty(&schema()).expect("JSON") + "\n";
    if env::var_os("WINDLASS_BLESS").is_some() {
        fs::write(root().join(SCHEMA), &current).expect("the schema is written");
    }
    assert!(current == page(SCHEMA), "WINDLASS_BLESS=1 rewrites {SCHEMA}");
}

#[test]
fn every_configuration_in_the_documentation_is_accepted() {
    let (mut accepted, mut others) = (0, Vec::new());
    for (name, page) in pages() {
        for (line, example) in yaml_blocks(&page) {
            match configuration(&example) {
                Some(config) => {
                    let read = Config::parse(Path::new(&name), &config);
                    read.unwrap_or_else(|error| {
                        panic!("the example at line {line}: {error}\n{config}")
                    });
                    accepted += 1;
                }
                None if is_pipeline_file(&example) => {}
                None => others.push(format!("{name}:{line}")),
            }
        }
    }
    assert!(accepted >= 30, "only {accepted} are configurations; not {others:#?}");
    assert!(others.len() <= 10, "not recognised as configurations: {others:#?}");
}

/// True for a file of a pipeline or of boards.
fn is_pipeline_file(example: &str) -> bool {
    let path = Path::new("example.yaml");
    Pipeline::parse(path, example).is_ok() || Fleet::parse(path, example).is_ok()
}

/// Crates that register metrics.
const METRIC_CRATES: [&str; 4] = ["deviceplugin", "dra", "lifecycle", "node"];

/// Names of the metrics in the agent's source, without the suffixes of their types and units.
fn registered() -> BTreeSet<String> {
    let of_crate = |name: &str| fs::read_dir(root().join("crates").join(name).join("src"));
    let mut sources: Vec<_> =
        METRIC_CRATES.iter().flat_map(|name| of_crate(name).expect("a folder")).collect();
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
            let literals = arguments.filter_map(|it| it.strip_prefix('"')?.split('"').next());
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
    let listed = page.lines().filter(is_metric);
    let names = listed.filter_map(|line| line.split('|').nth(1));
    let names: BTreeSet<_> = names.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    let plain = |name: &str| {
        let units = [
            "_total", "_info", "_seconds", "_bytes", "_ratio", "_celsius", "_watts", "_joules",
            "_hertz",
        ];
        let mut plain = name;
        while let Some(unit) = units.iter().find(|unit| plain.ends_with(**unit)) {
            plain = plain.trim_end_matches(unit);
        }
        plain.to_owned()
    };
    let documented: BTreeSet<_> = names.into_iter().map(plain).collect();
    assert_eq!(documented, registered());
}

/// A line without times and the folder's name, which differ between runs.
fn without_times(line: &str) -> String {
    if line.starts_with("in /") {
        return "in #".to_owned();
    }
    let mut words: Vec<_> = line.split(' ').map(str::to_owned).collect();
    for at in 1..words.len() {
        let is_unit = words[at].starts_with("ms") || words[at] == "s" || words[at] == "s.";
        let number = words[at - 1].trim_start_matches('(');
        if is_unit && number.parse::<f64>().is_ok() {
            words[at - 1] = words[at - 1].replace(number, "#");
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
fn assert_transcript(shown: &[String], printed: &[String]) {
    let (mut rest, mut skips_lines) = (printed, false);
    for line in shown {
        // After `...`, an empty line does not locate the next line.
        if line.trim() == "..." || skips_lines && line.is_empty() {
            skips_lines = true;
            continue;
        }
        let skipped = if skips_lines { rest.iter().position(|it| it == line) } else { Some(0) };
        let at = skipped.unwrap_or_else(|| {
            panic!("not found after the previous line: {line:?}\n{}", printed.join("\n"))
        });
        assert_eq!(rest.get(at), Some(line), "in\n{}", printed.join("\n"));
        (rest, skips_lines) = (&rest[at + 1..], false);
    }
    assert_eq!(rest, [""; 0], "the transcript lacks the last lines");
}

#[test]
fn the_demos_in_the_documentation_are_current() {
    let output = run(&["demo"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let printed: Vec<_> = text(&output.stdout).lines().map(without_times).collect();
    let shown = transcript("README.md");
    assert_eq!(shown, transcript("README.zh-CN.md"), "the transcripts differ");
    assert_transcript(&shown, &printed);
    let long = transcript("docs/try.md");
    assert!(long.len() > 50, "the page lacks the long transcript");
    assert_transcript(&long, &printed);
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
        let of_gpu = example == "add" || example.contains('@');
        let word = example.split(':').next().unwrap_or_default();
        let shown = if of_gpu { format!("`{example}`") } else { format!("`{word}:") };
        assert!(page.contains(&shown), "{example} is not documented");
    }
}
