//! Line numbers of profile entries.

use std::collections::BTreeMap;

use serde::{Deserialize, de::IgnoredAny};
use serde_saphyr::Spanned;

use super::{Entry, ValidationError};
use crate::profile::Attached;

/// First line of an entry in the text.
pub(in crate::profile) fn line_of(problem: &ValidationError, yaml: &str) -> u64 {
    #[derive(Default, Deserialize)]
    struct Lines {
        #[serde(default)]
        numa: Vec<Spanned<IgnoredAny>>,
        #[serde(default)]
        cards: BTreeMap<String, Spanned<IgnoredAny>>,
        #[serde(default)]
        gpus: Vec<Spanned<IgnoredAny>>,
        #[serde(default)]
        switches: Vec<Spanned<IgnoredAny>>,
        #[serde(default)]
        nics: Vec<Spanned<IgnoredAny>>,
        #[serde(default)]
        bonds: Vec<Spanned<IgnoredAny>>,
        #[serde(default)]
        devices: Vec<Spanned<IgnoredAny>>,
        #[serde(default)]
        attached: Vec<Spanned<Attached>>,
        #[serde(default)]
        amd: AmdLines,
    }
    #[derive(Default, Deserialize)]
    struct AmdLines {
        #[serde(default)]
        gpus: Vec<Spanned<IgnoredAny>>,
    }
    let lines: Lines = serde_saphyr::from_str(yaml).unwrap_or_default();
    let entry = match &problem.entry {
        Entry::Machine => None,
        Entry::Attached(text) => {
            return line(lines.attached.iter().find(|entry| entry.value.to_string() == *text));
        }
        Entry::Numa(index) => lines.numa.get(*index),
        Entry::Card(name) => lines.cards.get(name),
        Entry::Gpu(index) => lines.gpus.get(*index),
        Entry::Switch(index) => lines.switches.get(*index),
        Entry::Nic(index) => lines.nics.get(*index),
        Entry::Bond(index) => lines.bonds.get(*index),
        Entry::Amd(index) => lines.amd.gpus.get(*index),
        Entry::Device(index) => lines.devices.get(*index),
    };
    line(entry)
}

fn line<T>(entry: Option<&Spanned<T>>) -> u64 {
    entry.map_or(1, |entry| entry.defined.line())
}
