//! The policy: the part of the configuration that may change while the agent runs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass_core::{
    device::{Device, Partitioning, PossiblePartition},
    partition::{prospective_device, with_mig_off},
    placement,
    resource::ResourceName,
};

use crate::{
    delivery::Delivery,
    dra::{DraOffer, DraPartitions, DraPolicy},
    families::Families,
    health::HealthPolicy,
    labels::LabelPolicy,
    memory_limits::MemoryLimitPolicy,
    nics::NicPolicy,
    scalar::{Text, is_default},
    selector::Selector,
    shares::ShareResources,
    sharing::Sharing,
    source::{SourceRule, sources},
    steps::with_steps,
    watchdog::WatchdogPolicy,
};

/// The part of the configuration that may change without a restart.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Policy {
    /// Offering of a GPU in MIG mode: the whole GPU or its instances.
    pub mig: MigStrategy,
    /// Delivery of devices to containers.
    #[serde(flatten, skip_deserializing)]
    #[schemars(!skip_deserializing)]
    pub delivery: Delivery,
    /// Rules for the built-in families.
    #[serde(flatten, skip_deserializing)]
    #[schemars(!skip_deserializing)]
    pub families: Families,
    /// Sources of devices besides the built-in ones.
    #[serde(deserialize_with = "sources")]
    pub sources: Vec<SourceRule>,
    /// Rules for network interfaces.
    #[serde(deserialize_with = "with_steps")]
    pub nics: NicPolicy,
    /// Devices that are never offered.
    pub exclude: Vec<Selector>,
    /// Resources, in order: the first rule that matches a device takes it. By default, whole GPUs are `nvidia.com/gpu`
    /// and MIG instances `nvidia.com/mig-<profile>`.
    pub resources: Resources,
    /// Treatment of devices that match no rule.
    pub unmatched: Unmatched,
    /// Resources of the device plugin that count shares of NVIDIA's GPUs by amounts.
    pub shares: ShareResources,
    /// Limits of the memory of shares by amounts.
    pub memory_limits: MemoryLimitPolicy,
    /// The watchdog over shared GPUs.
    pub watchdog: WatchdogPolicy,
    /// Devices for Dynamic Resource Allocation.
    pub dra: DraPolicy,
    /// Conditions under which a device counts as failed or as recovered.
    pub health: HealthPolicy,
    /// Labels of the node: their destination and content.
    #[serde(deserialize_with = "LabelPolicy::deserialize_all")]
    pub labels: LabelPolicy,
}

/// Offering of a GPU in MIG mode: the whole GPU or its instances. The words are NVIDIA's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum MigStrategy {
    /// The whole GPU, as if it had no instances.
    None,
    /// Its instances, under the name of whole GPUs; all instances must have one profile.
    Single,
    /// Its instances, each under the name of its MIG profile.
    #[default]
    Mixed,
}

/// The resources of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(from = "Option<Vec<ResourceRule>>", into = "Option<Vec<ResourceRule>>")]
pub enum Resources {
    /// Whole GPUs as `nvidia.com/gpu`, MIG instances as `nvidia.com/mig-<profile>`.
    #[default]
    Default,
    /// By rule.
    Rules(Vec<ResourceRule>),
}

/// Treatment of devices that match no rule. Without rules it has no effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Unmatched {
    /// Not offered.
    #[default]
    #[serde(rename = "keptBack")]
    Withheld,
    /// Offered as if there were no rules.
    Default,
}

/// One resource and its devices. Several rules of one name form one resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ResourceRule {
    /// The name that pods request.
    #[serde(with = "Text::<ResourceName>")]
    pub name: ResourceName,
    /// The devices of the resource.
    pub devices: Selector,
    /// Sharing of the devices. By default, a device serves one container.
    #[serde(default, skip_serializing_if = "is_default")]
    pub sharing: Sharing,
    /// Choice of devices or replicas for a container. Default: `aligned` for exclusive devices, `distributed` for
    /// shared ones.
    #[serde(default, with = "Text::<placement::Policy>", skip_serializing_if = "is_default")]
    pub placement: Option<placement::Policy>,
}

// === impl Policy ===

impl Policy {
    /// True if containers get devices by CDI documents. Claims and shares always need them.
    pub fn needs_documents(&self) -> bool {
        self.delivery.uses_cdi() || self.has_shares_or_claims()
    }

    /// True if containers or claims share GPUs by MPS.
    pub fn shares_by_mps(&self) -> bool {
        let containers_use_mps = match &self.resources {
            Resources::Default => false,
            Resources::Rules(rules) => rules.iter().any(|rule| rule.sharing.is_mps()),
        };
        containers_use_mps || self.dra.shares.iter().any(|rule| rule.manner.method.is_mps())
    }

    /// True if claims, or pods with shares, hold devices besides containers with resources.
    pub fn has_shares_or_claims(&self) -> bool {
        self.dra.offer != DraOffer::Off || self.shares.is_enabled()
    }

    /// The names of resources that are known before discovery.
    pub fn resource_names(&self) -> Vec<ResourceName> {
        let shares = self.shares.names().cloned();
        self.device_resource_names().into_iter().chain(shares).collect()
    }

    /// Known names of resources that consist of devices.
    pub(crate) fn device_resource_names(&self) -> Vec<ResourceName> {
        let source_resources = self.sources.iter().filter_map(|rule| rule.resource.clone());
        match &self.resources {
            Resources::Default => {
                "nvidia.com/gpu".parse().into_iter().chain(source_resources).collect()
            }
            Resources::Rules(rules) => {
                rules.iter().map(|rule| rule.name.clone()).chain(source_resources).collect()
            }
        }
    }

    /// The choice of devices for a resource that is shared in this way.
    pub fn placement(&self, resource: &ResourceName, sharing: Sharing) -> placement::Policy {
        let rules = match &self.resources {
            Resources::Default => &[][..],
            Resources::Rules(rules) => rules,
        };
        let rule = rules.iter().find(|rule| rule.name == *resource);
        rule.map_or_else(|| sharing.default_placement(), ResourceRule::placement)
    }

    /// True for a device that only the holder of its lease offers.
    pub fn is_leased(&self, device: &Device) -> bool {
        self.sources.iter().any(|rule| rule.lease && rule.name == device.source)
    }

    /// True if instances on this GPU are created for claims: it is in MIG mode or may switch to it, is not excluded,
    /// and one of its partitions is offered.
    pub fn creates_instances_for_claims(&self, gpu: &Device) -> bool {
        let is_offered = |possible: &PossiblePartition| {
            self.dra.offers(
                &prospective_device(gpu, possible),
                Some(possible.partition.profile.as_str()),
            )
        };
        // A selector may test the MIG mode. If the mode can change, the selector sees the GPU with MIG off.
        let visible_gpu = if self.dra.may_switch_mig(gpu) { &with_mig_off(gpu) } else { gpu };
        let is_included =
            |rule: &Selector| rule.matches(visible_gpu, None).is_ok_and(|matches| !matches);
        self.dra.partitions == DraPartitions::OnDemand
            && gpu.family().partitioning == Partitioning::Mig
            && (gpu.partitioned || self.dra.may_switch_mig(gpu))
            && !gpu.health.has_vanished()
            && self.exclude.iter().all(is_included)
            && gpu.partitions.iter().any(is_offered)
    }

    /// True if each claim may have this GPU whole or an instance of it: MIG is turned on and off for claims.
    pub fn switches_mig_for_claims(&self, gpu: &Device) -> bool {
        self.dra.may_switch_mig(gpu) && self.creates_instances_for_claims(gpu)
    }
}

// === impl Resources ===

impl From<Option<Vec<ResourceRule>>> for Resources {
    fn from(rules: Option<Vec<ResourceRule>>) -> Self {
        rules.map_or(Self::Default, Self::Rules)
    }
}

impl From<Resources> for Option<Vec<ResourceRule>> {
    fn from(resources: Resources) -> Self {
        match resources {
            Resources::Default => None,
            Resources::Rules(rules) => Some(rules),
        }
    }
}

// === impl ResourceRule ===

impl ResourceRule {
    /// A rule with the default choice of devices.
    pub fn new(name: ResourceName, devices: Selector, sharing: Sharing) -> Self {
        Self { name, devices, sharing, placement: None }
    }

    /// The choice of devices for a container.
    pub fn placement(&self) -> placement::Policy {
        self.placement.unwrap_or(self.sharing.default_placement())
    }
}
