//! Device nodes: files under `/dev` that a container gets.

use std::{fmt, path::PathBuf, str::FromStr};

use serde::Serialize;

/// A device node that a container gets.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceNode {
    /// Path on the host, `/dev/infiniband/uverbs0`.
    pub path: PathBuf,
    /// Path in the container, if different.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inside: Option<PathBuf>,
    /// Permitted access.
    #[serde(skip_serializing_if = "Access::is_default")]
    pub access: Access,
    /// True if other devices have the same node, as all AMD GPUs have `/dev/kfd`. Two devices with the same
    /// unshared node are not allocated together.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
    /// Sysfs folder whose `uevent` contains the device's current node numbers. The numbers are checked again at
    /// allocation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proof: Option<PathBuf>,
}

/// Device cgroup permissions of a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Access {
    /// `r`
    Read,
    /// `w`
    Write,
    /// `rw`
    #[default]
    ReadWrite,
    /// `rwm`: the container may also create the node, which few devices need.
    ReadWriteMake,
}

/// Text that is not an access mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an access to a device node: write r, w, rw or rwm")]
pub struct InvalidAccess(String);

serialize_as_text!(Access);

// === impl DeviceNode ===

impl DeviceNode {
    /// A node that only one device has, for reading and writing, at the same path as on the host.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            inside: None,
            access: Access::default(),
            shared: false,
            proof: None,
        }
    }

    /// A node that several devices have.
    pub fn shared(path: impl Into<PathBuf>) -> Self {
        Self { shared: true, ..Self::new(path) }
    }

    /// Path in the container.
    pub fn container_path(&self) -> &PathBuf {
        self.inside.as_ref().unwrap_or(&self.path)
    }
}

// === impl Access ===

impl Access {
    /// The letters of the devices cgroup.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "r",
            Self::Write => "w",
            Self::ReadWrite => "rw",
            Self::ReadWriteMake => "rwm",
        }
    }

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde requires a reference")]
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl FromStr for Access {
    type Err = InvalidAccess;

    /// Accepts the letters in any order, because configurations of other plugins use several orders.
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
        f.pad(self.as_str())
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
