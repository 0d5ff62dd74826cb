"""HTTP/1.1 server of a stage's metrics: one request per connection."""

import asyncio
import contextlib

from .address import Address
from .deadline import with_timeout
from .metrics import PrometheusMetrics

#: Timeout of a client in seconds.
_TIMEOUT = 2

#: Errors of a client that disconnects early, is too slow, or sends no valid request head.
_CLIENT_ERRORS = (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError)

#: OpenMetrics 1.0, which Prometheus supports since 2.5.
_CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"


class Page:
    """Serves `/metrics`."""

    def __init__(self, metrics: PrometheusMetrics) -> None:
        self._metrics = metrics
        self._server: asyncio.Server | None = None

    async def start(self, address: Address) -> None:
        """Starts to listen."""
        try:
            self._server = await asyncio.start_server(self._serve, address.host, address.port)
        except OSError as error:
            raise OSError(f"cannot listen on {address}: {error}") from error

    def stop(self) -> None:
        """Stops listening."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one client, within the timeout."""
        try:
            with contextlib.suppress(*_CLIENT_ERRORS):
                await with_timeout(_TIMEOUT, self._respond(reader, writer))
        finally:
            writer.close()

    async def _respond(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"GET /metrics "):
            status, content_type, body = "200 OK", _CONTENT_TYPE, self._metrics.text()
        else:
            status, content_type, body = "404 Not Found", "text/plain", b"see /metrics\n"
        headers = [f"Content-Type: {content_type}", f"Content-Length: {len(body)}", "Connection: close"]
        lines = [f"HTTP/1.1 {status}", *headers, ""]
        writer.write("".join(f"{line}\r\n" for line in lines).encode() + body)
        await writer.drain()
