//! What files of a device's folder say of it, by the configuration.

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
    external::{Late, Patience},
};

use super::find::Candidate;
use crate::{asking::SOON, trouble};

/// Reads them; a device that does not answer stays what it said last.
#[derive(Debug, Default)]
pub(super) struct Told {
    patience: Patience<Whom, Attributes>,
    last: BTreeMap<Whom, Attributes>,
    /// Those that were asked since the last rest.
    asked: BTreeSet<Whom>,
}

/// A device's folder, and the source whose files are read in it.
type Whom = (SourceName, PathBuf);

// === impl Told ===

impl Told {
    /// Adds to what is known of candidates what their files say.
    pub(super) fn tell(&mut self, host: &Host, rule: &SourceRule, candidates: &mut [Candidate]) {
        if rule.attributes.is_empty() {
            return;
        }
        for candidate in candidates {
            let Some(folder) = candidate.folder.clone() else { continue };
            let whom = (rule.name.clone(), folder.clone());
            self.asked.insert(whom.clone());
            let (host, files) = (host.clone(), rule.attributes.clone());
            let reading = move || read(&host, &folder, &files);
            match self.patience.ask(whom.clone(), SOON, reading) {
                Ok(told) => drop(self.last.insert(whom.clone(), told)),
                Err(Late) => drop(candidate.trouble.get_or_insert_with(trouble::no_answer)),
            }
            candidate.attributes.extend(self.last.get(&whom).cloned().unwrap_or_default());
        }
    }

    /// Ends a look: what was not found by it is forgotten.
    pub(super) fn rest(&mut self) {
        let asked = std::mem::take(&mut self.asked);
        self.patience.rest(|whom| asked.contains(whom));
        self.last.retain(|whom, _| asked.contains(whom));
    }
}

fn read(host: &Host, folder: &Path, files: &BTreeMap<AttributeName, PathBuf>) -> Attributes {
    let said = |file: &PathBuf| host.line(folder.join(file)).map(AttributeValue::string);
    files.iter().filter_map(|(name, file)| Some((name.clone(), said(file)?))).collect()
}
