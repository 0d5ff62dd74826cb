//! Checks of published ResourceSlices, as pure functions.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::resource::v1::{Device, ResourceSlice};

use super::owners::published_name;

/// Current slices of the driver. Pools may be incomplete, and devices may be duplicated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PublishedSlices(Vec<Slice>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Slice {
    pool: String,
    generation: i64,
    /// Number of slices in the pool, according to this one.
    expected_slices: i64,
    /// Device names with the keys of their taints.
    devices: Vec<(String, BTreeSet<String>)>,
}

/// Expected content of the slices, by UUID.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExpectedSlices<'a> {
    pub(super) usable: &'a BTreeSet<String>,
    pub(super) broken: &'a BTreeSet<String>,
    /// Devices that pods hold through the device plugin.
    pub(super) held: &'a BTreeSet<String>,
}

/// Taint of a device that a container holds through the device plugin, or released recently.
const DEVICE_PLUGIN_TAINT: &str = "windlass.dev/device-plugin";

// === impl PublishedSlices ===

impl PublishedSlices {
    pub(super) fn of(slices: Vec<ResourceSlice>) -> Self {
        Self(slices.into_iter().map(Slice::of).collect())
    }

    /// Checks the slices against the GPUs. A GPU may keep the device plugin's taint for a while after a release.
    pub(super) fn check(&self, expected: ExpectedSlices<'_>) -> Result<(), String> {
        self.check_pools()?;
        self.check_no_broken(expected.broken)?;
        let devices: BTreeMap<_, _> = self.devices().collect();
        for uuid in expected.usable {
            let Some(taints) = devices.get(&published_name(uuid)) else {
                return Err(format!("{uuid} is usable and not published"));
            };
            if taints.iter().any(|key| key != DEVICE_PLUGIN_TAINT) {
                return Err(format!("{uuid} is usable and published with {taints:?}"));
            }
            if taints.is_empty() && expected.held.contains(uuid) {
                return Err(format!("{uuid} is held by a pod and published without a taint"));
            }
        }
        Ok(())
    }

    /// Checks that no broken GPU is published without a taint.
    pub(super) fn check_no_broken(&self, broken: &BTreeSet<String>) -> Result<(), String> {
        let broken: BTreeSet<_> = broken.iter().map(|uuid| published_name(uuid)).collect();
        let untainted =
            self.devices().filter(|(_, taints)| taints.is_empty()).map(|(name, _)| name);
        let offered: Vec<_> = untainted.filter(|name| broken.contains(*name)).collect();
        if offered.is_empty() { Ok(()) } else { Err(format!("published and broken: {offered:?}")) }
    }

    /// Checks that every published GPU is untainted.
    pub(super) fn check_no_taints(&self) -> Result<(), String> {
        let mut gpus = self.devices().filter(|(name, _)| name.starts_with("gpu-"));
        let withheld = gpus.find(|(_, taints)| !taints.is_empty());
        withheld.map_or(Ok(()), |(name, taints)| Err(format!("{name} has the taints {taints:?}")))
    }

    /// Checks that each pool is complete and each device unique, as a scheduler requires.
    fn check_pools(&self) -> Result<(), String> {
        let mut pools = BTreeMap::<_, Vec<_>>::new();
        for slice in &self.0 {
            pools.entry(&slice.pool).or_default().push((slice.generation, slice.expected_slices));
        }
        for (pool, slices) in pools {
            let count = i64::try_from(slices.len()).unwrap_or(i64::MAX);
            let (generation, _) = slices[0];
            if slices.iter().any(|slice| *slice != (generation, count)) {
                return Err(format!("pool {pool} has slices of (generation, of) {slices:?}"));
            }
        }
        let mut seen = BTreeSet::new();
        let mut names = self.devices().map(|(name, _)| name);
        match names.find(|name| !seen.insert(*name)) {
            Some(name) => Err(format!("{name} is published twice")),
            None => Ok(()),
        }
    }

    fn devices(&self) -> impl Iterator<Item = (&String, &BTreeSet<String>)> {
        self.0.iter().flat_map(|slice| slice.devices.iter().map(|(name, taints)| (name, taints)))
    }
}

// === impl Slice ===

impl Slice {
    fn of(slice: ResourceSlice) -> Self {
        let taints = |device: Device| {
            let taints = device.taints.unwrap_or_default().into_iter().map(|taint| taint.key);
            (device.name, taints.collect())
        };
        let pool = slice.spec.pool;
        Self {
            pool: pool.name,
            generation: pool.generation,
            expected_slices: pool.resource_slice_count,
            devices: slice.spec.devices.into_iter().flatten().map(taints).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNHEALTHY: &str = "windlass.dev/unhealthy";

    /// Correct devices, in two parts.
    const DEVICES: [&[(&str, &[&str])]; 2] =
        [&[("gpu-0", &[])], &[("gpu-1", &[DEVICE_PLUGIN_TAINT])]];

    fn set(ids: &[&str]) -> BTreeSet<String> {
        ids.iter().map(|id| (*id).to_owned()).collect()
    }

    fn slice(
        pool: &str,
        (generation, slice_count): (i64, i64),
        devices: &[(&str, &[&str])],
    ) -> ResourceSlice {
        let device = |(name, taints): &(&str, &[&str])| {
            let taint = |key: &&str| serde_json::json!({"key": key, "effect": "NoSchedule"});
            let taints: Vec<_> = taints.iter().map(taint).collect();
            serde_json::json!({"name": name, "taints": taints})
        };
        let devices: Vec<_> = devices.iter().map(device).collect();
        let pool = serde_json::json!({
            "name": pool, "generation": generation, "resourceSliceCount": slice_count,
        });
        let spec = serde_json::json!({"driver": "windlass.dev", "pool": pool, "devices": devices});
        serde_json::from_value(serde_json::json!({"metadata": {}, "spec": spec})).expect("a slice")
    }

    /// GPU-0 and GPU-1 are usable, a pod has GPU-1, GPU-2 is broken.
    fn check(slices: Vec<ResourceSlice>) -> Result<(), String> {
        let (usable, broken, held) = (set(&["GPU-0", "GPU-1"]), set(&["GPU-2"]), set(&["GPU-1"]));
        PublishedSlices::of(slices).check(ExpectedSlices {
            usable: &usable,
            broken: &broken,
            held: &held,
        })
    }

    #[test]
    fn usable_gpus_are_published_and_broken_ones_are_not_allocatable() {
        let check = |devices: &[(&str, &[&str])]| check(vec![slice("n", (1, 1), devices)]);
        let valid: &[(&str, &[&str])] =
            &[("gpu-0", &[]), ("gpu-1", &[DEVICE_PLUGIN_TAINT]), ("nic", &[])];
        assert_eq!(check(valid), Ok(()));
        assert_eq!(check(&[valid, &[("gpu-2", &[UNHEALTHY])]].concat()), Ok(()));
        let violation = check(&[valid, &[("gpu-2", &[])]].concat());
        assert_eq!(violation, Err(r#"published and broken: ["gpu-2"]"#.to_owned()));
        assert!(
            check(&[("gpu-0", &[])])
                .is_err_and(|message| message.contains("GPU-1 is usable and not"))
        );
        let tainted = check(&[("gpu-0", &[UNHEALTHY]), ("gpu-1", &[DEVICE_PLUGIN_TAINT])]);
        assert!(
            tainted.is_err_and(|message| message.contains("GPU-0 is usable and published with"))
        );
        let untainted = check(&[("gpu-0", &[]), ("gpu-1", &[])]);
        assert!(untainted.is_err_and(|message| message.contains("GPU-1 is held by a pod")));
    }

    #[test]
    fn a_device_that_is_published_twice_is_found() {
        let [first, second] = DEVICES;
        let pools = |second: &[(&str, &[&str])]| {
            check(vec![slice("n/a", (1, 1), first), slice("n/b", (7, 1), second)])
        };
        assert_eq!(pools(second), Ok(()));
        let violation = Err("gpu-0 is published twice".to_owned());
        assert_eq!(pools(&[second, first].concat()), violation);
        let devices = [first, second, first].concat();
        assert_eq!(check(vec![slice("n", (1, 1), &devices)]), violation);
    }

    #[test]
    fn an_incomplete_pool_or_one_of_two_generations_is_found() {
        let [first, second] = DEVICES;
        for [one, other] in [[(1, 2), (2, 2)], [(1, 3), (1, 3)], [(1, 1), (1, 1)]] {
            let result = check(vec![slice("n", one, first), slice("n", other, second)]);
            assert!(
                result.is_err_and(|message| message.starts_with("pool n has slices")),
                "{one:?}"
            );
        }
        assert_eq!(check(vec![slice("n", (4, 2), first), slice("n", (4, 2), second)]), Ok(()));
    }

    #[test]
    fn a_gpu_with_a_taint_is_withheld() {
        let check_taints = |taints: &[&str]| {
            let devices = [("gpu-0", &[][..]), ("nic", &["busy"]), ("gpu-1", taints)];
            PublishedSlices::of(vec![slice("n", (1, 1), &devices)]).check_no_taints()
        };
        assert_eq!(check_taints(&[]), Ok(()));
        assert!(check_taints(&[UNHEALTHY]).is_err_and(|message| message.starts_with("gpu-1")));
    }
}
