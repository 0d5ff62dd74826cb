"""Fixtures: stages of both kits as processes of this machine, a source, and a listener to the ends."""

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
from windlass_stage.address import dialed
from windlass_stage.deadline import within
from windlass_stage.serve import Running
from windlass_stage.settings import Settings

#: Longest wait of a test for anything, in seconds.
PATIENCE = 40

#: The package's folder, in which the tests run.
ROOT = Path(__file__).parent.parent

#: A port of the system's choice.
ANYWHERE = "127.0.0.1:0"


def windlass() -> str:
    """The program, or the end of the test that needs it."""
    program = os.environ.get("WINDLASS")
    if not program:
        reason = "left out: WINDLASS names no program of windlass"
        print(reason, file=sys.stderr)
        raise unittest.SkipTest(reason)
    return program


async def until(expected: str, holds: Callable[[], Any]) -> None:
    """Waits until a condition holds."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, f"not in time: {expected}"
        await asyncio.sleep(0.002)


class Case(unittest.IsolatedAsyncioTestCase):
    """A test that starts processes, for which the event loop waits."""

    async def asyncSetUp(self) -> None:
        asyncio.get_running_loop().slow_callback_duration = PATIENCE


class Process:
    """A stage that runs. Killed at the end of the test."""

    def __init__(self, test: unittest.TestCase, command: list[str], flags: tuple[str, ...]) -> None:
        pipe = subprocess.PIPE
        self._child = subprocess.Popen([*command, *flags], cwd=ROOT, stdout=pipe, stderr=subprocess.STDOUT, text=True)
        assert self._child.stdout is not None
        self._output = self._child.stdout
        test.addCleanup(self._end)
        self._written: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.address = self.written(r"^stage \S+ listens on (\S+);")

    def _read(self) -> None:
        for line in self._output:
            self._written.put(line)
        self._written.put("")

    def written(self, pattern: str) -> str:
        """Waits for a line, and returns its first group."""
        end, before = time.monotonic() + PATIENCE, []
        while line := self._written.get(timeout=max(end - time.monotonic(), 0.01)):
            before.append(line)
            if found := re.search(pattern, line):
                return found[found.re.groups and 1]
        raise AssertionError(f"no line {pattern}: {before}")

    def kill(self) -> None:
        """Ends as by a power cut."""
        self._child.kill()
        self._child.wait(PATIENCE)

    def signal(self, number: int) -> None:
        """Sends a signal."""
        self._child.send_signal(number)

    def terminate(self) -> int:
        """Ends as a pod does that is deleted; returns the exit code."""
        self.signal(signal.SIGTERM)
        return self._child.wait(PATIENCE)

    async def terminated(self) -> int:
        """The same beside other tasks."""
        return await asyncio.to_thread(self.terminate)

    def _end(self) -> None:
        self._child.kill()
        self._child.wait()
        self._reader.join(PATIENCE)
        self._output.close()


def rust(test: unittest.TestCase, name: str, *flags: str, listen: str = ANYWHERE) -> Process:
    """A stage of `windlass`."""
    return Process(test, [windlass(), "stage", "--name", name, "--listen", listen], flags)


def python(test: unittest.TestCase, work: str, name: str, *flags: str, listen: str = ANYWHERE) -> Process:
    """A stage of this kit, with a function of `program.py`."""
    return Process(test, [sys.executable, "-m", "tests.program", work, "--name", name, "--listen", listen], flags)


def follows(name: str, *processes: Process) -> tuple[str, str]:
    """The flag that sends results to these replicas."""
    return "--next", f"{name}={','.join(process.address for process in processes)}"


@contextlib.asynccontextmanager
async def served(stage: Stage) -> AsyncIterator[tuple[Running, str]]:
    """A stage in this process, with its address. Killed at the end."""
    running = Running(stage)
    try:
        yield running, str(await running.start(stage.listen))
    finally:
        await running.end()


class Source(windlass_stage.Source):
    """A source that remembers what it sent, and is not waited for at its end."""

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
        """Sends an item as soon as there is room, and returns its id."""
        self.sent.append(await within(PATIENCE, super().send(payload, deadline)))
        return self.sent[-1]

    async def load(self, count: int, payload: bytes = b"x") -> None:
        """Sends many."""
        for _ in range(count):
            await self.send(payload)

    async def finish(self) -> None:
        """Waits until all is passed on."""
        await within(PATIENCE, super().finish())


async def held_back(source: Source) -> None:
    """Waits until a source that sends all the time cannot send any more."""
    before = -1
    while before != len(source.sent):
        before = len(source.sent)
        await asyncio.sleep(0.5)


class Ends:
    """The items that leave at one replica of a stage, as it tells them: twice is a mistake."""

    def __init__(self, address: str) -> None:
        self._channel = aio.insecure_channel(dialed(address), options=wire.CHANNEL)
        self.all: dict[int, pb.Ended] = {}

    async def __aenter__(self) -> "Ends":
        self._call = wire.ends(self._channel)(pb.EndsRequest())
        await within(PATIENCE, self._call.initial_metadata())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def count(self, count: int) -> dict[int, pb.Ended]:
        """Waits until that many left, each once."""
        while len(self.all) < count:
            end = await within(PATIENCE, self._call.read())
            assert end is not aio.EOF and end.HasField("ended"), f"{end} after {len(self.all)} of {count}"
            assert end.ended.id not in self.all, f"{end.ended.id:x} ended twice"
            self.all[end.ended.id] = end.ended
        return self.all


def failures(ends: dict[int, pb.Ended]) -> list[pb.Failure]:
    """The failures among ends."""
    return [end.failure for end in ends.values() if end.HasField("failure")]


def route(end: pb.Ended) -> list[str]:
    """Names of the stages on an item's way."""
    return [visit.stage for visit in end.visits]
