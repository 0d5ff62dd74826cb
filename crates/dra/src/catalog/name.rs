//! Name of a device in its pool: a DNS label, as stable as the device's id.

use std::fmt;

use windlass_core::{
    device::{DeviceId, Partition},
    name::MAX_LABEL,
};
use windlass_host::abbreviate::{checksum, shortened};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct DeviceName(String);

// === impl DeviceName ===

impl DeviceName {
    /// Converts an id to a DNS label. If that changes characters, a checksum of the id keeps the names distinct.
    /// NVIDIA's ids need none: only the case of their prefix changes.
    pub(crate) fn of(id: &DeviceId) -> Self {
        let text = id.as_str();
        let label_character = |character: char| {
            if character.is_ascii_alphanumeric() { character.to_ascii_lowercase() } else { '-' }
        };
        let label: String = text.chars().map(label_character).collect();
        let label = label.trim_matches('-');
        let is_lossless = label == text || is_nvidia_id(text);
        let name =
            if is_lossless { label.to_owned() } else { format!("{label}-{:08x}", checksum(text)) };
        Self(shortened(name.trim_start_matches('-'), MAX_LABEL))
    }

    /// Name of a partition: GPU, profile name, profile id and first memory slice, as in `gpu-…-mig-1g-10gb-me-20-0`.
    pub(crate) fn of_partition(partition: &Partition) -> Self {
        let Partition { gpu, profile, profile_id, start, .. } = partition;
        let profile = profile
            .as_str()
            .to_ascii_lowercase()
            .replace(|character: char| !character.is_ascii_alphanumeric(), "-");
        let name = format!("{}-mig-{profile}-{profile_id}-{start}", Self::of(gpu));
        Self(shortened(&name, MAX_LABEL))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// True for `GPU-` or `MIG-` followed by a UUID in lower case.
fn is_nvidia_id(id: &str) -> bool {
    let uuid = id.strip_prefix("GPU-").or_else(|| id.strip_prefix("MIG-"));
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f' | b'-');
    uuid.is_some_and(|uuid| !uuid.is_empty() && uuid.bytes().all(is_digit) && !uuid.ends_with('-'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use windlass_core::name::is_label;

    use super::*;

    fn name(id: &str) -> String {
        DeviceName::of(&id.parse().expect("an id")).to_string()
    }

    #[test]
    fn a_name_has_a_checksum_only_if_the_label_changes_characters() {
        let uuid = "990cf196-a985-4ef9-a50d-90c29f914225";
        assert_eq!(name(&format!("GPU-{uuid}")), format!("gpu-{uuid}"));
        assert_eq!(name("fuse-0"), "fuse-0");
        assert_eq!(name("mlx5_0"), "mlx5-0-cf5aa994");
        assert_ne!(name("mlx5_0"), name("mlx5.0"));
    }

    proptest! {
        #[test]
        fn every_id_has_a_name_that_is_a_label(id in "[A-Za-z0-9_.:-]{1,63}") {
            let name = name(&id);
            prop_assert!(is_label(&name), "{}", name);
        }
    }
}
