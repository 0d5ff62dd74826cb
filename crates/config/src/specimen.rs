//! A device that has everything its source may know, to ask an expression about before there is a device:
//! `questions` does.

use std::str::FromStr as _;

use jiff::Timestamp;
use windlass_core::{
    attribute::{AttributeName, AttributeValue, Attributes, standard},
    device::{Device, DeviceId, DeviceKind, KnownAttributes, Sort, SourceName},
};

use super::{Selector, SourceRule, document::Lined};

/// What stands for any text.
pub(super) fn any() -> AttributeValue {
    AttributeValue::string("0")
}

/// All that is known of devices before there is one.
pub(super) struct Specimen {
    /// A device that has everything of which the sort is known.
    pub(super) device: Device,
    /// What some devices have, now of one sort and now of another.
    pub(super) either: Vec<(&'static str, &'static str)>,
    /// What else they may have.
    pub(super) others: Others,
}

/// What devices may have besides what is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Others {
    /// Nothing.
    None,
    /// What a driver or a later version says; a name that is nearly a known one is a slip.
    Few,
    /// What somebody writes into a file.
    Any,
}

// === impl Specimen ===

impl Specimen {
    /// A device of a source, with these attributes and those of any place.
    pub(super) fn new(source: SourceName, attributes: Attributes, others: Others) -> Self {
        let id = DeviceId::from_str("any-device").expect("letters and a dash");
        let new = Device::new(id, DeviceKind::Other, source, Timestamp::UNIX_EPOCH);
        let place = [
            (standard::PCI_BUS_ID, any()),
            (standard::PCIE_ROOT, any()),
            (standard::NUMA_NODE, AttributeValue::Int(0)),
        ];
        let attributes = place.into_iter().chain(attributes).collect();
        Self { device: Device { attributes, ..new }, either: Vec::new(), others }
    }

    /// What a selector is about, if that is known without looking: the devices of a source that is built in,
    /// or of one of the configuration.
    pub(super) fn of(selector: &Selector, sources: &[Lined<SourceRule>]) -> Option<Self> {
        let source =
            selector.source.clone().or_else(|| selector.kind?.facts().only_source.clone())?;
        if let Some(described) = sources.iter().find(|described| described.value.name == source) {
            return Some(described.value.specimen());
        }
        let known = source.family().attributes.iter().copied().flatten();
        known.clone().next()?;
        let names = |it: &'static KnownAttributes| it.names.iter().map(move |name| (it, *name));
        let all = known.flat_map(names);
        let (either, sure): (Vec<_>, Vec<_>) = all.partition(|(it, _)| it.sort == Sort::Either);
        let sure =
            sure.into_iter().map(|(it, name)| (AttributeName::new(it.domain, name), one(it.sort)));
        let either = either.into_iter().map(|(it, name)| (it.domain, name)).collect();
        Some(Self { either, ..Self::new(source.clone(), sure.collect(), Others::Few) })
    }
}

/// What stands for any value of a type.
fn one(sort: Sort) -> AttributeValue {
    match sort {
        Sort::Text | Sort::Either => any(),
        Sort::Int => AttributeValue::Int(0),
        Sort::Bool => AttributeValue::Bool(false),
        Sort::Version => AttributeValue::version("1.0"),
    }
}
