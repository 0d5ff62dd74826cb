//! Choice of the replica for an item: the one with capacity that is expected to pass it first. For a join, rendezvous
//! hashing of the id chooses.
//!
//! The parts of an item reach a join from several stages that do not communicate. With rendezvous hashing all of them
//! choose the same replica, and a replica that joins or leaves moves only its own share of the items.

use std::collections::BTreeMap;

use tokio::time::Instant;

use super::link::Link;
use crate::address::ResolvedAddress;

/// The replica for an item; `None` while the item must wait. Only at a join, a replica that hangs blocks items for the
/// others. With `use_draining`, draining replicas are used if no other replica is open.
pub(super) fn choose_replica(
    links: &BTreeMap<ResolvedAddress, Link>,
    id: u64,
    use_draining: bool,
    has_capacity: impl Fn(&Link) -> bool,
) -> Option<ResolvedAddress> {
    let falls_back = use_draining && !links.values().any(Link::is_open);
    let is_usable = |link: &Link| link.is_open() || falls_back && link.draining_since().is_some();
    let usable_links = || links.iter().filter(|(_, link)| is_usable(link));
    let choice = if usable_links().any(|(_, link)| link.is_join()) {
        let candidate = usable_links().max_by_key(|(target, _)| weight(id, &target.to_string()));
        candidate.filter(|(_, link)| has_capacity(link))
    } else {
        let now = Instant::now();
        let with_capacity = usable_links().filter(|(_, link)| has_capacity(link));
        with_capacity.min_by_key(|(_, link)| (link.expected_wait(now), link.pending_count()))
    };
    choice.map(|(target, _)| target.clone())
}

/// FNV-1a over the address, mixed with the id by the finalizer of `SplitMix64`. Equal in every process and in the
/// Python kit.
fn weight(id: u64, target: &str) -> u64 {
    let hash = target.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mixed = hash ^ id.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_spread_over_replicas_and_only_those_of_a_removed_replica_move() {
        let targets = ["10.0.0.1:7000", "10.0.0.2:7000", "10.0.0.3:7000"];
        let choose = |id: u64, targets: &[&'static str]| {
            targets.iter().copied().max_by_key(|target| weight(id, target)).expect("some")
        };
        let mut counts = BTreeMap::new();
        for id in 0..3000 {
            let target = choose(id, &targets);
            *counts.entry(target).or_insert(0) += 1;
            if target != targets[2] {
                assert_eq!(choose(id, &targets[..2]), target);
            }
        }
        assert!(counts.values().all(|count| (850..1150).contains(count)), "{counts:?}");
    }
}
