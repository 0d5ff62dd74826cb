"""The replica that gets an item: the one with room that is expected to pass it first, or for a join the one that the id
names.

The parts of an item come to a join from several stages, which do not know each other. Rendezvous hashing lets all
choose the same replica, and moves only the items of a replica that comes or goes.
"""

import time
from collections.abc import Callable

from .link import Link

_MASK = (1 << 64) - 1


def replica(
    links: dict[str, Link], number: int, last_resort: bool, has_room: Callable[[Link], bool]
) -> Link | None:
    """The replica for an item; none while it has to wait. A replica that hangs holds the others back only at a join.
    Those that drain are used where `last_resort` says so, and no other is there."""
    usable = {target: link for target, link in links.items() if link.is_open}
    if last_resort and not usable:
        usable = {target: link for target, link in links.items() if link.is_last_resort}
    if any(link.joins for link in usable.values()):
        named = usable[max(usable, key=lambda target: weight(number, target))]
        return named if has_room(named) else None
    now = time.monotonic_ns()
    return min(filter(has_room, usable.values()), key=lambda link: (link.expected(now), link.count), default=None)


def weight(number: int, target: str) -> int:
    """FNV-1a over the address, mixed with the id by the finalizer of SplitMix64: the same in every process, and in the
    kit for Rust."""
    mixed = 0xCBF29CE484222325
    for byte in target.encode():
        mixed = (mixed ^ byte) * 0x100000001B3 & _MASK
    mixed ^= number * 0x9E3779B97F4A7C15 & _MASK
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _MASK
    return mixed ^ mixed >> 31
