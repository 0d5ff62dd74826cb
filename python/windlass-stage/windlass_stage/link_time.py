"""The time that an item spends on a link, without common clocks.

Clocks of two nodes differ by an unknown amount. Over one stream the amount stays: the smallest difference belongs to a
message that met no queue, and took about half of the smallest round trip. So

    link = (received - sent) - smallest(received - sent) + half of the smallest round trip

The sender measures the round trip and tells it with each item. Clocks drift apart, so the smallest difference is that
of the last 10 to 20 seconds.
"""

#: Span in which a difference is remembered, once as the current one and once as the previous one.
SPAN_NS = 10_000_000_000


class LinkTime:
    """Differences of one stream's clocks, in nanoseconds."""

    def __init__(self, now: int) -> None:
        self._current: int | None = None
        self._previous: int | None = None
        self._turns = now + SPAN_NS

    def observe(self, sent: int, received: int) -> int:
        """Notes a message, and returns its delay beyond the fastest one of late."""
        if received >= self._turns:
            is_recent = received < self._turns + SPAN_NS
            self._previous = self._current if is_recent else None
            self._current = None
            self._turns = received + SPAN_NS
        difference = received - sent
        if self._current is None or difference < self._current:
            self._current = difference
        least = self._current
        if self._previous is not None and self._previous < least:
            least = self._previous
        return difference - least
