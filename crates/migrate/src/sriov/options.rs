//! Options that the plugin has per resource, and Windlass per node.

use std::collections::{BTreeMap, BTreeSet};

use windlass_config::{
    MissingNodes, NicIds, NicPolicy,
    document::{Diagnostics, Spanned},
};
use windlass_core::pci::PciAddress;

use super::{AdditionalInfo, DeviceType, Entry, selectors::Selectors};
use crate::nics;

/// Policy for interfaces. An option of any resource applies to all resources.
pub(super) fn nic_policy(entries: &[Entry], line: u64, diagnostics: &mut Diagnostics) -> NicPolicy {
    let vhost_net =
        requested_by_any(entries, line, VHOST_WARNING, Entry::needs_vhost_net, diagnostics);
    let no_hints =
        requested_by_any(entries, line, TOPOLOGY_WARNING, Entry::excludes_topology, diagnostics);
    let has_rdma = gives_rdma_nodes(entries, line, diagnostics);
    let all_nodes = nics::with_all_nodes();
    NicPolicy {
        rdma_nodes: if has_rdma { all_nodes.rdma_nodes } else { BTreeSet::new() },
        // As in the plugin, which logs missing nodes and leaves them out.
        missing_nodes: if has_rdma || vhost_net {
            MissingNodes::LeftOut
        } else {
            MissingNodes::Awaited
        },
        // The SR-IOV CNI plugin uses the id as the PCI address.
        ids: NicIds::PciAddress,
        vhost_net,
        numa_hints: !no_hints,
        info: additional_info(entries, diagnostics),
        ..NicPolicy::default()
    }
}

/// True if any selector requests RDMA. Containers then get all RDMA nodes, otherwise none.
fn gives_rdma_nodes(entries: &[Entry], line: u64, diagnostics: &mut Diagnostics) -> bool {
    let network_entries = entries.iter().filter(|entry| !entry.is_accelerator());
    let selectors: Vec<_> = network_entries.flat_map(Entry::selectors).collect();
    let requesting = selectors.iter().filter(|selector| selector.requests_rdma()).count();
    if requesting > 0 {
        diagnostics.warn(line, nics::MANAGEMENT_WARNING);
    }
    if requesting > 0 && requesting < selectors.len() {
        diagnostics.warn(line, RDMA_WARNING);
    }
    requesting > 0
}

/// True if any entry requests an option, with a warning if some do not.
fn requested_by_any(
    entries: &[Entry],
    line: u64,
    warning: &str,
    requests: fn(&Entry) -> bool,
    diagnostics: &mut Diagnostics,
) -> bool {
    let requesting = entries.iter().filter(|entry| requests(entry)).count();
    if requesting > 0 && requesting < entries.len() {
        diagnostics.warn(line, warning);
    }
    requesting > 0
}

fn additional_info(entries: &[Entry], diagnostics: &mut Diagnostics) -> AdditionalInfo {
    let mut merged = AdditionalInfo::new();
    for entry in entries {
        let Some(Spanned { line, value: info }) = &entry.additional_info else { continue };
        if info.contains_key("*") && entries.len() > 1 {
            diagnostics.warn(*line, ALL_INTERFACES_WARNING);
        }
        for (address, pairs) in info {
            if address != "*" && address.parse::<PciAddress>().is_err() {
                diagnostics.warn(
                    *line,
                    format!("additionalInfo for {address:?} is left out: it is not a PCI address"),
                );
                continue;
            }
            let values: &mut BTreeMap<_, _> = merged.entry(address.clone()).or_default();
            for (key, value) in pairs {
                let earlier = values.insert(key.clone(), value.clone());
                if earlier.is_some_and(|earlier| earlier != *value) {
                    let text =
                        format!("{key:?} of {address:?} has two values: the last one applies");
                    diagnostics.warn(*line, text);
                }
            }
        }
    }
    merged
}

// === impl Entry ===

impl Entry {
    fn excludes_topology(&self) -> bool {
        self.exclude_topology == Some(true)
    }

    fn needs_vhost_net(&self) -> bool {
        self.selectors().any(Selectors::needs_vhost_net)
    }

    fn is_accelerator(&self) -> bool {
        self.device_type == Some(DeviceType::Accelerator)
    }

    fn selectors(&self) -> impl Iterator<Item = &Selectors> {
        self.selectors.iter().flat_map(|list| &list.value.0)
    }
}

const VHOST_WARNING: &str = "needVhostNet applies to the whole node here: containers of every resource of this \
    list get /dev/vhost-net and /dev/net/tun";

const RDMA_WARNING: &str = "isRdma applies to the whole node here: containers of every resource of this list get the \
    nodes of a function's RDMA device, if it has one";

const TOPOLOGY_WARNING: &str = "excludeTopology applies to the whole node here: the kubelet gets no NUMA \
    node for any resource of this list";

const ALL_INTERFACES_WARNING: &str =
    "additionalInfo for * applies to every interface here, of any resource";
