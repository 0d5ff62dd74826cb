"""Ids that came of late, in bounded memory."""

#: Ids that are remembered: a minute at 1,000 items per second. A second end of an item comes within the time in which a
#: lost stream is noticed.
REMEMBERED = 65_536


class Seen:
    """A window of ids. The oldest one is forgotten for a new one."""

    def __init__(self) -> None:
        # A dict keeps the order in which its keys came.
        self._ids: dict[int, None] = {}

    def is_first(self, number: int) -> bool:
        """Notes an id; true if it is new."""
        if number in self._ids:
            return False
        self._ids[number] = None
        if len(self._ids) > REMEMBERED:
            del self._ids[next(iter(self._ids))]
        return True

    def __contains__(self, number: object) -> bool:
        """True if the id came before; it is not noted."""
        return number in self._ids
