"""A stage as a user program. The first argument is the name of a work function; the others are those of manifests."""

import asyncio
import logging
import sys
import time
from collections.abc import Callable
from typing import Any

from windlass_stage import Stage


def letter(payload: bytes) -> bytes:
    """Marks the items that it has processed."""
    return payload + b"p"


def slow(payload: bytes) -> bytes:
    """Processes slowly, so that under load the stage always has items."""
    time.sleep(0.005)
    return payload


def picky(payload: bytes) -> bytes:
    """Fails for some items, in several ways."""
    if payload == b"bad":
        raise ValueError("no frame") from KeyError("header")
    if payload == b"exit":
        sys.exit(3)
    if payload == b"text":
        return "text"  # type: ignore[return-value]
    if payload == b"large":
        return bytes(2 << 20)
    return payload


def sizes(payloads: list[bytes]) -> list[bytes]:
    """Returns the size of the batch for each item; no results if an item is `few`."""
    if b"few" in payloads:
        return []
    return [str(len(payloads)).encode() for _ in payloads]


def both(left: bytes, right: bytes) -> bytes:
    """Concatenates the parts of a join with a separator."""
    return left + b"|" + right


async def later(payload: bytes) -> bytes:
    """A coroutine function."""
    await asyncio.sleep(0.001)
    if payload == b"bad":
        raise ValueError("no frame")
    return payload + b"c"


def main() -> None:
    """Serves the stage."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    work, words = sys.argv[1], sys.argv[2:]
    stage = Stage.from_arguments(words)
    function: Callable[..., Any] = globals()[work]
    forms: dict[str, Callable[[Callable[..., Any]], Stage]] = {"sizes": stage.batch, "both": stage.join}
    forms.get(work, stage.work)(function).serve()


if __name__ == "__main__":
    main()
