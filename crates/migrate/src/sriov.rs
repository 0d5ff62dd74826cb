//! `sriov-network-device-plugin`: JSON with `resourceList`. Each entry is a resource of the PCI
//! functions that match any of its selectors.

mod accelerators;
mod functions;
mod options;
mod selectors;

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use windlass_config::{
    ResourceRule, Sharing,
    document::{Diagnostics, OneOrMany, Spanned, YamlNode},
    rules::SpannedRule,
};
use windlass_core::resource::ResourceName;

use self::selectors::Selectors;
use super::{
    Imported, items,
    names::{self, SourceNames},
    nics, read as read_document,
};

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct File {
    resource_list: Option<Spanned<Vec<Entry>>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Entry {
    resource_name: Option<Spanned<String>>,
    resource_prefix: Option<String>,
    device_type: Option<DeviceType>,
    exclude_topology: Option<bool>,
    selectors: Option<Spanned<OneOrMany<Selectors>>>,
    additional_info: Option<Spanned<AdditionalInfo>>,
}

/// Values for programs in a container, by PCI address; `*` means every function.
type AdditionalInfo = BTreeMap<String, BTreeMap<String, String>>;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
enum DeviceType {
    /// Network functions on PCI. The plugin also accepts an empty type for them.
    #[default]
    #[serde(alias = "")]
    NetDevice,
    /// Accelerators on PCI.
    Accelerator,
    /// Subfunctions, which have no PCI address of their own.
    AuxNetDevice,
}

/// Default prefix of resource names. A flag of the plugin may replace it.
const PREFIX: &str = "intel.com";

pub(super) fn read(root: &YamlNode, diagnostics: &mut Diagnostics) -> Imported {
    let file: File = read_document(root, diagnostics);
    let line = file.resource_list.as_ref().map_or(1, |list| list.line);
    let (mut used_names, mut source_names) = (BTreeSet::new(), SourceNames::default());
    let mut imported = Imported::default();
    let entries = items(file.resource_list);
    imported.nics = options::nic_policy(&entries, line, diagnostics);
    for entry in entries {
        let Some(name) = entry.name(line, diagnostics) else { continue };
        if !used_names.insert(name.value.clone()) {
            diagnostics.error(name.line, format!("resource {} appears twice", name.value));
        }
        match entry.device_type.unwrap_or_default() {
            DeviceType::Accelerator => {
                let last = name.value.as_str().rsplit('/').next().unwrap_or_default();
                let source = source_names.unique(last);
                imported.sources.extend(entry.into_source(source, &name, diagnostics));
            }
            DeviceType::NetDevice | DeviceType::AuxNetDevice => {
                imported.rules.extend(entry.into_rules(&name, diagnostics));
            }
        }
    }
    imported
}

// === impl Entry ===

impl Entry {
    fn name(&self, list_line: u64, diagnostics: &mut Diagnostics) -> Option<Spanned<ResourceName>> {
        let Some(resource_name) = &self.resource_name else {
            diagnostics.error(list_line, "an entry without resourceName");
            return None;
        };
        if !names::is_made_of(&resource_name.value, b"_-") {
            let name = &resource_name.value;
            let problem = format!("resourceName {name:?}: use letters, digits, '_' and '-'");
            diagnostics.error(resource_name.line, problem);
            return None;
        }
        let prefix = self.resource_prefix.as_deref().filter(|prefix| !prefix.is_empty());
        let value = names::resource(prefix.unwrap_or(PREFIX), resource_name, diagnostics)?;
        Some(Spanned { line: resource_name.line, value })
    }

    /// A rule for each selector. A function belongs to the first rule that matches it.
    fn into_rules(
        self,
        name: &Spanned<ResourceName>,
        diagnostics: &mut Diagnostics,
    ) -> Vec<SpannedRule> {
        let kind = self.device_type.unwrap_or_default();
        let Some(Spanned { line, value: selectors }) =
            self.checked_selectors(name.line, diagnostics)
        else {
            return Vec::new();
        };
        let rule = |selector: Selectors| {
            let conditions = selector.into_conditions(kind, line, diagnostics)?;
            let devices = nics::nic_selector(conditions.into_expression(line, diagnostics));
            let value = ResourceRule::new(name.value.clone(), devices, Sharing::Exclusive);
            Some(Spanned { line: name.line, value })
        };
        selectors.into_iter().filter_map(rule).collect()
    }

    /// Returns the selectors. Without any the plugin offers nothing, so the result is `None` with a warning.
    fn checked_selectors(
        self,
        line: u64,
        diagnostics: &mut Diagnostics,
    ) -> Option<Spanned<Vec<Selectors>>> {
        match self.selectors {
            Some(Spanned { line, value: OneOrMany(selectors) }) if !selectors.is_empty() => {
                Some(Spanned { line, value: selectors })
            }
            _ => {
                diagnostics
                    .warn(line, "without selectors an entry offers no resource; it is left out");
                None
            }
        }
    }
}
