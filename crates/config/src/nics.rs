//! Network interfaces: their ids, their RDMA nodes, and the information that programs get.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use windlass_core::{device::SourceName, pci::PciAddress};

use crate::{
    health::HealthPolicy,
    scalar::Text,
    source,
    steps::{CleanupSteps, HasSteps},
};

/// Rules for network interfaces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct NicPolicy {
    /// Form of the ids of interfaces. CNI plugins get them from the kubelet; the SR-IOV CNI plugin needs `pciAddress`.
    pub ids: NicIds,
    /// RDMA device nodes that a container gets. With an empty list a container gets no RDMA node.
    #[serde(deserialize_with = "rdma_nodes")]
    #[schemars(with = "Option<BTreeSet<RdmaNode>>")]
    pub rdma_nodes: BTreeSet<RdmaNode>,
    /// Also gives a container `/dev/vhost-net` and `/dev/net/tun`.
    pub vhost_net: bool,
    /// Treatment of an interface while some of its nodes are missing.
    pub missing_nodes: MissingNodes,
    /// Names the container's RDMA devices in variables of NCCL and UCX.
    pub program_hints: bool,
    /// Reports the NUMA node of an interface to the kubelet.
    pub numa_hints: bool,
    /// Time that a link must stay up before its interface is healthy again. Default: 10s, or `health.quietPeriod` if
    /// that is shorter.
    #[serde(with = "Text::<Duration>")]
    pub quiet_period: Option<Duration>,
    /// Additions to `PCIDEVICE_*_INFO` under `extra`, by PCI address; `*` is every interface.
    pub info: BTreeMap<String, BTreeMap<String, String>>,
    /// Steps on an interface between containers.
    #[serde(flatten, skip_deserializing)]
    #[schemars(!skip_deserializing)]
    pub cleanup: CleanupSteps,
}

/// Form of the ids of interfaces. CNI plugins get them from the kubelet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum NicIds {
    /// `nic-0000-3b-02-0`
    #[default]
    Name,
    /// `0000:3b:02.0`: Multus passes the id on, and the SR-IOV CNI plugin uses it as the address.
    PciAddress,
}

/// Treatment of an interface while some of its nodes are missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum MissingNodes {
    /// The interface is not ready: a container gets all nodes of the set or none.
    #[default]
    Awaited,
    /// The interface is offered without the missing nodes, unless `uverbs` is missing.
    LeftOut,
}

/// A node of an RDMA device.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "camelCase")]
pub enum RdmaNode {
    /// Verbs, without which no RDMA program works.
    Uverbs,
    /// The connection manager, which all RDMA devices share.
    RdmaCm,
    /// Management datagrams: a container with this node can send to the subnet's other hosts and switches.
    Umad,
    /// Permission to act as the subnet manager.
    Issm,
}

/// Default quiet period of a link: a replugged cable works at once. A longer period would only help with a flapping
/// link, whose period doubles anyway.
const QUIET_PERIOD: Duration = Duration::from_secs(10);

// === impl NicPolicy ===

impl NicPolicy {
    /// Time that a link must stay up; by default at most the quiet period of all devices.
    pub fn quiet_period(&self, health: &HealthPolicy) -> Duration {
        self.quiet_period.unwrap_or_else(|| QUIET_PERIOD.min(health.quiet_period))
    }

    /// Errors that the types do not exclude.
    pub(crate) fn validate(&self) -> Vec<String> {
        let mut errors = source::step_errors(SourceName::NICS, &self.cleanup);
        if !self.rdma_nodes.is_empty() && !self.rdma_nodes.contains(&RdmaNode::Uverbs) {
            errors.push(NO_VERBS.to_owned());
        }
        for key in self.info.keys() {
            if key != "*" && key.parse::<PciAddress>().is_err() {
                errors.push(format!(
                    "info for {key:?}: write a PCI address such as 0000:3b:02.0, or *"
                ));
            }
        }
        errors
    }
}

const NO_VERBS: &str =
    "rdmaNodes without uverbs: no RDMA program works without it; add uverbs, or write []";

/// A key without a value counts as absent, as in earlier versions.
fn rdma_nodes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeSet<RdmaNode>, D::Error> {
    let nodes = Option::deserialize(deserializer)?;
    Ok(nodes.unwrap_or_else(|| NicPolicy::default().rdma_nodes))
}

impl HasSteps for NicPolicy {
    fn set_steps(&mut self, steps: CleanupSteps) {
        self.cleanup = steps;
    }
}

impl Default for NicPolicy {
    fn default() -> Self {
        Self {
            ids: NicIds::default(),
            rdma_nodes: [RdmaNode::Uverbs, RdmaNode::RdmaCm].into(),
            vhost_net: false,
            missing_nodes: MissingNodes::default(),
            program_hints: false,
            numa_hints: true,
            quiet_period: None,
            info: BTreeMap::new(),
            cleanup: CleanupSteps::default(),
        }
    }
}
