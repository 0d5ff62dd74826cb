"""Estimate of an item's time on a link, without synchronised clocks.

The clocks of two nodes differ by an unknown offset. Within one stream the offset is constant: the smallest difference
belongs to a message that met no queue, and took about half of the smallest round trip. Hence

    link = (received - sent) - smallest(received - sent) + half of the smallest round trip

The sender measures the round trip and sends it with each item. Clocks drift apart, so the smallest difference is that
of the last 10 to 20 seconds.
"""

#: Length of a span in nanoseconds. A difference counts in its own span and in the next one.
SPAN_NS = 10_000_000_000


class LinkTime:
    """Smallest clock differences of one stream, in nanoseconds."""

    def __init__(self, now: int) -> None:
        self._current: int | None = None
        self._previous: int | None = None
        self._span_end = now + SPAN_NS

    def observe(self, sent: int, received: int) -> int:
        """Records a message, and returns its delay beyond the fastest message of the current and previous span."""
        if received >= self._span_end:
            is_recent = received < self._span_end + SPAN_NS
            self._previous = self._current if is_recent else None
            self._current = None
            self._span_end = received + SPAN_NS
        difference = received - sent
        if self._current is None or difference < self._current:
            self._current = difference
        smallest = self._current
        if self._previous is not None and self._previous < smallest:
            smallest = self._previous
        return difference - smallest
