//! NVLinks of a GPU: count, generation, peers.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::pci::PciAddress;

/// The active links of one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NvLinks {
    /// NVLink generation, 1 for Pascal to 5 for Blackwell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<u32>,
    /// Links to other GPUs, by peer address.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub peers: BTreeMap<PciAddress, u32>,
    /// Number of NVSwitch links.
    pub to_switches: u32,
    /// Addresses of the switches; empty if a virtual machine's driver hides them.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub switches: BTreeSet<PciAddress>,
}

/// NVLink connection of a pair of GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NvLinkPair {
    /// Number of links between the two.
    pub links: u32,
    /// The lower generation of both ends; `None` if neither reports one.
    pub generation: Option<u32>,
    /// True if the connection passes an NVSwitch, whose links serve all peers.
    pub via_switch: bool,
}

// === impl NvLinks ===

impl NvLinks {
    /// True without an active link.
    pub fn is_empty(&self) -> bool {
        self.peers.is_empty() && self.to_switches == 0
    }

    /// NVLink connection of two GPUs: direct links, else switches.
    ///
    /// Symmetric even if the driver reports one end of a link later than the other. All switches of a node
    /// count as one fabric, although two GPUs may share no switch: a DGX-2 has two boards of six switches, and
    /// NVML does not report the links between boards.
    pub fn between(one: (PciAddress, &Self), other: (PciAddress, &Self)) -> Option<NvLinkPair> {
        let generation = [one.1, other.1].into_iter().filter_map(|end| end.generation).min();
        let direct = one.1.links_to(other.0).max(other.1.links_to(one.0));
        if direct > 0 {
            return Some(NvLinkPair { links: direct, generation, via_switch: false });
        }
        let links = one.1.to_switches.min(other.1.to_switches);
        (links > 0).then_some(NvLinkPair { links, generation, via_switch: true })
    }

    fn links_to(&self, peer: PciAddress) -> u32 {
        self.peers.get(&peer).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(bus: u8) -> PciAddress {
        format!("0000:{bus:02x}:00.0").parse().expect("valid")
    }

    fn switched(links: u32, switches: &[u8]) -> NvLinks {
        NvLinks {
            to_switches: links,
            switches: switches.iter().copied().map(address).collect(),
            ..NvLinks::default()
        }
    }

    fn switch_pair(links: u32) -> NvLinkPair {
        NvLinkPair { links, generation: None, via_switch: true }
    }

    #[test]
    fn a_pair_is_as_wide_as_its_narrower_end() {
        let (a, b) = (address(1), address(2));
        let pair = NvLinks::between((a, &switched(18, &[9])), (b, &switched(12, &[9, 10])));
        assert_eq!(pair, Some(switch_pair(12)));
    }

    #[test]
    fn gpus_on_separate_switches_are_connected_through_them() {
        let (a, b) = (address(1), address(2));
        let boards = NvLinks::between((a, &switched(6, &[9])), (b, &switched(6, &[10])));
        assert_eq!(boards, Some(switch_pair(6)));
        let without_addresses = NvLinks::between((a, &switched(6, &[])), (b, &switched(6, &[10])));
        assert_eq!(without_addresses, Some(switch_pair(6)));
        let none = NvLinks::between((a, &switched(6, &[9])), (b, &NvLinks::default()));
        assert_eq!(none, None);
    }

    #[test]
    fn a_link_that_only_one_end_reports_connects_both_ways() {
        let (a, b) = (address(1), address(2));
        let linked = NvLinks { peers: BTreeMap::from([(b, 4)]), ..NvLinks::default() };
        let unlinked = NvLinks::default();
        let pair = Some(NvLinkPair { links: 4, generation: None, via_switch: false });
        assert_eq!(NvLinks::between((a, &linked), (b, &unlinked)), pair);
        assert_eq!(NvLinks::between((b, &unlinked), (a, &linked)), pair);
    }
}
