//! The shared devices of a resource: all, a number of them, or a list of indices and UUIDs.

use std::{collections::BTreeSet, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{Error, SeqAccess, Visitor},
};
use windlass_config::Selector;
use windlass_core::device::{DeviceId, DeviceKind};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Devices {
    All,
    /// A number of devices, lowest index first.
    Count(u32),
    List(Vec<Reference>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reference {
    /// `0`: a GPU by position.
    Gpu(u32),
    /// `0:1`: a MIG instance by its GPU's position and its own.
    Instance(u32, u32),
    /// `GPU-…` or `MIG-…`.
    Id(String),
}

/// A subset of the devices of a selector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Subset {
    All,
    Index(BTreeSet<u32>),
    Ids(BTreeSet<String>),
    Instance(u32, u32),
}

// === impl Devices ===

impl Devices {
    pub(super) fn is_all(&self) -> bool {
        *self == Self::All
    }

    /// Subsets of a kind's devices, one for each selector. Drops references to devices of another kind. A number of MIG
    /// instances selects all of them, since instances have no order.
    pub(super) fn subsets(&self, kind: DeviceKind) -> Vec<Subset> {
        match (self, kind) {
            (Self::Count(count), DeviceKind::Gpu) => vec![Subset::Index((0..*count).collect())],
            (Self::All | Self::Count(_), _) => vec![Subset::All],
            (Self::List(list), _) => listed(list, kind),
        }
    }
}

fn listed(list: &[Reference], kind: DeviceKind) -> Vec<Subset> {
    let (mut index, mut ids, mut subsets) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
    for reference in list {
        match (reference, kind) {
            (Reference::Gpu(position), DeviceKind::Gpu) => drop(index.insert(*position)),
            (Reference::Instance(gpu, instance), DeviceKind::Mig) => {
                subsets.push(Subset::Instance(*gpu, *instance));
            }
            (Reference::Id(id), _) if id.starts_with("MIG-") == (kind == DeviceKind::Mig) => {
                ids.insert(id.clone());
            }
            _ => {}
        }
    }
    subsets.extend((!index.is_empty()).then_some(Subset::Index(index)));
    subsets.extend((!ids.is_empty()).then_some(Subset::Ids(ids)));
    subsets
}

// === impl Subset ===

impl Subset {
    /// Restricts a selector to this subset; `None` if the expression becomes too long.
    pub(super) fn restrict(self, devices: &Selector) -> Option<Selector> {
        let devices = devices.clone();
        match self {
            Self::All => Some(devices),
            Self::Index(index) => Some(Selector { index, ..devices }),
            Self::Ids(ids) => Some(Selector { ids, ..devices }),
            Self::Instance(gpu, instance) => {
                let condition =
                    format!("device.attributes[\"nvidia.com\"].instanceIndex == {instance}");
                let text = match &devices.expression {
                    Some(expression) => format!("({}) && {condition}", expression.as_str()),
                    None => condition,
                };
                let expression = text.parse().ok()?;
                Some(Selector { index: [gpu].into(), expression: Some(expression), ..devices })
            }
        }
    }
}

// === impl Reference ===

impl Reference {
    fn parse(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.parse::<u32>().ok();
        if let Some(position) = number(text) {
            return Ok(Self::Gpu(position));
        }
        let parts = text.split_once(':').and_then(|(i, j)| number(i).zip(number(j)));
        if let Some((gpu, instance)) = parts {
            return Ok(Self::Instance(gpu, instance));
        }
        let has_prefix = text.starts_with("GPU-") || text.starts_with("MIG-");
        let is_valid = has_prefix && text.parse::<DeviceId>().is_ok();
        is_valid.then(|| Self::Id(text.to_owned())).ok_or_else(|| {
            format!(
                "{text:?} is not a device: write an index such as 0 or 0:1, GPU-<uuid> or MIG-<uuid>"
            )
        })
    }
}

impl<'de> Deserialize<'de> for Reference {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Devices {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(DevicesVisitor)
    }
}

struct DevicesVisitor;

impl<'de> Visitor<'de> for DevicesVisitor {
    type Value = Devices;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("all, a number of devices, or a list of them")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Devices, E> {
        let error = || {
            E::custom(format!("{text:?} is not a set of devices: write all, a number or a list"))
        };
        (text == "all").then_some(Devices::All).ok_or_else(error)
    }

    fn visit_u64<E: Error>(self, count: u64) -> Result<Devices, E> {
        // Each index becomes an entry of the selector, and no machine has more than 64 GPUs.
        let in_range = u32::try_from(count).ok().filter(|count| (1..=64).contains(count));
        let error = || E::custom(format!("{count} devices: write a number from 1 to 64, or all"));
        in_range.map(Devices::Count).ok_or_else(error)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Devices, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Devices::List(list))
    }
}
