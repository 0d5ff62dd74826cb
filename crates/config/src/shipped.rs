//! The profiles of devices that come with Windlass, embedded from `profiles/devices/`: what an entry of
//! `sources` may begin from.

use std::{path::Path, str::FromStr};

use super::{ConfigFile, SourceRule, document};

macro_rules! profiles {
    ($($name:literal),* $(,)?) => {
        /// All there are, those of one sort together.
        pub const ALL: &[Self] = &[
            $(Self {
                name: $name,
                text: include_str!(concat!("../../../profiles/devices/", $name, ".yaml")),
            }),*
        ];
    };
}

/// A profile: how devices of one sort are found and handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceProfile {
    /// What it is called.
    pub name: &'static str,
    /// Its file: what it is about in comments, the `source` and, for simulated machines, `simulated`.
    pub text: &'static str,
}

/// A name that no profile has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no profile of devices is called {name:?}; there are {known}")]
pub struct UnknownProfile {
    name: String,
    known: String,
}

/// Keys that are completed key by key; any other is taken as a whole.
const WITHIN: &[&str] = &["give"];

// === impl DeviceProfile ===

impl DeviceProfile {
    profiles![
        "darwin3-files",
        "darwin3-board",
        "darwin3-board-axidma",
        "darwin3-network",
        "kvm",
        "fuse",
        "tun",
        "vhost-net",
        "vhost-vsock",
        "video",
        "serial",
        "dvb",
        "coral-usb",
        "coral-pcie",
        "hailo",
        "rknpu",
        "jetson",
        "tpu",
        "tpu-vfio",
        "ascend-310p",
        "ascend-910",
        "gaudi",
        "qaic",
    ];

    /// One sentence for people.
    pub fn description(&self) -> String {
        let description = self.document().child("description").and_then(document::Node::text);
        description.expect("every profile has one, see the tests")
    }

    /// The source that an entry with nothing but the profile is.
    pub fn rule(&self) -> SourceRule {
        let entry = format!("sources: [{{profile: {}}}]", self.name);
        let config = ConfigFile::parse(Path::new(self.name), &entry);
        let mut sources = config.expect("every profile is valid, see the tests").policy.sources;
        sources.pop().expect("one was written")
    }

    fn document(&self) -> document::Node {
        document::parse(self.text).expect("every profile is YAML, see the tests")
    }
}

impl FromStr for DeviceProfile {
    type Err = UnknownProfile;

    fn from_str(name: &str) -> Result<Self, UnknownProfile> {
        let found = Self::ALL.iter().find(|profile| profile.name == name);
        found.copied().ok_or_else(|| {
            let known: Vec<_> = Self::ALL.iter().map(|profile| profile.name).collect();
            UnknownProfile { name: name.to_owned(), known: known.join(", ") }
        })
    }
}

/// A configuration with what its sources take from profiles. An unknown profile stays as it is written:
/// the reader knows the line.
pub(super) fn completed(mut config: document::Node) -> document::Node {
    for entry in config.items_mut("sources") {
        let name = entry.child("profile").and_then(document::Node::text);
        let Some(Ok(profile)) = name.map(|name| name.parse::<DeviceProfile>()) else { continue };
        let document = profile.document();
        entry.complete(document.child("source").unwrap_or(&document), WITHIN);
    }
    config.renumber();
    config
}

#[cfg(test)]
mod tests;
