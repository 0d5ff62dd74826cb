//! Options that the plugin has per resource and Windlass per node.

use std::collections::{BTreeMap, BTreeSet};

use windlass_config::{
    MissingNodes, NicIds, NicPolicy,
    document::{Diagnostics, Spanned},
};
use windlass_core::pci::PciAddress;

use super::{AdditionalInfo, DeviceType, Entry, selectors::Selectors};
use crate::nics;

/// Rules for interfaces: an option of any resource holds for all.
pub(super) fn of(entries: &[Entry], line: u64, diagnostics: &mut Diagnostics) -> NicPolicy {
    let vhost_net = for_all(entries, line, VHOST, Entry::needs_vhost_net, diagnostics);
    let no_hints = for_all(entries, line, TOPOLOGY, Entry::excludes_topology, diagnostics);
    let has_rdma = gives_rdma_nodes(entries, line, diagnostics);
    let with_nodes = nics::with_all_nodes();
    NicPolicy {
        rdma_nodes: if has_rdma { with_nodes.rdma_nodes } else { BTreeSet::new() },
        // The plugin leaves missing nodes out, and logs them.
        missing_nodes: if has_rdma || vhost_net {
            MissingNodes::LeftOut
        } else {
            MissingNodes::Awaited
        },
        // The SR-IOV CNI plugin takes the id for the address.
        ids: NicIds::PciAddress,
        vhost_net,
        numa_hints: !no_hints,
        info: info(entries, diagnostics),
        ..NicPolicy::default()
    }
}

/// True if any selector asks for RDMA: a container then gets all nodes, and none otherwise.
fn gives_rdma_nodes(entries: &[Entry], line: u64, diagnostics: &mut Diagnostics) -> bool {
    let of_networks = entries.iter().filter(|entry| !entry.is_accelerator());
    let selectors: Vec<_> = of_networks.flat_map(Entry::selectors).collect();
    let wanting = selectors.iter().filter(|selector| selector.wants_rdma()).count();
    if wanting > 0 {
        diagnostics.warn(line, nics::MANAGEMENT);
    }
    if wanting > 0 && wanting < selectors.len() {
        diagnostics.warn(line, RDMA);
    }
    wanting > 0
}

/// True if any selector asks for it, with a warning if not all do.
fn for_all(
    entries: &[Entry],
    line: u64,
    warning: &str,
    asks: fn(&Entry) -> bool,
    diagnostics: &mut Diagnostics,
) -> bool {
    let wanting = entries.iter().filter(|entry| asks(entry)).count();
    if wanting > 0 && wanting < entries.len() {
        diagnostics.warn(line, warning);
    }
    wanting > 0
}

fn info(entries: &[Entry], diagnostics: &mut Diagnostics) -> AdditionalInfo {
    let mut all = AdditionalInfo::new();
    for entry in entries {
        let Some(Spanned { line, value: info }) = &entry.additional_info else { continue };
        if info.contains_key("*") && entries.len() > 1 {
            diagnostics.warn(*line, EVERY);
        }
        for (place, words) in info {
            if place != "*" && place.parse::<PciAddress>().is_err() {
                diagnostics.warn(
                    *line,
                    format!("additionalInfo for {place:?}, no PCI address, is left out"),
                );
                continue;
            }
            let known: &mut BTreeMap<_, _> = all.entry(place.clone()).or_default();
            for (key, word) in words {
                let earlier = known.insert(key.clone(), word.clone());
                if earlier.is_some_and(|earlier| earlier != *word) {
                    let text = format!("{key:?} of {place:?} is said twice: the last holds");
                    diagnostics.warn(*line, text);
                }
            }
        }
    }
    all
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

const VHOST: &str = "needVhostNet applies to the whole node here: containers of every resource of this \
    list get /dev/vhost-net and /dev/net/tun";

const RDMA: &str = "isRdma applies to the whole node here: containers of every resource of this list get the \
    nodes of a function's RDMA device, if it has one";

const TOPOLOGY: &str = "excludeTopology applies to the whole node here: the kubelet gets no NUMA \
    node for any resource of this list";

const EVERY: &str = "additionalInfo for * applies to every interface here, of any resource";
