//! The file's keys for resources: which devices, under which name, shared how.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass_core::{
    device::{DeviceKind, SourceName},
    placement,
    resource::ResourceName,
    selector::DeviceExpression,
};

use super::word::{Count, Id, Profile, Written};
use crate::{
    PerContainer, Pooled, Remark, Replicas, ResourceRule, Selector, Shared, Sharing, SharingMethod,
    SourceRule, document::Lined, questions::mistakes, rules::LinedRule, specimen::Specimen,
};

/// One resource, and the devices it is made of. Rules of the same name add up.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ResourceEntry {
    /// The name that pods ask for.
    name: Lined<Written<ResourceName>>,
    /// Which devices it is made of.
    devices: Lined<SelectorEntry>,
    /// Left out, a device serves one container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sharing: Option<Lined<SharingEntry>>,
    /// How devices are chosen for a container; left out, `aligned`, and `distributed` where they are
    /// shared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    placement: Option<Written<placement::Policy>>,
}

/// Picks devices of one kind, or of one source, that fit everything it names; what is left out fits all.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct SelectorEntry {
    /// The kind; may be left out beside `source`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kind: Option<KindEntry>,
    /// The source that finds them, built in or of this file; left out, GPUs and MIG instances are
    /// NVIDIA's, and others anyone's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    source: Option<Written<SourceName>>,
    /// Positions as `windlass devices` shows them; a MIG instance has its GPU's.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    index: BTreeSet<u32>,
    /// Device ids.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    ids: BTreeSet<Written<Id>>,
    /// MIG profiles.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    profiles: BTreeSet<Written<Profile>>,
    /// A CEL expression over the device's attributes and capacities, as DRA has it.
    #[serde(default, rename = "match", skip_serializing_if = "Option::is_none")]
    expression: Option<Written<DeviceExpression>>,
}

/// What sort of thing a device is.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum KindEntry {
    /// A whole GPU.
    Gpu,
    /// A MIG instance.
    Mig,
    /// A network or RDMA interface.
    Nic,
    /// A reconfigurable board.
    Fpga,
    /// An NVMe drive.
    Nvme,
    /// Anything else.
    Other,
}

/// How one device serves several containers.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct SharingEntry {
    /// What keeps the containers apart.
    method: SharingMethod,
    /// How many containers one device serves; at most 48 with `mps`.
    replicas: Count,
    /// How many replicas one container may ask for; left out, `one` with `mps` and `any`
    /// otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    per_container: Option<PerContainer>,
    /// Whether the replicas are of all devices together, so that a container gets every one of them;
    /// with `shared` only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pool: bool,
}

/// The most clients of one MPS server, from compute capability 7.0 on; older GPUs take 16, which only
/// the machine can tell.
pub(crate) const MOST_MPS_CLIENTS: u32 = 48;

// === impl ResourceEntry ===

impl ResourceEntry {
    /// The rule, and what is wrong with it in itself.
    pub(super) fn into_rule(
        self,
        sources: &[Lined<SourceRule>],
        wrong: &mut Vec<Remark>,
    ) -> LinedRule {
        let Self { name, devices, sharing, placement } = self;
        let devices = devices.value.into_selector(devices.line, sources, wrong);
        let sharing = sharing.map_or(Sharing::Exclusive, |sharing| {
            let problem = sharing.value.problem(&devices);
            wrong.extend(problem.map(|problem| Remark::new(sharing.line, problem)));
            sharing.value.into()
        });
        let mut rule = ResourceRule::new(name.value.0, devices, sharing);
        if let Some(Written(placement)) = placement {
            rule.placement = placement;
        }
        Lined { line: name.line, value: rule }
    }
}

impl From<&ResourceRule> for ResourceEntry {
    fn from(rule: &ResourceRule) -> Self {
        let sharing = SharingEntry::of(rule.sharing);
        Self {
            name: unlined(Written(rule.name.clone())),
            devices: unlined(SelectorEntry::from(&rule.devices)),
            sharing: sharing.map(unlined),
            placement: Some(rule.placement)
                .filter(|placement| *placement != rule.sharing.usual_placement())
                .map(Written),
        }
    }
}

/// What is written has no line yet.
pub(super) fn unlined<T>(value: T) -> Lined<T> {
    Lined { line: 0, value }
}

// === impl SelectorEntry ===

impl SelectorEntry {
    /// What it selects, with what is wrong; `sources` are those of the configuration.
    pub(super) fn into_selector(
        self,
        line: u64,
        sources: &[Lined<SourceRule>],
        wrong: &mut Vec<Remark>,
    ) -> Selector {
        let kind = self.kind.map(DeviceKind::from);
        let source = self.source.map(|Written(source)| source);
        // A kind that could not be read is a mistake already.
        let is_told = wrong.iter().any(|remark| remark.line >= line);
        if kind.is_none() && source.is_none() && !is_told {
            wrong.push(Remark::new(line, "which devices? write kind, source, or both"));
        }
        if !kind.is_some_and(DeviceKind::is_instance) && !self.profiles.is_empty() {
            let problem = "only MIG instances have profiles; write kind: mig, or leave them out";
            wrong.push(Remark::new(line, problem));
        }
        let selector = Selector {
            kind,
            source: source.or_else(|| kind?.facts().usual_source.clone()),
            index: self.index,
            ids: self.ids.into_iter().map(|Written(Id(id))| id).collect(),
            profiles: self.profiles.into_iter().map(|Written(Profile(text))| text).collect(),
            expression: self.expression.map(|Written(expression)| expression),
        };
        let known = Specimen::of(&selector, sources);
        if let Some((expression, known)) = selector.expression.as_ref().zip(known) {
            let mistakes = mistakes(expression, &known);
            wrong.extend(mistakes.into_iter().map(|text| Remark::new(line, text)));
        }
        selector
    }
}

impl From<&Selector> for SelectorEntry {
    fn from(selector: &Selector) -> Self {
        let Selector { kind, source, index, ids, profiles, expression } = selector.clone();
        let usual = kind.and_then(|kind| kind.facts().usual_source.as_ref());
        Self {
            kind: kind.map(Into::into),
            source: source.filter(|source| Some(source) != usual).map(Written),
            index,
            ids: ids.into_iter().map(|id| Written(Id(id))).collect(),
            profiles: profiles.into_iter().map(|profile| Written(Profile(profile))).collect(),
            expression: expression.map(Written),
        }
    }
}

// === impl KindEntry ===

impl KindEntry {
    const ALL: [Self; 6] = [Self::Gpu, Self::Mig, Self::Nic, Self::Fpga, Self::Nvme, Self::Other];
}

impl From<KindEntry> for DeviceKind {
    fn from(entry: KindEntry) -> Self {
        match entry {
            KindEntry::Gpu => Self::Gpu,
            KindEntry::Mig => Self::Mig,
            KindEntry::Nic => Self::Nic,
            KindEntry::Fpga => Self::Fpga,
            KindEntry::Nvme => Self::Nvme,
            KindEntry::Other => Self::Other,
        }
    }
}

impl From<DeviceKind> for KindEntry {
    fn from(kind: DeviceKind) -> Self {
        let is_it = |entry: &Self| DeviceKind::from(*entry) == kind;
        Self::ALL.into_iter().find(is_it).expect("each kind has an entry")
    }
}

// === impl SharingEntry ===

impl SharingEntry {
    fn problem(&self, devices: &Selector) -> Option<String> {
        let Count(replicas) = self.replicas;
        let is_managed = devices.source.as_ref().is_some_and(|it| it.family().is_managed);
        match (self.method, devices.kind) {
            (SharingMethod::Mps | SharingMethod::TimeSlicing, _) if self.pool => {
                Some("only method: shared pools devices; leave pool out".to_owned())
            }
            (SharingMethod::Mps, Some(kind)) if kind.is_instance() => {
                Some("MPS shares whole GPUs only; share MIG instances by timeSlicing".to_owned())
            }
            (SharingMethod::Mps, _) if is_managed => too_many_clients(replicas),
            (SharingMethod::Mps, _) => Some("MPS shares NVIDIA's GPUs only".to_owned()),
            (SharingMethod::TimeSlicing, Some(kind)) if !kind.is_gpu() => {
                Some(format!("a {kind} has no time slices; write method: shared"))
            }
            (SharingMethod::TimeSlicing | SharingMethod::Shared, _) => None,
        }
    }
}

/// What is wrong with that many replicas by MPS.
pub fn too_many_clients(replicas: Replicas) -> Option<String> {
    let count = replicas.get();
    (count > MOST_MPS_CLIENTS)
        .then(|| format!("{count} replicas: an MPS server has at most {MOST_MPS_CLIENTS} clients"))
}

/// How many replicas a container may ask for where nothing is said: a second one by MPS is a second
/// limit that the first process does not get.
fn usual_per_container(method: SharingMethod) -> PerContainer {
    match method {
        SharingMethod::TimeSlicing | SharingMethod::Shared => PerContainer::Any,
        SharingMethod::Mps => PerContainer::One,
    }
}

impl From<SharingEntry> for Sharing {
    fn from(entry: SharingEntry) -> Self {
        let SharingEntry { method, replicas: Count(replicas), per_container, pool } = entry;
        let per_container = per_container.unwrap_or_else(|| usual_per_container(method));
        if pool {
            return Self::Pooled(Pooled { tokens: replicas, per_container });
        }
        Self::Shared(Shared { method, replicas, per_container })
    }
}

impl SharingEntry {
    /// What a file has to say of this sharing; nothing of devices that serve one container.
    pub(super) fn of(sharing: Sharing) -> Option<Self> {
        let (shared, pool) = match sharing {
            Sharing::Exclusive => return None,
            Sharing::Shared(shared) => (shared, false),
            Sharing::Pooled(Pooled { tokens, per_container }) => {
                let method = SharingMethod::Shared;
                (Shared { method, replicas: tokens, per_container }, true)
            }
        };
        let Shared { method, replicas, per_container } = shared;
        let unusual = per_container != usual_per_container(method);
        let per_container = Some(per_container).filter(|_| unusual);
        Some(Self { method, replicas: Count(replicas), per_container, pool })
    }
}
