//! What identifies a machine, replaced by something that looks the same.
//!
//! A serial number becomes another one with digits where it had digits and letters where it had letters,
//! so that whatever reads it still can; the same one becomes the same wherever it is, so that what
//! belongs together still does. What it becomes depends on the machine's id, which is not in the
//! recording: two recordings of one machine can be compared, and nobody can go through all addresses of a
//! maker to find which one it was.

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

use self::shape::{alike, decimal, is_hex, open_part, replaced, tells_nothing};
use super::{Entry, Recording, worth::SECRETS};

/// Says what each thing that identifies the machine is called instead.
#[derive(Debug)]
pub struct Disguise {
    key: (u64, u64),
    /// What is replaced wherever it is, in names too, by length: one may be a part of another.
    known: BTreeMap<Longest, String>,
}

/// Shorter ones are not looked for in any text, since `0001` is in every second one, but in names that are
/// made of serial numbers: ids of devices, and links below [`NAMED_AFTER_SERIALS`].
const SHORTEST_ELSEWHERE: usize = 6;

/// Folders of such names, as udev makes them: `/dev/serial/by-id`.
const NAMED_AFTER_SERIALS: &str = "/by-id/";

/// Keys of a document that hold ids of devices.
const IDS: [&str; 2] = ["id", "parent"];

/// Columns of the kernel's tables of routes that hold addresses.
const ROUTES: [(&str, &[usize]); 2] = [("net/route", &[1, 2]), ("net/ipv6_route", &[0, 2, 4])];

/// A text that comes before those that are shorter.
type Longest = (Reverse<usize>, String);

// === impl Disguise ===

impl Disguise {
    /// The disguise of one machine. Without an id of the machine it is another one each time.
    pub fn of(host: &Host) -> Self {
        let id = host.text("/etc/machine-id").unwrap_or_default();
        let half = |range| id.get(range).and_then(|half| u64::from_str_radix(half, 16).ok());
        let random = || RandomState::new().hash_one("a key");
        let key = match (half(0..16), half(16..32)) {
            (Some(first), Some(second)) => (first, second),
            _ => (random(), random()),
        };
        Self { key, known: BTreeMap::new() }
    }

    /// Replaces everything in a recording that identifies its machine.
    pub fn put_on(&mut self, recording: Recording) -> Recording {
        for (path, entry) in &recording.entries {
            if let (true, Entry::Text(text)) = (is_secret_file(path), entry) {
                self.learn(text.trim());
            }
        }
        let Recording { entries, left_out } = recording;
        let entries = entries.into_iter().map(|(path, entry)| {
            let entry = self.entry(&path, entry);
            (self.path(&path), entry)
        });
        let entries = entries.collect();
        let left_out = left_out.into_iter().map(|mut it| {
            it.path = self.path(&it.path);
            it
        });
        Recording { entries, left_out: left_out.collect() }
    }

    /// Replaces the same things in a document.
    pub fn put_on_document(&self, document: &mut Value) {
        match document {
            Value::String(text) => *text = self.text(text),
            Value::Array(values) => values.iter_mut().for_each(|value| self.put_on_document(value)),
            Value::Object(fields) => {
                let disguised = std::mem::take(fields).into_iter().map(|(key, mut value)| {
                    match &mut value {
                        Value::String(text) if IDS.contains(&key.as_str()) => *text = self.id(text),
                        Value::String(text) => *text = self.line_of(&key, text),
                        Value::Object(typed) if is_secret(&key) => self.attribute(&key, typed),
                        other => self.put_on_document(other),
                    }
                    (self.text(&key), value)
                });
                *fields = disguised.collect();
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// How many serial numbers and the like it knows.
    pub fn known(&self) -> usize {
        self.known.len()
    }

    /// An attribute is an object with its type for a key.
    fn attribute(&self, name: &str, typed: &mut serde_json::Map<String, Value>) {
        for value in typed.values_mut() {
            if let Value::String(text) = value {
                *text = self.line_of(name, text);
            }
        }
    }

    fn learn(&mut self, secret: &str) {
        if tells_nothing(secret) || self.known.contains_key(&longest(secret)) {
            return;
        }
        let taken: BTreeSet<_> = self.known.values().collect();
        let mut stand_ins = (0..).map(|again| self.stand_in(secret, again));
        let stand_in = stand_ins.find(|it| !taken.contains(it)).expect("there is another one");
        for written in [as_ids_write, as_udev_writes] {
            self.known.insert(longest(&written(secret)), written(&stand_in));
        }
        self.known.insert(longest(secret), stand_in);
    }

    fn entry(&self, path: &Path, entry: Entry) -> Entry {
        match entry {
            Entry::Text(text) => Entry::Text(self.file(path, &text)),
            Entry::Link(target) => Entry::Link(self.path(&target)),
            Entry::Folder | Entry::Node => entry,
        }
    }

    fn path(&self, path: &Path) -> PathBuf {
        let shortest = shortest_in(&path.to_string_lossy());
        let disguised = |it: &str| self.with_known(it, shortest);
        path.iter()
            .map(|part| part.to_str().map_or_else(|| part.into(), |it| disguised(it).into()))
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
        let mut all = String::with_capacity(text.len());
        for whole in text.split_inclusive('\n') {
            let bare = whole.trim_end_matches('\n');
            all += &line(bare);
            all += &whole[bare.len()..];
        }
        all
    }

    /// A line such as `unique_id 42` or `HID_UNIQ=42`.
    fn named_line(&self, line: &str) -> String {
        match line.split_once(['=', ' ']) {
            Some((name, value)) if is_secret(name) => {
                let between = &line[name.len()..=name.len()];
                let number = self.number_in_hex(value);
                format!("{name}{between}{}", number.unwrap_or_else(|| self.line_of(name, value)))
            }
            _ => self.text(line),
        }
    }

    /// A number that sysfs has in hexadecimal digits elsewhere, such as the unique id that KFD lists.
    fn number_in_hex(&self, text: &str) -> Option<String> {
        let number: u64 =
            text.trim().parse().ok().filter(|number| *number > u64::from(u32::MAX))?;
        let disguised = self.line_of("unique_id", &format!("{number:016x}"));
        Some(u64::from_str_radix(&disguised, 16).ok()?.to_string())
    }

    /// A text that stands under a name.
    fn line_of(&self, name: &str, text: &str) -> String {
        let bare = text.trim();
        if !is_secret(name) || tells_nothing(bare) {
            return self.text(text);
        }
        match (self.known.get(&longest(bare)), self.text(text)) {
            (Some(known), _) => text.replace(bare, known),
            (None, same) if same == text => self.stand_in(text, 0),
            (None, disguised) => disguised,
        }
    }

    /// A line of a table, in which some columns are addresses.
    fn route(&self, line: &str, columns: &[usize]) -> String {
        let mut position = 0;
        let mut all = String::new();
        for cell in line.split_inclusive([' ', '\t']) {
            let (word, space) = cell.split_at(cell.trim_end().len());
            let is_address = columns.contains(&position) && is_hex(word) && !tells_nothing(word);
            position += usize::from(!word.is_empty());
            all += &if is_address { self.stand_in(word, 0) } else { word.to_owned() };
            all += space;
        }
        all
    }

    /// What is known, and what looks like an address or a unique id.
    fn text(&self, text: &str) -> String {
        self.with_known(text, shortest_in(text))
    }

    /// An id, which may have a serial number in it, and a part's name behind that. One that has a PCI
    /// address has no serial number, and `0001` may be a part of the address.
    fn id(&self, id: &str) -> String {
        let parts: Vec<_> = id.split('-').collect();
        let is_address = |parts: &[&str]| {
            let [domain, bus, device, function] = parts else { return false };
            format!("{domain}:{bus}:{device}.{function}").parse::<PciAddress>().is_ok()
        };
        if parts.windows(4).any(is_address) { self.text(id) } else { self.with_known(id, 0) }
    }

    /// The same, with what is known from so many characters on.
    fn with_known(&self, text: &str, shortest: usize) -> String {
        let mut text = text.to_owned();
        for ((_, secret), stand_in) in &self.known {
            if secret.len() >= shortest && text.contains(secret.as_str()) {
                text = replaced(&text, secret, stand_in);
            }
        }
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == ':' || c == '-';
        let mut rest = text.as_str();
        let mut all = String::with_capacity(text.len());
        while let Some(start) = rest.find(is_part) {
            let word = &rest[start..];
            let word = &word[..word.find(|c| !is_part(c)).unwrap_or(word.len())];
            all.push_str(&rest[..start]);
            all.push_str(&self.word(word));
            rest = &rest[start + word.len()..];
        }
        all + rest
    }

    fn word(&self, word: &str) -> String {
        let open = open_part(word);
        let (kept, secret) = word.split_at(open);
        if secret.is_empty() || tells_nothing(secret) || self.is_stand_in(word) {
            return word.to_owned();
        }
        format!("{kept}{}", self.stand_in(secret, 0))
    }

    /// Whether a word was put there in place of another.
    fn is_stand_in(&self, word: &str) -> bool {
        self.known.values().any(|it| it == word)
    }

    /// Another text that looks the same. `again` tells apart what would become the same.
    fn stand_in(&self, text: &str, again: u64) -> String {
        let essence: String = text
            .chars()
            .filter(char::is_ascii_alphanumeric)
            .collect::<String>()
            .to_ascii_lowercase();
        let number = |position: usize| self.number(&essence, again, position);
        if let Some(number) = decimal(text, number(0)) {
            return number;
        }
        let start = if text.starts_with("0x") { 2 } else { 0 };
        let hex = is_hex(&text[start..]);
        let mut position = 0;
        let another = |c: char| {
            position += usize::from(c.is_ascii_alphanumeric());
            alike(c, hex, number(position))
        };
        format!("{}{}", &text[..start], text[start..].chars().map(another).collect::<String>())
    }

    /// A hash that was made to give nothing away of its key or of what went in.
    #[expect(deprecated, reason = "the standard library has no other hash with a key")]
    fn number(&self, essence: &str, again: u64, position: usize) -> u64 {
        let mut hasher = std::hash::SipHasher::new_with_keys(self.key.0, self.key.1);
        (essence, again, position).hash(&mut hasher);
        hasher.finish()
    }
}

fn longest(text: &str) -> Longest {
    (Reverse(text.len()), text.to_owned())
}

/// How short a serial number may be to be looked for in a text.
fn shortest_in(text: &str) -> usize {
    if text.contains(NAMED_AFTER_SERIALS) { 0 } else { SHORTEST_ELSEWHERE }
}

fn is_secret(name: &str) -> bool {
    // An attribute's name has a domain before it.
    let name = name.rsplit('/').next().unwrap_or(name);
    SECRETS.contains(&name.to_ascii_lowercase().as_str())
}

/// Whether a file's text is a secret. What the kernel gives a root hub for a serial number is the place of
/// its controller.
fn is_secret_file(path: &Path) -> bool {
    let folder = path.parent().map(file_name).unwrap_or_default();
    let is_root_hub =
        folder.strip_prefix("usb").is_some_and(|number| number.parse::<u32>().is_ok());
    is_secret(file_name(path)) && !is_root_hub
}

/// A serial number in the name of a link: blanks in a row are one `_`, and what such names cannot hold is
/// another.
fn as_udev_writes(serial: &str) -> String {
    let is_allowed = |c: char| !c.is_ascii() || c.is_ascii_alphanumeric() || "#+-.:=@_".contains(c);
    let words: Vec<_> = serial.split_whitespace().collect();
    words.join("_").chars().map(|c| if is_allowed(c) { c } else { '_' }).collect()
}

/// A serial number in the id of a device.
fn as_ids_write(serial: &str) -> String {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    serial.chars().map(|c| if is_allowed(c) { c } else { '-' }).collect()
}

fn file_name(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}
