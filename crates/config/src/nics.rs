//! What containers get with network interfaces, and what the kubelet is told of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Handover, HealthPolicy};

/// What becomes of network interfaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicPolicy {
    /// What the kubelet, and CNI plugins through it, call an interface.
    pub ids: NicIds,
    /// The nodes of an RDMA device that a container gets; none, and RDMA is nobody's.
    pub rdma_nodes: BTreeSet<RdmaNode>,
    /// Whether a container gets `/dev/vhost-net` and `/dev/net/tun` as well.
    pub vhost_net: bool,
    /// What becomes of an interface while some of these nodes are not there.
    pub missing_nodes: MissingNodes,
    /// Whether NCCL and UCX are told which RDMA devices are the container's.
    pub program_hints: bool,
    /// Whether the kubelet is told the NUMA node of an interface.
    pub numa_hints: bool,
    /// How long a link must stay up before it is trusted again.
    pub quiet_period: Option<Duration>,
    /// What `PCIDEVICE_*_INFO` says besides, by PCI address; `*` is every interface.
    pub info: BTreeMap<String, BTreeMap<String, String>>,
    /// What is done to an interface between containers.
    pub handover: Handover,
}

/// What the kubelet, and CNI plugins through it, call an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum NicIds {
    /// `nic-0000-3b-02-0`
    #[default]
    Name,
    /// `0000:3b:02.0`: Multus hands the id on, and the SR-IOV CNI plugin takes it for the address.
    PciAddress,
}

/// What becomes of an interface while some of its nodes are not there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum MissingNodes {
    /// It is not ready: a set of nodes is given whole or not at all.
    #[default]
    Awaited,
    /// It is offered without them, verbs excepted.
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
    /// Management datagrams: whoever has them can speak to the subnet's other hosts and switches.
    Umad,
    /// The right to be the subnet's manager.
    Issm,
}

/// A cable that is plugged in again works at once; what a longer wait would guard against is a flapping
/// link, and the wait doubles for each flap.
const QUIET_PERIOD: Duration = Duration::from_secs(10);

// === impl NicPolicy ===

impl NicPolicy {
    /// How long a link must stay up; where nothing is said, no longer than for any device.
    pub fn quiet_period(&self, health: &HealthPolicy) -> Duration {
        self.quiet_period.unwrap_or_else(|| QUIET_PERIOD.min(health.quiet_period))
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
            handover: Handover::default(),
        }
    }
}
