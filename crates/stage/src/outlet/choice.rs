//! The replica that gets an item: the one with room that is expected to pass it first, or for a join the one that the id
//! names.
//!
//! The parts of an item come to a join from several stages, which do not know each other. Rendezvous hashing lets all
//! choose the same replica, and moves only the items of a replica that comes or goes.

use std::collections::BTreeMap;

use tokio::time::Instant;

use super::link::Link;
use crate::address::Target;

/// The replica for an item; none while it has to wait. A replica that hangs holds the others back only at a join. Those
/// that drain are used where `last_resort` says so, and no other is there.
pub(super) fn replica(
    links: &BTreeMap<Target, Link>,
    id: u64,
    last_resort: bool,
    has_room: impl Fn(&Link) -> bool,
) -> Option<Target> {
    let uses_drained = last_resort && !links.values().any(Link::is_open);
    let is_used = |link: &Link| link.is_open() || uses_drained && link.draining_since().is_some();
    let open = || links.iter().filter(|(_, link)| is_used(link));
    let chosen = if open().any(|(_, link)| link.joins()) {
        let named = open().max_by_key(|(target, _)| weight(id, &target.to_string()));
        named.filter(|(_, link)| has_room(link))
    } else {
        let now = Instant::now();
        let with_room = open().filter(|(_, link)| has_room(link));
        with_room.min_by_key(|(_, link)| (link.expected(now), link.count()))
    };
    chosen.map(|(target, _)| target.clone())
}

/// FNV-1a over the address, mixed with the id by the finalizer of `SplitMix64`: the same in every process.
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
    fn ids_spread_over_replicas_and_few_move_when_one_goes() {
        let targets = ["10.0.0.1:7000", "10.0.0.2:7000", "10.0.0.3:7000"];
        let choose = |id: u64, targets: &[&'static str]| {
            targets.iter().copied().max_by_key(|target| weight(id, target)).expect("some")
        };
        let mut counts = BTreeMap::new();
        for id in 0..3000 {
            let chosen = choose(id, &targets);
            *counts.entry(chosen).or_insert(0) += 1;
            if chosen != targets[2] {
                assert_eq!(choose(id, &targets[..2]), chosen);
            }
        }
        assert!(counts.values().all(|count| (850..1150).contains(count)), "{counts:?}");
    }
}
