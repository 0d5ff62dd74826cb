//! Configured sources of devices: discovery, delivery to containers, probes, cleanup.

mod attributes;
mod check;
mod sample;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Deserializer, Serialize};
use windlass_core::{
    attribute::{AttributeName, AttributeValue, Attributes},
    device::{Access, Device, SourceName},
    resource::ResourceName,
    selector::DeviceExpression,
};

pub use check::{
    SourceFindings, check_source, programming_errors, sharing_conflict, sharing_conflicts,
    step_errors,
};

use crate::{
    denylist,
    document::OneOrMany,
    scalar::{Scalar, Text, is_default},
    sharing::Sharing,
    shipped::DeviceProfile,
    steps::{CleanupSteps, DEFAULT_TIMEOUT, HasSteps, only_one},
};

/// A source of devices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(transform = allow_profile_keys)]
pub struct SourceRule {
    /// Device profile of Windlass, by a name from `windlass config profiles`. The profile supplies the keys that the
    /// entry omits.
    #[serde(default, skip_serializing)]
    #[schemars(with = "Text<DeviceProfile>")]
    pub profile: ProfileKey,
    /// Name of the source. The ids of its devices begin with the name.
    #[serde(with = "Text::<SourceName>")]
    pub name: SourceName,
    /// Resource of the source's devices, unless an entry of `resources` takes them.
    #[serde(default, with = "Text::<ResourceName>", skip_serializing_if = "is_default")]
    pub resource: Option<ResourceName>,
    /// Instead of `resource`: domain of one resource per device, named after the device's node:
    /// `smarter-devices/video0` for `/dev/video0`.
    #[serde(default, deserialize_with = "resource_domain", skip_serializing_if = "is_default")]
    #[schemars(with = "Text<ResourceDomain>")]
    pub resource_domain: Option<String>,
    /// Sharing of the devices. By default, a device serves one container.
    #[serde(default, skip_serializing_if = "is_default")]
    pub sharing: Sharing,
    /// Places that are searched for devices.
    pub find: DiscoveryRule,
    /// Selects devices among those found: a CEL expression over the device's attributes.
    #[serde(
        default,
        rename = "match",
        with = "Text::<DeviceExpression>",
        skip_serializing_if = "Option::is_none"
    )]
    pub expression: Option<DeviceExpression>,
    /// Attributes `windlass.dev/<name>`, read from files in the device's folder of sysfs.
    #[serde(default, with = "attributes", skip_serializing_if = "is_default")]
    #[schemars(with = "BTreeMap<String, PathBuf>")]
    pub attributes: BTreeMap<AttributeName, PathBuf>,
    /// Attributes `windlass.dev/<name>` that every device has: a boolean, an integer or a string.
    #[serde(default, with = "attributes::facts", skip_serializing_if = "is_default")]
    #[schemars(with = "BTreeMap<String, attributes::Fact>")]
    pub facts: Attributes,
    /// Grouping of matches into devices.
    #[serde(default, skip_serializing_if = "is_default")]
    pub unit: Grouping,
    /// Nodes, variables and mounts for a container that gets the device.
    #[serde(default = "EditTemplates::found", skip_serializing_if = "EditTemplates::is_found")]
    pub give: EditTemplates,
    /// Probe of a device, besides the presence of its nodes.
    #[serde(default, skip_serializing_if = "is_default")]
    pub probe: Option<Probe>,
    /// Steps on a device between two containers.
    #[serde(flatten, skip_deserializing)]
    #[schemars(!skip_deserializing)]
    pub cleanup: CleanupSteps,
    /// Offers a device that several nodes reach only on the node that holds its Lease at the API server.
    #[serde(default, skip_serializing_if = "is_default")]
    pub lease: bool,
    /// Allows nodes that expose the whole machine, such as `/dev/mem`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub allow_dangerous: bool,
}

/// The key `profile` of an entry. The profile's keys are merged into the entry before the entry is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProfileKey;

/// Places that are searched for devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum DiscoveryRule {
    /// The devices of a bus, `/sys/bus/<name>/devices`: `pci`, `usb`, `platform`, `auxiliary`.
    Bus(String),
    /// The devices of a class, `/sys/class/<name>`.
    Class(String),
    /// Device nodes: paths below `/dev`, with `*`, `?` and `[...]`.
    Nodes(#[serde(with = "OneOrMany::<String>")] Vec<String>),
    /// A folder in which each file describes a device.
    Files(PathBuf),
    /// Hosts or addresses of boards on the network.
    Endpoints(#[serde(with = "OneOrMany::<String>")] Vec<String>),
}

/// Grouping of matches into devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Grouping {
    /// Each match is a device.
    #[default]
    Each,
    /// All matches together are one device.
    All,
    /// One match of every pattern is a device: matches of one bus device, or with the same text for the wildcards, else
    /// at the same position.
    Zipped,
}

/// Nodes, variables and mounts for a container that gets the device. Texts may have placeholders, such as `{id}`;
/// the user's guide, `docs/devices/any-device.md`, lists them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default = "EditTemplates::found")]
pub struct EditTemplates {
    /// Access to the nodes that were found; `none` omits the nodes. Default: `rw`.
    #[serde(with = "Text::<Option<Access>>", skip_serializing_if = "is_default_access")]
    pub found: Option<Access>,
    /// Further nodes.
    #[serde(skip_serializing_if = "is_default")]
    pub nodes: Vec<NodeTemplate>,
    /// Environment variables.
    #[serde(skip_serializing_if = "is_default")]
    pub env: BTreeMap<String, String>,
    /// Files and folders.
    #[serde(skip_serializing_if = "is_default")]
    pub mounts: Vec<MountTemplate>,
    /// Qualified names in other vendors' CDI documents.
    #[serde(skip_serializing_if = "is_default")]
    pub cdi: Vec<String>,
}

/// A node of a container besides those that were found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeTemplate {
    /// Path of the node, or a pattern of paths.
    pub path: String,
    /// Path of the node in the container. A path that ends with `/` is a folder, in which the node keeps its name.
    #[serde(default, rename = "as", skip_serializing_if = "is_default")]
    pub inside: Option<String>,
    /// A container's access to the node. Default: `rw`.
    #[serde(default, with = "Text::<Access>", skip_serializing_if = "is_default")]
    pub access: Access,
    /// Offers the device even if this node is missing.
    #[serde(default, skip_serializing_if = "is_default")]
    pub optional: bool,
    /// Marks a node that several devices have.
    #[serde(default, skip_serializing_if = "is_default")]
    pub shared: bool,
}

/// A file or folder of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MountTemplate {
    /// Path on the host.
    pub host: String,
    /// Path in the container. Default: the path on the host.
    #[serde(default, skip_serializing_if = "is_default")]
    pub container: Option<String>,
    /// Lets a container write to the file or folder.
    #[serde(default, skip_serializing_if = "is_default")]
    pub writable: bool,
}

/// Probe of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "ProbeKeys", into = "ProbeKeys")]
pub struct Probe {
    /// The test.
    pub test: ProbeTest,
    /// Interval of the probe; `None` is the interval of all probes.
    pub every: Option<Duration>,
    /// Time limit.
    pub timeout: Duration,
    /// Number of consecutive failures that make the device unhealthy.
    pub failures: u32,
    /// Time without a failure before the device is healthy again; `None` is the period of all devices.
    pub quiet_period: Option<Duration>,
}

/// A test of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeTest {
    /// The presence of the nodes alone.
    Nodes,
    /// A file in the device's folder of sysfs has one of these texts.
    Attribute {
        /// The file.
        file: PathBuf,
        /// The texts.
        equals: Vec<String>,
    },
    /// An HTTP server answers a GET with success.
    Http(String),
    /// A port accepts connections.
    Tcp(String),
    /// A program ends with 0. No shell is involved.
    Command(Vec<String>),
}

/// Probe of a device: at most one key names the test.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[schemars(rename = "Probe")]
struct ProbeKeys {
    /// A file in the device's folder of sysfs; `equals` lists its healthy texts.
    #[serde(skip_serializing_if = "is_default")]
    attribute: Option<PathBuf>,
    /// The texts that the file has on a healthy device.
    #[serde(with = "OneOrMany::<String>", skip_serializing_if = "is_default")]
    equals: Vec<String>,
    /// A URL that answers a GET with success.
    #[serde(skip_serializing_if = "is_default")]
    http: Option<String>,
    /// An address, host and port, that accepts connections.
    #[serde(skip_serializing_if = "is_default")]
    tcp: Option<String>,
    /// A program with its arguments that ends with 0; no shell is involved.
    #[serde(skip_serializing_if = "is_default")]
    command: Option<Vec<String>>,
    /// Interval. Default: `health.probeInterval`.
    #[serde(with = "Text::<Duration>", skip_serializing_if = "is_default")]
    every: Option<Duration>,
    /// Time limit. Default: 5s.
    #[serde(with = "Text::<Duration>", skip_serializing_if = "is_default")]
    timeout: Option<Duration>,
    /// Number of consecutive failures that make the device unhealthy. Default: 1.
    #[serde(skip_serializing_if = "is_default")]
    failures: Option<u32>,
    /// Time without a failure before the device is healthy again. Default: `health.quietPeriod`.
    #[serde(with = "Text::<Duration>", skip_serializing_if = "is_default")]
    quiet_period: Option<Duration>,
}

/// Domain of resource names, before the slash.
struct ResourceDomain(String);

/// The domain of attributes that a source declares or reads from files.
const DOMAIN: &str = "windlass.dev";

/// The attribute of the path at which a node, or a folder of nodes, was found.
const PATH: AttributeName = AttributeName::new(DOMAIN, "path");

// === impl SourceRule ===

impl SourceRule {
    /// A source that offers all devices that it finds, each to one container.
    pub fn new(name: SourceName, find: DiscoveryRule) -> Self {
        Self {
            profile: ProfileKey,
            name,
            resource: None,
            resource_domain: None,
            sharing: Sharing::Exclusive,
            find,
            expression: None,
            attributes: BTreeMap::new(),
            facts: Attributes::new(),
            unit: Grouping::Each,
            give: EditTemplates::found(),
            probe: None,
            cleanup: CleanupSteps::default(),
            lease: false,
            allow_dangerous: false,
        }
    }

    /// Reason to refuse a mount of this source; `path` is its path on the host without placeholders.
    pub fn mount_refusal(
        &self,
        mount: &MountTemplate,
        path: &Path,
        kubelet_dir: &Path,
    ) -> Option<String> {
        let write_danger = || denylist::write_danger(path, &self.owners());
        denylist::mount_danger(path, kubelet_dir)
            .or_else(|| mount.writable.then(write_danger).flatten())
    }

    /// Names of host folders that belong to the source: the source's name, the parts of its resource's name, the
    /// resource domain, and the first label of each.
    fn owners(&self) -> Vec<String> {
        let resource = self.resource.iter().flat_map(|name| name.as_str().split('/'));
        let domain = self.resource_domain.iter().map(String::as_str);
        let mut owners = vec![self.name.as_str().to_owned()];
        for name in resource.chain(domain) {
            let vendor = name.split('.').next().unwrap_or(name);
            for name in [name, vendor] {
                if !owners.iter().any(|owner| owner == name) {
                    owners.push(name.to_owned());
                }
            }
        }
        owners
    }

    /// The resource that a device of the source is part of.
    pub fn resource_of(&self, device: &Device) -> Option<ResourceName> {
        let node_resource = || {
            let node = &device.nodes.first()?.path;
            // A device that is a folder of nodes is named after the folder.
            let path = match device.attributes.get(&PATH) {
                Some(AttributeValue::String(path))
                    if path.starts_with("/dev/") && node.starts_with(path.as_str()) =>
                {
                    path.as_str()
                }
                _ => node.to_str()?,
            };
            resource_of_node(self.resource_domain.as_deref()?, path.strip_prefix("/dev/")?)
        };
        self.resource.clone().or_else(node_resource)
    }
}

/// Resource name for a single node; characters that a name cannot have become `_`.
pub fn resource_of_node(domain: &str, node: &str) -> Option<ResourceName> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let name: String = node.chars().map(|c| if is_allowed(c) { c } else { '_' }).collect();
    format!("{domain}/{name}").parse().ok()
}

impl HasSteps for SourceRule {
    fn set_steps(&mut self, steps: CleanupSteps) {
        self.cleanup = steps;
    }
}

/// Reads the sources with their steps.
pub(crate) fn sources<'de, D>(deserializer: D) -> Result<Vec<SourceRule>, D::Error>
where
    D: Deserializer<'de>,
{
    let entries = Vec::<(SourceRule, CleanupSteps)>::deserialize(deserializer)?;
    Ok(entries.into_iter().map(|(rule, cleanup)| SourceRule { cleanup, ..rule }).collect())
}

/// Required keys may come from the device profile instead.
fn allow_profile_keys(schema: &mut Schema) {
    let required = schema.remove("required").unwrap_or_default();
    schema.insert(
        "anyOf".to_owned(),
        serde_json::json!([{ "required": ["profile"] }, { "required": required }]),
    );
}

impl<'de> Deserialize<'de> for ProfileKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Text::<DeviceProfile>::deserialize(deserializer).map(|_: DeviceProfile| Self)
    }
}

// === impl ResourceDomain ===

impl Scalar for ResourceDomain {
    fn schema() -> Schema {
        schemars::json_schema!({ "type": "string", "examples": ["smarter-devices"] })
    }

    fn read(text: &str) -> Result<Self, String> {
        ResourceName::read(&format!("{text}/x")).map(|_| Self(text.to_owned()))
    }

    fn write(&self) -> String {
        self.0.clone()
    }
}

fn resource_domain<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Text::deserialize(deserializer).map(|ResourceDomain(text)| Some(text))
}

// === impl EditTemplates ===

impl EditTemplates {
    /// The nodes that were found, and no additions.
    fn found() -> Self {
        Self { found: DEFAULT_ACCESS, ..Self::default() }
    }

    fn is_found(&self) -> bool {
        *self == Self::found()
    }
}

/// Access to the nodes that were found, by default.
const DEFAULT_ACCESS: Option<Access> = Some(Access::ReadWrite);

fn is_default_access(access: &impl PartialEq<Option<Access>>) -> bool {
    *access == DEFAULT_ACCESS
}

impl Scalar for Option<Access> {
    fn schema() -> Schema {
        schemars::json_schema!({ "type": "string", "enum": ["none", "r", "w", "rw", "rwm"] })
    }

    fn read(text: &str) -> Result<Self, String> {
        if text == "none" { Ok(None) } else { Access::read(text).map(Some) }
    }

    fn write(&self) -> String {
        self.map_or_else(|| "none".to_owned(), |access| access.write())
    }
}

// === impl Probe ===

impl TryFrom<ProbeKeys> for Probe {
    type Error = &'static str;

    fn try_from(keys: ProbeKeys) -> Result<Self, Self::Error> {
        if keys.attribute.is_some() == keys.equals.is_empty() {
            return Err("attribute and equals go together");
        }
        let equals = keys.equals;
        let tests = [
            keys.attribute.map(|file| ProbeTest::Attribute { file, equals }),
            keys.http.map(ProbeTest::Http),
            keys.tcp.map(ProbeTest::Tcp),
            keys.command.map(ProbeTest::Command),
        ];
        let has_none = tests.iter().all(Option::is_none);
        let test = if has_none { Some(ProbeTest::Nodes) } else { only_one(tests) };
        Ok(Self {
            test: test.ok_or("write one of attribute, http, tcp, command")?,
            every: keys.every,
            timeout: keys.timeout.unwrap_or(DEFAULT_TIMEOUT),
            failures: keys.failures.unwrap_or(1).max(1),
            quiet_period: keys.quiet_period,
        })
    }
}

impl From<Probe> for ProbeKeys {
    fn from(Probe { test, every, timeout, failures, quiet_period }: Probe) -> Self {
        let mut keys = Self {
            every,
            timeout: Some(timeout).filter(|timeout| *timeout != DEFAULT_TIMEOUT),
            failures: Some(failures).filter(|failures| *failures != 1),
            quiet_period,
            ..Self::default()
        };
        match test {
            ProbeTest::Nodes => {}
            ProbeTest::Attribute { file, equals } => {
                keys.attribute = Some(file);
                keys.equals = equals;
            }
            ProbeTest::Http(url) => keys.http = Some(url),
            ProbeTest::Tcp(address) => keys.tcp = Some(address),
            ProbeTest::Command(command) => keys.command = Some(command),
        }
        keys
    }
}
