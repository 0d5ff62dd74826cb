//! The device profiles that come with Windlass, embedded from `profiles/devices/`. An entry of `sources` may use one.

use std::str::FromStr;

use crate::{
    document::{self, YamlNode},
    scalar::Scalar,
};

macro_rules! profiles {
    ($($name:literal),* $(,)?) => {
        /// All device profiles, grouped by kind.
        pub const ALL: &[Self] = &[
            $(Self {
                name: $name,
                text: include_str!(concat!("../../../profiles/devices/", $name, ".yaml")),
            }),*
        ];
    };
}

/// A device profile: the discovery and delivery of one kind of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceProfile {
    /// Name of the profile.
    pub name: &'static str,
    /// Text of the profile's file: comments, the `source` and, for simulated machines, `simulated`.
    pub text: &'static str,
}

/// Unknown name of a device profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown device profile {name:?}; known: {known}")]
pub struct UnknownDeviceProfile {
    name: String,
    known: String,
}

/// Keys whose subkeys are merged one by one. A profile's value for any other key is used as a whole.
const MERGED_KEYS: &[&str] = &["give"];

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

    /// Description in one sentence.
    pub fn description(&self) -> String {
        let description = self.document().child("description").and_then(YamlNode::text);
        description.expect("every profile has one, see the tests")
    }

    pub(crate) fn document(&self) -> YamlNode {
        document::parse(self.text).expect("every profile is YAML, see the tests")
    }
}

impl FromStr for DeviceProfile {
    type Err = UnknownDeviceProfile;

    fn from_str(name: &str) -> Result<Self, UnknownDeviceProfile> {
        let profile = Self::ALL.iter().find(|profile| profile.name == name);
        profile.copied().ok_or_else(|| {
            let known: Vec<_> = Self::ALL.iter().map(|profile| profile.name).collect();
            UnknownDeviceProfile { name: name.to_owned(), known: known.join(", ") }
        })
    }
}

impl Scalar for DeviceProfile {
    fn schema() -> schemars::Schema {
        let names: Vec<_> = Self::ALL.iter().map(|profile| profile.name).collect();
        schemars::json_schema!({ "type": "string", "enum": names })
    }

    fn read(text: &str) -> Result<Self, String> {
        text.parse().map_err(|error: UnknownDeviceProfile| error.to_string())
    }

    fn write(&self) -> String {
        self.name.to_owned()
    }
}

/// Completes the sources of a configuration from their device profiles. An entry with an unknown profile stays as it
/// is: the reader reports its line.
pub(super) fn with_profiles(mut config: YamlNode) -> YamlNode {
    for entry in config.items_mut("sources") {
        let name = entry.child("profile").and_then(YamlNode::text);
        let Some(Ok(profile)) = name.map(|name| name.parse::<DeviceProfile>()) else { continue };
        let document = profile.document();
        entry.merge_missing(document.child("source").unwrap_or(&document), MERGED_KEYS);
    }
    config.renumber();
    config
}

#[cfg(test)]
mod tests;
