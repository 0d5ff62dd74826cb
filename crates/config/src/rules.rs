//! Contradictions between rules: a rule that no device can match, one name with two meanings.

use std::path::Path;

use windlass_core::device::{DeviceKind, SourceName};

use crate::{
    document::{Diagnostic, Spanned},
    mig_profile,
    policy::{Policy, ResourceRule, Unmatched},
    selector::Selector,
    sharing::{PerContainer, Sharing, SharingMethod},
    source::{self, SourceFindings, SourceRule},
};

/// A rule, and the line of its name.
pub type SpannedRule = Spanned<ResourceRule>;

/// Advice for a source with a danger.
const DANGER_ADVICE: &str = "if it is intended, write allowDangerous: true";

/// The contradictions between rules. The default for devices that match no rule counts as a rule at the end.
pub fn contradictions(
    rules: &[SpannedRule],
    exclude: &[Spanned<Selector>],
    unmatched: Unmatched,
) -> Vec<Diagnostic> {
    let mut diagnostics = Vec::new();
    for (index, rule) in rules.iter().enumerate() {
        let earlier = &rules[..index];
        diagnostics.extend(earlier.iter().find_map(|earlier| conflicting_rules(earlier, rule)));
        diagnostics.extend(unreachable(rule, earlier, exclude));
    }
    if unmatched == Unmatched::Default {
        diagnostics.extend(rules.iter().filter_map(|rule| default_name_conflict(rule, rules)));
    }
    diagnostics
}

/// Sources with the name of another source, or of a built-in one.
pub(super) fn repeated_sources(sources: &[Spanned<SourceRule>]) -> Vec<Diagnostic> {
    let name_conflict = |(index, source): (usize, &Spanned<SourceRule>)| {
        let name = &source.value.name;
        let earlier = sources[..index].iter().find(|earlier| earlier.value.name == *name);
        let text = match earlier {
            Some(earlier) => format!("source {name} is on line {} already", earlier.line),
            None if name.is_built_in() => {
                format!("source {name} is built in: choose another name")
            }
            None => return None,
        };
        Some(Diagnostic::new(source.line, text))
    };
    sources.iter().enumerate().filter_map(name_conflict).collect()
}

/// Error message for a rule whose devices are all taken by earlier rules.
pub fn unreachable_after(rule: &SpannedRule, earlier: &[SpannedRule]) -> Option<Diagnostic> {
    unreachable(rule, earlier, &[])
}

/// Errors within each source, and conflicts among sources.
pub(super) fn source_errors(
    sources: &[Spanned<SourceRule>],
    kubelet_dir: &Path,
) -> Vec<Diagnostic> {
    let per_source = sources.iter().flat_map(|Spanned { line, value }| {
        let SourceFindings { errors, dangers: dangerous } =
            source::check_source(value, kubelet_dir);
        let dangers = dangerous.into_iter().map(|text| format!("{text}; {DANGER_ADVICE}"));
        errors.into_iter().chain(dangers).map(|text| Diagnostic::new(*line, text))
    });
    let conflicts =
        source::sharing_conflicts(&sources.iter().map(|source| &source.value).collect::<Vec<_>>());
    let line = |name: &SourceName| {
        let source_of_name = sources.iter().rfind(|source| source.value.name == *name);
        source_of_name.map_or(1, |source| source.line)
    };
    per_source
        .chain(conflicts.iter().map(|(name, text)| Diagnostic::new(line(name), text)))
        .collect()
}

/// Error message for a step that needs a GPU without programs, if GPUs are shared by MPS: the MPS server is a program.
pub(super) fn overwrite_under_mps_error(line: u64, policy: &Policy) -> Option<Diagnostic> {
    let is_contradictory = policy.families.gpu.overwrites() && policy.shares_by_mps();
    is_contradictory.then(|| Diagnostic::new(line, OVERWRITTEN_UNDER_MPS))
}

const OVERWRITTEN_UNDER_MPS: &str = "memory: overwrite takes a GPU that no program is on, and MPS keeps \
    its own on those that it shares: share by time slices, or leave the step out";

fn conflicting_rules(earlier: &SpannedRule, later: &SpannedRule) -> Option<Diagnostic> {
    let earlier_rule = &earlier.value;
    let later_rule = &later.value;
    let name = &later_rule.name;
    let line = earlier.line;
    if earlier_rule.name != later_rule.name {
        return None;
    }
    let text = if earlier_rule.sharing != later_rule.sharing {
        let (later_text, earlier_text) =
            (described(later_rule.sharing), described(earlier_rule.sharing));
        format!(
            "resource {name} is {later_text} here and {earlier_text} on line {line}: \
             a pod cannot tell which it gets; share alike, or use two names"
        )
    } else if earlier_rule.placement() != later_rule.placement() {
        let (later_text, earlier_text) = (later_rule.placement(), earlier_rule.placement());
        format!(
            "placement of {name} is {later_text} here and {earlier_text} on line {line}: \
             devices of one name are chosen in one way; write the same, or use two names"
        )
    } else {
        return None;
    };
    Some(Diagnostic::new(later.line, text))
}

fn unreachable(
    rule: &SpannedRule,
    earlier: &[SpannedRule],
    exclude: &[Spanned<Selector>],
) -> Option<Diagnostic> {
    let devices = &rule.value.devices;
    let kind = devices.description();
    let excluded = exclude.iter().find(|excluded| excluded.value.covers(devices));
    let covering_rule = earlier.iter().find(|earlier| earlier.value.devices.covers(devices));
    let name = &rule.value.name;
    let text = match (excluded, covering_rule) {
        (Some(excluded), _) => {
            let line = excluded.line;
            format!("{name} gets no device: exclude on line {line} withholds every such {kind}")
        }
        (None, Some(earlier)) => {
            let (earlier_name, line) = (&earlier.value.name, earlier.line);
            format!(
                "{name} gets no device: {earlier_name} on line {line} takes every such {kind} first; \
                 move this rule up, or narrow that one by index, ids or match"
            )
        }
        (None, None) => return None,
    };
    Some(Diagnostic::new(rule.line, text))
}

/// Error message for a shared resource whose name is also the default name of unmatched devices, which are not shared.
fn default_name_conflict(rule: &SpannedRule, rules: &[SpannedRule]) -> Option<Diagnostic> {
    let name = &rule.value.name;
    let is_shared = rule.value.sharing != Sharing::Exclusive;
    let unmatched = default_devices(name.as_str()).filter(|_| is_shared)?;
    let are_all_covered = rules.iter().any(|rule| rule.value.devices.covers(&unmatched));
    let text = format!(
        "resource {name} is shared here, but devices that no rule takes are offered under the same \
         name unshared; use another name, take every {}, or leave out unmatched: default",
        unmatched.description()
    );
    (!are_all_covered).then(|| Diagnostic::new(rule.line, text))
}

/// Devices that have a resource name by default.
fn default_devices(name: &str) -> Option<Selector> {
    let name = name.strip_prefix("nvidia.com/")?;
    if name == "gpu" {
        return Some(Selector::all(DeviceKind::Gpu));
    }
    let profile = mig_profile::from_resource_suffix(name.strip_prefix("mig-")?);
    // A name without a possible profile is not a default name.
    let profile = mig_profile::is_possible(&profile).then_some(profile)?;
    Some(Selector { mig_profiles: [profile].into(), ..Selector::all(DeviceKind::Mig) })
}

fn described(sharing: Sharing) -> String {
    let shared = match sharing {
        Sharing::Exclusive => return "exclusive".to_owned(),
        Sharing::Pooled(pool) => return format!("a pool shared by {}", pool.tokens.get()),
        Sharing::Shared(shared) => shared,
    };
    let method = match shared.method {
        SharingMethod::TimeSlicing => "time-sliced",
        SharingMethod::Driver => "time-sliced within the driver's limit",
        SharingMethod::Dmem => "time-sliced within the kernel's limit",
        SharingMethod::Shared => "shared",
        SharingMethod::Mps => "shared by MPS",
    };
    let per_container = match shared.per_container {
        PerContainer::One => "one per container",
        PerContainer::Any => "any number per container",
    };
    match shared.memory_mib {
        Some(mib) => {
            format!("{method} by {mib} MiB, at most {} ({per_container})", shared.replicas.get())
        }
        None => format!("{method} by {} ({per_container})", shared.replicas.get()),
    }
}
