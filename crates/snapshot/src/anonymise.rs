//! Anonymisation: replaces identifying text by text of the same shape.
//!
//! Digits stay digits and letters stay letters, so that parsers still accept the text. Equal texts get equal
//! substitutes, so that relations remain. Substitutes depend on the machine id, which is not in the snapshot. So
//! snapshots of one machine are comparable, and trying all addresses of a vendor does not find the original.

mod shape;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    hash::{BuildHasher as _, Hash as _, Hasher, RandomState},
    path::{Path, PathBuf},
};

use serde_json::Value;
use windlass_core::pci::PciAddress;
use windlass_host::Host;

use self::shape::{decimal, is_hex, is_insignificant, public_prefix, replace_word, same_class};
use super::{Entry, Snapshot, allowlist::SECRETS};

/// Substitutes for identifying text of one machine.
#[derive(Debug)]
pub struct Anonymiser {
    key: (u64, u64),
    /// Substitute of each secret, longest secret first, because a secret may contain another.
    substitutes: BTreeMap<LongestFirst, String>,
}

/// Minimum length of a secret that is replaced in any text, in bytes. A shorter one, such as `0001`, is common, and is
/// replaced only in names that contain serial numbers: device ids, and links below [`NAMED_AFTER_SERIALS`].
const MIN_LENGTH_IN_ANY_TEXT: usize = 6;

/// Folders of links that udev names after serial numbers: `/dev/serial/by-id`.
const NAMED_AFTER_SERIALS: &str = "/by-id/";

/// JSON keys of device ids.
const IDS: [&str; 2] = ["id", "parent"];

/// Address columns of the kernel's route tables.
const ROUTES: [(&str, &[usize]); 2] = [("net/route", &[1, 2]), ("net/ipv6_route", &[0, 2, 4])];

/// Sort key of a text: longer texts come first.
type LongestFirst = (Reverse<usize>, String);

// === impl Anonymiser ===

impl Anonymiser {
    /// Creates the anonymiser of a machine. Without a machine id, substitutes differ from snapshot to snapshot.
    pub fn for_host(host: &Host) -> Self {
        let id = host.read_text("/etc/machine-id").unwrap_or_default();
        let half = |range| id.get(range).and_then(|half| u64::from_str_radix(half, 16).ok());
        let random = || RandomState::new().hash_one("a key");
        let key = match (half(0..16), half(16..32)) {
            (Some(first), Some(second)) => (first, second),
            _ => (random(), random()),
        };
        Self { key, substitutes: BTreeMap::new() }
    }

    /// Replaces all identifying text of a snapshot.
    pub fn anonymise(&mut self, snapshot: Snapshot) -> Snapshot {
        for (path, entry) in &snapshot.entries {
            if let (true, Entry::Text(text)) = (is_secret_file(path), entry) {
                self.add_secret(text.trim());
            }
        }
        let Snapshot { entries, omissions } = snapshot;
        let entries = entries.into_iter().map(|(path, entry)| {
            let entry = self.entry(&path, entry);
            (self.path(&path), entry)
        });
        let entries = entries.collect();
        let omissions = omissions.into_iter().map(|mut it| {
            it.path = self.path(&it.path);
            it
        });
        Snapshot { entries, omissions: omissions.collect() }
    }

    /// Replaces identifying text in a JSON document, with the substitutes of the last snapshot.
    pub fn anonymise_document(&self, document: &mut Value) {
        match document {
            Value::String(text) => *text = self.text(text),
            Value::Array(values) => {
                for value in values {
                    self.anonymise_document(value);
                }
            }
            Value::Object(fields) => {
                let anonymised = std::mem::take(fields).into_iter().map(|(key, mut value)| {
                    match &mut value {
                        Value::String(text) if IDS.contains(&key.as_str()) => *text = self.id(text),
                        Value::String(text) => *text = self.line_of(&key, text),
                        Value::Object(typed) if is_secret(&key) => self.attribute(&key, typed),
                        other => self.anonymise_document(other),
                    }
                    (self.text(&key), value)
                });
                *fields = anonymised.collect();
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// Number of known secrets.
    pub fn secret_count(&self) -> usize {
        self.substitutes.len()
    }

    /// Anonymises an attribute, which is an object with its type as key.
    fn attribute(&self, name: &str, typed: &mut serde_json::Map<String, Value>) {
        for value in typed.values_mut() {
            if let Value::String(text) = value {
                *text = self.line_of(name, text);
            }
        }
    }

    /// Adds a secret with its substitute, in each spelling.
    fn add_secret(&mut self, secret: &str) {
        if is_insignificant(secret) || self.substitutes.contains_key(&longest_first(secret)) {
            return;
        }
        let used: BTreeSet<_> = self.substitutes.values().collect();
        let mut attempts = (0..).map(|attempt| self.substitute(secret, attempt));
        let substitute = attempts
            .find(|it| !used.contains(it))
            .expect("there are more substitutes than secrets");
        for spelling in [device_id_spelling, udev_spelling] {
            self.substitutes.insert(longest_first(&spelling(secret)), spelling(&substitute));
        }
        self.substitutes.insert(longest_first(secret), substitute);
    }

    fn entry(&self, path: &Path, entry: Entry) -> Entry {
        match entry {
            Entry::Text(text) => Entry::Text(self.file(path, &text)),
            Entry::Link(target) => Entry::Link(self.path(&target)),
            Entry::Folder | Entry::Node => entry,
        }
    }

    fn path(&self, path: &Path) -> PathBuf {
        let min_length = min_length_in(&path.to_string_lossy());
        let anonymised = |it: &str| self.replace_secrets(it, min_length);
        path.iter()
            .map(|part| part.to_str().map_or_else(|| part.into(), |it| anonymised(it).into()))
            .collect::<Vec<std::ffi::OsString>>()
            .iter()
            .collect()
    }

    fn file(&self, path: &Path, text: &str) -> String {
        let routes = ROUTES.iter().find(|(file, _)| path.ends_with(file));
        let name = file_name(path);
        let line = |line: &str| match routes {
            Some((_, columns)) => self.route(line, columns),
            None if is_secret_file(path) => self.line_of(name, line),
            None => self.named_line(line),
        };
        let mut output = String::with_capacity(text.len());
        for whole in text.split_inclusive('\n') {
            let bare = whole.trim_end_matches('\n');
            output += &line(bare);
            output += &whole[bare.len()..];
        }
        output
    }

    /// Anonymises a line such as `unique_id 42` or `HID_UNIQ=42`.
    fn named_line(&self, line: &str) -> String {
        match line.split_once(['=', ' ']) {
            Some((name, value)) if is_secret(name) => {
                let separator = &line[name.len()..=name.len()];
                let number = self.number_in_hex(value);
                format!("{name}{separator}{}", number.unwrap_or_else(|| self.line_of(name, value)))
            }
            _ => self.text(line),
        }
    }

    /// Substitute of a decimal number that another file of sysfs has in hexadecimal, such as the unique id of KFD.
    fn number_in_hex(&self, text: &str) -> Option<String> {
        let number: u64 =
            text.trim().parse().ok().filter(|number| *number > u64::from(u32::MAX))?;
        let anonymised = self.line_of("unique_id", &format!("{number:016x}"));
        Some(u64::from_str_radix(&anonymised, 16).ok()?.to_string())
    }

    /// Anonymises a line of the file with this name, or the value of the field with this name. If the name is secret,
    /// the whole line is secret.
    fn line_of(&self, name: &str, text: &str) -> String {
        let bare = text.trim();
        if !is_secret(name) || is_insignificant(bare) {
            return self.text(text);
        }
        match (self.substitutes.get(&longest_first(bare)), self.text(text)) {
            (Some(substitute), _) => text.replace(bare, substitute),
            (None, unchanged) if unchanged == text => self.substitute(text, 0),
            (None, anonymised) => anonymised,
        }
    }

    /// Anonymises a table row with address columns.
    fn route(&self, line: &str, columns: &[usize]) -> String {
        let mut position = 0;
        let mut output = String::new();
        for cell in line.split_inclusive([' ', '\t']) {
            let (word, space) = cell.split_at(cell.trim_end().len());
            let is_address = columns.contains(&position) && is_hex(word) && !is_insignificant(word);
            position += usize::from(!word.is_empty());
            output += &if is_address { self.substitute(word, 0) } else { word.to_owned() };
            output += space;
        }
        output
    }

    /// Replaces known secrets, and text in the shape of an address or UUID.
    fn text(&self, text: &str) -> String {
        self.replace_secrets(text, min_length_in(text))
    }

    /// Anonymises a device id, which may contain a serial number. An id with a PCI address contains no serial number,
    /// but a short secret such as `0001` may occur in that address.
    fn id(&self, id: &str) -> String {
        let parts: Vec<_> = id.split('-').collect();
        let is_address = |parts: &[&str]| {
            let [domain, bus, device, function] = parts else { return false };
            format!("{domain}:{bus}:{device}.{function}").parse::<PciAddress>().is_ok()
        };
        if parts.windows(4).any(is_address) { self.text(id) } else { self.replace_secrets(id, 0) }
    }

    /// Replaces known secrets of at least `min_length` bytes, and text in the shape of an address or UUID.
    fn replace_secrets(&self, text: &str, min_length: usize) -> String {
        let mut text = text.to_owned();
        for ((_, secret), substitute) in &self.substitutes {
            if secret.len() >= min_length && text.contains(secret.as_str()) {
                text = replace_word(&text, secret, substitute);
            }
        }
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == ':' || c == '-';
        let mut rest = text.as_str();
        let mut output = String::with_capacity(text.len());
        while let Some(start) = rest.find(is_part) {
            let word = &rest[start..];
            let word = &word[..word.find(|c| !is_part(c)).unwrap_or(word.len())];
            output.push_str(&rest[..start]);
            output.push_str(&self.word(word));
            rest = &rest[start + word.len()..];
        }
        output + rest
    }

    fn word(&self, word: &str) -> String {
        let (public, secret) = word.split_at(public_prefix(word));
        if secret.is_empty() || is_insignificant(secret) || self.is_substitute(word) {
            return word.to_owned();
        }
        format!("{public}{}", self.substitute(secret, 0))
    }

    /// True if the word already is a substitute.
    fn is_substitute(&self, word: &str) -> bool {
        self.substitutes.values().any(|it| it == word)
    }

    /// Substitute of the same shape. Each `attempt` gives another substitute, to resolve collisions.
    fn substitute(&self, text: &str, attempt: u64) -> String {
        let normalised: String = text
            .chars()
            .filter(char::is_ascii_alphanumeric)
            .collect::<String>()
            .to_ascii_lowercase();
        let number = |position: usize| self.keyed_hash(&normalised, attempt, position);
        if let Some(number) = decimal(text, number(0)) {
            return number;
        }
        let start = if text.starts_with("0x") { 2 } else { 0 };
        let hex = is_hex(&text[start..]);
        let mut position = 0;
        let substitute = |c: char| {
            position += usize::from(c.is_ascii_alphanumeric());
            same_class(c, hex, number(position))
        };
        format!("{}{}", &text[..start], text[start..].chars().map(substitute).collect::<String>())
    }

    /// Keyed hash, which reveals neither key nor input.
    #[expect(deprecated, reason = "the standard library has no other hash with a key")]
    fn keyed_hash(&self, text: &str, attempt: u64, position: usize) -> u64 {
        let mut hasher = std::hash::SipHasher::new_with_keys(self.key.0, self.key.1);
        (text, attempt, position).hash(&mut hasher);
        hasher.finish()
    }
}

fn longest_first(text: &str) -> LongestFirst {
    (Reverse(text.len()), text.to_owned())
}

/// Minimum length of secrets to replace in a text, in bytes.
fn min_length_in(text: &str) -> usize {
    if text.contains(NAMED_AFTER_SERIALS) { 0 } else { MIN_LENGTH_IN_ANY_TEXT }
}

fn is_secret(name: &str) -> bool {
    // Attribute names have a domain prefix.
    let name = name.rsplit('/').next().unwrap_or(name);
    SECRETS.contains(&name.to_ascii_lowercase().as_str())
}

/// True if a file's text is secret. The serial number of a USB root hub is not: it is its controller's address.
fn is_secret_file(path: &Path) -> bool {
    let folder = path.parent().map(file_name).unwrap_or_default();
    let is_root_hub =
        folder.strip_prefix("usb").is_some_and(|number| number.parse::<u32>().is_ok());
    is_secret(file_name(path)) && !is_root_hub
}

/// Spelling of a serial number in udev's link names: `_` for blanks and invalid characters.
fn udev_spelling(serial: &str) -> String {
    let is_allowed = |c: char| !c.is_ascii() || c.is_ascii_alphanumeric() || "#+-.:=@_".contains(c);
    let words: Vec<_> = serial.split_whitespace().collect();
    words.join("_").chars().map(|c| if is_allowed(c) { c } else { '_' }).collect()
}

/// Spelling of a serial number in device ids: `-` for invalid characters.
fn device_id_spelling(serial: &str) -> String {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    serial.chars().map(|c| if is_allowed(c) { c } else { '-' }).collect()
}

fn file_name(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}
