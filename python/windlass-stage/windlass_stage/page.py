"""The page of a stage's metrics: one answer to every request, over HTTP/1.1."""

import asyncio
import contextlib

from .address import Address
from .deadline import within
from .metrics import Counted

#: Longest time of a client in seconds.
_PATIENCE = 2

#: A client that leaves early, is too slow, or sends no request.
_NEEDS_NO_ANSWER = (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError)

#: OpenMetrics 1.0, which Prometheus reads since 2.5.
_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"


class Page:
    """Serves `/metrics`."""

    def __init__(self, metrics: Counted) -> None:
        self._metrics = metrics
        self._server: asyncio.Server | None = None

    async def start(self, address: Address) -> None:
        """Listens."""
        try:
            self._server = await asyncio.start_server(self._serve, address.host, address.port)
        except OSError as error:
            raise OSError(f"cannot listen on {address}: {error}") from error

    def stop(self) -> None:
        """Listens no more."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answers one client."""
        try:
            with contextlib.suppress(*_NEEDS_NO_ANSWER):
                await within(_PATIENCE, self._answer(reader, writer))
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"GET /metrics "):
            status, kind, body = "200 OK", _TYPE, self._metrics.text()
        else:
            status, kind, body = "404 Not Found", "text/plain", b"see /metrics\n"
        lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(body)}", "Connection: close"]
        writer.write("".join(f"{line}\r\n" for line in [*lines, ""]).encode() + body)
        await writer.drain()
