//! The file's keys for network interfaces.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass_core::{device::SourceName, pci::PciAddress};

use super::{
    steps::{self, StepEntry},
    word::{Pause, Written},
};
use crate::{MissingNodes, NicIds, NicPolicy, RdmaNode, Remark, document::Lined};

/// What containers get with network interfaces, and what the kubelet is told of them.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct NicsEntry {
    /// What the kubelet, and CNI plugins through it, call an interface; left out, `name`. The SR-IOV CNI
    /// plugin needs `pciAddress`.
    #[serde(skip_serializing_if = "Option::is_none")]
    ids: Option<NicIds>,
    /// The nodes of an RDMA device that a container gets; left out, `uverbs` and `rdmaCm`. None, `[]`,
    /// leaves RDMA to nobody.
    #[serde(skip_serializing_if = "Option::is_none")]
    rdma_nodes: Option<BTreeSet<RdmaNode>>,
    /// Whether a container gets `/dev/vhost-net` and `/dev/net/tun` as well.
    #[serde(skip_serializing_if = "Option::is_none")]
    vhost_net: Option<bool>,
    /// What becomes of an interface while some of these nodes are not there; left out, `awaited`.
    #[serde(skip_serializing_if = "Option::is_none")]
    missing_nodes: Option<MissingNodes>,
    /// Whether NCCL and UCX are told which RDMA devices are the container's.
    #[serde(skip_serializing_if = "Option::is_none")]
    program_hints: Option<bool>,
    /// Whether the kubelet is told the NUMA node of an interface; left out, it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    numa_hints: Option<bool>,
    /// How long a link must stay up before it is trusted again; left out, 10s, or `health.quietPeriod`
    /// where that is shorter.
    #[serde(skip_serializing_if = "Option::is_none")]
    quiet_period: Option<Pause>,
    /// What `PCIDEVICE_*_INFO` says besides under `extra`, by PCI address; `*` is every interface.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    info: BTreeMap<String, BTreeMap<String, String>>,
    /// What is done before a container starts with an interface.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    prepare: Vec<Lined<StepEntry>>,
    /// What is done after the last container has let go of an interface.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    release: Vec<Lined<StepEntry>>,
}

const NO_VERBS: &str =
    "rdmaNodes without uverbs: no RDMA program works without it; add uverbs, or write []";

// === impl NicsEntry ===

impl NicsEntry {
    pub(super) fn into_policy(self, line: u64, wrong: &mut Vec<Remark>) -> NicPolicy {
        let usual = NicPolicy::default();
        let rdma_nodes = self.rdma_nodes.unwrap_or(usual.rdma_nodes);
        if !rdma_nodes.is_empty() && !rdma_nodes.contains(&RdmaNode::Uverbs) {
            wrong.push(Remark::new(line, NO_VERBS));
        }
        let is_place = |key: &&String| *key == "*" || key.parse::<PciAddress>().is_ok();
        for key in self.info.keys().filter(|key| !is_place(key)) {
            let problem =
                format!("info for {key:?}: write a PCI address such as 0000:3b:02.0, or *");
            wrong.push(Remark::new(line, problem));
        }
        NicPolicy {
            ids: self.ids.unwrap_or_default(),
            rdma_nodes,
            vhost_net: self.vhost_net.unwrap_or(usual.vhost_net),
            missing_nodes: self.missing_nodes.unwrap_or_default(),
            program_hints: self.program_hints.unwrap_or(usual.program_hints),
            numa_hints: self.numa_hints.unwrap_or(usual.numa_hints),
            quiet_period: self.quiet_period.map(|Written(time)| time),
            info: self.info,
            handover: steps::builtin((SourceName::NICS, line), (self.prepare, self.release), wrong),
        }
    }

    pub(super) fn of(policy: &NicPolicy) -> Option<Self> {
        let usual = NicPolicy::default();
        if *policy == usual {
            return None;
        }
        let differing = |given: bool, usual: bool| (given != usual).then_some(given);
        Some(Self {
            prepare: steps::written(&policy.handover.prepare),
            release: steps::written(&policy.handover.release),
            ids: Some(policy.ids).filter(|ids| *ids != usual.ids),
            rdma_nodes: Some(policy.rdma_nodes.clone()).filter(|it| *it != usual.rdma_nodes),
            vhost_net: differing(policy.vhost_net, usual.vhost_net),
            missing_nodes: Some(policy.missing_nodes).filter(|it| *it != usual.missing_nodes),
            program_hints: differing(policy.program_hints, usual.program_hints),
            numa_hints: differing(policy.numa_hints, usual.numa_hints),
            quiet_period: policy.quiet_period.map(Written),
            info: policy.info.clone(),
        })
    }
}
