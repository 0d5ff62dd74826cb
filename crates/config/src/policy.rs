//! What may change while the agent runs: what is offered, how it is handed out, when it is trusted.

use std::{collections::BTreeSet, path::PathBuf, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass_core::{
    device::{Device, SourceName},
    placement,
    resource::ResourceName,
};

use super::{
    Delivery, DraOffer, DraPolicy, Families, Handover, NicPolicy, Selector, Sharing, SourceRule,
};

/// Everything that a new configuration may change without a restart.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Policy {
    /// What a GPU in MIG mode is offered as.
    pub mig: MigStrategy,
    /// Devices that are kept back, whatever the rules say.
    pub exclude: Vec<Selector>,
    /// What is offered, in order: the first rule that matches a device has it.
    pub resources: Resources,
    /// What becomes of devices that no rule takes.
    pub unmatched: Unmatched,
    /// Sources of devices besides those that are built in.
    pub sources: Vec<SourceRule>,
    /// What is said of the families of devices that are built in.
    pub families: Families,
    /// What becomes of network interfaces.
    pub nics: NicPolicy,
    /// What is offered through Dynamic Resource Allocation.
    pub dra: DraPolicy,
    /// What a container gets.
    pub delivery: Delivery,
    /// When a device counts as failed, and when as recovered.
    pub health: HealthPolicy,
    /// Where the node's labels are written.
    pub labels: LabelPolicy,
}

/// What a GPU in MIG mode is offered as; the names are NVIDIA's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum MigStrategy {
    /// The whole GPU, as if it were not cut.
    None,
    /// Its instances, under the name of whole GPUs; all instances must be alike.
    Single,
    /// Its instances, each under the name of its profile.
    #[default]
    Mixed,
}

/// What is offered to the kubelet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Resources {
    /// Whole GPUs as `nvidia.com/gpu`, MIG instances as `nvidia.com/mig-<profile>`.
    #[default]
    Default,
    /// By rule.
    Rules(Vec<ResourceRule>),
}

/// What becomes of devices that no rule takes. Without rules it means nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Unmatched {
    /// They are not offered.
    #[default]
    KeptBack,
    /// They are offered as they would be without any rule.
    Default,
}

/// One resource, and the devices it is made of. Rules of the same name add up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceRule {
    /// The name that pods ask for.
    pub name: ResourceName,
    /// Which devices it is made of.
    pub devices: Selector,
    /// Whether one device serves one container or several.
    pub sharing: Sharing,
    /// How devices, or replicas, are chosen for a container.
    pub placement: placement::Policy,
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
    /// How long one wait for the driver's events lasts while no GPU is lost; how late the watcher notices its end.
    pub event_wait: Duration,
    /// XIDs that do not count, whatever the catalogue says.
    pub ignored_xids: BTreeSet<u64>,
    /// XIDs that count, whatever the catalogue says.
    pub counted_xids: BTreeSet<u64>,
    /// Whether XIDs that are on neither list count as the catalogue says, or not at all.
    pub unlisted_xids: UnlistedXids,
}

/// What becomes of XIDs that the configuration does not name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum UnlistedXids {
    /// The catalogue judges.
    #[default]
    Judged,
    /// None of them counts.
    Ignored,
    /// All of them count, those of a faulty program included.
    Counted,
}

/// Where the node's labels are written, and what goes into them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelPolicy {
    /// Where to.
    pub output: LabelOutput,
    /// Whether the time of writing is a label too, as gpu-feature-discovery has it.
    pub timestamp: bool,
    /// A file that names the machine; `None` is the DMI table's product name.
    pub machine_type_file: Option<PathBuf>,
}

/// Where labels are written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LabelOutput {
    /// Nowhere.
    #[default]
    None,
    /// A file that node-feature-discovery reads.
    File(PathBuf),
    /// A `NodeFeature` object, which node-feature-discovery turns into labels.
    NodeFeature,
    /// The Node object itself.
    Node,
}

// === impl Policy ===

impl Policy {
    /// Whether anything is handed out by the names in CDI documents. Claims know no other way.
    pub fn needs_documents(&self) -> bool {
        self.delivery.uses_cdi() || self.dra.offer != DraOffer::Off
    }

    /// What is done to the devices of a source between two containers, where its section may say so.
    pub fn handover(&self, source: &SourceName) -> Option<&Handover> {
        let described = || self.sources.iter().find(|rule| rule.name == *source);
        match source {
            source if *source == SourceName::FPGA => Some(&self.families.fpga.handover),
            source if *source == SourceName::NVIDIA => Some(&self.families.gpu),
            source if *source == SourceName::NICS => Some(&self.nics.handover),
            _ => described().map(|rule| &rule.handover),
        }
    }

    /// The names of resources that do not depend on what is discovered.
    pub fn known_names(&self) -> Vec<ResourceName> {
        let of_sources = self.sources.iter().filter_map(|rule| rule.resource.clone());
        match &self.resources {
            Resources::Default => "nvidia.com/gpu".parse().into_iter().chain(of_sources).collect(),
            Resources::Rules(rules) => {
                rules.iter().map(|rule| rule.name.clone()).chain(of_sources).collect()
            }
        }
    }

    /// How devices of a resource, shared in this way, are chosen.
    pub fn placement(&self, resource: &ResourceName, sharing: Sharing) -> placement::Policy {
        let rules = match &self.resources {
            Resources::Default => &[][..],
            Resources::Rules(rules) => rules,
        };
        let rule = rules.iter().find(|rule| rule.name == *resource);
        rule.map_or_else(|| sharing.usual_placement(), |rule| rule.placement)
    }

    /// Whether a device is handed out only by the node that holds its lease.
    pub fn is_leased(&self, device: &Device) -> bool {
        self.sources.iter().any(|rule| rule.lease && rule.name == device.source)
    }
}

// === impl ResourceRule ===

impl ResourceRule {
    /// A rule under which devices are chosen as is usual.
    pub fn new(name: ResourceName, devices: Selector, sharing: Sharing) -> Self {
        Self { name, devices, sharing, placement: sharing.usual_placement() }
    }
}

// === impl HealthPolicy ===

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
            unlisted_xids: UnlistedXids::Judged,
        }
    }
}
