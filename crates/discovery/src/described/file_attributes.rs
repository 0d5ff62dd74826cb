//! Attributes from the configured files in a device's sysfs folder.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use windlass_config::SourceRule;
use windlass_core::{
    attribute::{AttributeName, AttributeValue, Attributes},
    device::SourceName,
};
use windlass_host::{
    Host,
    external::{DeadlinePool, Late, SOON},
};

use super::find::Candidate;
use crate::failure;

/// Reader of attribute files; a device that hangs keeps its last values.
#[derive(Debug, Default)]
pub(super) struct FileAttributes {
    pool: DeadlinePool<ReadKey, Attributes>,
    last: BTreeMap<ReadKey, Attributes>,
    /// Devices of the current scan.
    read: BTreeSet<ReadKey>,
}

/// Source and device folder.
type ReadKey = (SourceName, PathBuf);

// === impl FileAttributes ===

impl FileAttributes {
    pub(super) fn add_to(&mut self, host: &Host, rule: &SourceRule, candidates: &mut [Candidate]) {
        if rule.attributes.is_empty() {
            return;
        }
        for candidate in candidates {
            let Some(folder) = candidate.folder.clone() else { continue };
            let key = (rule.name.clone(), folder.clone());
            self.read.insert(key.clone());
            let (host, files) = (host.clone(), rule.attributes.clone());
            let reading = move || read(&host, &folder, &files);
            match self.pool.call(key.clone(), SOON, reading) {
                Ok(attributes) => drop(self.last.insert(key.clone(), attributes)),
                Err(Late) => drop(candidate.failure.get_or_insert_with(failure::no_answer)),
            }
            candidate.attributes.extend(self.last.get(&key).cloned().unwrap_or_default());
        }
    }

    /// Ends a scan; forgets devices that it did not find.
    pub(super) fn end_scan(&mut self) {
        let read = std::mem::take(&mut self.read);
        self.pool.end_round(|key| read.contains(key));
        self.last.retain(|key, _| read.contains(key));
    }
}

fn read(host: &Host, folder: &Path, files: &BTreeMap<AttributeName, PathBuf>) -> Attributes {
    let value = |file: &PathBuf| host.line(folder.join(file)).map(AttributeValue::string);
    files.iter().filter_map(|(name, file)| Some((name.clone(), value(file)?))).collect()
}
