//! Rules of this repository that no other tool checks. docs/invariants.md has their reasons.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use windlass_core::device::{DeviceKind, SourceName};

/// A product source file: its path below `crates/` and its text without test modules.
struct Source {
    path: String,
    text: String,
}

/// First lines of a file's test module, or of its fixtures for other tests.
const TEST_MODULE_STARTS: [&str; 2] =
    ["#[cfg(test)]\nmod tests", "#[cfg(test)]\npub(crate) mod tests"];

fn sources() -> Vec<Source> {
    let crates = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let mut files = Vec::new();
    for member in fs::read_dir(crates).expect("the folder crates/") {
        collect(&member.expect("readable").path().join("src"), &mut files);
    }
    files.sort();
    let source = |path: &PathBuf| {
        let text = fs::read_to_string(path).expect("a text file");
        let tests = TEST_MODULE_STARTS.iter().filter_map(|start| text.find(start)).min();
        let text = text[..tests.unwrap_or(text.len())].to_owned();
        let path = path.strip_prefix(crates).expect("below crates").display().to_string();
        Source { path, text }
    };
    files.iter().map(source).collect()
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten() {
        let path = entry.expect("readable").path();
        if path.is_dir() && !path.ends_with("generated") {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// Fails with every product file that has one of the words. Ignores files whose path begins with one of `except`.
fn forbid(words: &[&str], except: &[&str], reason: &str) {
    let violation = |source: &Source| {
        let is_excused = except.iter().any(|prefix| source.path.starts_with(prefix));
        let word = words.iter().find(|word| source.text.contains(**word))?;
        (!is_excused).then(|| format!("{} has {word:?}", source.path))
    };
    let violations: Vec<_> = sources().iter().filter_map(violation).collect();
    assert!(violations.is_empty(), "{reason}: {violations:#?}");
}

#[test]
fn every_file_says_in_its_first_line_what_it_is_about() {
    for Source { path, text } in sources() {
        let first_line = text.lines().next().unwrap_or_default();
        assert!(
            first_line.starts_with("//! ") && first_line.len() > 10,
            "{path} begins with {first_line:?}"
        );
    }
}

#[test]
fn the_domain_does_no_io_and_reads_no_clock() {
    let words = [
        "std::fs",
        "std::net",
        "std::env",
        "std::process",
        "std::thread",
        "SystemTime",
        "Instant",
        "Timestamp::now",
        "tokio",
        "tracing",
    ];
    let is_pure = |source: &&Source| {
        source.path.starts_with("core/") || source.path.starts_with("sched/src/")
    };
    for Source { path, text } in sources().iter().filter(is_pure) {
        let word = words.iter().find(|word| text.contains(**word));
        assert!(word.is_none(), "{path} has {word:?}: pass time, files and randomness in");
    }
    let core = ["cel", "jiff", "semver", "serde", "serde_json", "strsim", "thiserror"];
    // The allocator returns types of Kubernetes. k8s-openapi has types only, without a client.
    let sched = ["k8s-openapi", "thiserror", "windlass-core"];
    for (manifest, allowed) in [
        (include_str!("../../core/Cargo.toml"), &core[..]),
        (include_str!("../../sched/Cargo.toml"), &sched[..]),
    ] {
        let dependencies = manifest.split("[dependencies]").nth(1).expect("a section");
        let dependencies = dependencies.split('[').next().unwrap_or_default();
        for line in dependencies.lines().filter(|line| !line.trim().is_empty()) {
            let name = line.split('.').next().unwrap_or_default();
            assert!(allowed.contains(&name), "the domain depends on {name}");
        }
    }
}

#[test]
fn unsafe_code_is_only_in_the_three_ffi_crates() {
    let ffi_crates = ["cuda/", "nvml/", "nvml-sim/"];
    forbid(&["unsafe {", "unsafe fn", "unsafe impl"], &ffi_crates, "unsafe elsewhere");
}

#[test]
fn all_other_crates_forbid_unsafe_code() {
    let crates = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let workspace = fs::read_to_string(crates.join("../Cargo.toml")).expect("a manifest");
    assert!(workspace.contains("\nunsafe_code = \"forbid\"\n"));
    for member in fs::read_dir(crates).expect("the folder crates/") {
        let path = member.expect("readable").path();
        let manifest = fs::read_to_string(path.join("Cargo.toml")).expect("a manifest");
        let lint = if ["cuda", "nvml", "nvml-sim"].iter().any(|name| path.ends_with(name)) {
            "\nundocumented_unsafe_blocks = \"warn\"\n"
        } else {
            "\n[lints]\nworkspace = true\n"
        };
        assert!(manifest.contains(lint), "{} lacks {lint}", path.display());
    }
}

#[test]
fn kubelet_messages_are_used_only_in_modules_of_its_protocols() {
    let words = ["AllocateRequest", "AllocateResponse", "ListAndWatchResponse", "RegisterRequest"];
    let except = ["conformance/", "fuzz/", "kubelet-api/", "kubelet-sim/", "deviceplugin/"];
    forbid(&words, &except, "convert kubelet messages in the protocol crate");
    let words = ["NodePrepareResource", "NodeUnprepareResource", "PluginInfo"];
    let except = ["conformance/", "fuzz/", "kubelet-api/", "kubelet-sim/", "dra/"];
    forbid(&words, &except, "convert kubelet messages in the protocol crate");
}

#[test]
fn the_kubelets_folder_is_named_in_one_place() {
    // The help of the command line names the folder; a foreign plugin has the path built in.
    let except = ["conformance/src/subject.rs", "config/src/places.rs", "windlass/src/cli.rs"];
    let is_code = |line: &&str| !line.trim_start().starts_with("//");
    for Source { path, text } in sources() {
        let names_folder =
            text.lines().filter(is_code).any(|line| line.contains("/var/lib/kubelet"));
        assert!(!names_folder || except.contains(&path.as_str()), "{path} names /var/lib/kubelet");
    }
}

/// File with the only lock of the agent's layers.
const SHARED: &str = "host/src/shared.rs";

#[test]
fn the_agents_state_has_one_owner_and_no_lock() {
    let exceptions = [
        "conformance/",
        "kubelet-api/",
        "kubelet-sim/",
        "machine/",
        "nvml-sim/",
        "windlass/",
        // The only lock. Its users pass closures, so that it is not held across an `.await`.
        SHARED,
    ];
    let is_shared = |source: &Source| source.path == SHARED;
    let shared = sources().into_iter().find(is_shared).expect("the shared module");
    let code = shared.text.lines().filter(|line| !line.starts_with("//"));
    let forbidden_lines =
        code.filter(|line| line.contains("await") || line.contains("Guard")).count();
    assert_eq!(forbidden_lines, 0, "{SHARED} returns no guard, and awaits nothing");
    forbid(
        &["Mutex", "RwLock", "Atomic"],
        &exceptions,
        "one task owns the state, and other tasks read snapshots",
    );
}

/// Files that may name single kinds and families of devices.
const FAMILY_AWARE: [&str; 17] = [
    // The tables of families and of their attributes, and the discovery of each.
    "core/src/device/",
    "config/src/family_attributes.rs",
    "discovery/src/",
    // Vendor-specific parts: labels, partitions, parameters, and files of other plugins.
    "core/src/labels/",
    "core/src/partition.rs",
    "dra/src/opaque.rs",
    "migrate/src/",
    // Sections, keys and default names of the configuration.
    "config/src/families.rs",
    "config/src/nics.rs",
    "config/src/policy.rs",
    "config/src/rules.rs",
    "config/src/source/check.rs",
    // Arguments and output columns of the command line.
    "windlass/src/cli/devices.rs",
    "windlass/src/commands/",
    "windlass/src/demo/",
    // Partitioned GPUs of any vendor; values for fuzzing.
    "node/src/reconciler/changes.rs",
    "fuzz/src/expressions.rs",
];

#[test]
fn only_listed_files_name_single_device_families() {
    let specific_kinds = DeviceKind::ALL.iter().filter(|kind| **kind != DeviceKind::Other);
    let kinds = specific_kinds.map(|kind| format!("DeviceKind::{kind:?}"));
    let names = SourceName::built_in().map(|name| name.as_str().to_uppercase());
    let words = kinds.chain(names.map(|name| format!("SourceName::{name}")));
    let words: Vec<_> = words.collect();
    let names_family = |source: &Source| words.iter().any(|word| source.text.contains(word));
    let is_excused = |path: &str| FAMILY_AWARE.iter().any(|prefix| path.starts_with(prefix));
    let violation = |source: &Source| {
        names_family(source) && !is_test(&source.path) && !is_excused(&source.path)
    };
    let violations = sources().into_iter().filter(violation).map(|source| source.path);
    let violations: Vec<_> = violations.collect();
    assert!(violations.is_empty(), "use the tables of core/src/device instead: {violations:?}");
}

#[test]
fn agent_deadlines_use_deadline_timeout() {
    let exempt_crates =
        ["cluster-sim/", "conformance/", "kubelet-sim/", "machine/", "testkit/", "windlass/"];
    // kube-scheduler and the other replica measure elapsed time too.
    let exempt_crates = [&exempt_crates[..], &["control/"]].concat();
    let exempt_files = [
        "host/src/deadline.rs",
        // Threads wait for slices of a deadline of the agent.
        "host/src/external/deadline_pool.rs",
        // Polling intervals, and waits for a burst of changes to end.
        "node/src/reload.rs",
        "host/src/directory.rs",
        // Limits for clients, which can retry.
        "node/src/admin/connections.rs",
    ];
    let words = ["time::timeout", " timeout}", "{timeout", "timeout_at", "recv_timeout("];
    let is_excused = |path: &str| {
        exempt_crates.iter().chain(&exempt_files).any(|prefix| path.starts_with(prefix))
            || is_test(path)
    };
    for Source { path, text } in sources() {
        let word = words.iter().find(|word| text.contains(**word));
        assert!(word.is_none() || is_excused(&path), "{path} has {word:?}: use deadline::timeout");
    }
}

/// True for a file of tests beside its module.
fn is_test(path: &str) -> bool {
    path.ends_with("/tests.rs") || path.contains("/tests/")
}

/// Pages that refer to tests as `file :: test`.
const PAGES: [&str; 3] = ["ARCHITECTURE.md", "docs/internals.md", "docs/invariants.md"];

/// Maximum size of ARCHITECTURE.md, in bytes: a newcomer reads it in one sitting.
const MAX_SIZE: usize = 15_000;

#[test]
fn the_architecture_is_short_and_names_every_crate() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let text = fs::read_to_string(root.join("ARCHITECTURE.md")).expect("a text file");
    assert!(text.len() <= MAX_SIZE, "{} bytes: move detail to docs/internals.md", text.len());
    for member in fs::read_dir(root.join("crates")).expect("the folder crates/") {
        let name = member.expect("readable").file_name();
        let name = name.to_str().expect("text");
        assert!(text.contains(&format!("\n| `{name}` |")), "the table of crates lacks {name}");
    }
}

#[test]
fn every_test_that_the_documentation_names_exists() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let read_page = |page: &&str| fs::read_to_string(root.join(page)).expect("a text file");
    let text = PAGES.iter().map(read_page).collect::<Vec<_>>().join("\n");
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let spans = text.split('`').filter_map(|span| span.split_once(" :: "));
    // Omit the page's example of a reference.
    let references: Vec<_> = spans.filter(|reference| *reference != ("file", "test")).collect();
    assert!(references.len() > 20, "the references are no longer written as `file :: test`");
    for (file, test) in references {
        // Expand the abbreviations that docs/invariants.md explains.
        let path = match file.split_once('/') {
            None => format!("crates/windlass/tests/{file}"),
            Some(("cluster", file)) => format!("crates/windlass/tests/cluster/{file}"),
            Some(("agent", file)) => format!("crates/node/tests/agent/{file}"),
            Some(_) => file.to_owned(),
        };
        let source = fs::read_to_string(root.join(&path));
        let source = source.unwrap_or_else(|error| panic!("{path}: {error}"));
        assert!(source.contains(&format!("fn {test}(")), "{path} has no test {test}");
    }
}

#[test]
fn product_code_has_no_cfg_test() {
    forbid(&["cfg(test)", "cfg!(test)", "mockall"], &[], "tests use the code path of production");
}

#[test]
fn only_the_binary_prints_to_stdout_and_stderr() {
    forbid(
        &["println!", "eprintln!", "stdout()"],
        &["hook/src/main.rs", "windlass/"],
        "libraries log or return",
    );
}

/// Words at the beginning of a sentence that hide its subject.
const QUESTION_WORDS: [&str; 6] = ["What", "Whether", "Who", "Whoever", "Whose", "How"];

#[test]
fn sentences_of_comments_start_with_their_subject() {
    let mut violations = Vec::new();
    for Source { path, text } in &sources() {
        for sentence in comment_sentences(text) {
            let first_word = sentence.split(|letter: char| !letter.is_alphanumeric()).next();
            if first_word.is_some_and(|word| QUESTION_WORDS.contains(&word)) {
                violations.push(format!("{path}: {sentence}"));
            }
        }
    }
    assert!(violations.is_empty(), "start with the subject, then the verb: {violations:#?}");
}

/// Sentences of all comments, without code blocks.
fn comment_sentences(text: &str) -> Vec<String> {
    let mut sentences = vec![String::new()];
    let mut is_code = false;
    for line in text.lines().map(str::trim_start) {
        let comment = ["///", "//!", "//"].iter().find_map(|mark| line.strip_prefix(mark));
        let content = comment.unwrap_or_default().trim();
        is_code = comment.is_some() && (is_code != content.starts_with("```"));
        if content.is_empty() || is_code || content.starts_with("```") {
            sentences.push(String::new());
            continue;
        }
        for word in content.split(' ') {
            let sentence = sentences.last_mut().expect("never empty");
            sentence.push_str(word);
            sentence.push(' ');
            if word.ends_with('.') {
                sentences.push(String::new());
            }
        }
    }
    sentences.retain(|sentence| !sentence.is_empty());
    sentences
}

/// Type names that may repeat, because their module qualifies them, such as the checkpoint of each kubelet manager.
const REPEATABLE_NAMES: [&str; 7] =
    ["Checkpoint", "CheckpointError", "Config", "Deps", "Error", "Input", "State"];

#[test]
fn a_public_type_name_occurs_once_in_a_crate() {
    let mut paths = BTreeMap::<(String, String), BTreeSet<String>>::new();
    let mut repeated_names = BTreeSet::new();
    for Source { path, text } in sources() {
        let (member, _) = path.split_once('/').expect("below a crate");
        for name in text.lines().filter_map(public_type) {
            let key = (member.to_owned(), name.to_owned());
            let declaring_files = paths.entry(key.clone()).or_default();
            let is_excused = REPEATABLE_NAMES.contains(&name) || is_test(&path);
            if !declaring_files.is_empty() && !is_excused {
                repeated_names.insert(key);
            }
            declaring_files.insert(path.clone());
        }
    }
    let repeated_names: Vec<_> = repeated_names.iter().map(|key| (&key.1, &paths[key])).collect();
    assert!(repeated_names.is_empty(), "one name, one type: {repeated_names:#?}");
}

/// Name of the type that a line declares as visible outside of its module.
fn public_type(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("pub")?;
    let rest = rest
        .strip_prefix('(')
        .and_then(|rest| rest.split_once(')'))
        .map_or(rest, |(_, after)| after);
    let mut words =
        rest.trim_start().split(|letter: char| !letter.is_alphanumeric() && letter != '_');
    let is_type = ["struct", "enum", "trait", "union", "type"].contains(&words.next()?);
    words.next().filter(|_| is_type)
}

#[test]
fn comment_sentences_and_public_types_are_found() {
    let text = "/// A thing. What it is,\n/// How wrapped.\nfn x() {}\n// ```\n// Who\n// ```\n";
    assert_eq!(comment_sentences(text), ["A thing. ", "What it is, How wrapped. "]);
    assert_eq!(public_type("pub(super) struct Entry<T>(T);"), Some("Entry"));
    assert_eq!(public_type("    pub enum Kind {"), Some("Kind"));
    assert_eq!(public_type("struct Private;"), None);
    assert_eq!(public_type("pub fn type_of() {"), None);
}
