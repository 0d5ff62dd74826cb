//! What the agent is told: every path, time limit and rule, as plain values.

mod file;

use std::{collections::BTreeSet, path::PathBuf, time::Duration};

use windlass_core::{
    device::{Device, DeviceKind},
    resource::ResourceName,
};

pub use file::{ConfigError, ConfigFile};

/// Everything the agent needs to know, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The kubelet's folder; its sockets lie in `device-plugins` below.
    pub kubelet_dir: PathBuf,
    /// Where the host's `/sys`, `/proc`, `/dev` and driver are found.
    pub host_root: PathBuf,
    /// What the container runtime calls `host_root`: `/`, unless the machine is simulated.
    pub host_root_on_node: PathBuf,
    /// The NVML library; `None` looks where drivers put it.
    pub nvml_library: Option<PathBuf>,
    /// Where CDI documents are written.
    pub cdi_dir: PathBuf,
    /// How a container is told its devices.
    pub device_list: DeviceList,
    /// What is offered, in order: the first rule that matches a device has it.
    pub resources: Resources,
    /// When a device counts as failed, and when as recovered.
    pub health: HealthPolicy,
    /// Time limits of the conversation with the kubelet.
    pub session: SessionLimits,
}

/// How a container is told its devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceList {
    /// By names in CDI documents, which the container runtime resolves.
    Cdi,
    /// By `NVIDIA_VISIBLE_DEVICES`, which NVIDIA's container runtime resolves.
    Envvar,
}

/// What is offered to the kubelet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resources {
    /// Whole GPUs as `nvidia.com/gpu`, MIG instances as `nvidia.com/mig-<profile>`.
    Default,
    /// By rule.
    Rules(Vec<ResourceRule>),
}

/// One resource, and the devices it is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceRule {
    /// The name that pods ask for.
    pub name: ResourceName,
    /// Which devices it is made of.
    pub devices: Selector,
}

/// Picks devices of one kind; empty sets pick all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector {
    /// The kind.
    pub kind: DeviceKind,
    /// Positions as `windlass devices` shows them; a MIG instance has its GPU's.
    pub index: BTreeSet<u32>,
    /// Device ids.
    pub ids: BTreeSet<String>,
    /// MIG profiles, `1g.10gb`.
    pub profiles: BTreeSet<String>,
}

/// When a device counts as failed, and when as recovered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthPolicy {
    /// How long a device must be without trouble before a passed probe makes it healthy again.
    pub quiet_period: Duration,
    /// How often devices are probed.
    pub probe_interval: Duration,
    /// How long the driver may take for an answer.
    pub call_deadline: Duration,
    /// How long one wait for the driver's events lasts; how late the watcher notices its end.
    pub event_wait: Duration,
    /// XIDs that do not count, whatever the catalogue says.
    pub ignored_xids: BTreeSet<u64>,
    /// XIDs that count, whatever the catalogue says.
    pub counted_xids: BTreeSet<u64>,
}

/// Time limits of the conversation with the kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionLimits {
    /// How long Register may take: the kubelet dials back for up to ten seconds within it.
    pub register_deadline: Duration,
    /// How long after a registration the kubelet may take to ask for the device list.
    pub stream_deadline: Duration,
    /// The first wait before registering again; it doubles.
    pub retry_first: Duration,
    /// The longest wait before registering again.
    pub retry_most: Duration,
    /// How often sockets are looked at without a reason, should a notice have been lost.
    pub look_interval: Duration,
}

// === impl Config ===

impl Default for Config {
    fn default() -> Self {
        Self {
            kubelet_dir: "/var/lib/kubelet".into(),
            host_root: "/".into(),
            host_root_on_node: "/".into(),
            nvml_library: None,
            cdi_dir: "/var/run/cdi".into(),
            device_list: DeviceList::Cdi,
            resources: Resources::Default,
            health: HealthPolicy::default(),
            session: SessionLimits::default(),
        }
    }
}

impl Default for HealthPolicy {
    fn default() -> Self {
        Self {
            quiet_period: Duration::from_secs(60),
            // No periodic work more often than this keeps an idle agent idle.
            probe_interval: Duration::from_secs(10),
            call_deadline: Duration::from_secs(5),
            event_wait: Duration::from_secs(10),
            ignored_xids: BTreeSet::new(),
            counted_xids: BTreeSet::new(),
        }
    }
}

impl Default for SessionLimits {
    fn default() -> Self {
        Self {
            register_deadline: Duration::from_secs(15),
            stream_deadline: Duration::from_secs(5),
            retry_first: Duration::from_millis(50),
            retry_most: Duration::from_secs(10),
            look_interval: Duration::from_secs(10),
        }
    }
}

// === impl Resources ===

impl Resources {
    /// The names that do not depend on what is discovered.
    pub fn known_names(&self) -> Vec<ResourceName> {
        match self {
            Self::Default => default_name(DeviceKind::Gpu, None).into_iter().collect(),
            Self::Rules(rules) => rules.iter().map(|rule| rule.name.clone()).collect(),
        }
    }

    /// The resource that a device belongs to, if any.
    pub fn name_for(&self, device: &Device, profile: Option<&str>) -> Option<ResourceName> {
        match self {
            Self::Default => default_name(device.kind, profile),
            Self::Rules(rules) => rules
                .iter()
                .find(|rule| rule.devices.matches(device, profile))
                .map(|rule| rule.name.clone()),
        }
    }
}

/// NVIDIA's names, which existing manifests use; a `+` in a profile is no part of a resource name.
fn default_name(kind: DeviceKind, profile: Option<&str>) -> Option<ResourceName> {
    match (kind, profile) {
        (DeviceKind::Gpu, _) => "nvidia.com/gpu".parse().ok(),
        (DeviceKind::Mig, Some(profile)) => {
            format!("nvidia.com/mig-{}", profile.replace('+', ".")).parse().ok()
        }
        _ => None,
    }
}

// === impl Selector ===

impl Selector {
    /// All devices of a kind.
    pub fn all(kind: DeviceKind) -> Self {
        let (index, ids, profiles) = Default::default();
        Self { kind, index, ids, profiles }
    }

    /// Whether the device is picked.
    pub fn matches(&self, device: &Device, profile: Option<&str>) -> bool {
        device.kind == self.kind
            && (self.index.is_empty() || self.index.contains(&device.index))
            && (self.ids.is_empty() || self.ids.contains(device.id.as_str()))
            && (self.profiles.is_empty() || profile.is_some_and(|p| self.profiles.contains(p)))
    }

    /// Whether some device could be picked by both: neither names something that rules the other
    /// out.
    pub fn may_overlap(&self, other: &Self) -> bool {
        fn meet<T: Ord>(a: &BTreeSet<T>, b: &BTreeSet<T>) -> bool {
            a.is_empty() || b.is_empty() || !a.is_disjoint(b)
        }
        self.kind == other.kind
            && meet(&self.index, &other.index)
            && meet(&self.ids, &other.ids)
            && meet(&self.profiles, &other.profiles)
    }
}
