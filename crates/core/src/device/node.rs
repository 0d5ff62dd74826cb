//! A device node: what of the host's `/dev` a container gets with a device.

use std::{fmt, path::PathBuf, str::FromStr};

use serde::Serialize;

/// A device node that a container gets.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceNode {
    /// Its path on the host, `/dev/infiniband/uverbs0`.
    pub path: PathBuf,
    /// Its path in the container, where that is another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inside: Option<PathBuf>,
    /// What a container may do with it.
    #[serde(skip_serializing_if = "Access::is_usual")]
    pub access: Access,
    /// Whether other devices have it too, as all AMD's GPUs have `/dev/kfd`. A node that is not
    /// shared belongs to one device, and a second that has it is not handed out beside the first.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
    /// The folder in sysfs whose `uevent` says that the node is this device's: numbers of nodes
    /// change, and the kernel's word is asked again before the device is handed out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proof: Option<PathBuf>,
}

/// What a container may do with a device node, in the letters of the devices cgroup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Access {
    /// `r`
    Read,
    /// `w`
    Write,
    /// `rw`
    #[default]
    ReadWrite,
    /// `rwm`: the container may also make such a node itself, which few devices need.
    ReadWriteMake,
}

/// Letters that are no access.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no access to a device node: write r, w, rw or rwm")]
pub struct InvalidAccess(String);

// === impl DeviceNode ===

impl DeviceNode {
    /// A node that belongs to one device, read and written at its own path.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let (inside, access, shared, proof) = Default::default();
        Self { path: path.into(), inside, access, shared, proof }
    }

    /// A node that other devices have too.
    pub fn shared(path: impl Into<PathBuf>) -> Self {
        Self { shared: true, ..Self::new(path) }
    }

    /// Where the container finds it.
    pub fn inside(&self) -> &PathBuf {
        self.inside.as_ref().unwrap_or(&self.path)
    }
}

// === impl Access ===

impl Access {
    /// The letters of the devices cgroup.
    pub fn letters(self) -> &'static str {
        match self {
            Self::Read => "r",
            Self::Write => "w",
            Self::ReadWrite => "rw",
            Self::ReadWriteMake => "rwm",
        }
    }

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde asks for it")]
    fn is_usual(&self) -> bool {
        *self == Self::default()
    }
}

impl FromStr for Access {
    type Err = InvalidAccess;

    /// The letters in any order, as other plugins' files have them.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut letters: Vec<_> = text.chars().collect();
        letters.sort_unstable();
        match letters.as_slice() {
            ['r'] => Ok(Self::Read),
            ['w'] => Ok(Self::Write),
            ['r', 'w'] => Ok(Self::ReadWrite),
            ['m', 'r', 'w'] => Ok(Self::ReadWriteMake),
            _ => Err(InvalidAccess(text.to_owned())),
        }
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.letters())
    }
}

impl Serialize for Access {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.letters())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_is_read_in_any_order_and_written_in_one() {
        for (text, expected) in [("r", "r"), ("rw", "rw"), ("wr", "rw"), ("mrw", "rwm")] {
            assert_eq!(text.parse::<Access>().expect("valid").to_string(), expected);
        }
        for wrong in ["", "x", "rr", "m", "rwx"] {
            assert!(wrong.parse::<Access>().is_err(), "{wrong}");
        }
    }
}
