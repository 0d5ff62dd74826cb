//! The file's keys for sources of devices that it describes itself.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};
use windlass_core::{
    attribute::AttributeName,
    device::{Access, SourceName},
    resource::ResourceName,
    selector::DeviceExpression,
};

use super::{
    facts::{self, Facts},
    resources::{SharingEntry, unlined},
    steps::{self, StepEntry},
    word::{Pause, ResourceDomain, Written},
};
use crate::{
    DeviceProfile, Find, Give, GivenMount, GivenNode, Probe, Remark, Sharing, SourceRule, Test,
    Unit,
    document::{Lined, Many},
};

/// The domain of attributes that a source reads from files.
const DOMAIN: &str = "windlass.dev";

/// A source of devices: where they are looked for, and what a container gets of them.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(transform = begun_from_a_profile)]
pub(super) struct SourceEntry {
    /// A profile that comes with Windlass, see `windlass config profiles`: every other key is as there
    /// where it is left out here. When the entry is read, they have been taken over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    profile: Option<Written<DeviceProfile>>,
    /// What the source is called; its devices' ids begin with it.
    name: Lined<Written<SourceName>>,
    /// The resource its devices are part of, unless an entry of `resources` takes them first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    resource: Option<Written<ResourceName>>,
    /// Instead of `resource`: the domain in which each device is a resource of its own, called after
    /// its node, `smarter-devices/video0` for `/dev/video0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    resource_domain: Option<Written<ResourceDomain>>,
    /// Left out, a device serves one container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sharing: Option<Lined<SharingEntry>>,
    /// Where devices are looked for.
    find: Lined<FindEntry>,
    /// Which of what is found is meant: a CEL expression over the device's attributes.
    #[serde(default, rename = "match", skip_serializing_if = "Option::is_none")]
    expression: Option<Written<DeviceExpression>>,
    /// Attributes `windlass.dev/<name>`, read from files in the device's folder of sysfs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    attributes: BTreeMap<String, PathBuf>,
    /// Attributes `windlass.dev/<name>` that every device has: a truth value, a whole number or a text.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    facts: Facts,
    /// What one device is made of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    unit: Option<UnitEntry>,
    /// What a container gets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    give: Option<GiveEntry>,
    /// How is known that a device works, besides its nodes being there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    probe: Option<Lined<ProbeEntry>>,
    /// What is done before a container starts with a device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    prepare: Vec<Lined<StepEntry>>,
    /// What is done after the last container has let go of a device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    release: Vec<Lined<StepEntry>>,
    /// Whether of several nodes that reach a device only the one that holds its lease hands it out; the
    /// lease is an object of the API server.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    lease: bool,
    /// Whether nodes may be handed out that give away the whole machine, such as `/dev/mem`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    allow_dangerous: bool,
}

/// Where devices are looked for: one of these.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct FindEntry {
    /// The devices of a bus: `pci`, `usb`, `platform`, `auxiliary`.
    #[serde(skip_serializing_if = "Option::is_none")]
    bus: Option<String>,
    /// The devices of a class, as below `/sys/class`.
    #[serde(skip_serializing_if = "Option::is_none")]
    class: Option<String>,
    /// Device nodes: paths below `/dev`, with `*`, `?` and `[...]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    nodes: Option<Many<String>>,
    /// A folder, each file of which is a device.
    #[serde(skip_serializing_if = "Option::is_none")]
    files: Option<PathBuf>,
    /// Hosts or addresses of boards that are reached by network.
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoints: Option<Many<String>>,
}

/// What one device is made of.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum UnitEntry {
    /// Each thing that is found.
    Each,
    /// All that is found together.
    All,
    /// One match of every pattern: those of one device, or with the same number, else of the same rank.
    Zipped,
}

/// What a container gets.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct GiveEntry {
    /// What a container may do with the nodes that were found; `none` keeps them out. Left out, `rw`.
    #[serde(skip_serializing_if = "Option::is_none")]
    found: Option<FoundEntry>,
    /// Nodes besides.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    nodes: Vec<GivenNodeEntry>,
    /// Environment variables.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    env: BTreeMap<String, String>,
    /// Files and folders.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    mounts: Vec<GivenMountEntry>,
    /// Qualified names in CDI documents of others.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    cdi: Vec<String>,
}

/// What a container may do with the nodes that were found.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum FoundEntry {
    /// It does not get them.
    None,
    /// Read.
    R,
    /// Write.
    W,
    /// Read and write.
    Rw,
    /// Read, write, and make such nodes itself.
    Rwm,
}

/// A node that a container gets besides those that were found.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct GivenNodeEntry {
    /// Its path, or a pattern of paths.
    path: String,
    /// Its path in the container; one that ends with `/` keeps the last component.
    #[serde(default, rename = "as", skip_serializing_if = "Option::is_none")]
    inside: Option<String>,
    /// What a container may do with it; left out, `rw`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    access: Option<Written<Access>>,
    /// Whether a device without it can do.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    optional: bool,
    /// Whether it belongs to no single device.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    shared: bool,
}

/// A file or folder that a container gets.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct GivenMountEntry {
    /// Its path on the host.
    host: String,
    /// Its path in the container; left out, the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    container: Option<String>,
    /// Whether a container may write to it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    writable: bool,
}

/// How is known that a device works: at most one test, and how patient to be with it.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct ProbeEntry {
    /// A file in the device's folder of sysfs; `equals` says what it is to say.
    #[serde(skip_serializing_if = "Option::is_none")]
    attribute: Option<PathBuf>,
    /// What the file may say.
    #[serde(skip_serializing_if = "Option::is_none")]
    equals: Option<Many<String>>,
    /// A URL that answers a GET with success.
    #[serde(skip_serializing_if = "Option::is_none")]
    http: Option<String>,
    /// An address, host and port, where something listens.
    #[serde(skip_serializing_if = "Option::is_none")]
    tcp: Option<String>,
    /// A program with its arguments that ends with 0; no shell is involved.
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<Vec<String>>,
    /// How often; left out, `health.probeInterval`.
    #[serde(skip_serializing_if = "Option::is_none")]
    every: Option<Pause>,
    /// How long it may take; left out, 5s.
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout: Option<Pause>,
    /// How many failures in a row count; left out, 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    failures: Option<u32>,
    /// How long the device must be without trouble; left out, `health.quietPeriod`.
    #[serde(skip_serializing_if = "Option::is_none")]
    quiet_period: Option<Pause>,
}

/// How long a probe or a step may take where nothing is said.
pub(super) const USUAL_TIMEOUT: Duration = Duration::from_secs(5);

// === impl SourceEntry ===

impl SourceEntry {
    pub(super) fn into_rule(self, wrong: &mut Vec<Remark>) -> Lined<SourceRule> {
        let line = self.name.line;
        let find = self.find.value.into_find().unwrap_or_else(|problem| {
            wrong.push(Remark::new(self.find.line, problem));
            Find::Nodes(Vec::new())
        });
        let mut rule = SourceRule::new(self.name.value.0, find);
        rule.resource = self.resource.map(|Written(name)| name);
        rule.resource_domain = self.resource_domain.map(|Written(ResourceDomain(text))| text);
        if rule.resource.is_some() && rule.resource_domain.is_some() {
            wrong.push(Remark::new(line, "write resource or resourceDomain, not both"));
        }
        rule.sharing = self.sharing.map_or(Sharing::Exclusive, |sharing| sharing.value.into());
        rule.expression = self.expression.map(|Written(expression)| expression);
        for (name, file) in self.attributes {
            match AttributeName::given(DOMAIN, &name) {
                Some(name) => drop(rule.attributes.insert(name, file)),
                None => wrong.push(Remark::new(line, format!("{name:?} cannot name an attribute"))),
            }
        }
        let (facts, problems) = facts::attributes(DOMAIN, self.facts);
        rule.facts = facts;
        wrong.extend(problems.into_iter().map(|problem| Remark::new(line, problem)));
        rule.unit = self.unit.map_or(Unit::Each, Into::into);
        if let Some(give) = self.give {
            rule.give = give.into();
        }
        rule.probe = self.probe.and_then(|it| noted(it.value.into_probe(), it.line, wrong));
        rule.handover = steps::handover(self.prepare, self.release, wrong);
        rule.lease = self.lease;
        rule.allow_dangerous = self.allow_dangerous;
        Lined { line, value: rule }
    }
}

/// What an entry must have, a profile gives it as well.
fn begun_from_a_profile(schema: &mut Schema) {
    let required = schema.remove("required").unwrap_or_default();
    schema.insert(
        "anyOf".to_owned(),
        serde_json::json!([{ "required": ["profile"] }, { "required": required }]),
    );
}

pub(super) fn noted<T>(
    outcome: Result<T, String>,
    line: u64,
    wrong: &mut Vec<Remark>,
) -> Option<T> {
    outcome.map_err(|problem| wrong.push(Remark::new(line, problem))).ok()
}

impl From<&SourceRule> for SourceEntry {
    fn from(rule: &SourceRule) -> Self {
        let sharing = SharingEntry::of(rule.sharing).map(unlined);
        let attributes = rule.attributes.iter();
        Self {
            profile: None,
            name: unlined(Written(rule.name.clone())),
            resource: rule.resource.clone().map(Written),
            resource_domain: rule.resource_domain.clone().map(|it| Written(ResourceDomain(it))),
            sharing,
            find: unlined(FindEntry::from(&rule.find)),
            expression: rule.expression.clone().map(Written),
            attributes: attributes
                .map(|(name, file)| (name.name().to_owned(), file.clone()))
                .collect(),
            facts: facts::facts(&rule.facts),
            unit: Some(rule.unit).filter(|unit| *unit != Unit::Each).map(Into::into),
            give: GiveEntry::of(&rule.give),
            probe: rule.probe.as_ref().map(|probe| unlined(probe.into())),
            prepare: steps::written(&rule.handover.prepare),
            release: steps::written(&rule.handover.release),
            lease: rule.lease,
            allow_dangerous: rule.allow_dangerous,
        }
    }
}

// === impl FindEntry ===

impl FindEntry {
    fn into_find(self) -> Result<Find, String> {
        let Self { bus, class, nodes, files, endpoints } = self;
        let all = [
            bus.map(Find::Bus),
            class.map(Find::Class),
            nodes.map(|Many(nodes)| Find::Nodes(nodes)),
            files.map(Find::Files),
            endpoints.map(|Many(endpoints)| Find::Endpoints(endpoints)),
        ];
        match only_one(all) {
            Some(Find::Nodes(none) | Find::Endpoints(none)) if none.is_empty() => {
                Err("nothing to look for: write a node or an endpoint".to_owned())
            }
            found => {
                found.ok_or_else(|| "write one of bus, class, nodes, files, endpoints".to_owned())
            }
        }
    }
}

/// The one that is there, if it is one.
pub(super) fn only_one<T>(all: impl IntoIterator<Item = Option<T>>) -> Option<T> {
    let mut given = all.into_iter().flatten();
    given.next().filter(|_| given.next().is_none())
}

impl From<&Find> for FindEntry {
    fn from(find: &Find) -> Self {
        let mut entry = Self::default();
        match find.clone() {
            Find::Bus(bus) => entry.bus = Some(bus),
            Find::Class(class) => entry.class = Some(class),
            Find::Nodes(nodes) => entry.nodes = Some(Many(nodes)),
            Find::Files(files) => entry.files = Some(files),
            Find::Endpoints(endpoints) => entry.endpoints = Some(Many(endpoints)),
        }
        entry
    }
}

impl From<UnitEntry> for Unit {
    fn from(entry: UnitEntry) -> Self {
        match entry {
            UnitEntry::Each => Self::Each,
            UnitEntry::All => Self::All,
            UnitEntry::Zipped => Self::Zipped,
        }
    }
}

impl From<Unit> for UnitEntry {
    fn from(unit: Unit) -> Self {
        match unit {
            Unit::Each => Self::Each,
            Unit::All => Self::All,
            Unit::Zipped => Self::Zipped,
        }
    }
}

// === impl GiveEntry ===

impl From<GiveEntry> for Give {
    fn from(entry: GiveEntry) -> Self {
        let found = match entry.found.unwrap_or(FoundEntry::Rw) {
            FoundEntry::None => None,
            FoundEntry::R => Some(Access::Read),
            FoundEntry::W => Some(Access::Write),
            FoundEntry::Rw => Some(Access::ReadWrite),
            FoundEntry::Rwm => Some(Access::ReadWriteMake),
        };
        let node = |node: GivenNodeEntry| GivenNode {
            path: node.path,
            inside: node.inside,
            access: node.access.map_or(Access::ReadWrite, |Written(access)| access),
            optional: node.optional,
            shared: node.shared,
        };
        let mount = |mount: GivenMountEntry| GivenMount {
            host: mount.host,
            container: mount.container,
            writable: mount.writable,
        };
        Self {
            found,
            nodes: entry.nodes.into_iter().map(node).collect(),
            env: entry.env,
            mounts: entry.mounts.into_iter().map(mount).collect(),
            cdi: entry.cdi,
        }
    }
}

impl GiveEntry {
    fn of(give: &Give) -> Option<Self> {
        let found = match give.found {
            None => Some(FoundEntry::None),
            Some(Access::Read) => Some(FoundEntry::R),
            Some(Access::Write) => Some(FoundEntry::W),
            Some(Access::ReadWrite) => None,
            Some(Access::ReadWriteMake) => Some(FoundEntry::Rwm),
        };
        let node = |node: &GivenNode| GivenNodeEntry {
            path: node.path.clone(),
            inside: node.inside.clone(),
            access: Some(node.access).filter(|it| *it != Access::ReadWrite).map(Written),
            optional: node.optional,
            shared: node.shared,
        };
        let mount = |mount: &GivenMount| GivenMountEntry {
            host: mount.host.clone(),
            container: mount.container.clone(),
            writable: mount.writable,
        };
        let entry = Self {
            found,
            nodes: give.nodes.iter().map(node).collect(),
            env: give.env.clone(),
            mounts: give.mounts.iter().map(mount).collect(),
            cdi: give.cdi.clone(),
        };
        let usual = Give { found: Some(Access::ReadWrite), ..Give::default() };
        (*give != usual).then_some(entry)
    }
}

// === impl ProbeEntry ===

impl ProbeEntry {
    fn into_probe(self) -> Result<Probe, String> {
        let Self { attribute, equals, http, tcp, command, .. } = self;
        if attribute.is_some() != equals.is_some() {
            return Err("attribute and equals go together".to_owned());
        }
        let equals = equals.map(|Many(values)| values).unwrap_or_default();
        let all = [
            attribute.map(|file| Test::Attribute { file, equals }),
            http.map(Test::Http),
            tcp.map(Test::Tcp),
            command.map(Test::Command),
        ];
        let is_silent = all.iter().all(Option::is_none);
        let test = if is_silent { Some(Test::Nodes) } else { only_one(all) };
        Ok(Probe {
            test: test.ok_or("write one of attribute, http, tcp, command")?,
            every: self.every.map(|Written(time)| time),
            timeout: self.timeout.map_or(USUAL_TIMEOUT, |Written(time)| time),
            failures: self.failures.unwrap_or(1).max(1),
            quiet_period: self.quiet_period.map(|Written(time)| time),
        })
    }
}

impl From<&Probe> for ProbeEntry {
    fn from(probe: &Probe) -> Self {
        let mut entry = Self {
            every: probe.every.map(Written),
            timeout: Some(probe.timeout).filter(|it| *it != USUAL_TIMEOUT).map(Written),
            failures: Some(probe.failures).filter(|it| *it != 1),
            quiet_period: probe.quiet_period.map(Written),
            ..Self::default()
        };
        match probe.test.clone() {
            Test::Nodes => {}
            Test::Attribute { file, equals } => {
                (entry.attribute, entry.equals) = (Some(file), Some(Many(equals)));
            }
            Test::Http(url) => entry.http = Some(url),
            Test::Tcp(address) => entry.tcp = Some(address),
            Test::Command(command) => entry.command = Some(command),
        }
        entry
    }
}
