"""Addresses of stages: a host with a port, or a unix socket, and the replicas behind them."""

import asyncio
import ipaddress
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Address:
    """One address as it is written: `host:port`, `tcp:host:port` or `unix:/path`."""

    #: Name or IP address, without the brackets of IPv6; the path of a unix socket where `port` is none.
    host: str
    port: int | None

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Reads an address. A mistake is a `ValueError` that names it."""
        if text.startswith("unix:"):
            path = text.removeprefix("unix:")
            if not path.startswith("/"):
                raise ValueError(f'"{text}" is no absolute path: write unix:/path')
            return cls(path, None)
        host, colon, port = text.removeprefix("tcp:").rpartition(":")
        if not colon:
            raise ValueError(f'"{text}" has no port: write host:port, or unix:/path')
        if not (port.isascii() and port.isdigit() and int(port) < 65536):
            raise ValueError(f'"{text}" has a port that is no number from 0 to 65535')
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        if not host:
            raise ValueError(f'"{text}" has no host: write host:port, such as 0.0.0.0:7000')
        # A zone of IPv6 follows a percent sign.
        if not re.fullmatch(r"[A-Za-z0-9._:%-]+", host):
            raise ValueError(f'"{text}" has a host that is no name: write host:port, such as detect:7000')
        return cls(host, int(port))

    def __str__(self) -> str:
        if self.port is None:
            return f"unix:{self.host}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    async def resolve(self) -> set[str]:
        """The replicas behind this address, of which a name in the DNS may have several."""
        if self.port is None:
            return {str(self)}
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        return {str(Address(str(place[0]), int(place[1]))) for _, _, _, _, place in found}


def parse_all(text: str | Iterable[str]) -> list[Address]:
    """Reads addresses that lead to the replicas of one stage: several texts, or one with commas."""
    return [Address.parse(one.strip()) for one in (text.split(",") if isinstance(text, str) else text)]


def dialed(target: str) -> str:
    """A replica as gRPC is told to dial it: without a look at the DNS, which was looked at already."""
    address = Address.parse(target)
    if address.port is None:
        return target
    try:
        return f"ipv{ipaddress.ip_address(address.host).version}:{target}"
    except ValueError:
        return f"dns:///{target}"
