//! Limits on the entries that a scan reads of a folder. Entries beyond the limit are skipped and reported.

use std::{collections::BTreeMap, fmt, path::Path};

use crate::Host;

/// Folders of one scan that exceeded their limit, with the limits.
#[derive(Debug, Default)]
pub struct EntryLimits(BTreeMap<String, usize>);

/// Limit on the names in a message.
const MAX_LISTED: usize = 5;

// === impl EntryLimits ===

impl EntryLimits {
    /// Like [`Host::entry_names`], up to `max_names` names. Records the folder if it has more.
    pub fn entry_names(
        &mut self,
        host: &Host,
        folder: impl AsRef<Path>,
        max_names: usize,
    ) -> Vec<String> {
        let mut names = host.try_entry_names(&folder, max_names + 1).unwrap_or_default();
        if names.len() > max_names {
            names.truncate(max_names);
            self.0.insert(folder.as_ref().display().to_string(), max_names);
        }
        names
    }
}

impl fmt::Display for EntryLimits {
    /// The folders with skipped entries; empty if none was skipped.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let message = |(folder, limit)| {
            format!("{folder} has more than {limit} entries: the others are left out")
        };
        f.write_str(&first_names(self.0.iter().map(message), "; "))
    }
}

/// The first names of a list, and the number of further ones.
pub fn first_names(names: impl ExactSizeIterator<Item = String>, separator: &str) -> String {
    let hidden = names.len().saturating_sub(MAX_LISTED);
    let first = names.take(MAX_LISTED).collect::<Vec<_>>().join(separator);
    if hidden > 0 { format!("{first} and {hidden} more") } else { first }
}
