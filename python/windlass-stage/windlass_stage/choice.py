"""Choice of the replica for an item: the one with capacity that is expected to pass it first. For a join, rendezvous
hashing of the id chooses.

The parts of an item reach a join from several stages that do not communicate. With rendezvous hashing all of them
choose the same replica, and a replica that joins or leaves moves only its own share of the items.
"""

import time
from collections.abc import Callable

from .link import Link

_MASK = (1 << 64) - 1


def replica(
    links: dict[str, Link], item_id: int, use_draining: bool, has_capacity: Callable[[Link], bool]
) -> Link | None:
    """The replica for an item; `None` while the item must wait. Only at a join, a replica that hangs blocks items for
    the others. With `use_draining`, draining replicas are used if no other replica is open."""
    usable_links = {target: link for target, link in links.items() if link.is_open}
    if use_draining and not usable_links:
        usable_links = {target: link for target, link in links.items() if link.is_draining}
    if any(link.joins for link in usable_links.values()):
        candidate = usable_links[max(usable_links, key=lambda target: weight(item_id, target))]
        return candidate if has_capacity(candidate) else None
    now = time.monotonic_ns()
    with_capacity = filter(has_capacity, usable_links.values())
    return min(with_capacity, key=lambda link: (link.expected_wait(now), link.pending_count), default=None)


def weight(item_id: int, target: str) -> int:
    """FNV-1a over the address, mixed with the id by the finalizer of SplitMix64. Equal in every process and in the Rust
    crate."""
    mixed = 0xCBF29CE484222325
    for byte in target.encode():
        mixed = (mixed ^ byte) * 0x100000001B3 & _MASK
    mixed ^= item_id * 0x9E3779B97F4A7C15 & _MASK
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _MASK
    return mixed ^ mixed >> 31
