//! The section `sharing` of NVIDIA's file: replicas of devices, and their resource names.

mod devices;

use serde::Deserialize;
use windlass_config::{
    MigStrategy, PerContainer, Replicas, ResourceRule, Resources, Shared, Sharing, SharingMethod,
    Unmatched,
    document::Spanned,
    mps_clients_error,
    rules::{self, SpannedRule},
};
use windlass_core::resource::ResourceName;

use self::devices::{Devices, Subset};
use super::{
    Diagnostics,
    resources::{NamedResource, ResourceNames},
    written::NvidiaResourceName,
};

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct SharingEntry {
    time_slicing: Option<Spanned<ReplicatedEntry>>,
    mps: Option<Spanned<ReplicatedEntry>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ReplicatedEntry {
    rename_by_default: bool,
    fail_requests_greater_than_one: Option<bool>,
    resources: Vec<ReplicatedResource>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReplicatedResource {
    name: Spanned<NvidiaResourceName>,
    #[serde(default)]
    rename: Option<Spanned<NvidiaResourceName>>,
    #[serde(default)]
    devices: Option<Spanned<Devices>>,
    replicas: Spanned<u64>,
}

/// The section in effect: `mps`, else `timeSlicing`.
struct SharingSection<'a> {
    method: SharingMethod,
    entry: &'a ReplicatedEntry,
}

/// An entry of a section, with the resource name of its replicas and their sharing.
struct SharedResource<'a> {
    resource: &'a ReplicatedResource,
    replica_resource: ResourceName,
    sharing: Sharing,
}

// === impl SharingEntry ===

impl SharingEntry {
    /// Reports mistakes for which the plugin refuses the file.
    pub(super) fn check(&self, mig: MigStrategy, diagnostics: &mut Diagnostics) {
        for (section, name) in [(&self.time_slicing, "timeSlicing"), (&self.mps, "mps")] {
            let Some(section) = section else { continue };
            // An entry that could not be read is missing here and has its own message.
            if section.value.resources.is_empty() && diagnostics.errors.is_empty() {
                diagnostics
                    .error(section.line, format!("sharing.{name} needs a list of resources"));
            }
        }
        let Some(mps) = &self.mps else { return };
        if mig == MigStrategy::Mixed {
            diagnostics.error(mps.line, "MPS cannot be used with the MIG strategy mixed");
        }
        if let Some(slices) = &self.time_slicing {
            let text =
                format!("sharing.mps on line {} wins over timeSlicing: leave one out", mps.line);
            diagnostics.warn(slices.line, text);
        }
    }

    fn method(&self) -> Option<SharingSection<'_>> {
        let (method, section) = match (&self.mps, &self.time_slicing) {
            (Some(section), _) => (SharingMethod::Mps, section),
            (None, Some(section)) => (SharingMethod::TimeSlicing, section),
            (None, None) => return None,
        };
        Some(SharingSection { method, entry: &section.value })
    }

    /// Resource rules from names and replicas.
    pub(super) fn rules(
        &self,
        names: &ResourceNames,
        diagnostics: &mut Diagnostics,
    ) -> (Resources, Unmatched) {
        let method = self.method();
        if names.is_default && method.is_none() {
            return (Resources::Default, Unmatched::default());
        }
        let shared_resources =
            method.map(|method| method.shared_resources(names, diagnostics)).unwrap_or_default();
        let mut rules = Vec::new();
        for shared in &shared_resources {
            let resources = names.find(&shared.resource.name.value.0);
            rules.extend(resources.iter().flat_map(|resource| shared.rules(resource)));
        }
        let is_shared = |resource: &NamedResource| {
            rules.iter().any(|rule: &SpannedRule| rule.value.devices.covers(&resource.devices))
        };
        let unshared: Vec<_> =
            names.resources.iter().filter(|it| !is_shared(it)).map(exclusive).collect();
        rules.extend(unshared);
        let unmatched =
            if names.profiles_by_default { Unmatched::Default } else { Unmatched::Withheld };
        let contradictions = rules::contradictions(&rules, &[], unmatched);
        diagnostics.warnings.extend(contradictions);
        (Resources::Rules(rules.into_iter().map(|rule| rule.value).collect()), unmatched)
    }
}

fn exclusive(resource: &NamedResource) -> SpannedRule {
    let NamedResource { line, name, devices } = resource.clone();
    Spanned { line, value: ResourceRule::new(name, devices, Sharing::Exclusive) }
}

// === impl SharingSection ===

impl<'a> SharingSection<'a> {
    fn shared_resources(
        &self,
        names: &ResourceNames,
        diagnostics: &mut Diagnostics,
    ) -> Vec<SharedResource<'a>> {
        let mut shared_resources: Vec<SharedResource<'a>> = Vec::new();
        for resource in &self.entry.resources {
            let name = &resource.name.value.0;
            if names.find(name).is_empty() {
                let text = format!(
                    "no device has the resource name {name}; known are {}",
                    names.name_list()
                );
                diagnostics.warn(resource.name.line, text);
                continue;
            }
            let earlier =
                shared_resources.iter().find(|shared| shared.resource.name.value.0 == *name);
            if let Some(earlier) = earlier {
                let line = earlier.resource.name.line;
                diagnostics
                    .warn(resource.name.line, format!("{name} is already shared on line {line}"));
                continue;
            }
            let replicas = self.replicas(resource, diagnostics);
            if let Some((replicas, renamed)) = replicas.zip(self.renamed(resource, diagnostics)) {
                shared_resources.push(SharedResource {
                    resource,
                    replica_resource: renamed,
                    sharing: self.sharing(replicas),
                });
            }
        }
        shared_resources
    }

    fn sharing(&self, replicas: Replicas) -> Sharing {
        let is_limited = self.entry.fail_requests_greater_than_one;
        let is_limited = is_limited.unwrap_or(self.method == SharingMethod::Mps);
        Sharing::Shared(Shared {
            method: self.method,
            replicas,
            per_container: if is_limited { PerContainer::One } else { PerContainer::Any },
            memory_mib: None,
        })
    }

    fn replicas(
        &self,
        resource: &ReplicatedResource,
        diagnostics: &mut Diagnostics,
    ) -> Option<Replicas> {
        let Spanned { line, value } = resource.replicas;
        if value < 2 {
            diagnostics.error(line, format!("{value} replicas: NVIDIA's plugin takes 2 or more"));
            return None;
        }
        let replicas = Replicas::try_from(value);
        let problem = match &replicas {
            Err(error) => Some(error.to_string()),
            Ok(count) if self.method == SharingMethod::Mps => mps_clients_error(*count),
            Ok(_) => None,
        };
        diagnostics.errors.extend(problem.map(|text| windlass_config::Diagnostic::new(line, text)));
        replicas.ok()
    }

    /// Resource name of the replicas. Shared and exclusive devices cannot have the same name.
    fn renamed(
        &self,
        resource: &ReplicatedResource,
        diagnostics: &mut Diagnostics,
    ) -> Option<ResourceName> {
        let name = &resource.name;
        let subset = resource.devices.as_ref().filter(|devices| !devices.value.is_all());
        if let Some(devices) = subset {
            let text =
                "only these devices are shared here; NVIDIA's plugin 0.20 shares all of them";
            diagnostics.warn(devices.line, text);
        }
        if let Some(rename) = &resource.rename {
            let text = "the new name applies here; NVIDIA's plugin 0.20 reads and ignores it";
            diagnostics.warn(rename.line, text);
            return Some(rename.value.0.clone());
        }
        if subset.is_none() && !self.entry.rename_by_default {
            return Some(name.value.0.clone());
        }
        let shared = format!("{}.shared", name.value.0);
        if subset.is_some() && !self.entry.rename_by_default {
            let text = format!("the shared devices are offered as {shared}: write rename");
            diagnostics.warn(name.line, text);
        }
        let parsed = shared.parse();
        diagnostics.errors.extend(
            parsed
                .as_ref()
                .err()
                .map(|error| windlass_config::Diagnostic::new(name.line, format!("{error}"))),
        );
        parsed.ok()
    }
}

// === impl SharedResource ===

impl SharedResource<'_> {
    /// Rules for the shared devices of a resource.
    fn rules(&self, resource: &NamedResource) -> Vec<SpannedRule> {
        let subsets = match &self.resource.devices {
            None => vec![Subset::All],
            Some(devices) => devices
                .value
                .subsets(resource.devices.kind.unwrap_or(windlass_core::device::DeviceKind::Gpu)),
        };
        let rule = |subset: Subset| {
            let devices = subset.restrict(&resource.devices)?;
            let value = ResourceRule::new(self.replica_resource.clone(), devices, self.sharing);
            Some(Spanned { line: self.resource.name.line, value })
        };
        subsets.into_iter().filter_map(rule).collect()
    }
}
