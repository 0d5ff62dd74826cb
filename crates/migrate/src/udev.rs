//! Import of simple udev rules, as Akri accepts them: each line selects devices, and becomes a source.
//!
//! A source finds only devices that its rule matches. The import refuses a key without an equivalent, since the rule
//! would match other devices without the key. The message names the alternative.

mod line;
mod place;

use windlass_config::{
    DiscoveryRule, SourceRule,
    document::{Diagnostics, Spanned},
};
use windlass_core::{attribute::AttributeName, selector::literal};
use windlass_host::glob;

use self::line::Term;
use super::Imported;
use crate::{
    expression::{Conditions, checked, has, string_or_empty},
    names::SourceNames,
};

pub(crate) use line::is_rules;

/// Domain of the resources of all rules.
const DOMAIN: &str = "windlass.dev";

/// Sysfs files of a USB device, and the attributes with their content.
const USB: [(&str, &str); 5] = [
    ("idVendor", "usbVendor"),
    ("idProduct", "usbProduct"),
    ("serial", "usbSerial"),
    ("manufacturer", "usbManufacturer"),
    ("product", "usbProductName"),
];

pub(super) fn read(text: &str, diagnostics: &mut Diagnostics) -> Imported {
    let (mut names, mut sources) = (SourceNames::default(), Vec::new());
    for (line, rule) in line::rules(text) {
        match read_rule(rule, &mut names) {
            Ok(found) => sources.extend(found.into_iter().map(|value| Spanned { line, value })),
            Err(problem) => diagnostics.error(line, format!("{problem}; see {PAGE}")),
        }
    }
    diagnostics.warn(1, DOMAIN_NOTE);
    Imported { sources, ..Imported::default() }
}

/// Creates a source for each place with devices of a rule.
fn read_rule(rule: &str, names: &mut SourceNames) -> Result<Vec<SourceRule>, String> {
    let terms = line::terms(rule)?;
    place::places(&terms)?.into_iter().map(|find| source(find, &terms, names)).collect()
}

fn source(
    find: DiscoveryRule,
    terms: &[Term<'_>],
    names: &mut SourceNames,
) -> Result<SourceRule, String> {
    let base_name = match &find {
        DiscoveryRule::Bus(name) | DiscoveryRule::Class(name) => name,
        DiscoveryRule::Nodes(paths) => paths[0].trim_start_matches("/dev/"),
        DiscoveryRule::Files(_) | DiscoveryRule::Endpoints(_) => "",
    };
    let name = names.unique(base_name);
    let resource = format!("{DOMAIN}/{name}").parse();
    let mut source = SourceRule::new(name, find);
    source.resource = Some(resource.expect("a source's name is valid in a resource name"));
    let mut conditions = Conditions::default();
    for term in terms.iter().filter(|term| term.key != "SUBSYSTEM") {
        let condition =
            attribute(term, &mut source).and_then(|attribute| condition(&attribute, term));
        conditions.and(condition.map_err(|problem| format!("{}: {problem}", term.name))?);
    }
    let text = conditions.text();
    if text.is_empty() && matches!(source.find, DiscoveryRule::Bus(_)) {
        return Err(WHOLE_BUS_ERROR.to_owned());
    }
    source.expression = (!text.is_empty()).then(|| checked(&text)).transpose()?;
    Ok(source)
}

/// The attribute that a term tests. A sysfs file without a known attribute becomes an attribute of the source.
fn attribute(term: &Term<'_>, source: &mut SourceRule) -> Result<String, String> {
    if term.key == "KERNEL" {
        return Ok("name".to_owned());
    }
    let file = term.argument.ok_or("write the file in braces")?;
    let is_on_usb = matches!(&source.find, DiscoveryRule::Bus(bus) if bus == "usb");
    match USB.iter().find(|(known, _)| *known == file) {
        Some((_, known)) if is_on_usb || term.key == "ATTRS" => return Ok((*known).to_owned()),
        _ if term.key == "ATTRS" => return Err(PARENT_ERROR.to_owned()),
        _ if file.starts_with("bInterface") => return Err(INTERFACE_ERROR.to_owned()),
        Some(("idVendor" | "idProduct", _)) => return Err(format!("write ATTRS{{{file}}}")),
        _ => {}
    }
    let letter = |letter: char| if letter.is_ascii_alphanumeric() { letter } else { '_' };
    // No standard attribute begins with this prefix.
    let name = format!("file_{}", file.chars().map(letter).collect::<String>());
    let attribute = AttributeName::try_new(DOMAIN, &name).ok_or("the name is too long")?;
    let previous = source.attributes.insert(attribute, file.into());
    if file.contains(['[', '$', '%', '*']) || previous.is_some_and(|it| it.as_os_str() != file) {
        return Err(FILE_NAME_ERROR.to_owned());
    }
    Ok(name)
}

/// Condition that an attribute matches, or does not match. A device without the attribute meets neither.
fn condition(attribute: &str, term: &Term<'_>) -> Result<String, String> {
    let values: Vec<String> = term.value.split('|').map(str::to_owned).collect();
    let mut conditions = Conditions::default();
    if values.iter().any(|value| glob::is_pattern(value)) {
        let regex = values.iter().map(|value| regex(value)).collect::<Result<Vec<_>, _>>()?;
        let regex = literal(&format!("^({})$", regex.join("|")));
        conditions.and(format!("{}.matches({regex})", string_or_empty(attribute)));
        checked(&conditions.text())?;
    } else {
        conditions.one_of(attribute, &values);
    }
    let (has, condition) = (has(attribute), conditions.text());
    let matches_empty = values.iter().any(|value| glob::name_matches(value, ""));
    Ok(match term.operator {
        "!=" => format!("{has} && !({condition})"),
        _ if matches_empty => format!("{has} && {condition}"),
        _ => condition,
    })
}

/// Converts a pattern to a regular expression.
fn regex(pattern: &str) -> Result<String, String> {
    let (mut regex, mut rest) = (String::new(), pattern);
    while let Some(letter) = rest.chars().next() {
        rest = &rest[letter.len_utf8()..];
        match letter {
            '*' => regex.push_str(".*"),
            '?' => regex.push('.'),
            '[' => {
                let class = rest.split_once(']').filter(|(class, _)| is_class(class));
                let (class, tail) = class.ok_or_else(|| format!("{pattern:?}: {CLASS_ERROR}"))?;
                regex.extend(["[", class.replacen('!', "^", 1).as_str(), "]"]);
                rest = tail;
            }
            _ if letter.is_ascii_punctuation() => regex.extend(['\\', letter]),
            _ => regex.push(letter),
        }
    }
    Ok(regex)
}

/// True for letters, digits and ranges in brackets, which mean the same in a regular expression.
fn is_class(text: &str) -> bool {
    let letters = text.strip_prefix(['!', '^']).unwrap_or(text);
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
    !letters.is_empty() && letters.chars().all(is_plain) && !letters.contains("--")
}

/// Documentation of the supported rules, and of replacements for other rules.
const PAGE: &str = "docs/devices/migrating.md#rules-of-udev";

const WHOLE_BUS_ERROR: &str =
    "SUBSYSTEM: the rule fits every device of the bus: add ATTR or KERNEL";
const PARENT_ERROR: &str =
    "of parent devices only ids and texts of a USB device are read: write match of a source";
const INTERFACE_ERROR: &str =
    "it belongs to a USB interface: write usbInterfaceClass in match of a source";
const FILE_NAME_ERROR: &str = "write one file, with other letters and digits than other files";
const CLASS_ERROR: &str = "write letters, digits and ranges in brackets, [0-9a-f]";
const DOMAIN_NOTE: &str = "rules name no resources: write yours in place of windlass.dev/<name>";

#[cfg(test)]
mod tests;
