//! Structure inside the product's crates: modules have no cycles, and crates have a limit of lines. `policy.rs` checks
//! the dependencies between crates.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// Crates that do not ship to nodes or clusters: simulators, test programs and test fixtures.
const TEST_CRATES: &[&str] =
    &["cluster-sim", "conformance", "fuzz", "kubelet-sim", "machine", "nvml-sim", "testkit"];

/// The binary, which has no limit: it consists of many small commands.
const BINARY: &str = "windlass";

/// Maximum number of lines of a crate. A larger crate has to be split.
const MAX_LINES: usize = 11_000;

/// Top-level modules of a crate, each with the modules that it uses.
type ModuleGraph = BTreeMap<String, BTreeSet<String>>;

/// The product's crates.
fn product_crates() -> Vec<String> {
    let crates = fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).expect("a folder");
    let names = crates.map(|entry| entry.expect("readable").file_name());
    let names = names.map(|name| name.into_string().expect("a plain name"));
    let mut names: Vec<_> = names.filter(|name| !TEST_CRATES.contains(&name.as_str())).collect();
    names.sort();
    names
}

fn source_folder(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).join(name).join("src")
}

/// The product files of a crate: the module path of each, and its text without tests.
fn files(name: &str) -> Vec<(Vec<String>, String)> {
    let root = source_folder(name);
    let (mut folders, mut modules) = (vec![root.clone()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("readable").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let module = path.strip_prefix(&root).expect("below").with_extension("");
                let module: Vec<_> =
                    module.iter().map(|part| part.to_string_lossy().into_owned()).collect();
                let is_root = module == ["lib"] || module == ["main"];
                let module = if is_root { Vec::new() } else { module };
                if !module.iter().any(|part| part == "tests") {
                    modules.push((module, product(&path)));
                }
            }
        }
    }
    modules
}

fn product(path: &Path) -> String {
    let text = fs::read_to_string(path).expect("a text file");
    text.split("#[cfg(test)]").next().unwrap_or_default().to_owned()
}

fn without_comments(text: &str) -> String {
    let is_code = |line: &&str| !line.trim_start().starts_with("//");
    text.lines().filter(is_code).collect::<Vec<_>>().join("\n")
}

/// Every path in a text, with imports in braces expanded.
fn paths(text: &str) -> Vec<String> {
    let mut paths = Vec::new();
    for statement in text.split(';') {
        let import = statement.rsplit_once("use ").map(|(_, tree)| tree);
        match import.filter(|tree| !tree.contains(['(', '=', '"'])) {
            Some(tree) => expand("", tree, &mut paths),
            None => paths.extend(paths_in_code(statement)),
        }
    }
    paths
}

/// Paths in code that begin with `crate` or `super`.
fn paths_in_code(code: &str) -> impl Iterator<Item = String> + '_ {
    let words = code.split(|letter: char| !letter.is_alphanumeric() && !"_:".contains(letter));
    words.filter(|word| word.starts_with("crate::") || word.starts_with("super::")).map(Into::into)
}

fn expand(prefix: &str, tree: &str, paths: &mut Vec<String>) {
    let tree = tree.trim();
    match tree.split_once('{') {
        None => paths.extend(tree.split(',').map(|leaf| format!("{prefix}{}", leaf.trim()))),
        Some((head, group_and_rest)) => {
            let group = group_and_rest.trim_end().strip_suffix('}').unwrap_or(group_and_rest);
            let prefix = format!("{prefix}{head}");
            for branch in branches(group) {
                expand(&prefix, branch, paths);
            }
        }
    }
}

/// Splits a text at the commas outside of braces.
fn branches(text: &str) -> Vec<&str> {
    let (mut depth, mut start, mut branches) = (0_usize, 0, Vec::new());
    for (index, letter) in text.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                branches.push(&text[start..index]);
                start = index + 1;
            }
            _ => {}
        }
    }
    branches.push(&text[start..]);
    branches.retain(|branch| !branch.trim().is_empty());
    branches
}

/// Top-level module of a path in the module `from`.
fn target(path: &str, from: &[String]) -> Option<String> {
    let mut segments: Vec<_> = path.split("::").collect();
    let mut base = match *segments.first()? {
        "crate" => Vec::new(),
        "super" => from.to_vec(),
        _ => return None,
    };
    while segments.first() == Some(&"super") {
        base.pop();
        segments.remove(0);
    }
    if segments.first() == Some(&"crate") {
        segments.remove(0);
    }
    base.into_iter().next().or_else(|| segments.first().map(|&name| name.to_owned()))
}

/// Names that a crate's root re-exports, with their modules.
fn reexports(root: &str) -> BTreeMap<String, String> {
    let from_module = |path: String| {
        let path = path.strip_prefix("self::").unwrap_or(&path);
        let (module, item) = path.split_once("::")?;
        let name = item.rsplit("::").next()?.rsplit(" as ").next()?;
        Some((name.trim().to_owned(), module.trim().to_owned()))
    };
    paths(root).into_iter().filter_map(from_module).collect()
}

fn module_graph(name: &str) -> ModuleGraph {
    let files = files(name);
    let roots = files.iter().filter(|(module, _)| module.is_empty());
    let reexports: BTreeMap<_, _> =
        roots.flat_map(|(_, root)| reexports(&without_comments(root))).collect();
    let modules: BTreeSet<_> = files.iter().filter_map(|(path, _)| path.first()).collect();
    let mut module_graph = ModuleGraph::new();
    for (module, text) in files.iter().filter(|(module, _)| !module.is_empty()) {
        let used_modules = paths(&without_comments(text)).into_iter().filter_map(|path| {
            let name = target(&path, module)?;
            Some(reexports.get(&name).cloned().unwrap_or(name))
        });
        let other_modules = used_modules
            .filter(|used_module| modules.contains(used_module) && *used_module != module[0]);
        module_graph.entry(module[0].clone()).or_default().extend(other_modules);
    }
    module_graph
}

/// Modules in or between cycles. Repeatedly removes modules that use no other module, or that no other module uses.
fn cycles(mut module_graph: ModuleGraph) -> Vec<String> {
    loop {
        let used_modules: BTreeSet<_> = module_graph.values().flatten().cloned().collect();
        let previous_len = module_graph.len();
        module_graph.retain(|module, dependencies| {
            !dependencies.is_empty() && used_modules.contains(module)
        });
        let remaining_modules: BTreeSet<_> = module_graph.keys().cloned().collect();
        for dependencies in module_graph.values_mut() {
            dependencies.retain(|dependency| remaining_modules.contains(dependency));
        }
        if module_graph.len() == previous_len {
            return module_graph.into_keys().collect();
        }
    }
}

#[test]
fn modules_of_the_product_have_no_cycles() {
    for name in product_crates() {
        let modules_in_cycles = cycles(module_graph(&name));
        assert!(
            modules_in_cycles.is_empty(),
            "modules of {name} have a cycle: {modules_in_cycles:?}"
        );
    }
}

#[test]
fn no_crate_of_the_product_exceeds_the_limit_of_lines() {
    for name in product_crates().iter().filter(|name| *name != BINARY) {
        let lines: usize = files(name).iter().map(|(_, text)| text.lines().count()).sum();
        assert!(lines <= MAX_LINES, "{name} has {lines} lines");
        assert!(lines > 100, "{name} was not read");
    }
}

#[test]
fn a_cycle_is_found() {
    let edge = |from: &str, to: &str| (from.to_owned(), BTreeSet::from([to.to_owned()]));
    let line = ModuleGraph::from([edge("a", "b"), edge("b", "c")]);
    assert!(cycles(line).is_empty());
    let cycle = ModuleGraph::from([edge("a", "b"), edge("b", "c"), edge("c", "b")]);
    assert_eq!(cycles(cycle), ["b", "c"]);
    let dra = module_graph("dra");
    assert!(dra["prepare"].contains("record"), "imports are read: {dra:?}");
}
