//! What the plugin is told for each resource and Windlass for the whole node.

use std::collections::BTreeMap;

use super::{AdditionalInfo, Entry, selectors::Selectors};
use crate::config::{
    NicIds, NicPolicy,
    document::{Lined, Remarks},
    import::nics,
};

/// What becomes of interfaces: what any resource asks for, all have.
pub(super) fn of(entries: &[Entry], line: u64, remarks: &mut Remarks) -> NicPolicy {
    let vhost_net = for_all(entries, line, VHOST, Entry::needs_vhost_net, remarks);
    let no_hints = for_all(entries, line, TOPOLOGY, Entry::excludes_topology, remarks);
    NicPolicy {
        // The SR-IOV CNI plugin takes the id for the address.
        ids: NicIds::PciAddress,
        vhost_net,
        numa_hints: !no_hints,
        info: info(entries, remarks),
        ..nics::with_all_nodes()
    }
}

/// Whether any asks for it, with a warning if not all do.
fn for_all(
    entries: &[Entry],
    line: u64,
    warning: &str,
    asks: fn(&Entry) -> bool,
    remarks: &mut Remarks,
) -> bool {
    let asking = entries.iter().filter(|entry| asks(entry)).count();
    if asking > 0 && asking < entries.len() {
        remarks.warn(line, warning);
    }
    asking > 0
}

fn info(entries: &[Entry], remarks: &mut Remarks) -> AdditionalInfo {
    let mut all = AdditionalInfo::new();
    for entry in entries {
        let Some(Lined { line, value: info }) = &entry.additional_info else { continue };
        if info.contains_key("*") && entries.len() > 1 {
            remarks.warn(*line, EVERY);
        }
        for (place, words) in info {
            let known: &mut BTreeMap<_, _> = all.entry(place.clone()).or_default();
            for (key, word) in words {
                let earlier = known.insert(key.clone(), word.clone());
                if earlier.is_some_and(|earlier| earlier != *word) {
                    let text = format!("{key:?} of {place:?} is said twice: the last holds");
                    remarks.warn(*line, text);
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
        let selectors = self.selectors.iter().flat_map(|list| &list.value.0);
        selectors.into_iter().any(Selectors::needs_vhost_net)
    }
}

const VHOST: &str = "needVhostNet is one for the node here: containers of every resource of this \
    list get /dev/vhost-net and /dev/net/tun";

const TOPOLOGY: &str = "excludeTopology is one for the node here: the kubelet is told of no NUMA \
    node for any resource of this list";

const EVERY: &str = "additionalInfo for * is of every interface here, whichever its resource";
