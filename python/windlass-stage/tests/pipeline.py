"""Fixtures: stages in Rust and Python as processes, a source, and a listener for the ends."""

import asyncio
import contextlib
import dataclasses
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
import unittest
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from grpc import aio

import windlass_stage
from windlass_stage import Stage, wire
from windlass_stage import stage_pb2 as pb
from windlass_stage.address import grpc_target
from windlass_stage.deadline import with_timeout
from windlass_stage.serve import Tasks
from windlass_stage.settings import Settings

#: Timeout of every wait in a test, in seconds.
TIMEOUT = 40

#: Folder of the package, in which the tests run.
ROOT = Path(__file__).parent.parent

#: A loopback address with a port that the system chooses.
ANYWHERE = "127.0.0.1:0"


def windlass() -> str:
    """Path of the program `windlass`. Skips the test if `WINDLASS` is not set."""
    program = os.environ.get("WINDLASS")
    if not program:
        reason = "left out: WINDLASS names no program of windlass"
        print(reason, file=sys.stderr)
        raise unittest.SkipTest(reason)
    return program


async def until(expected: str, condition: Callable[[], Any]) -> None:
    """Waits until a condition holds."""
    end = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < end, f"not in time: {expected}"
        await asyncio.sleep(0.002)


class Case(unittest.IsolatedAsyncioTestCase):
    """A test that starts processes, which blocks the event loop for a while."""

    async def asyncSetUp(self) -> None:
        asyncio.get_running_loop().slow_callback_duration = TIMEOUT


class Process:
    """A stage as a process. Killed at the end of the test."""

    def __init__(self, test: unittest.TestCase, command: list[str], flags: tuple[str, ...]) -> None:
        pipe = subprocess.PIPE
        self._child = subprocess.Popen([*command, *flags], cwd=ROOT, stdout=pipe, stderr=subprocess.STDOUT, text=True)
        assert self._child.stdout is not None
        self._output = self._child.stdout
        test.addCleanup(self._end)
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.address = self.wait_for_line(r"^stage \S+ listens on (\S+);")

    def _read(self) -> None:
        for line in self._output:
            self._lines.put(line)
        self._lines.put("")

    def wait_for_line(self, pattern: str) -> str:
        """Waits for a line, and returns its first group."""
        end, before = time.monotonic() + TIMEOUT, []
        while line := self._lines.get(timeout=max(end - time.monotonic(), 0.01)):
            before.append(line)
            if found := re.search(pattern, line):
                return found[found.re.groups and 1]
        raise AssertionError(f"no line {pattern}: {before}")

    def kill(self) -> None:
        """Kills the process."""
        self._child.kill()
        self._child.wait(TIMEOUT)

    def signal(self, number: int) -> None:
        """Sends a signal."""
        self._child.send_signal(number)

    def terminate(self) -> int:
        """Shuts the process down gracefully, as a deleted pod; returns the exit code."""
        self.signal(signal.SIGTERM)
        return self._child.wait(TIMEOUT)

    async def terminated(self) -> int:
        """`terminate` without blocking the event loop."""
        return await asyncio.to_thread(self.terminate)

    def _end(self) -> None:
        self._child.kill()
        self._child.wait()
        self._reader.join(TIMEOUT)
        self._output.close()


def rust(test: unittest.TestCase, name: str, *flags: str, listen: str = ANYWHERE) -> Process:
    """A stage of `windlass`."""
    return Process(test, [windlass(), "stage", "--name", name, "--listen", listen], flags)


def python(test: unittest.TestCase, work: str, name: str, *flags: str, listen: str = ANYWHERE) -> Process:
    """A stage of this package, with a work function of `program.py`."""
    return Process(test, [sys.executable, "-m", "tests.program", work, "--name", name, "--listen", listen], flags)


def next_flags(name: str, *processes: Process) -> tuple[str, str]:
    """The flag `--next` for these replicas of a stage."""
    return "--next", f"{name}={','.join(process.address for process in processes)}"


@contextlib.asynccontextmanager
async def served(stage: Stage) -> AsyncIterator[tuple[Tasks, str]]:
    """A stage in this process, with its address. Killed at the end."""
    running = Tasks(stage)
    try:
        yield running, str(await running.start(stage.listen))
    finally:
        await running.end()


class Source(windlass_stage.Source):
    """A source that records the ids that it sent, and does not wait for its items at the end of the block."""

    def __init__(
        self, first: str, at: str, settings: Settings = Settings(), name: str = "camera", first_id: int | None = None
    ) -> None:
        super().__init__(name, first, at, **dataclasses.asdict(settings))
        self.outlet = self._outlet
        if first_id is not None:
            self._next_id = first_id
        self.sent: list[int] = []

    async def __aenter__(self) -> "Source":
        await super().__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await super().__aexit__(AssertionError, AssertionError(), None)

    async def send(self, payload: bytes, deadline: float | None = None) -> int:
        """Sends an item as soon as there is capacity, and returns its id."""
        self.sent.append(await with_timeout(TIMEOUT, super().send(payload, deadline)))
        return self.sent[-1]

    async def load(self, count: int, payload: bytes = b"x") -> None:
        """Sends `count` items."""
        for _ in range(count):
            await self.send(payload)

    async def finish(self) -> None:
        """Waits until all items are passed."""
        await with_timeout(TIMEOUT, super().finish())


async def wait_until_blocked(source: Source) -> None:
    """Waits until back-pressure stops a source that sends continuously."""
    before = -1
    while before != len(source.sent):
        before = len(source.sent)
        await asyncio.sleep(0.5)


class Ends:
    """The items that leave at one replica of a stage. Fails if an id ends twice."""

    def __init__(self, address: str) -> None:
        self._channel = aio.insecure_channel(grpc_target(address), options=wire.CHANNEL)
        self.all: dict[int, pb.Ended] = {}

    async def __aenter__(self) -> "Ends":
        self._call = wire.ends(self._channel)(pb.EndsRequest())
        await with_timeout(TIMEOUT, self._call.initial_metadata())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def count(self, count: int) -> dict[int, pb.Ended]:
        """Waits until `count` items have left, each once."""
        while len(self.all) < count:
            end = await with_timeout(TIMEOUT, self._call.read())
            assert end is not aio.EOF and end.HasField("ended"), f"{end} after {len(self.all)} of {count}"
            assert end.ended.id not in self.all, f"{end.ended.id:x} ended twice"
            self.all[end.ended.id] = end.ended
        return self.all


def failures(ends: dict[int, pb.Ended]) -> list[pb.Failure]:
    """The failures of the ends."""
    return [end.failure for end in ends.values() if end.HasField("failure")]


def route(end: pb.Ended) -> list[str]:
    """Names of the stages that an item visited."""
    return [visit.stage for visit in end.visits]
