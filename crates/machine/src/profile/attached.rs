//! Devices that a machine profile adds by the name of a device profile. A device profile contains the agent's
//! discovery rules and the kernel's files for a simulated device.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use super::{Device, MachineProfile, ValidationError, ValidationErrorKind, validate::ProfileEntry};

macro_rules! profiles {
    ($($name:literal),* $(,)?) => {
        /// Name and text of each device profile, grouped by family.
        const ALL: &[(&str, &str)] = &[
            $(($name, include_str!(concat!("../../../../profiles/devices/", $name, ".yaml")))),*
        ];
    };
}

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
    "gaudi",
    "qaic",
    "ascend-910",
    "ascend-310p",
];

/// Placeholder of the device number in a profile's text.
const NUMBER: &str = "{n}";

/// Maximum number of devices of one device profile: its text has room for one digit.
const MAX_COUNT: u16 = 10;

/// Devices to add to a machine, `hailo:2`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attached {
    /// Name of the device profile.
    pub profile: String,
    /// Number of devices.
    #[serde(default = "default_count")]
    pub count: u16,
}

/// Syntax error in a device addition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not the name of a device profile with a number of devices, such as hailo:2")]
pub struct AttachedSyntaxError(String);

/// Simulated part of a device profile.
#[derive(Deserialize)]
struct SimulatedDevices {
    #[serde(default)]
    simulated: Vec<Device>,
}

// === impl Attached ===

impl Attached {
    /// Names of the device profiles with a simulated part.
    pub fn names() -> impl Iterator<Item = &'static str> {
        ALL.iter().filter(|(_, text)| text.contains("\nsimulated:\n")).map(|(name, _)| *name)
    }

    /// Devices of the device profile, with their PCI functions in the given domain.
    fn devices(&self, domain: u16) -> Result<Vec<Device>, ValidationErrorKind> {
        let unknown_profile = || {
            ValidationErrorKind::UnknownDeviceProfile(Self::names().collect::<Vec<_>>().join(", "))
        };
        let entry = ALL.iter().find(|(name, _)| *name == self.profile);
        let (_, text) = entry
            .filter(|(name, _)| Self::names().any(|other| other == *name))
            .ok_or_else(unknown_profile)?;
        if !(1..=MAX_COUNT).contains(&self.count) {
            let (value, max) = (self.count.into(), MAX_COUNT.into());
            return Err(ValidationErrorKind::OutOfRange { what: "count", value, min: 1, max });
        }
        let texts = (0..self.count).map(|number| text.replace(NUMBER, &number.to_string()));
        let parse_devices = |text: String| {
            // Every device profile writes PCI addresses with the domain 0000.
            let text = text.replace("0000:", &format!("{domain:04x}:"));
            let parsed: SimulatedDevices =
                serde_saphyr::from_str(&text).expect("a test parses every profile");
            parsed.simulated
        };
        Ok(texts.flat_map(parse_devices).collect())
    }
}

impl FromStr for Attached {
    type Err = AttachedSyntaxError;

    fn from_str(text: &str) -> Result<Self, AttachedSyntaxError> {
        let (profile, count) = text.split_once(':').unwrap_or((text, "1"));
        let count = count.parse().ok().filter(|_| !profile.is_empty());
        let count = count.ok_or_else(|| AttachedSyntaxError(text.to_owned()))?;
        Ok(Self { profile: profile.to_owned(), count })
    }
}

impl fmt::Display for Attached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.profile, self.count)
    }
}

// === impl MachineProfile ===

impl MachineProfile {
    /// Adds devices to the machine. On a conflict, such as a PCI address in use, the devices move to another PCI
    /// domain, up to domain 3.
    pub fn attach(&mut self, attached: &Attached) -> Result<(), ValidationError> {
        let entry = ProfileEntry::Attached(attached.to_string());
        let problem = |kind| ValidationError { entry: entry.clone(), kind };
        let mut first_conflict = None;
        for domain in 0..=3 {
            let mut extended = self.clone();
            extended.devices.extend(attached.devices(domain).map_err(problem)?);
            match extended.validate() {
                Ok(()) => {
                    *self = extended;
                    return Ok(());
                }
                Err(ValidationError { kind, .. }) => first_conflict = first_conflict.or(Some(kind)),
            }
        }
        Err(problem(first_conflict.expect("the loop tries four domains")))
    }
}

fn default_count() -> u16 {
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_device_profile_is_in_the_table_and_parses() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../profiles/devices");
        let files = std::fs::read_dir(folder).expect("a folder").map(|entry| {
            entry.expect("an entry").path().file_stem().expect("a name").display().to_string()
        });
        let mut files: Vec<_> = files.collect();
        let mut names: Vec<_> = ALL.iter().map(|(name, _)| (*name).to_owned()).collect();
        files.sort_unstable();
        names.sort_unstable();
        assert_eq!(names, files);
        for (name, text) in ALL {
            let parsed: Result<SimulatedDevices, _> =
                serde_saphyr::from_str(&text.replace(NUMBER, "0"));
            parsed.unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }

    #[test]
    fn attached_devices_round_trip_through_their_text() {
        for text in ["hailo:2", "coral-usb:1"] {
            assert_eq!(text.parse::<Attached>().expect(text).to_string(), text);
        }
        assert_eq!("hailo".parse::<Attached>().expect("a device").count, 1);
        for invalid in ["", ":2", "hailo:", "hailo:x", "hailo:-1"] {
            invalid.parse::<Attached>().expect_err(invalid);
        }
    }
}
