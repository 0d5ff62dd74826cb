//! Resources of accelerators: PCI functions of the accelerator class, each with the nodes of its driver.

use windlass_config::{
    DiscoveryRule, SourceRule,
    document::{Diagnostics, Spanned},
};
use windlass_core::{device::SourceName, resource::ResourceName};

use super::Entry;
use crate::expression::{Conditions, any_of, string_or_empty};

/// The class of processing accelerators (PCI Code and ID Assignment).
const CLASS: &str = "0x12";

// === impl Entry ===

impl Entry {
    /// A source of the functions that match any of the selectors.
    pub(super) fn into_source(
        self,
        source: SourceName,
        name: &Spanned<ResourceName>,
        diagnostics: &mut Diagnostics,
    ) -> Option<Spanned<SourceRule>> {
        let Spanned { line, value: selectors } = self.checked_selectors(name.line, diagnostics)?;
        let mut conditions = Conditions::default();
        conditions.and(format!("{}.startsWith(\"{CLASS}\")", string_or_empty("pciClass")));
        let mut alternatives = Vec::new();
        for selector in selectors {
            let mut alternative = Conditions::default();
            selector.add_common(&mut alternative, diagnostics);
            alternatives.push(alternative.text());
        }
        // A selector without conditions matches every accelerator.
        if !alternatives.iter().any(String::is_empty) {
            conditions.and(any_of(&alternatives));
        }
        let mut rule = SourceRule::new(source, DiscoveryRule::Bus("pci".to_owned()));
        rule.expression = conditions.into_expression(line, diagnostics);
        rule.give.env.insert(variable(&name.value), "{pci}".to_owned());
        rule.resource = Some(name.value.clone());
        diagnostics.warn(name.line, ADDITIONAL_INFO_WARNING);
        Some(Spanned { line: name.line, value: rule })
    }
}

/// Environment variable of the resource, as the SR-IOV plugin names it. Hyphens stay.
fn variable(name: &ResourceName) -> String {
    format!("PCIDEVICE_{}", name.as_str().to_uppercase().replace(['.', '/'], "_"))
}

const ADDITIONAL_INFO_WARNING: &str =
    "containers get PCIDEVICE_..., but no PCIDEVICE_..._INFO and no device-info file";
