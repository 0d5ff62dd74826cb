"""Metrics of a stage in Python: names as in `windlass stage`, and correct counts."""

import asyncio
import contextlib
import io
import re
import socket
import sys
import unittest
import unittest.mock
import urllib.error
import urllib.request
from dataclasses import dataclass, field

from windlass_stage import Stage

from .pipeline import ANYWHERE, TIMEOUT, Case, Ends, Source, next_flags, python, rust, served

LINE = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")


@dataclass
class Page:
    """The metrics of a stage."""

    #: Lines that begin with `#`, unchanged.
    comments: list[str] = field(default_factory=list)
    #: Values by name and labels.
    samples: dict[tuple[str, tuple[tuple[str, str], ...]], float] = field(default_factory=dict)

    def value(self, name: str, **labels: str) -> float:
        """Value of one sample."""
        return self.samples[name, tuple(sorted(labels.items()))]


def free_address() -> str:
    """A loopback address with a free port."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return f"127.0.0.1:{found.getsockname()[1]}"


def fetch(address: str) -> Page:
    """Fetches and parses the metrics page."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=TIMEOUT) as answer:
        assert answer.headers["Content-Type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
        *lines, last = answer.read().decode().splitlines()
    assert last == "# EOF", last
    page = Page()
    for line in lines:
        if line.startswith("#"):
            page.comments.append(line)
            continue
        found = LINE.fullmatch(line)
        assert found, line
        labels = dict(re.findall(r'(\w+)="([^"]*)"', found[2] or ""))
        if "le" in labels:
            # The two kits format bounds differently.
            labels["le"] = repr(float(labels["le"]))
        page.samples[found[1], tuple(sorted(labels.items()))] = float(found[3])
    return page


async def fetch_async(address: str) -> Page:
    """`fetch` without blocking the event loop."""
    return await asyncio.to_thread(fetch, address)


class Metrics(Case):
    """Metrics pages of running stages."""

    async def test_names_labels_and_buckets_are_those_of_windlass(self) -> None:
        end = rust(self, "end")
        addresses = {"py": free_address(), "rs": free_address()}
        python_stage = python(self, "letter", "python_stage", "--metrics", addresses["py"], *next_flags("end", end))
        rust_stage = rust(self, "rust_stage", "--metrics", addresses["rs"], *next_flags("end", end))
        async with Ends(end.address) as ends:
            for name, process in (("python_stage", python_stage), ("rust_stage", rust_stage)):
                async with Source(name, process.address) as source:
                    await source.load(10)
                    await source.finish()
            await ends.count(20)
        python_page, rust_page = await fetch_async(addresses["py"]), await fetch_async(addresses["rs"])
        self.assertEqual(set(python_page.samples), set(rust_page.samples))
        self.assertEqual(sorted(python_page.comments), sorted(rust_page.comments))
        # Values that do not depend on time.
        for name in ("items_total", "failures_total", "connected_replicas", "queue_items", "time_seconds_count"):
            found = [
                {sample: value for sample, value in page.samples.items() if sample[0] == f"windlass_stage_{name}"}
                for page in (python_page, rust_page)
            ]
            self.assertTrue(found[0], name)
            self.assertEqual(*found)

    async def test_each_item_and_each_failure_counts_once(self) -> None:
        async def work(payload: bytes) -> bytes:
            if payload == b"bad":
                raise ValueError("no frame")
            await asyncio.sleep(0.03)
            return payload

        at = free_address()
        async with served(Stage("end", listen=ANYWHERE)) as (_, end), Ends(end) as ends:
            first = Stage("first", listen=ANYWHERE, next={"end": end}, metrics=at, max_payload=1000).work(work)
            async with served(first) as (_, address), Source("first", address) as source:
                late = [b"x"] * 2
                for payload in [b"good", b"bad", b"x"]:
                    await source.send(payload)
                for payload in late:
                    await source.send(payload, 0.001)
                await ends.count(5)
                await source.finish()
                page = await fetch_async(at)
            name = "windlass_stage_items_total"
            counts = [page.value(name, result=result) for result in ("worked", "failed", "passed_on")]
            self.assertEqual(counts, [2, 1, 2])
            self.assertEqual(page.value("windlass_stage_failures_total", reason="work"), 1)
            self.assertEqual(page.value("windlass_stage_connected_replicas", next="end"), 1)
            for part, count in [("link", 5), ("waited", 5), ("worked", 3), ("sending", 5)]:
                self.assertEqual(page.value("windlass_stage_time_seconds_count", part=part), count, part)
            bucket = "windlass_stage_time_seconds_bucket"
            self.assertLessEqual(page.value(bucket, part="worked", le="0.025"), 1, "the item that failed")
            self.assertGreaterEqual(page.value("windlass_stage_time_seconds_sum", part="worked"), 0.06)

    async def test_the_number_of_open_streams_is_a_metric(self) -> None:
        at, name = free_address(), "windlass_stage_connected_replicas"
        async with served(Stage("first", listen=ANYWHERE, next={"end": "127.0.0.1:1"}, metrics=at)):
            self.assertEqual((await fetch_async(at)).value(name, next="end"), 0)

    async def test_another_path_gets_404_with_the_right_path(self) -> None:
        at = free_address()
        async with served(Stage("end", listen=ANYWHERE, metrics=at)):
            with self.assertRaises(urllib.error.HTTPError) as raised:
                await asyncio.to_thread(urllib.request.urlopen, f"http://{at}/", timeout=TIMEOUT)
            with raised.exception as answer:
                self.assertEqual((answer.code, answer.read()), (404, b"see /metrics\n"))

    async def test_an_address_in_use_is_an_error(self) -> None:
        at = free_address()
        async with served(Stage("end", listen=ANYWHERE, metrics=at)):
            with self.assertRaisesRegex(OSError, f"cannot listen on {at}"):
                async with served(Stage("end", listen=ANYWHERE, metrics=at)):
                    pass


class WithoutPrometheusClient(unittest.TestCase):
    """prometheus-client is optional: only a stage with metrics needs it."""

    def test_metrics_without_prometheus_client_name_the_remedy(self) -> None:
        with unittest.mock.patch.dict(sys.modules, {"prometheus_client": None}):
            Stage("end", listen=ANYWHERE)
            with self.assertRaisesRegex(ImportError, r"pip install 'windlass-stage\[metrics\]'"):
                Stage("end", listen=ANYWHERE, metrics="127.0.0.1:0")
            words = ["--name", "end", "--listen", ANYWHERE, "--metrics", "127.0.0.1:0"]
            with self.assertRaises(SystemExit) as ended, contextlib.redirect_stderr(io.StringIO()):
                Stage.from_arguments(words)
        self.assertRegex(str(ended.exception.code), "^--metrics: metrics need the package prometheus-client")
