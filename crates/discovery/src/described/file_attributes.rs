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
    external::{DeadlineExceeded, DeadlinePool, MAX_DEADLINE},
};

use super::find::Candidate;
use crate::failure;

/// Reader of attribute files. A device that misses its deadline keeps its last attributes.
#[derive(Debug, Default)]
pub(super) struct FileAttributes {
    pool: DeadlinePool<ReadKey, Attributes>,
    last_attributes: BTreeMap<ReadKey, Attributes>,
    /// Devices of the current scan.
    scanned: BTreeSet<ReadKey>,
}

/// Source and device folder.
type ReadKey = (SourceName, PathBuf);

// === impl FileAttributes ===

impl FileAttributes {
    /// Adds the attributes from files to candidates. A candidate that misses its deadline also gets a failure.
    pub(super) fn add_to(&mut self, host: &Host, rule: &SourceRule, candidates: &mut [Candidate]) {
        if rule.attributes.is_empty() {
            return;
        }
        for candidate in candidates {
            let Some(folder) = candidate.folder.clone() else { continue };
            let key = (rule.name.clone(), folder.clone());
            self.scanned.insert(key.clone());
            let (host, files) = (host.clone(), rule.attributes.clone());
            let reading = move || read(&host, &folder, &files);
            match self.pool.call(key.clone(), MAX_DEADLINE, reading) {
                Ok(attributes) => drop(self.last_attributes.insert(key.clone(), attributes)),
                Err(DeadlineExceeded) => {
                    candidate.failure.get_or_insert_with(failure::unresponsive);
                }
            }
            candidate
                .attributes
                .extend(self.last_attributes.get(&key).cloned().unwrap_or_default());
        }
    }

    /// Ends a scan. Drops the attributes of devices that the scan did not find.
    pub(super) fn end_scan(&mut self) {
        let scanned = std::mem::take(&mut self.scanned);
        self.pool.end_round(|key| scanned.contains(key));
        self.last_attributes.retain(|key, _| scanned.contains(key));
    }
}

fn read(host: &Host, folder: &Path, files: &BTreeMap<AttributeName, PathBuf>) -> Attributes {
    let value = |file: &PathBuf| host.read_line(folder.join(file)).map(AttributeValue::string);
    files.iter().filter_map(|(name, file)| Some((name.clone(), value(file)?))).collect()
}
