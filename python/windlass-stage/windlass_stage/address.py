"""Addresses of stages: a host with a port, or a unix socket. Resolves them to replicas."""

import asyncio
import ipaddress
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Address:
    """One address, written `host:port`, `tcp:host:port` or `unix:/path`."""

    #: Name or IP address, without the brackets of IPv6. The path of a unix socket if `port` is `None`.
    host: str
    port: int | None

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Parses an address. Raises a `ValueError` with the reason."""
        if text.startswith("unix:"):
            path = text.removeprefix("unix:")
            if not path.startswith("/"):
                raise ValueError(f'"{text}" is not an absolute path: write unix:/path')
            return cls(path, None)
        host, colon, port = text.removeprefix("tcp:").rpartition(":")
        if not colon:
            raise ValueError(f'"{text}" has no port: write host:port, or unix:/path')
        if not (port.isascii() and port.isdigit() and int(port) < 65536):
            raise ValueError(f'"{text}" has a port that is not a number from 0 to 65535')
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        if not host:
            raise ValueError(f'"{text}" has no host: write host:port, such as 0.0.0.0:7000')
        # A percent sign begins the zone of an IPv6 address.
        if not re.fullmatch(r"[A-Za-z0-9._:%-]+", host):
            raise ValueError(f'"{text}" has an invalid host: write host:port, such as detect:7000')
        return cls(host, int(port))

    def __str__(self) -> str:
        if self.port is None:
            return f"unix:{self.host}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    async def resolve(self) -> set[str]:
        """Resolves the address. A DNS name can have several replicas."""
        if self.port is None:
            return {str(self)}
        loop = asyncio.get_running_loop()
        resolved = await loop.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        return {str(Address(str(sockaddr[0]), int(sockaddr[1]))) for _, _, _, _, sockaddr in resolved}


def parse_all(text: str | Iterable[str]) -> list[Address]:
    """Parses the addresses of one stage's replicas: several texts, or one text with commas."""
    return [Address.parse(address.strip()) for address in (text.split(",") if isinstance(text, str) else text)]


def grpc_target(target: str) -> str:
    """The gRPC target of a resolved replica. Its scheme prevents a second DNS lookup."""
    address = Address.parse(target)
    if address.port is None:
        return target
    try:
        return f"ipv{ipaddress.ip_address(address.host).version}:{target}"
    except ValueError:
        return f"dns:///{target}"
