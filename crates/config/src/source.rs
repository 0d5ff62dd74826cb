//! Sources of devices that the configuration describes: where they are looked for, which of what is
//! found is meant, what a container gets, and how they are watched and handed over.

mod check;
mod known;

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass_core::{
    attribute::{AttributeName, AttributeValue, Attributes},
    device::{Access, Device, SourceName},
    resource::ResourceName,
    selector::DeviceExpression,
};

pub use check::{
    Judged, differently_shared, judged, otherwise_shared, wrong_programming, wrong_steps,
};

use super::Sharing;

/// A source of devices, described.
#[derive(Clone, Debug, PartialEq)]
pub struct SourceRule {
    /// What it is called; its devices' ids begin with it.
    pub name: SourceName,
    /// The resource its devices are part of, unless a rule takes them first.
    pub resource: Option<ResourceName>,
    /// The domain in which each device is a resource of its own, called after its node:
    /// `smarter-devices` makes `smarter-devices/video0`. Only where `resource` says nothing.
    pub resource_domain: Option<String>,
    /// How they are shared under that name.
    pub sharing: Sharing,
    /// Where they are looked for.
    pub find: Find,
    /// Which of what is found there is meant; `None` is all of it.
    pub expression: Option<DeviceExpression>,
    /// Files in the device's folder of sysfs whose text becomes an attribute, by the attribute.
    pub attributes: BTreeMap<AttributeName, PathBuf>,
    /// What is known of every device without looking.
    pub facts: Attributes,
    /// What one device is made of.
    pub unit: Unit,
    /// What a container gets.
    pub give: Give,
    /// How is known that a device works, besides its nodes being there.
    pub probe: Option<Probe>,
    /// What is done when a device goes from one container to the next.
    pub handover: Handover,
    /// Whether of several nodes only the one that holds a device's lease hands it out.
    pub lease: bool,
    /// Whether nodes may be handed out that give away the whole machine.
    pub allow_dangerous: bool,
}

/// Where devices are looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Find {
    /// The devices of a bus: `/sys/bus/<name>/devices`.
    Bus(String),
    /// The devices of a class: `/sys/class/<name>`.
    Class(String),
    /// Device nodes, by patterns of paths below `/dev`.
    Nodes(Vec<String>),
    /// The files in a folder, each a device.
    Files(PathBuf),
    /// Boards that are reached by network, by host or address.
    Endpoints(Vec<String>),
}

/// What one device is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unit {
    /// Each thing that is found.
    #[default]
    Each,
    /// All that is found together.
    All,
    /// One match of every pattern: those of one device, or with the same number, else of the same rank.
    Zipped,
}

/// What a container gets. Texts may have placeholders, such as `{id}`: what may stand in braces is
/// listed in the user's guide, `docs/devices/any-device.md`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Give {
    /// Whether the nodes that were found are among it, and how; `None` keeps them out.
    pub found: Option<Access>,
    /// Nodes besides, by pattern.
    pub nodes: Vec<GivenNode>,
    /// Environment variables.
    pub env: BTreeMap<String, String>,
    /// Files and folders.
    pub mounts: Vec<GivenMount>,
    /// Names in CDI documents of others.
    pub cdi: Vec<String>,
}

/// A node that a container gets besides those that were found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenNode {
    /// Its path, or a pattern of paths.
    pub path: String,
    /// Its path in the container; one that ends with `/` keeps the last component.
    pub inside: Option<String>,
    /// What a container may do with it.
    pub access: Access,
    /// Whether a device without it can do.
    pub optional: bool,
    /// Whether it belongs to no single device.
    pub shared: bool,
}

/// A file or folder that a container gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenMount {
    /// Its path on the host.
    pub host: String,
    /// Its path in the container; the same if unset.
    pub container: Option<String>,
    /// Whether a container may write to it.
    pub writable: bool,
}

/// How is known that a device works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// What is tried.
    pub test: Test,
    /// How often; `None` is the interval of all probes.
    pub every: Option<Duration>,
    /// How long it may take.
    pub timeout: Duration,
    /// How many failures in a row count.
    pub failures: u32,
    /// How long the device must be without trouble; `None` is the period of all devices.
    pub quiet_period: Option<Duration>,
}

/// What is tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Test {
    /// Nothing but that the nodes are there.
    Nodes,
    /// A file in the device's folder of sysfs says one of these.
    Attribute {
        /// The file.
        file: PathBuf,
        /// What it may say.
        equals: Vec<String>,
    },
    /// An HTTP server answers a GET with success.
    Http(String),
    /// Something listens.
    Tcp(String),
    /// A program ends with 0. No shell is involved.
    Command(Vec<String>),
}

/// What is done when a device goes from one container to the next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Handover {
    /// Before a container starts with it.
    pub prepare: Vec<Step>,
    /// After the last container has let go of it.
    pub release: Vec<Step>,
}

impl Handover {
    /// Whether devices are reset.
    pub fn resets(&self) -> bool {
        let mut steps = self.prepare.iter().chain(&self.release);
        steps.any(|step| matches!(step.action, StepAction::Reset(_)))
    }

    /// Whether memory is overwritten.
    pub fn overwrites(&self) -> bool {
        let mut steps = self.prepare.iter().chain(&self.release);
        steps.any(|step| step.action == StepAction::Overwrite)
    }
}

/// One step of a hand-over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What is done.
    pub action: StepAction,
    /// How long it may take.
    pub timeout: Duration,
}

/// What is used of a GPU that nobody uses, in bytes. The driver counts what it keeps for itself apart; listings of
/// idle GPUs and MIG instances by `nvidia-smi` show 0 to about 100 MiB, and a CUDA context alone takes more than 200.
pub const USUAL_MEMORY: u64 = 128 << 20;

/// What a step does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepAction {
    /// A GET that is to succeed.
    Http(String),
    /// A program that is to end with 0. No shell is involved.
    Command(Vec<String>),
    /// Text into a file of the device's folder in sysfs.
    Write {
        /// The file.
        file: PathBuf,
        /// The text.
        text: String,
    },
    /// Waiting for the programs on a GPU of NVIDIA's.
    Processes(Processes),
    /// Waiting until no more of a GPU's memory is used than this, in bytes.
    Memory {
        /// The most.
        most: u64,
    },
    /// All of a GPU's memory, overwritten once nobody has any.
    Overwrite,
    /// The reset of a GPU of NVIDIA's.
    Reset(Reset),
    /// The state of a network interface that comes back.
    Link(Link),
}

/// Who may compute on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Processes {
    /// Nobody.
    None,
}

/// What becomes of a GPU's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Memory {
    /// All is free, but for what the driver itself uses.
    Free,
    /// What is free is overwritten.
    Overwrite,
}

/// What is reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Reset {
    /// The whole GPU.
    Gpu,
}

/// How a network interface is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Link {
    /// In the host's network, and set up.
    Up,
}

/// What a node, or a folder of nodes, was found as.
const PATH: AttributeName = AttributeName::new("windlass.dev", "path");

// === impl SourceRule ===

impl SourceRule {
    /// A source that gives away what it finds, each to one container.
    pub fn new(name: SourceName, find: Find) -> Self {
        let (resource, resource_domain, sharing) = Default::default();
        let (expression, attributes, facts) = Default::default();
        let (unit, probe, handover, lease, allow_dangerous) = Default::default();
        let give = Give { found: Some(Access::ReadWrite), ..Give::default() };
        Self {
            name,
            resource,
            resource_domain,
            sharing,
            find,
            expression,
            attributes,
            facts,
            unit,
            give,
            probe,
            handover,
            lease,
            allow_dangerous,
        }
    }

    /// By which names a folder of the host is the source's own: those of the source, its resource and the domains.
    pub(crate) fn owners(&self) -> Vec<String> {
        let resource = self.resource.iter().flat_map(|name| name.as_str().split('/'));
        let domain = self.resource_domain.iter().map(String::as_str);
        let mut owners = vec![self.name.as_str().to_owned()];
        for name in resource.chain(domain) {
            let vendor = name.split('.').next().unwrap_or(name);
            for name in [name, vendor] {
                if !owners.iter().any(|known| known == name) {
                    owners.push(name.to_owned());
                }
            }
        }
        owners
    }

    /// The resource that a device of the source is part of.
    pub fn resource_of(&self, device: &Device) -> Option<ResourceName> {
        let own = || {
            let node = &device.nodes.first()?.path;
            // Of a folder of nodes, however many are in it, it is the folder that was found.
            let found = match device.attributes.get(&PATH) {
                Some(AttributeValue::String(path))
                    if path.starts_with("/dev/") && node.starts_with(path.as_str()) =>
                {
                    path.as_str()
                }
                _ => node.to_str()?,
            };
            own_resource(self.resource_domain.as_deref()?, found.strip_prefix("/dev/")?)
        };
        self.resource.clone().or_else(own)
    }
}

/// A resource of its own for one node: what a name may not have becomes `_`.
pub fn own_resource(domain: &str, node: &str) -> Option<ResourceName> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let name: String = node.chars().map(|c| if allowed(c) { c } else { '_' }).collect();
    format!("{domain}/{name}").parse().ok()
}
