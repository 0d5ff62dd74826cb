//! `k8s-rdma-shared-dev-plugin`: JSON with `configList`. Each entry is a pool of interfaces and a
//! number of tokens, each of which gives a container the whole pool.

use std::collections::BTreeMap;

use serde::Deserialize;
use windlass_config::{
    ResourceRule, Sharing,
    document::{Diagnostics, Spanned, YamlNode},
    rules::SpannedRule,
};

use super::{
    Imported,
    expression::{Conditions, has},
    items, names, nics, read as read_document,
};

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct File {
    periodic_update_interval: Option<Spanned<i64>>,
    config_list: Option<Spanned<Vec<Entry>>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Entry {
    resource_name: Option<Spanned<String>>,
    resource_prefix: Option<String>,
    rdma_hca_max: Option<Spanned<i64>>,
    devices: Option<Spanned<Vec<String>>>,
    selectors: Option<Spanned<Selectors>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Selectors {
    vendors: Option<Spanned<Vec<String>>>,
    #[serde(rename = "deviceIDs")]
    device_ids: Option<Spanned<Vec<String>>>,
    drivers: Option<Spanned<Vec<String>>>,
    if_names: Option<Spanned<Vec<String>>>,
    link_types: Option<Spanned<Vec<String>>>,
}

/// The plugin's default prefix of resource names.
const PREFIX: &str = "rdma";

pub(super) fn read(root: &YamlNode, diagnostics: &mut Diagnostics) -> Imported {
    let file: File = read_document(root, diagnostics);
    if let Some(interval) = &file.periodic_update_interval {
        match interval.value {
            ..0 => diagnostics.error(interval.line, "periodicUpdateInterval cannot be negative"),
            _ => diagnostics.warn(
                interval.line,
                "periodicUpdateInterval has no effect: changes are followed when they happen",
            ),
        }
    }
    let line = file.config_list.as_ref().map_or(1, |list| list.line);
    let entries = items(file.config_list);
    if entries.is_empty() {
        diagnostics.error(line, "configList names no resource");
    }
    let mut lines = BTreeMap::new();
    let rule = |entry: Entry| {
        let name = entry.resource_name.as_ref();
        if let Some(first) = name.and_then(|it| lines.insert(it.value.clone(), it.line)) {
            let Spanned { line, value } = name?;
            diagnostics.error(*line, format!("resource {value:?} is already on line {first}"));
        }
        entry.into_rule(line, diagnostics)
    };
    let selections: Vec<_> = entries.iter().map(Entry::selection).collect();
    let rules: Vec<_> = entries.into_iter().map(rule).collect();
    warn_of_overlap(&selections, &rules, diagnostics);
    let rules: Vec<_> = rules.into_iter().flatten().collect();
    if !rules.is_empty() {
        diagnostics.warn(line, nics::MANAGEMENT_WARNING);
    }
    Imported { rules, nics: nics::with_all_nodes(), ..Imported::default() }
}

/// Values of an entry's selectors. An interface matches if it has one value of each non-empty list.
type Selection = [Vec<String>; 5];

/// Warns about the first two entries that may select the same interface. There is no warning here if the earlier entry
/// takes every interface of the later one: `without_unreachable` reports that.
fn warn_of_overlap(
    selections: &[Selection],
    rules: &[Option<SpannedRule>],
    diagnostics: &mut Diagnostics,
) {
    let valid_entries = || {
        selections
            .iter()
            .zip(rules)
            .filter_map(|(selection, rule)| Some((selection, rule.as_ref()?)))
    };
    for (index, (later, rule)) in valid_entries().enumerate() {
        let overlaps = |(earlier, first): &(&Selection, &SpannedRule)| {
            !are_disjoint(earlier, later) && !first.value.devices.covers(&rule.value.devices)
        };
        if let Some((_, first)) = valid_entries().take(index).find(overlaps) {
            let (name, line) = (&first.value.name, first.line);
            let text = format!(
                "{name} on line {line} may select the same interface: {FIRST_ENTRY_WARNING}"
            );
            return diagnostics.warn(rule.line, text);
        }
    }
}

/// True if no interface matches both selections, because they have no common value in one of the lists.
fn are_disjoint(one: &Selection, other: &Selection) -> bool {
    let share_no_value = |(one, other): (&Vec<String>, &Vec<String>)| {
        !one.is_empty() && !other.is_empty() && !one.iter().any(|value| other.contains(value))
    };
    one.iter().zip(other).any(share_no_value)
}

const FIRST_ENTRY_WARNING: &str = "an interface that several entries select belongs to the first of them; in that plugin \
    it belongs to each. Narrow the first";

// === impl Entry ===

impl Entry {
    fn selection(&self) -> Selection {
        let default = Selectors::default();
        let selectors = self.selectors.as_ref().map_or(&default, |it| &it.value);
        let values = |list: &Option<Spanned<Vec<String>>>| {
            list.as_ref().map(|list| list.value.clone()).unwrap_or_default()
        };
        let names = [values(&selectors.if_names), values(&self.devices)].concat();
        [
            values(&selectors.vendors),
            values(&selectors.device_ids),
            values(&selectors.drivers),
            names,
            values(&selectors.link_types),
        ]
    }

    fn into_rule(self, list_line: u64, diagnostics: &mut Diagnostics) -> Option<SpannedRule> {
        let Some(resource_name) = &self.resource_name else {
            diagnostics.error(list_line, "an entry without resourceName");
            return None;
        };
        if !names::is_made_of(&resource_name.value, b"_") {
            let problem = format!(
                "resourceName {:?}: use letters, digits and '_' alone",
                resource_name.value
            );
            diagnostics.error(resource_name.line, problem);
            return None;
        }
        let prefix = self.resource_prefix.as_deref().filter(|prefix| !prefix.is_empty());
        let name = names::resource(prefix.unwrap_or(PREFIX), resource_name, diagnostics)?;
        let line = resource_name.line;
        let sharing = self.sharing(line, diagnostics);
        let expression = self.into_conditions(line, diagnostics).into_expression(line, diagnostics);
        let value = ResourceRule::new(name, nics::nic_selector(expression), sharing?);
        Some(Spanned { line, value })
    }

    /// Sharing by tokens; `None` with a diagnostic for an entry without tokens.
    fn sharing(&self, line: u64, diagnostics: &mut Diagnostics) -> Option<Sharing> {
        let Some(count) = &self.rdma_hca_max else {
            diagnostics.warn(line, "without rdmaHcaMax there are no tokens; it is left out");
            return None;
        };
        match count.value {
            ..0 => diagnostics.error(count.line, "rdmaHcaMax cannot be negative"),
            0 => diagnostics.warn(count.line, "rdmaHcaMax 0 offers nothing; it is left out"),
            1.. => return Some(nics::pool_sharing(count, diagnostics)),
        }
        None
    }

    fn into_conditions(self, line: u64, diagnostics: &mut Diagnostics) -> Conditions {
        let mut conditions = Conditions::default();
        conditions.and(has("rdmaDevice"));
        let selectors = self.selectors.map(|it| it.value).unwrap_or_default();
        let devices = items(self.devices);
        match (selectors.is_empty(), devices.is_empty()) {
            (true, true) => diagnostics.error(line, "selectors and devices are both missing"),
            (false, false) => {
                diagnostics.error(line, "selectors and devices: write selectors alone");
            }
            (true, false) => conditions.one_of("ifName", &devices),
            (false, true) => selectors.add_to(&mut conditions, diagnostics),
        }
        conditions
    }
}

// === impl Selectors ===

impl Selectors {
    fn is_empty(&self) -> bool {
        let lists =
            [&self.vendors, &self.device_ids, &self.drivers, &self.if_names, &self.link_types];
        lists.into_iter().flatten().all(|list| list.value.is_empty())
    }

    fn add_to(self, conditions: &mut Conditions, diagnostics: &mut Diagnostics) {
        conditions.one_of("pciVendor", &nics::hexadecimal(self.vendors, diagnostics));
        conditions.one_of("pciDevice", &nics::hexadecimal(self.device_ids, diagnostics));
        conditions.one_of("driver", &items(self.drivers));
        conditions.one_of("ifName", &items(self.if_names));
        nics::link_types(self.link_types, conditions, diagnostics);
    }
}
