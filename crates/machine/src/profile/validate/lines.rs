//! Line numbers of profile entries.

use std::collections::BTreeMap;

use serde::{Deserialize, de::IgnoredAny};
use serde_saphyr::Spanned;

use super::{ProfileEntry, ValidationError};
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
        ProfileEntry::Machine => None,
        ProfileEntry::Attached(text) => {
            return line(lines.attached.iter().find(|entry| entry.value.to_string() == *text));
        }
        ProfileEntry::Numa(index) => lines.numa.get(*index),
        ProfileEntry::Card(name) => lines.cards.get(name),
        ProfileEntry::Gpu(index) => lines.gpus.get(*index),
        ProfileEntry::Switch(index) => lines.switches.get(*index),
        ProfileEntry::Nic(index) => lines.nics.get(*index),
        ProfileEntry::Bond(index) => lines.bonds.get(*index),
        ProfileEntry::Amd(index) => lines.amd.gpus.get(*index),
        ProfileEntry::Device(index) => lines.devices.get(*index),
    };
    line(entry)
}

fn line<T>(entry: Option<&Spanned<T>>) -> u64 {
    entry.map_or(1, |entry| entry.defined.line())
}
