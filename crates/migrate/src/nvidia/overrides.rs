//! Flags and variables of NVIDIA's plugin, applied to a configuration.

use std::{collections::BTreeSet, path::PathBuf};

use windlass_config::{
    AnnotationPrefix, Config, DeviceIdStrategy, DeviceListStrategy, Feature, HealthPolicy,
    MigStrategy, Resources, Sharing, UnlistedXids,
};
use windlass_core::placement;

/// The flags of NVIDIA's plugin that have an effect in Windlass. An absent flag changes nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NvidiaPluginFlags {
    /// `--mig-strategy`.
    pub mig: Option<MigStrategy>,
    /// `--driver-root`.
    pub driver_root: Option<PathBuf>,
    /// `--dev-root`; an empty path stands for the driver root.
    pub dev_root: Option<PathBuf>,
    /// `--driver-root-ctr-path`.
    pub driver_mounted_at: Option<PathBuf>,
    /// `--pass-device-specs`.
    pub pass_device_specs: Option<bool>,
    /// `--device-list-strategy`.
    pub device_lists: Option<BTreeSet<DeviceListStrategy>>,
    /// `--device-id-strategy`.
    pub device_ids: Option<DeviceIdStrategy>,
    /// `--gds-enabled`.
    pub gds: Option<bool>,
    /// `--mofed-enabled`.
    pub mofed: Option<bool>,
    /// `--gdrcopy-enabled`.
    pub gdrcopy: Option<bool>,
    /// `--cdi-annotation-prefix`.
    pub annotation_prefix: Option<AnnotationPrefix>,
    /// `--nvidia-cdi-hook-path`.
    pub hook_program: Option<PathBuf>,
    /// `--cdi-disable-hooks`.
    pub disabled_hooks: Option<BTreeSet<String>>,
    /// `--mps-root`.
    pub mps_root: Option<PathBuf>,
    /// `--shared-devices-allocation-policy`.
    pub placement: Option<placement::Policy>,
    /// `--imex-channel-ids`.
    pub imex_channels: Option<BTreeSet<u32>>,
    /// `--imex-required`.
    pub imex_required: Option<bool>,
    /// `DP_DISABLE_HEALTHCHECKS` and `DP_ENABLE_HEALTHCHECKS`.
    pub health: HealthChecks,
}

/// Verdicts on XIDs by the plugin's two variables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HealthChecks {
    /// XIDs that never make a GPU unhealthy.
    pub disabled: BTreeSet<u64>,
    /// XIDs that make a GPU unhealthy, even if another list excludes them.
    pub enabled: BTreeSet<u64>,
    /// Verdict on all other XIDs; `None` leaves it to the configuration.
    pub unlisted: Option<UnlistedXids>,
}

// === impl NvidiaPluginFlags ===

impl NvidiaPluginFlags {
    pub(crate) fn apply(&self, config: &mut Config) {
        self.apply_places(config);
        self.apply_delivery(config);
        let policy = &mut config.policy;
        set(&mut policy.mig, self.mig);
        self.health.apply(&mut policy.health);
        if let (Some(placement), Resources::Rules(rules)) = (self.placement, &mut policy.resources)
        {
            for rule in rules.iter_mut().filter(|rule| rule.sharing != Sharing::Exclusive) {
                rule.placement = Some(placement);
            }
        }
    }

    fn apply_places(&self, config: &mut Config) {
        let driver = &mut config.places.driver;
        set(&mut driver.root, self.driver_root.clone());
        if let Some(path) = &self.driver_mounted_at {
            driver.mounted_at = Some(path.clone());
        }
        // As in the plugin, device nodes are below the driver root unless `--dev-root` is given.
        let dev_root = self.dev_root.clone().filter(|root| !root.as_os_str().is_empty());
        if let Some(root) = dev_root.or_else(|| self.driver_root.clone()) {
            let is_host_root = root.as_os_str() == "/";
            driver.dev_root = (!is_host_root).then_some(root);
        }
        set(&mut config.places.mps_dir, self.mps_root.clone());
    }

    fn apply_delivery(&self, config: &mut Config) {
        let delivery = &mut config.policy.delivery;
        set(&mut delivery.strategies, self.device_lists.clone());
        set(&mut delivery.ids, self.device_ids);
        set(&mut delivery.annotation_prefix, self.annotation_prefix.clone());
        set(&mut delivery.hooks.disabled, self.disabled_hooks.clone());
        set(&mut delivery.imex.channels, self.imex_channels.clone());
        if let Some(program) = &self.hook_program {
            delivery.hooks.program = Some(program.clone());
        }
        set(&mut delivery.pass_device_specs, self.pass_device_specs);
        set(&mut delivery.imex.required, self.imex_required);
        for (feature, enabled) in [
            (Feature::Gds, self.gds),
            (Feature::Mofed, self.mofed),
            (Feature::Gdrcopy, self.gdrcopy),
        ] {
            match enabled {
                Some(true) => drop(delivery.features.insert(feature)),
                Some(false) => drop(delivery.features.remove(&feature)),
                None => {}
            }
        }
    }
}

fn set<T>(value: &mut T, replacement: Option<T>) {
    if let Some(replacement) = replacement {
        *value = replacement;
    }
}

// === impl HealthChecks ===

impl HealthChecks {
    /// Parses the two variables, each a list of XIDs; `all` and `xids` both mean every XID.
    ///
    /// An XID that is both enabled and disabled is enabled, as in the plugin's documentation. The plugin
    /// itself ignores the list of enabled XIDs if all are disabled.
    pub fn new(disabled: Option<&str>, enabled: Option<&str>) -> Result<Self, String> {
        let (disabled, disables_all) = xids(disabled.unwrap_or_default())?;
        let (enabled, enables_all) = xids(enabled.unwrap_or_default())?;
        let unlisted = match (enables_all, disables_all) {
            (true, _) => Some(UnlistedXids::Counted),
            (false, true) => Some(UnlistedXids::Ignored),
            (false, false) => None,
        };
        let disabled = if enables_all { BTreeSet::new() } else { &disabled - &enabled };
        Ok(Self { disabled, enabled, unlisted })
    }

    fn apply(&self, policy: &mut HealthPolicy) {
        let HealthPolicy { ignored_xids, counted_xids, .. } = policy;
        ignored_xids.extend(&self.disabled);
        ignored_xids.retain(|xid| !self.enabled.contains(xid));
        counted_xids.extend(&self.enabled);
        counted_xids.retain(|xid| !self.disabled.contains(xid));
        set(&mut policy.unlisted_xids, self.unlisted);
    }
}

/// The numbers in a list, and true if it contains `all` or `xids`.
fn xids(list: &str) -> Result<(BTreeSet<u64>, bool), String> {
    let words = list.split(',').map(str::trim).filter(|word| !word.is_empty());
    let (keywords, numbers): (Vec<_>, Vec<_>) =
        words.partition(|word| ["all", "xids"].contains(&word.to_ascii_lowercase().as_str()));
    let number = |word: &str| {
        word.parse().map_err(|_| format!("{word:?} is not an XID: write numbers, all or xids"))
    };
    let numbers = numbers.into_iter().map(number).collect::<Result<_, _>>()?;
    Ok((numbers, !keywords.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_xids_have_the_documented_meaning() {
        let check = |disabled, enabled, expected: (&[u64], &[u64], Option<UnlistedXids>)| {
            let checks = HealthChecks::new(disabled, enabled).expect("valid");
            let sets =
                (BTreeSet::from_iter(expected.0.to_vec()), expected.1.iter().copied().collect());
            assert_eq!((checks.disabled, checks.enabled), sets);
            assert_eq!(checks.unlisted, expected.2);
        };
        check(None, None, (&[], &[], None));
        check(Some("79, 13"), None, (&[13, 79], &[], None));
        check(Some("all"), Some("79"), (&[], &[79], Some(UnlistedXids::Ignored)));
        check(Some("xids,5"), None, (&[5], &[], Some(UnlistedXids::Ignored)));
        check(Some("31"), Some("ALL"), (&[], &[], Some(UnlistedXids::Counted)));
        check(Some("31"), Some("31"), (&[], &[31], None));
        let error = HealthChecks::new(Some("79;80"), None).expect_err("no list");
        assert!(error.contains("\"79;80\" is not an XID"), "{error}");
    }
}
