//! Layout of counter sets: in separate slices, or, before Kubernetes 1.35, in the slice of the devices that consume
//! them.

use k8s_openapi::{api::resource::v1::Device, apimachinery::pkg::version::Info};

use super::SliceContent;

/// Layout of a pool's counter sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Layout {
    /// Each slice has either counters or devices.
    #[default]
    Separate,
    /// Each counter set is in one slice with its consumers.
    Combined,
}

/// First minor version of Kubernetes 1 that requires counters in separate slices.
const FIRST_SEPARATE_MINOR: u32 = 35;

// === impl Layout ===

impl Layout {
    /// Layout for an API server of this version. An unknown version counts as new.
    pub(super) fn of(version: &Info) -> Self {
        let minor = version.minor.trim_end_matches(|character: char| !character.is_ascii_digit());
        let is_old = version.major == "1"
            && minor.parse().is_ok_and(|minor: u32| minor < FIRST_SEPARATE_MINOR);
        if is_old { Self::Combined } else { Self::Separate }
    }

    /// Slices of a pool in this layout, from slices with separate counters.
    pub(super) fn arrange(self, slices: Vec<SliceContent>) -> Vec<SliceContent> {
        let has_counters = slices.iter().any(|slice| !slice.shared_counters.is_empty());
        if self == Self::Separate || !has_counters {
            return slices;
        }
        let devices = || slices.iter().flat_map(|slice| &slice.devices);
        let combined =
            slices.iter().flat_map(|slice| &slice.shared_counters).map(|set| SliceContent {
                devices: devices()
                    .filter(|device| counter_set_of(device) == Some(&*set.name))
                    .cloned()
                    .collect(),
                shared_counters: vec![set.clone()],
            });
        let without_counters = slices.iter().filter_map(|slice| {
            let devices = slice.devices.iter().filter(|device| counter_set_of(device).is_none());
            let devices: Vec<_> = devices.cloned().collect();
            (!devices.is_empty()).then(|| SliceContent { devices, ..SliceContent::default() })
        });
        without_counters.chain(combined).collect()
    }
}

/// Counter set that the device consumes.
fn counter_set_of(device: &Device) -> Option<&str> {
    device.consumes_counters.as_deref()?.first().map(|consumption| consumption.counter_set.as_str())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn slice(devices: &[(&str, Option<&str>)], sets: &[&str]) -> SliceContent {
        let device = |(name, set): &(&str, Option<&str>)| {
            let consumed =
                set.map(|set| json!([{"counterSet": set, "counters": {"m": {"value": "1"}}}]));
            let device = json!({"name": name, "consumesCounters": consumed});
            serde_json::from_value(device).expect("a device")
        };
        let set = |name: &&str| json!({"name": name, "counters": {"m": {"value": "8"}}});
        let sets: Value = sets.iter().map(set).collect();
        SliceContent {
            devices: devices.iter().map(device).collect(),
            shared_counters: serde_json::from_value(sets).expect("sets"),
        }
    }

    #[test]
    fn older_api_servers_get_a_slice_for_each_set_with_its_consumers() {
        let separate = vec![
            slice(&[], &["a", "b"]),
            slice(&[("whole", None)], &[]),
            slice(&[("a0", Some("a")), ("a1", Some("a"))], &[]),
            slice(&[("b0", Some("b"))], &[]),
        ];
        assert_eq!(Layout::Separate.arrange(separate.clone()), separate);
        let combined = [
            slice(&[("whole", None)], &[]),
            slice(&[("a0", Some("a")), ("a1", Some("a"))], &["a"]),
            slice(&[("b0", Some("b"))], &["b"]),
        ];
        assert_eq!(Layout::Combined.arrange(separate), combined);
        let without_sets = vec![slice(&[("whole", None)], &[])];
        assert_eq!(Layout::Combined.arrange(without_sets.clone()), without_sets);
    }

    #[test]
    fn the_version_of_the_api_server_decides() {
        for (minor, expected) in [
            ("34", Layout::Combined),
            ("34+", Layout::Combined),
            ("35", Layout::Separate),
            ("36+", Layout::Separate),
            ("", Layout::Separate),
        ] {
            let info = Info { major: "1".to_owned(), minor: minor.to_owned(), ..Info::default() };
            assert_eq!(Layout::of(&info), expected, "{minor}");
        }
    }
}
