//! The section `flags` of NVIDIA's file.

use std::{collections::BTreeSet, path::PathBuf};

use serde::{Deserialize, Deserializer, de::Error as _};
use windlass_config::{
    AnnotationPrefix, DeviceIdStrategy, DeviceListStrategy, LabelOutput, LabelPolicy, MigStrategy,
    document::{OneOrMany, Spanned},
};
use windlass_core::placement;

use super::{Diagnostics, NvidiaPluginFlags, written::GoDuration};

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct FlagsEntry {
    mig_strategy: Option<MigStrategy>,
    fail_on_init_error: Option<Spanned<bool>>,
    mps_root: Option<PathBuf>,
    nvidia_driver_root: Option<PathBuf>,
    nvidia_dev_root: Option<PathBuf>,
    gdrcopy_enabled: Option<bool>,
    gds_enabled: Option<bool>,
    mofed_enabled: Option<bool>,
    #[serde(rename = "useNodeFeatureAPI")]
    use_node_feature_api: Option<bool>,
    device_discovery_strategy: Option<Spanned<Discovery>>,
    plugin: PluginEntry,
    gfd: Option<GfdEntry>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PluginEntry {
    pass_device_specs: Option<bool>,
    device_list_strategy: Option<OneOrMany<StrategyList>>,
    #[serde(rename = "deviceIDStrategy")]
    device_id_strategy: Option<DeviceIdStrategy>,
    cdi_annotation_prefix: Option<Prefix>,
    #[serde(rename = "nvidiaCTKPath")]
    nvidia_ctk_path: Option<PathBuf>,
    container_driver_root: Option<PathBuf>,
    shared_devices_allocation_policy: Option<AllocationPolicy>,
}

/// Flags of gpu-feature-discovery, which reads the same file.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct GfdEntry {
    oneshot: Option<Spanned<bool>>,
    no_timestamp: Option<bool>,
    sleep_interval: Option<Spanned<GoDuration>>,
    output_file: Option<Spanned<PathBuf>>,
    machine_type_file: Option<PathBuf>,
}

/// Order in which shared devices are filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum AllocationPolicy {
    Distributed,
    Packed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Discovery {
    Auto,
    Nvml,
    Tegra,
}

/// One strategy, or several separated by commas.
#[derive(Debug)]
struct StrategyList(BTreeSet<DeviceListStrategy>);

#[derive(Debug)]
struct Prefix(AnnotationPrefix);

/// Default output file of gpu-feature-discovery without `NodeFeature` objects.
const GFD_FILE: &str = "/etc/kubernetes/node-feature-discovery/features.d/gfd";

// === impl FlagsEntry ===

impl FlagsEntry {
    /// Returns the flags with an effect, and warns about the others.
    pub(super) fn into_flags(self, diagnostics: &mut Diagnostics) -> NvidiaPluginFlags {
        if let Some(flag) = self.fail_on_init_error {
            diagnostics
                .warn(flag.line, "failOnInitError has no effect: without a driver, windlass waits");
        }
        if let Some(discovery) = self.device_discovery_strategy
            && discovery.value == Discovery::Tegra
        {
            diagnostics
                .warn(discovery.line, "deviceDiscoveryStrategy tegra has no effect: NVML is used");
        }
        let plugin = self.plugin;
        let lists = plugin.device_list_strategy;
        NvidiaPluginFlags {
            mig: self.mig_strategy,
            driver_root: self.nvidia_driver_root,
            dev_root: self.nvidia_dev_root,
            driver_mounted_at: plugin.container_driver_root,
            pass_device_specs: plugin.pass_device_specs,
            device_lists: lists.map(|list| list.0.into_iter().flat_map(|it| it.0).collect()),
            device_ids: plugin.device_id_strategy,
            gds: self.gds_enabled,
            mofed: self.mofed_enabled,
            gdrcopy: self.gdrcopy_enabled,
            annotation_prefix: plugin.cdi_annotation_prefix.map(|Prefix(prefix)| prefix),
            hook_program: plugin.nvidia_ctk_path,
            mps_root: self.mps_root.filter(|root| !root.as_os_str().is_empty()),
            placement: plugin.shared_devices_allocation_policy.map(Into::into),
            ..NvidiaPluginFlags::default()
        }
    }

    /// Destination of the labels: as in gpu-feature-discovery if the file has its section `gfd`, else the default.
    pub(super) fn labels(&self, diagnostics: &mut Diagnostics) -> LabelPolicy {
        let Some(gfd) = &self.gfd else { return LabelPolicy::default() };
        gfd.warn(diagnostics);
        let output = match (self.use_node_feature_api, &gfd.output_file) {
            (None | Some(true), _) => LabelOutput::NodeFeature,
            (Some(false), None) => LabelOutput::File(GFD_FILE.into()),
            (Some(false), Some(file)) if file.value.as_os_str().is_empty() => {
                diagnostics
                    .warn(file.line, "outputFile \"\" has no counterpart: no labels are written");
                LabelOutput::None
            }
            (Some(false), Some(file)) => LabelOutput::File(file.value.clone()),
        };
        LabelPolicy {
            output,
            timestamp: !gfd.no_timestamp.unwrap_or(false),
            machine_type_file: gfd.machine_type_file.clone(),
            devices: false,
        }
    }
}

// === impl GfdEntry ===

impl GfdEntry {
    fn warn(&self, diagnostics: &mut Diagnostics) {
        let no_effect = "has no effect: labels are written when something changed";
        if let Some(flag) = &self.oneshot {
            diagnostics.warn(flag.line, format!("oneshot {no_effect}"));
        }
        if let Some(interval) = &self.sleep_interval {
            diagnostics.warn(interval.line, format!("sleepInterval {no_effect}"));
        }
    }
}

// === impl AllocationPolicy ===

impl From<AllocationPolicy> for placement::Policy {
    fn from(policy: AllocationPolicy) -> Self {
        match policy {
            AllocationPolicy::Distributed => Self::Distributed,
            AllocationPolicy::Packed => Self::Packed,
        }
    }
}

// === impl StrategyList ===

impl StrategyList {
    /// Parses names separated by commas.
    fn parse(text: &str) -> Result<Self, String> {
        text.split(',').map(|name| strategy(name.trim())).collect::<Result<_, _>>().map(Self)
    }
}

fn strategy(name: &str) -> Result<DeviceListStrategy, String> {
    match name {
        "envvar" => Ok(DeviceListStrategy::Envvar),
        "volume-mounts" => Ok(DeviceListStrategy::VolumeMounts),
        "cdi-annotations" => Ok(DeviceListStrategy::CdiAnnotations),
        "cdi-cri" => Ok(DeviceListStrategy::CdiCri),
        _ => Err(format!(
            "unknown device list strategy {name:?}: write envvar, volume-mounts, cdi-annotations or \
             cdi-cri"
        )),
    }
}

impl<'de> Deserialize<'de> for StrategyList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Prefix {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map(Self).map_err(D::Error::custom)
    }
}
