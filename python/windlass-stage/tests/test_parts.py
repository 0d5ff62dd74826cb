"""Modules of the package that need no connection."""

import contextlib
import io
import re
import subprocess
import unittest
from typing import Any

from windlass_stage import Stage, arguments, quantity
from windlass_stage import stage_pb2 as pb
from windlass_stage.address import Address, grpc_target, parse_all
from windlass_stage.choice import weight
from windlass_stage.custody import Custody, Receipts
from windlass_stage.exit import LISTENER_BUFFER, MAX_RECENT_ENDS, Exit
from windlass_stage.item import Queued, from_wire
from windlass_stage.link_time import SPAN_NS, LinkTime
from windlass_stage.outlet import too_large
from windlass_stage.recent_ids import CAPACITY, RecentIds
from windlass_stage.settings import Settings

from .pipeline import TIMEOUT, windlass

MS = 1_000_000

#: Flags of `windlass stage` that choose its work. A program in Python has its own work function.
WORK = {
    *("--sleep", "--sleep-batch", "--compute", "--variation", "--output", "--exec", "--call"),
    *("--decode", "--resize", "--darwin3", "--network", "--run-with", "--result-edge"),
}


def flags(help_text: str) -> dict[str, str | None]:
    """Parses the flags of a help text, with their defaults."""
    entries = re.split(r"^ +(?:-h, )?(--[a-z0-9-]+)", help_text, flags=re.MULTILINE)[1:]
    defaults = (re.search(r"\[default:\s+([^\]]+)\]", text) for text in entries[1::2])
    return dict(zip(entries[::2], [found and " ".join(found[1].split()) for found in defaults]))


class Addresses(unittest.TestCase):
    """Parsing and formatting of addresses."""

    def test_addresses_round_trip_through_text(self) -> None:
        for text in ["classify:7000", "[::1]:80", "unix:/run/stage.sock"]:
            self.assertEqual(str(Address.parse(text)), text)
        self.assertEqual(str(Address.parse("tcp:classify:7000")), "classify:7000")
        self.assertEqual([str(address) for address in parse_all("a:1, b:2,unix:/c")], ["a:1", "b:2", "unix:/c"])

    def test_an_invalid_address_raises_with_the_reason(self) -> None:
        for text, mistake in [
            ("classify", "no port"),
            ("classify:http", "not a number"),
            ("classify:65536", "not a number"),
            (":7000", "no host"),
            ("detect=host:7000", "an invalid host"),
            ("unix:run/x", "not an absolute path"),
        ]:
            with self.assertRaisesRegex(ValueError, mistake):
                Address.parse(text)

    def test_targets_of_replicas_need_no_dns_lookup(self) -> None:
        self.assertEqual(grpc_target("10.0.0.1:7000"), "ipv4:10.0.0.1:7000")
        self.assertEqual(grpc_target("[::1]:7000"), "ipv6:[::1]:7000")
        self.assertEqual(grpc_target("unix:/run/x"), "unix:/run/x")


class CommandLine(unittest.TestCase):
    """The flags of `windlass stage`."""

    def test_the_flags_of_manifests_are_parsed(self) -> None:
        words = "--name fuse --listen 0.0.0.0:7000 --next store=store:7000,s:1 --next log=log:7000 --from a --from b"
        limits = "--batch 16 --batch-wait 5ms --window 3 --max-payload 2MiB --replica one"
        limits += " --workers 2 --work-timeout 500ms --drain-timeout 25s --metrics 127.0.0.1:9500"
        values = arguments.read(f"{words} {limits}".split())
        expected = {
            "name": "fuse",
            "listen": "0.0.0.0:7000",
            "next": {"store": ["store:7000", "s:1"], "log": ["log:7000"]},
            "from_": ["a", "b"],
            "batch": 16,
            "batch_wait": 0.005,
            "window": 3,
            "max_payload": 2 << 20,
            "replica": "one",
            "workers": 2,
            "work_timeout": 0.5,
            "drain_timeout": 25.0,
            "join_timeout": 10.0,
            "metrics": "127.0.0.1:9500",
        }
        self.assertEqual(values, expected)

    def test_an_invalid_command_line_is_reported_and_exits_with_64(self) -> None:
        for words, mistake in [
            ("--name a", "--listen"),
            ("--name a --listen x", "has no port"),
            ("--name a --listen x:1 --next b", "NAME=ADDRESS"),
            ("--name a --listen x:1 --next b=c:1 --next b=d:1", "named twice"),
            ("--name a --listen x:1 --from b --from b", "named twice"),
            ("--name a --listen x:1 --batch 0", "from 1 to 4096"),
            ("--name a --listen x:1 --workers 4097", "from 1 to 4096"),
            ("--name a --listen x:1 --metrics unix:/x", "write HOST:PORT"),
            ("--name a --listen x:1 --batch-wait 3", "is not a duration"),
            ("--name a --listen x:1 --max-payload 2Mi", "is not a size"),
            ("--name a --listen x:1 --batch-w 3ms", "unrecognized"),
        ]:
            with contextlib.redirect_stderr(io.StringIO()) as stderr, self.assertRaises(SystemExit) as ended:
                arguments.read(words.split())
            self.assertEqual(ended.exception.code, 64, words)
            self.assertIn(mistake, stderr.getvalue())

    def test_the_flags_and_their_defaults_are_those_of_windlass(self) -> None:
        words = [windlass(), "stage", "--help"]
        result = subprocess.run(words, capture_output=True, text=True, check=True, timeout=TIMEOUT)
        # Flags of the log are not part of this package.
        program_flags = flags(result.stdout)
        for name in list(program_flags):
            if name in WORK or name.startswith("--log"):
                del program_flags[name]
        self.assertEqual(flags(arguments._parser().format_help()), program_flags)

    def test_flags_and_settings_have_the_same_defaults(self) -> None:
        values = arguments.read(["--name", "a", "--listen", "x:1"])
        limits = {name: value for name, value in values.items() if name in vars(Settings())}
        self.assertEqual(vars(Settings(**limits)), vars(Settings()))


class Quantities(unittest.TestCase):
    """Durations and sizes."""

    def test_quantities_are_parsed_and_formatted(self) -> None:
        for text, seconds in [("12ms", 0.012), ("0.2ms", 0.0002), ("1.50s", 1.5), ("200us", 0.0002)]:
            self.assertAlmostEqual(quantity.time(text), seconds)
        for text, size in [("600", 600), ("60KiB", 61440), ("2MB", 2_000_000), ("1.5KiB", 1536)]:
            self.assertEqual(quantity.size(text), size)
        for text in ["", "ms", "-1ms", "1 ms", "12", "1h", "1_0s", "NaNs", "infs", "9999999999999999s"]:
            with self.assertRaisesRegex(ValueError, "is not a duration"):
                quantity.time(text)
        for text in ["", "-1", "60Ki", "1 MB"]:
            with self.assertRaisesRegex(ValueError, "is not a size"):
                quantity.size(text)
        formatted = [quantity.format_time(time) for time in (60.0, 1.5, 0.2, 0.0002)]
        self.assertEqual(formatted, ["60s", "1.5s", "200ms", "200µs"])

    def test_limits_that_would_block_all_items_are_refused(self) -> None:
        invalid: list[dict[str, Any]] = [{"workers": 0}, {"batch": "16"}, {"queue": 0}, {"window": 0.5}]
        for limits in invalid:
            with self.assertRaisesRegex(ValueError, "write a whole number"):
                Stage("mid", listen="x:1", **limits)
        invalid = [{"work_timeout": -1}, {"batch_wait": float("nan")}, {"join_timeout": "10s"}]
        for limits in invalid:
            with self.assertRaisesRegex(ValueError, "write a time in seconds"):
                Stage("mid", listen="x:1", **limits)


class LinkTimes(unittest.TestCase):
    """Estimate of the time on a link."""

    def test_the_difference_of_the_clocks_does_not_matter(self) -> None:
        for offset in [0, 7_000_000_000, -7_000_000_000]:
            link = LinkTime(0)
            self.assertEqual(link.observe(offset + MS, 2 * MS), 0)
            self.assertEqual(link.observe(offset + 5 * MS, 9 * MS), 3 * MS)
            self.assertEqual(link.observe(offset + 20 * MS, 21 * MS), 0)

    def test_the_smallest_difference_expires_since_clocks_drift(self) -> None:
        link = LinkTime(0)
        link.observe(0, MS)
        self.assertEqual(link.observe(SPAN_NS, SPAN_NS + 2 * MS), MS, "the previous span counts")
        self.assertEqual(link.observe(2 * SPAN_NS + 3 * MS, 2 * SPAN_NS + 5 * MS), 0)


class Ids(unittest.TestCase):
    """Recent ids, and rendezvous hashing of ids."""

    def test_an_id_is_new_once_and_the_set_is_bounded(self) -> None:
        recent_ids = RecentIds()
        self.assertTrue(recent_ids.insert(7))
        self.assertFalse(recent_ids.insert(7))
        for item_id in range(CAPACITY + 8):
            recent_ids.insert(item_id + 100)
        self.assertNotIn(7, recent_ids)
        self.assertIn(CAPACITY, recent_ids)

    def test_ids_spread_over_replicas_and_only_those_of_a_removed_replica_move(self) -> None:
        targets = ["10.0.0.1:7000", "10.0.0.2:7000", "10.0.0.3:7000"]
        counts = dict.fromkeys(targets, 0)
        for item_id in range(3000):
            choice = max(targets, key=lambda target: weight(item_id, target))
            counts[choice] += 1
            if choice != targets[2]:
                self.assertEqual(max(targets[:2], key=lambda target: weight(item_id, target)), choice)
        self.assertTrue(all(850 < count < 1150 for count in counts.values()), counts)


def ended(item_id: int) -> Queued:
    """An item that leaves the pipeline."""
    return Queued(item_id, [], None, [], None, [], 0, 0, b"abc")


class Deadlines(unittest.TestCase):
    """Deadlines of items."""

    def test_the_time_on_the_link_reduces_the_remaining_time(self) -> None:
        item = pb.Item(id=1, remaining_us=10_000, half_round_trip_ns=MS)
        arrived = from_wire(item, 100 * MS, 2 * MS, Custody(Receipts(1), 0))
        self.assertEqual((arrived.deadline, arrived.link), ((100 - 2 - 1 + 10) * MS, 3 * MS))


class Exits(unittest.IsolatedAsyncioTestCase):
    """Ends and their listeners."""

    async def test_a_slow_listener_gets_the_number_of_missed_ends(self) -> None:
        exit = Exit()
        listener = exit.listen()
        for item_id in range(LISTENER_BUFFER + 7):
            exit.end(ended(item_id))
        exit.close()
        received = []
        while (end := await listener.next()) is not None:
            received.append(end)
        self.assertEqual(received[0], pb.End(missed=pb.Missed(count=7)))
        self.assertEqual(received[1], pb.End(ended=pb.Ended(id=7, payload_bytes=3)))
        self.assertEqual(len(received), 1 + LISTENER_BUFFER)

    async def test_an_id_that_ends_twice_is_published_once(self) -> None:
        exit = Exit()
        listener = exit.listen()
        for _ in range(2):
            exit.end(ended(9))
        exit.close()
        self.assertIsNotNone(await listener.next())
        self.assertIsNone(await listener.next())

    async def test_a_late_listener_gets_the_most_recent_ends_once(self) -> None:
        exit = Exit()
        for item_id in range(MAX_RECENT_ENDS + 5):
            exit.end(ended(item_id))
        listener = exit.listen()
        exit.end(ended(7000))
        exit.close()
        received = []
        while (end := await listener.next()) is not None:
            received.append(end.ended.id)
        self.assertEqual((len(received), received[0], received[MAX_RECENT_ENDS]), (MAX_RECENT_ENDS + 1, 5, 7000))


class Sizes(unittest.TestCase):
    """Reasons of failures for payloads over the limit."""

    def test_sizes_are_in_mib_where_the_numbers_allow_it(self) -> None:
        mib = 1 << 20
        self.assertEqual(too_large(16 * mib + 1, 16 * mib), "is 17 MiB, the limit is 16 MiB")
        self.assertEqual(too_large(12, 10), "is 12 bytes, the limit is 10 bytes")
