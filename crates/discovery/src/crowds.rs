//! Folders with more entries than are looked at. What is beyond is left out, and said.

use std::{collections::BTreeMap, fmt, path::Path};

use windlass_host::Host;

/// The folders of one look that had too many entries, and of how many each was.
#[derive(Debug, Default)]
pub(super) struct Crowds(BTreeMap<String, usize>);

/// Names of a list that are told one by one.
const TOLD: usize = 5;

// === impl Crowds ===

impl Crowds {
    /// As [`Host::names`], but no more than so many, and a note where there are more.
    pub(super) fn names(
        &mut self,
        host: &Host,
        folder: impl AsRef<Path>,
        most: usize,
    ) -> Vec<String> {
        let mut names = host.some_names(&folder, most + 1).unwrap_or_default();
        if names.len() > most {
            names.truncate(most);
            self.0.insert(folder.as_ref().display().to_string(), most);
        }
        names
    }
}

impl fmt::Display for Crowds {
    /// What was left out; nothing if nothing was.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = |(folder, most)| {
            format!("{folder} has more than {most} entries: the others are left out")
        };
        f.write_str(&some(self.0.iter().map(all), "; "))
    }
}

/// The first of many names, and how many more there are.
pub(super) fn some(names: impl ExactSizeIterator<Item = String>, between: &str) -> String {
    let more = names.len().saturating_sub(TOLD);
    let told = names.take(TOLD).collect::<Vec<_>>().join(between);
    if more > 0 { format!("{told} and {more} more") } else { told }
}
