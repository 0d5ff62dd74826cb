"""The command line of a stage: the flags of `windlass stage` that are not about its work or its log."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from . import quantity
from .address import Address, parse_all

#: Exit code for a wrong command line, as `windlass` has it.
_WRONG = 64


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(_WRONG, f"{self.prog}: {message}\n")


def read(words: Sequence[str] | None) -> dict[str, Any]:
    """The arguments of `Stage` that the flags give."""
    parser = _parser()
    given = vars(parser.parse_args(words))
    if len(dict(given["next"])) < len(given["next"]):
        parser.error("--next: a stage is named twice")
    if len(set(given["from_"])) < len(given["from_"]):
        parser.error("--from: a stage is named twice")
    return {**given, "next": dict(given["next"])}


def _parser() -> _Parser:
    parser = _Parser(description="A stage of a pipeline. SIGTERM drains.", allow_abbrev=False)
    parser.add_argument("--name", required=True, metavar="NAME", help="name of the stage")
    parser.add_argument("--listen", required=True, metavar="ADDRESS", type=_told(_address),
                        help="HOST:PORT or unix:/PATH")
    parser.add_argument("--next", action="append", default=[], metavar="NAME=ADDRESS,...", type=_told(_next),
                        help="a next stage, with the addresses of its replicas, or a name that has all in the DNS")
    parser.add_argument("--from", action="append", default=[], metavar="NAME", dest="from_",
                        help="a stage before; given twice or more, this stage is a join")
    parser.add_argument("--replica", metavar="NAME", default=os.environ.get("POD_NAME"),
                        help="name of this process among the stage's replicas [default: this machine's name]")
    for flag, metavar, kind, default, text in _limits():
        parser.add_argument(flag, metavar=metavar, type=_told(kind), default=default,
                            help=f"{text} [default: {default}]")
    parser.add_argument("--metrics", metavar="ADDRESS", type=_told(_metrics),
                        help="HOST:PORT of `/metrics` [default: none]")
    return parser


def _limits() -> list[tuple[str, str, Callable[[str], Any], str, str]]:
    """Flags of limits, with their units, defaults and texts. The defaults are those of `Settings`."""
    return [
        ("--workers", "N", _count, "1", "batches at a time, one per device"),
        ("--batch", "N", _count, "1", "most items of a batch"),
        ("--batch-wait", "TIME", quantity.time, "2ms", "longest wait for a batch to fill"),
        ("--window", "N", _count, "8", "items on the way to each next replica"),
        ("--max-payload", "SIZE", quantity.size, "16MiB", "largest payload"),
        ("--work-timeout", "TIME", quantity.time, "60s", "longest time of a batch's work, after which its items fail"),
        ("--drain-timeout", "TIME", quantity.time, "30s", "longest time to finish after SIGTERM"),
        ("--join-timeout", "TIME", quantity.time, "10s", "longest wait of a join for the other parts of an item"),
    ]


def _told(read_one: Callable[[str], Any]) -> Callable[[str], Any]:
    """argparse shows the text of this error only."""

    def reading(text: str) -> Any:
        try:
            return read_one(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return reading


def _address(text: str) -> str:
    return str(Address.parse(text))


def _metrics(text: str) -> str:
    address = Address.parse(text)
    if address.port is None:
        raise ValueError("write HOST:PORT, such as 0.0.0.0:9500")
    return str(address)


def _next(text: str) -> tuple[str, list[str]]:
    name, sign, addresses = text.partition("=")
    if not sign:
        raise ValueError("write NAME=ADDRESS, such as classify=classify:7000")
    return name, [str(address) for address in parse_all(addresses)]


def _count(text: str) -> int:
    if text.isascii() and text.isdigit() and 1 <= int(text) <= 4096:
        return int(text)
    raise ValueError("write a number from 1 to 4096")
