//! Import of configurations of other device plugins, NVIDIA's among them, and of simple udev rules.
//!
//! The import refuses a file that the plugin refuses, and ignores with a warning a key that the plugin ignores. If pods
//! would get other devices than from the plugin, a warning names the difference. A file of a plugin other than NVIDIA's
//! offers only the devices that it names: such a plugin may run beside NVIDIA's, which offers the GPUs.

mod darwin3;
mod expression;
mod generic;
mod load;
mod manifest;
mod names;
mod nics;
mod nvidia;
mod rdma_shared;
mod smarter;
mod sriov;
mod udev;

use std::{fmt, path::Path};

use serde::Deserialize;
use windlass_config::{
    Config, Diagnostic, DiscoveryRule, NicPolicy, Policy, ResourceRule, Resources, SourceRule,
    document::{self, Diagnostics, Spanned, UnknownKeys, YamlNode},
    rules::{self, SpannedRule},
    source::{self, SourceFindings},
};

pub use load::{Format, LoadedConfig, MAX_BYTES, load, parse, without_file};
pub use nvidia::{HealthChecks, NvidiaPluginFlags};

use self::{manifest::find_configuration, udev::is_rules};

/// A device plugin whose configuration can be imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plugin {
    /// Mellanox' `k8s-rdma-shared-dev-plugin`.
    RdmaShared,
    /// The network plumbing group's `sriov-network-device-plugin`.
    Sriov,
    /// Squat's `generic-device-plugin`.
    Generic,
    /// Arm's `smarter-device-manager`.
    Smarter,
    /// `darwin3-device-plugin`. It has no configuration file, so the import reads its manifest.
    Darwin3,
}

pub(crate) fn read_rules(text: &str) -> Result<(Config, Vec<Diagnostic>), Vec<Diagnostic>> {
    let mut diagnostics = Diagnostics::default();
    udev::read(text, &mut diagnostics).into_config(diagnostics)
}

/// The content of another plugin's file, as rules of Windlass.
#[derive(Debug, Default)]
struct Imported {
    rules: Vec<SpannedRule>,
    sources: Vec<Spanned<SourceRule>>,
    nics: NicPolicy,
}

// === impl Plugin ===

impl Plugin {
    /// Identifies the plugin of a document by the document's keys.
    pub(crate) fn of(root: &YamlNode) -> Option<Self> {
        let has = |name| root.child_ignore_case(name).is_some();
        let first = root.items().first();
        if has("configList") {
            Some(Self::RdmaShared)
        } else if has("resourceList") {
            Some(Self::Sriov)
        } else if generic::is_file(root) || generic::has_arguments(root) {
            Some(Self::Generic)
        } else if first.is_some_and(|first| first.child_ignore_case("devicematch").is_some()) {
            Some(Self::Smarter)
        } else if darwin3::is_manifest(root) {
            Some(Self::Darwin3)
        } else {
            None
        }
    }

    pub(crate) fn read(
        self,
        root: &YamlNode,
    ) -> Result<(Config, Vec<Diagnostic>), Vec<Diagnostic>> {
        let mut diagnostics = Diagnostics::default();
        let imported = match self {
            Self::RdmaShared => rdma_shared::read(root, &mut diagnostics),
            Self::Sriov => sriov::read(root, &mut diagnostics),
            Self::Generic => generic::read(root, &mut diagnostics),
            Self::Smarter => smarter::read(root, &mut diagnostics),
            Self::Darwin3 => darwin3::read(root, &mut diagnostics),
        };
        imported.into_config(diagnostics)
    }
}

impl fmt::Display for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RdmaShared => "k8s-rdma-shared-dev-plugin",
            Self::Sriov => "sriov-network-device-plugin",
            Self::Generic => "generic-device-plugin",
            Self::Smarter => "smarter-device-manager",
            Self::Darwin3 => "darwin3-device-plugin",
        })
    }
}

// === impl Imported ===

impl Imported {
    fn into_config(
        self,
        mut diagnostics: Diagnostics,
    ) -> Result<(Config, Vec<Diagnostic>), Vec<Diagnostic>> {
        let config = Config::default();
        let policy = self.into_policy(&config.places.kubelet_dir, &mut diagnostics);
        diagnostics.into_result(Config { policy, ..config })
    }

    fn into_policy(self, kubelet_dir: &Path, diagnostics: &mut Diagnostics) -> Policy {
        Policy {
            resources: Resources::Rules(without_unreachable(self.rules, diagnostics)),
            sources: without_invalid(self.sources, kubelet_dir, diagnostics),
            nics: self.nics,
            ..Policy::default()
        }
    }
}

/// Removes rules that get no device because earlier rules take all their devices.
fn without_unreachable(
    rules: Vec<SpannedRule>,
    diagnostics: &mut Diagnostics,
) -> Vec<ResourceRule> {
    let mut reachable: Vec<SpannedRule> = Vec::new();
    for rule in rules {
        match rules::unreachable_after(&rule, &reachable) {
            Some(Diagnostic { line, text }) => {
                diagnostics.warn(
                    line,
                    format!("{text}; it is left out, and pods that request it stay pending"),
                );
            }
            None => reachable.push(rule),
        }
    }
    reachable.into_iter().map(|rule| rule.value).collect()
}

/// Removes invalid sources. Keeps a source that may find privileged nodes: discovery withholds each such device.
fn without_invalid(
    sources: Vec<Spanned<SourceRule>>,
    kubelet_dir: &Path,
    diagnostics: &mut Diagnostics,
) -> Vec<SourceRule> {
    let mut valid: Vec<SourceRule> = Vec::new();
    for Spanned { line, value } in sources {
        let SourceFindings { mut errors, dangers: mut dangerous } =
            source::check_source(&value, kubelet_dir);
        if matches!(value.find, DiscoveryRule::Files(_)) {
            // Discovery checks device nodes, but not the files of a folder, so a dangerous folder is refused here.
            errors.append(&mut dangerous);
        }
        errors.extend(source::sharing_conflict(&value, valid.iter()));
        for text in &errors {
            diagnostics.warn(line, format!("{text}; it is left out"));
        }
        if errors.is_empty() {
            for text in dangerous {
                diagnostics.warn(line, format!("{text}; {WITHHELD_WARNING}"));
            }
            valid.push(value);
        }
    }
    valid
}

const WITHHELD_WARNING: &str =
    "it is withheld: convert the file, and write allowDangerous: true if it is intended";

/// Reads a document as Go does: unknown keys are ignored, and keys match regardless of case.
fn read<'n, T: Deserialize<'n> + Default>(root: &'n YamlNode, diagnostics: &mut Diagnostics) -> T {
    let reading = document::read(root, UnknownKeys::Ignored);
    diagnostics.errors.extend(reading.errors);
    diagnostics.warnings.extend(reading.ignored);
    reading.value.unwrap_or_default()
}

/// The items of a list that may be absent.
fn items<T>(list: Option<Spanned<Vec<T>>>) -> Vec<T> {
    list.map(|list| list.value).unwrap_or_default()
}

#[cfg(test)]
mod tests;
