//! Parser for lines of udev rules. It refuses keys that a source cannot express.

use std::path::Path;

/// One term of a rule: `KEY{file}=="value"`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Term<'t> {
    /// Key with its braces: `ATTR{idVendor}`.
    pub(super) name: &'t str,
    pub(super) key: &'t str,
    /// The text in braces after the key.
    pub(super) argument: Option<&'t str>,
    /// `==` or `!=`.
    pub(super) operator: &'t str,
    pub(super) value: &'t str,
}

/// Keys that a source cannot express, with their replacements.
const UNSUPPORTED_KEYS: &[(&str, &str)] = &[
    ("GOTO LABEL", "write every condition into each rule"),
    ("ENV TAG TAGS", "udev sets it: match the device's attributes in a source instead"),
    (
        "PROGRAM IMPORT RESULT TEST",
        "rules match the device alone: write match or probe of a source",
    ),
    ("DRIVER DRIVERS", "write driver in match of a source"),
    ("KERNELS DEVPATH", "write usbPort or the PCI address in match of a source"),
    ("SUBSYSTEMS", "write ATTRS{idVendor} alone, which is of the USB device, or match of a source"),
    ("ACTION", "leave it out: a source finds present devices"),
];

/// True if a file has udev rules: by its extension, or by its first line that is neither empty nor a comment.
pub(crate) fn is_rules(path: &Path, text: &str) -> bool {
    let first = rules(text).next();
    path.extension().is_some_and(|it| it == "rules") || first.is_some_and(|it| term(it.1).is_some())
}

/// Lines that are neither empty nor comments, with their numbers.
pub(super) fn rules(text: &str) -> impl Iterator<Item = (u64, &str)> {
    let lines = (1..).zip(text.lines().map(str::trim));
    lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}

/// Parses the terms of a rule. A term that a source cannot express is an error.
pub(super) fn terms(rule: &str) -> Result<Vec<Term<'_>>, String> {
    let is_separator = |letter: char| letter.is_whitespace() || letter == ',';
    let (mut terms, mut rest) = (Vec::new(), rule.trim_start_matches(is_separator));
    while !rest.is_empty() {
        let (term, after) = term(rest).ok_or_else(|| {
            let found: String = rest.chars().take(20).collect();
            format!("{found:?}: {MALFORMED}")
        })?;
        let Term { name, key, operator, value, .. } = term;
        let contains_key = |keys: &str| keys.split(' ').any(|it| it == key);
        let problem = UNSUPPORTED_KEYS
            .iter()
            .find(|(keys, _)| contains_key(keys))
            .map(|(_, replacement)| *replacement);
        let problem = problem.or(match (operator, key) {
            ("=" | "+=" | "-=" | ":=", _) => {
                Some("a source assigns nothing: leave it in udev's file")
            }
            ("!=", "SUBSYSTEM" | "ATTRS") => Some("write the intended values, with =="),
            (_, "SUBSYSTEM" | "KERNEL" | "ATTR" | "ATTRS") => {
                value.contains(['\\', '$', '%']).then_some(PLAIN_VALUE_ERROR)
            }
            _ => Some("unknown key: write SUBSYSTEM, KERNEL, ATTR or ATTRS"),
        });
        if let Some(problem) = problem {
            return Err(format!("{name}: {problem}"));
        }
        terms.push(term);
        rest = after.trim_start_matches(is_separator);
    }
    Ok(terms)
}

/// Parses the first term, and returns the text after it.
fn term(text: &str) -> Option<(Term<'_>, &str)> {
    let (head, after) = text.split_once('"')?;
    let (value, after) = after.split_once('"')?;
    let name = head.trim().trim_end_matches(['=', '!', '+', '-', ':']);
    let (operator, name) = (&head.trim()[name.len()..], name.trim_end());
    let braced = name.strip_suffix('}').and_then(|name| name.split_once('{'));
    let (key, argument) = braced.map_or((name, None), |(key, argument)| (key, Some(argument)));
    let is_key = !key.is_empty() && key.chars().all(|it| it.is_ascii_uppercase() || it == '_');
    let is_operator = ["==", "!=", "=", "+=", "-=", ":="].contains(&operator);
    (is_key && is_operator).then_some((Term { name, key, argument, operator, value }, after))
}

const MALFORMED: &str = "write KEY==\"value\", a rule on one line, and comments apart";
const PLAIN_VALUE_ERROR: &str = "write the value without \\, $ and %";
