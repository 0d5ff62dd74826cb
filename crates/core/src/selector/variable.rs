//! The variable `device` of expressions.

use std::collections::{BTreeMap, HashMap};

use cel::{
    ExecutionError,
    common::{
        traits::{Container, Indexer, Iterable, Sizer},
        types::{CelBool, CelInt, CelMap, CelMapKey, CelString, MAP_TYPE, Type},
        value::{CowVal, Val},
    },
};

use super::{quantity::Amount, version::Version};
use crate::{attribute::AttributeValue, device::Device};

pub(super) const FIELDS: [&str; 6] = ["attributes", "capacity", "id", "index", "kind", "source"];

/// Values by domain. An unknown domain is an empty map, as in DRA, so that `has()` works.
#[derive(Clone, Debug)]
pub(super) struct Domains<'v> {
    by_domain: CelMap<'v>,
    /// Value of every unknown domain.
    empty: CelMap<'v>,
}

/// Value of the variable `device`; borrows the device's texts.
pub(super) fn variable<'v>(device: &'v Device) -> Box<dyn Val + 'v> {
    let attributes = device
        .attributes
        .iter()
        .map(|(name, value)| ((name.domain(), name.name()), attribute(value, CelString::from)));
    let capacity = device.capacity.iter().map(|(name, amount)| {
        let amount: Box<dyn Val> = Box::new(Amount::from(*amount));
        ((name.domain(), name.name()), amount)
    });
    let fields: [Box<dyn Val + 'v>; 6] = [
        Box::new(Domains::of(attributes)),
        Box::new(Domains::of(capacity)),
        Box::new(CelString::from(device.id.as_str())),
        Box::new(CelInt::from(i64::from(device.index))),
        Box::new(CelString::from(device.kind.to_string())),
        Box::new(CelString::from(device.source.as_str())),
    ];
    Box::new(map(FIELDS.into_iter().zip(fields)))
}

/// Value of an attribute. The function `string` borrows or copies its text.
pub(super) fn attribute<'a, 'v>(
    value: &'a AttributeValue,
    string: fn(&'a str) -> CelString<'v>,
) -> Box<dyn Val + 'v> {
    match value {
        AttributeValue::String(text) => Box::new(string(text)),
        AttributeValue::Int(number) => Box::new(CelInt::from(*number)),
        AttributeValue::Bool(truth) => Box::new(CelBool::from(*truth)),
        AttributeValue::Version(text) => match Version::parse(text) {
            Some(version) => Box::new(version),
            None => Box::new(string(text)),
        },
    }
}

pub(super) fn map<'v, K: Into<CelMapKey<'v>>>(
    entries: impl Iterator<Item = (K, Box<dyn Val + 'v>)>,
) -> CelMap<'v> {
    let entries = entries.map(|(key, value)| (key.into(), value));
    CelMap::from(entries.collect::<HashMap<_, _>>())
}

// === impl Domains ===

impl<'v> Domains<'v> {
    /// Groups values, given as ((domain, name), value), by domain.
    pub(super) fn of<K: Into<CelMapKey<'v>> + Ord>(
        values: impl Iterator<Item = ((K, K), Box<dyn Val + 'v>)>,
    ) -> Self {
        let mut domains = BTreeMap::<K, Vec<_>>::new();
        for ((domain, name), value) in values {
            domains.entry(domain).or_default().push((name, value));
        }
        let domain = |(domain, values): (_, Vec<_>)| {
            let values: Box<dyn Val + 'v> = Box::new(map(values.into_iter()));
            (domain, values)
        };
        Self { by_domain: map(domains.into_iter().map(domain)), empty: CelMap::default() }
    }
}

impl Val for Domains<'_> {
    fn get_type(&self) -> &Type {
        &MAP_TYPE
    }

    fn cel_type() -> &'static Type {
        &MAP_TYPE
    }

    fn as_container(&self) -> Option<&dyn Container> {
        self.by_domain.as_container()
    }

    fn as_indexer<'b, 'w>(&'b self) -> Option<&'b (dyn Indexer + 'w)>
    where
        Self: 'w,
    {
        Some(self)
    }

    fn as_iterable<'b, 'w>(&'b self) -> Option<&'b (dyn Iterable + 'w)>
    where
        Self: 'w,
    {
        self.by_domain.as_iterable()
    }

    fn as_sizer(&self) -> Option<&dyn Sizer> {
        self.by_domain.as_sizer()
    }

    fn clone_as_boxed<'w>(&self) -> Box<dyn Val + 'w>
    where
        Self: 'w,
    {
        Box::new(self.clone())
    }
}

impl Indexer for Domains<'_> {
    fn get<'b, 'w>(&'b self, domain: &dyn Val) -> Result<CowVal<'b, 'w>, ExecutionError>
    where
        Self: 'w,
    {
        match self.by_domain.get(domain) {
            Err(ExecutionError::NoSuchKey(_)) => Ok(CowVal::Borrowed(&self.empty)),
            result => result,
        }
    }

    fn steal<'w>(self: Box<Self>, domain: &dyn Val) -> Result<Box<dyn Val + 'w>, ExecutionError>
    where
        Self: 'w,
    {
        self.get(domain).map(CowVal::into_owned)
    }
}
