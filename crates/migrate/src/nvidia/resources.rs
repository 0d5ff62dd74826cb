//! The section `resources` of NVIDIA's file: resource names by patterns of product names and MIG profiles.

use serde::Deserialize;
use windlass_config::{MigStrategy, Selector, document::Spanned, mig_profile};
use windlass_core::{device::DeviceKind, resource::ResourceName};

use super::{Diagnostics, pattern::Pattern, written::NvidiaResourceName};

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ResourcesEntry {
    gpus: Option<Spanned<Vec<NamedPattern>>>,
    mig: Option<Spanned<Vec<NamedPattern>>>,
}

#[derive(Debug, Deserialize)]
struct NamedPattern {
    pattern: Pattern,
    name: Spanned<NvidiaResourceName>,
}

/// Resource names of devices, before the section `sharing` renames some of them.
#[derive(Debug)]
pub(super) struct ResourceNames {
    pub(super) resources: Vec<NamedResource>,
    mig: MigStrategy,
    /// True if MIG instances get the default resource of their profile, `nvidia.com/mig-<profile>`.
    pub(super) profiles_by_default: bool,
    /// True if the file names no resources.
    pub(super) is_default: bool,
}

/// A resource name with its devices.
#[derive(Clone, Debug)]
pub(super) struct NamedResource {
    pub(super) line: u64,
    pub(super) name: ResourceName,
    pub(super) devices: Selector,
}

/// Resource name of whole GPUs.
const GPU: &str = "nvidia.com/gpu";

// === impl ResourcesEntry ===

impl ResourcesEntry {
    pub(super) fn checked(self, diagnostics: &mut Diagnostics) -> Self {
        for section in [&self.gpus, &self.mig].into_iter().flatten() {
            let text = "these patterns apply here; NVIDIA's plugin 0.20 reads and ignores them";
            diagnostics.warn(section.line, text);
        }
        self
    }
}

// === impl ResourceNames ===

impl ResourceNames {
    pub(super) fn new(entry: ResourcesEntry, mig: MigStrategy) -> Self {
        let is_default = entry.gpus.is_none() && entry.mig.is_none();
        let gpus = named_resources(entry.gpus, DeviceKind::Gpu);
        let profiles_by_default = entry.mig.is_none() && mig == MigStrategy::Mixed;
        let instances = match (mig, entry.mig) {
            (MigStrategy::None, _) | (MigStrategy::Mixed, None) => Vec::new(),
            (MigStrategy::Single | MigStrategy::Mixed, mig) => {
                named_resources(mig, DeviceKind::Mig)
            }
        };
        let resources = gpus.into_iter().chain(instances).collect();
        Self { resources, mig, profiles_by_default, is_default }
    }

    /// Finds the devices of a resource name. A name without a pattern may be the default name of a MIG profile.
    pub(super) fn find(&self, name: &ResourceName) -> Vec<NamedResource> {
        let by_pattern: Vec<_> =
            self.resources.iter().filter(|it| it.name == *name).cloned().collect();
        let profile =
            name.as_str().strip_prefix("nvidia.com/mig-").map(mig_profile::from_resource_suffix);
        let profile = profile.filter(|text| mig_profile::is_possible(text));
        match profile {
            Some(profile) if by_pattern.is_empty() && self.profiles_by_default => {
                let mut devices = Selector::all(DeviceKind::Mig);
                devices.mig_profiles.insert(profile);
                vec![NamedResource { line: 1, name: name.clone(), devices }]
            }
            _ => by_pattern,
        }
    }

    /// Selectors that exclude GPUs without a matching pattern. With default resources for MIG, Windlass would otherwise
    /// offer them.
    pub(super) fn exclude(&self) -> Vec<Selector> {
        let gpus = self.resources.iter().filter(|it| it.devices.kind == Some(DeviceKind::Gpu));
        let patterns: Option<Vec<_>> = gpus
            .map(|gpu| gpu.devices.expression.as_ref().map(|it| format!("({})", it.as_str())))
            .collect();
        let Some(patterns) = patterns.filter(|_| self.profiles_by_default) else {
            return Vec::new();
        };
        let text = format!("!({})", patterns.join(" || "));
        let expression = text.parse().ok();
        vec![Selector { expression, ..Selector::all(DeviceKind::Gpu) }]
    }

    /// List of all resource names, for a message.
    pub(super) fn name_list(&self) -> String {
        let mut names: Vec<_> = self.resources.iter().map(|it| it.name.to_string()).collect();
        if self.profiles_by_default {
            names.push("nvidia.com/mig-<profile>".to_owned());
        }
        names.dedup();
        format!("{} (MIG strategy {})", names.join(", "), strategy(self.mig))
    }
}

fn strategy(mig: MigStrategy) -> &'static str {
    match mig {
        MigStrategy::None => "none",
        MigStrategy::Single => "single",
        MigStrategy::Mixed => "mixed",
    }
}

fn named_resources(
    patterns: Option<Spanned<Vec<NamedPattern>>>,
    kind: DeviceKind,
) -> Vec<NamedResource> {
    let Some(patterns) = patterns else {
        let name = GPU.parse().expect("a constant, tested");
        return vec![NamedResource { line: 1, name, devices: Selector::all(kind) }];
    };
    let resource = |NamedPattern { pattern, name }| NamedResource {
        line: name.line,
        name: name.value.0,
        devices: pattern.into_selector(kind),
    };
    patterns.value.into_iter().map(resource).collect()
}
