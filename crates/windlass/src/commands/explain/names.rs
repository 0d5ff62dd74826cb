//! Resolution of device names from the command line.

use std::{collections::BTreeSet, fmt};

use windlass_core::{
    device::{Device, DeviceId},
    replica::ReplicaId,
};

use crate::commands::{is_named, name_prefix, short_name};

/// Device, or one replica of a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct NamedDevice<'a> {
    pub(super) device: &'a Device,
    pub(super) replica: Option<u32>,
}

/// Name that no device has.
#[derive(Debug, thiserror::Error)]
#[error("no device of {scope} is named {word:?}; {}", ValidNames(names))]
pub(super) struct UnknownName {
    word: String,
    scope: String,
    names: Vec<String>,
}

struct ValidNames<'a>(&'a [String]);

/// Maximum number of names in an error.
const MAX_NAMES: usize = 16;

/// Resolves names and numbers to devices of a resource. The name of a GPU matches all its MIG instances if the resource
/// consists of them.
pub(super) fn resolve_in_resource<'a>(
    members: &[&'a Device],
    resource: impl fmt::Display,
    words: &[String],
) -> Result<Vec<NamedDevice<'a>>, UnknownName> {
    let mut named_devices = Vec::new();
    for word in words {
        let (word, replica) = match ReplicaId::split(word) {
            Some((name, number)) => (name, Some(number)),
            None => (word.as_str(), None),
        };
        for name in expand(word, members) {
            let matches = members.iter().filter(|device| is_named(device, &name));
            let count = named_devices.len();
            named_devices.extend(matches.map(|&device| NamedDevice { device, replica }));
            if named_devices.len() == count {
                return Err(UnknownName::new(&name, resource, members));
            }
        }
    }
    Ok(named_devices)
}

/// Resolves names to devices of any resource.
pub(super) fn resolve<'a>(
    devices: &[&'a Device],
    words: &[String],
) -> Result<Vec<&'a Device>, UnknownName> {
    let find = |word: &String| {
        let device = devices.iter().find(|device| is_named(device, word));
        device.copied().ok_or_else(|| UnknownName::new(word, "this machine", devices))
    };
    words.iter().map(find).collect()
}

/// Removes the words that name a NIC, and returns the NICs.
pub(super) fn take_nics(devices: &[Device], words: &mut Vec<String>) -> Vec<DeviceId> {
    let nics = devices.iter().filter(|device| device.kind.is_network());
    let nic = |word: &String| nics.clone().find(|device| is_named(device, word));
    let ids = unique_ids(words.iter().filter_map(nic));
    words.retain(|word| nic(word).is_none());
    ids
}

/// Ids without duplicates, in order of appearance.
pub(super) fn unique_ids<'a>(devices: impl IntoIterator<Item = &'a Device>) -> Vec<DeviceId> {
    let mut seen = BTreeSet::new();
    let ids = devices.into_iter().map(|device| &device.id);
    ids.filter(|id| seen.insert(*id)).cloned().collect()
}

/// Expands `0-2` to `GPU0`, `GPU1`, `GPU2` (or `FPGA0` and so on) and `0/1` to `GPU0:1`; other words are names.
fn expand(word: &str, members: &[&Device]) -> Box<dyn Iterator<Item = String>> {
    let kind = members.first().map(|device| name_prefix(device)).unwrap_or_default();
    let range = word.split_once('-').and_then(|(first, last)| {
        let range = (first.parse::<u32>().ok()?)..=(last.parse().ok()?);
        (!range.is_empty()).then_some(range)
    });
    let is_number = |text: &str| text.parse::<u32>().is_ok();
    match range {
        Some(range) => Box::new(range.map(move |number| format!("{kind}{number}"))),
        None if word.split([':', '/']).all(is_number) => {
            Box::new(std::iter::once(format!("{kind}{}", word.replace('/', ":"))))
        }
        None => Box::new(std::iter::once(word.to_owned())),
    }
}

// === impl NamedDevice ===

impl fmt::Display for NamedDevice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&short_name(self.device))?;
        self.replica.map_or(Ok(()), |number| write!(f, "::{number}"))
    }
}

// === impl UnknownName ===

impl UnknownName {
    fn new(word: &str, scope: impl fmt::Display, devices: &[&Device]) -> Self {
        let names = devices.iter().map(|device| short_name(device)).collect();
        Self { word: word.to_owned(), scope: scope.to_string(), names }
    }
}

impl fmt::Display for ValidNames<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [] => f.write_str("there is none"),
            names if names.len() <= MAX_NAMES => write!(f, "there are {}", names.join(" ")),
            names => write!(
                f,
                "there are {} and {} more",
                names[..MAX_NAMES].join(" "),
                names.len() - MAX_NAMES
            ),
        }
    }
}
