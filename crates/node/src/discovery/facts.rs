//! Facts that a family read from files, as attributes; what has no answer is left out.

use windlass_core::attribute::{AttributeName, AttributeValue, Attributes};

use crate::host::PciFunction;

/// Attributes of one domain.
pub(super) fn attributes<const N: usize>(
    domain: &'static str,
    facts: [(&'static str, Option<AttributeValue>); N],
) -> Attributes {
    let known = facts.into_iter().filter_map(|(name, value)| Some((name, value?)));
    known.map(|(name, value)| (AttributeName::new(domain, name), value)).collect()
}

/// What is told of a PCI function: what Kubernetes defines, and what it is by its identifiers.
pub(super) fn of_function(function: &PciFunction) -> Attributes {
    let identifiers = attributes(
        "windlass.dev",
        [
            ("pciVendor", function.vendor.as_ref().and_then(text)),
            ("pciDevice", function.device.as_ref().and_then(text)),
            ("driver", function.driver.as_ref().and_then(text)),
        ],
    );
    function.attributes().into_iter().chain(identifiers).collect()
}

/// A text, unless it is empty.
pub(super) fn text(text: impl AsRef<str>) -> Option<AttributeValue> {
    let text = text.as_ref().trim();
    (!text.is_empty()).then(|| AttributeValue::string(text))
}
