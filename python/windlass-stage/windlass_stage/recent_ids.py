"""A bounded set of recent ids, for the detection of duplicates."""

#: Capacity: a minute at 1,000 items per second. A duplicate end arrives within the time in which a stage detects a lost
#: stream.
CAPACITY = 65_536


class RecentIds:
    """Set of the most recent ids. A new id evicts the oldest one."""

    def __init__(self) -> None:
        # A dict keeps the insertion order of its keys.
        self._ids: dict[int, None] = {}

    def insert(self, item_id: int) -> bool:
        """Inserts an id. True if it is new."""
        if item_id in self._ids:
            return False
        self._ids[item_id] = None
        if len(self._ids) > CAPACITY:
            del self._ids[next(iter(self._ids))]
        return True

    def __contains__(self, item_id: object) -> bool:
        """True if the id is in the set."""
        return item_id in self._ids
