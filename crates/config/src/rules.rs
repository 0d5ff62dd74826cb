//! What rules must not say together: a rule that no device can reach, one name with two meanings.

use std::path::Path;

use windlass_core::device::{DeviceKind, SourceName};

use super::{
    Policy, Remark, ResourceRule, Resources, Selector, ShareMethod, Sharing, SharingMethod,
    SourceRule, Unmatched, document::Lined, source::Judged,
};

/// A rule and the line that its name is on.
pub type LinedRule = Lined<ResourceRule>;

/// What a dangerous thing is to be handed out with, if it is meant.
const MEANT: &str = "if it is meant, write allowDangerous: true";

/// Everything that rules contradict each other in. What a device is left for, when no rule takes it,
/// counts as a rule at the end.
pub fn contradictions(
    rules: &[LinedRule],
    exclude: &[Lined<Selector>],
    unmatched: Unmatched,
) -> Vec<Remark> {
    let mut found = Vec::new();
    for (index, rule) in rules.iter().enumerate() {
        let earlier = &rules[..index];
        found.extend(earlier.iter().find_map(|earlier| two_meanings(earlier, rule)));
        found.extend(unreachable(rule, earlier, exclude));
    }
    if unmatched == Unmatched::Default {
        found.extend(rules.iter().filter_map(|rule| also_by_default(rule, rules)));
    }
    found
}

/// Sources that have one name with another, or with one that is built in.
pub(super) fn repeated_sources(sources: &[Lined<SourceRule>]) -> Vec<Remark> {
    let repeated = |(index, source): (usize, &Lined<SourceRule>)| {
        let name = &source.value.name;
        let earlier = sources[..index].iter().find(|earlier| earlier.value.name == *name);
        let text = match earlier {
            Some(earlier) => format!("source {name} is on line {} already", earlier.line),
            None if name.is_built_in() => {
                format!("source {name} is built in: choose another name")
            }
            None => return None,
        };
        Some(Remark::new(source.line, text))
    };
    sources.iter().enumerate().filter_map(repeated).collect()
}

/// That a rule gets no device, since earlier ones take every one that it could.
pub fn taken_before(rule: &LinedRule, earlier: &[LinedRule]) -> Option<Remark> {
    unreachable(rule, earlier, &[])
}

/// Sources that cannot be as they are described, and those that say one name with two meanings.
pub(super) fn wrong_sources(sources: &[Lined<SourceRule>], kubelet_dir: &Path) -> Vec<Remark> {
    let alone = sources.iter().flat_map(|source| {
        let Judged { wrong, dangerous } = super::source::judged(&source.value, kubelet_dir);
        let dangerous = dangerous.into_iter().map(|text| format!("{text}; {MEANT}"));
        wrong.into_iter().chain(dangerous).map(|text| Remark::new(source.line, text))
    });
    let together = super::source::differently_shared(
        &sources.iter().map(|source| &source.value).collect::<Vec<_>>(),
    );
    let line = |name: &SourceName| {
        let named = sources.iter().rfind(|source| source.value.name == *name);
        named.map_or(1, |source| source.line)
    };
    alone.chain(together.iter().map(|(name, text)| Remark::new(line(name), text))).collect()
}

/// That a step wants GPUs for itself which an MPS daemon keeps: it is their only program, as long as it lives.
pub(super) fn overwritten_under_mps(line: u64, policy: &Policy) -> Option<Remark> {
    let mut shares = policy.dra.shares.iter();
    let by_claims = shares.any(|rule| rule.manner.method == ShareMethod::Mps);
    let by_containers = match &policy.resources {
        Resources::Default => false,
        Resources::Rules(rules) => rules.iter().any(|rule| rule.sharing.is_by_mps()),
    };
    let wrong = policy.families.gpu.overwrites() && (by_claims || by_containers);
    wrong.then(|| Remark::new(line, OVERWRITTEN_UNDER_MPS))
}

const OVERWRITTEN_UNDER_MPS: &str = "memory: overwrite takes a GPU that no program is on, and MPS keeps \
    its own on those that it shares: share by time slices, or leave the step out";

fn two_meanings(earlier: &LinedRule, later: &LinedRule) -> Option<Remark> {
    let (first, second) = (&earlier.value, &later.value);
    let (name, line) = (&second.name, earlier.line);
    if first.name != second.name {
        return None;
    }
    let text = if first.sharing != second.sharing {
        let (here, there) = (described(second.sharing), described(first.sharing));
        format!(
            "resource {name} is {here} here and {there} on line {line}: \
             a pod cannot tell which it gets; share alike, or use two names"
        )
    } else if first.placement != second.placement {
        let (here, there) = (second.placement, first.placement);
        format!(
            "placement of {name} is {here} here and {there} on line {line}: devices of one name \
             are chosen in one way; write the same, or use two names"
        )
    } else {
        return None;
    };
    Some(Remark::new(later.line, text))
}

fn unreachable(
    rule: &LinedRule,
    earlier: &[LinedRule],
    exclude: &[Lined<Selector>],
) -> Option<Remark> {
    let devices = &rule.value.devices;
    let kind = devices.noun();
    let excluded = exclude.iter().find(|excluded| excluded.value.covers(devices));
    let taken = earlier.iter().find(|earlier| earlier.value.devices.covers(devices));
    let name = &rule.value.name;
    let text = match (excluded, taken) {
        (Some(excluded), _) => {
            let line = excluded.line;
            format!("{name} gets no device: exclude on line {line} keeps every such {kind} back")
        }
        (None, Some(earlier)) => {
            let (first, line) = (&earlier.value.name, earlier.line);
            format!(
                "{name} gets no device: {first} on line {line} takes every such {kind} first; \
                 move this rule up, or narrow that one by index, ids or match"
            )
        }
        (None, None) => return None,
    };
    Some(Remark::new(rule.line, text))
}

/// A shared resource whose name exclusive devices get as well.
fn also_by_default(rule: &LinedRule, rules: &[LinedRule]) -> Option<Remark> {
    let name = &rule.value.name;
    let shared = rule.value.sharing != Sharing::Exclusive;
    let left = named_by_default(name.as_str()).filter(|_| shared)?;
    let all_taken = rules.iter().any(|rule| rule.value.devices.covers(&left));
    let text = format!(
        "resource {name} is shared here, but devices that no rule takes are offered under the same \
         name unshared; use another name, take every {}, or leave out unmatched: default",
        left.noun()
    );
    (!all_taken).then(|| Remark::new(rule.line, text))
}

/// The devices that have a name without any rule.
fn named_by_default(name: &str) -> Option<Selector> {
    let name = name.strip_prefix("nvidia.com/")?;
    if name == "gpu" {
        return Some(Selector::all(DeviceKind::Gpu));
    }
    let profile = super::profile::named(name.strip_prefix("mig-")?);
    // Without a profile that could be, it is a name like any other.
    let possible = super::profile::is_possible(&profile).then_some(profile)?;
    Some(Selector { profiles: [possible].into(), ..Selector::all(DeviceKind::Mig) })
}

fn described(sharing: Sharing) -> String {
    use super::PerContainer;
    let shared = match sharing {
        Sharing::Exclusive => return "exclusive".to_owned(),
        Sharing::Pooled(pool) => return format!("a pool shared by {}", pool.tokens.get()),
        Sharing::Shared(shared) => shared,
    };
    let method = match shared.method {
        SharingMethod::TimeSlicing => "time-sliced",
        SharingMethod::Shared => "shared",
        SharingMethod::Mps => "shared by MPS",
    };
    let each = match shared.per_container {
        PerContainer::One => "one per container",
        PerContainer::Any => "any number per container",
    };
    format!("{method} by {} ({each})", shared.replicas.get())
}
