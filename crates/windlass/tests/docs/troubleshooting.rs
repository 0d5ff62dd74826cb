//! docs/troubleshooting.md has a row for each warning and error that the agent logs, and no other row.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use super::{page, root};

/// Crates and folders outside the agent.
const NON_AGENT_SOURCES: [&str; 8] = [
    "cluster-sim/",
    "conformance/",
    "fuzz/",
    "kubelet-sim/",
    "machine/",
    "nvml-sim/",
    "testkit/",
    "windlass/src/demo/",
];

/// Calls with a message: the macros, and the constructor of `Journal`, which logs its argument.
const CALLS: [&str; 3] = ["warn!(", "error!(", "Journal::new("];

/// Message of the journal's own call, whose literal has a placeholder only.
const JOURNAL_MESSAGE: &str = "…";

/// The agent's files, with their names below `crates` and their text without tests.
pub(super) fn agent_sources() -> Vec<(String, String)> {
    let crates = root().join("crates");
    let mut folders = vec![crates.clone()];
    let mut sources = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("readable").path();
            let name = path.strip_prefix(&crates).expect("below crates").display().to_string();
            let is_other =
                NON_AGENT_SOURCES.iter().any(|other| format!("{name}/").starts_with(other));
            let is_test = path.ends_with("tests") || path.ends_with("tests.rs");
            if is_other || is_test {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if name.contains("/src/")
                && path.extension().is_some_and(|extension| extension == "rs")
            {
                let text = fs::read_to_string(&path).expect("a text file");
                let text = text.split("#[cfg(test)]").next().unwrap_or_default();
                sources.push((name, text.to_owned()));
            }
        }
    }
    sources
}

/// The agent's messages, with the file of each.
fn logged_messages() -> BTreeMap<String, String> {
    let mut logged_messages = BTreeMap::new();
    for (name, source) in agent_sources() {
        let messages = messages(&name, &source).into_iter();
        logged_messages.extend(messages.map(|message| (message, name.clone())));
    }
    logged_messages.remove(JOURNAL_MESSAGE);
    logged_messages
}

fn messages(name: &str, source: &str) -> Vec<String> {
    let mut messages = Vec::new();
    for call in CALLS {
        for (index, _) in source.match_indices(call) {
            let is_word =
                source[..index].ends_with(|letter: char| letter.is_alphanumeric() || letter == '_');
            if !is_word {
                let message = message(&source[index + call.len()..]);
                let error = || format!("{name}: {call} without a literal message");
                messages.push(message.unwrap_or_else(|| panic!("{}", error())));
            }
        }
    }
    messages
}

/// First literal among arguments that is no value of a field, with `…` for each placeholder.
fn message(arguments: &str) -> Option<String> {
    let (mut depth, mut previous) = (0_i32, ' ');
    let mut letters = arguments.char_indices();
    while let Some((index, letter)) = letters.next() {
        match letter {
            '"' => {
                let literal = literal(&arguments[index + 1..]);
                if depth == 0 && previous != '=' {
                    return Some(plain(literal));
                }
                letters.nth(literal.chars().count());
            }
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        if depth < 0 {
            return None;
        }
        if !letter.is_whitespace() {
            previous = letter;
        }
    }
    None
}

/// The text up to the closing quote.
fn literal(text: &str) -> &str {
    let mut is_escaped = false;
    let end = text.find(|letter| {
        let ends = letter == '"' && !is_escaped;
        is_escaped = letter == '\\' && !is_escaped;
        ends
    });
    &text[..end.unwrap_or(text.len())]
}

/// A literal as it is logged: one line, without escapes, `…` for placeholders.
fn plain(literal: &str) -> String {
    let lines: Vec<_> = literal.split("\\\n").collect();
    let joined = lines
        .iter()
        .enumerate()
        .map(|(index, line)| if index == 0 { line } else { line.trim_start() });
    let joined = joined.collect::<String>().replace("\\\"", "\"");
    let mut parts = joined.split('{');
    let first_part = parts.next().unwrap_or_default().to_owned();
    parts.fold(first_part, |text, part| {
        text + "…" + part.split_once('}').map_or("", |(_, rest)| rest)
    })
}

/// The page's rows by their messages; each has a cause and a remedy.
fn documented_messages() -> BTreeSet<String> {
    let page = page("docs/troubleshooting.md");
    let (_, tables) = page.split_once("\n## Warnings and errors").expect("the section");
    let rows = tables.lines().filter(|line| line.starts_with("| `"));
    let message = |row: &str| {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        assert!(cells.len() == 5 && cells[1..4].iter().all(|cell| !cell.is_empty()), "{row}");
        cells[1].trim_matches('`').to_owned()
    };
    rows.map(message).collect()
}

#[test]
fn every_warning_and_error_of_the_agent_has_a_row_and_every_row_a_message() {
    let (logged, rows) = (logged_messages(), documented_messages());
    let missing_rows = logged.iter().filter(|(message, _)| !rows.contains(*message));
    let missing_rows: Vec<_> =
        missing_rows.map(|(message, file)| format!("{message:?} of {file}")).collect();
    let stale_rows: Vec<_> = rows.iter().filter(|row| !logged.contains_key(*row)).collect();
    assert!(
        missing_rows.is_empty() && stale_rows.is_empty(),
        "docs/troubleshooting.md lacks {missing_rows:#?}\nand has rows that nothing logs: {stale_rows:#?}"
    );
    assert!(logged.len() > 50, "only {} messages were found", logged.len());
}

#[test]
fn messages_are_found_next_to_fields_and_across_lines() {
    let cases = [
        ("why, \"plain\")", "plain"),
        ("error = \"value\", \"behind a field\")", "behind a field"),
        ("%at, list = f(\"inner\"), \"two \\\n     lines\")", "two lines"),
        ("\"{what} of {}: {error:#}\", 1)", "… of …: …"),
    ];
    for (arguments, expected) in cases {
        assert_eq!(message(arguments).as_deref(), Some(expected), "{arguments}");
    }
    assert_eq!(message("error)  \"later\""), None);
}
