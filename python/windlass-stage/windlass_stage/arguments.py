"""The command line of a stage: the flags of `windlass stage`, except those of its work and its log."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from . import quantity
from .address import Address, parse_all

#: Exit code for an invalid command line, as in `windlass`: EX_USAGE of sysexits.h.
_EX_USAGE = 64


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(_EX_USAGE, f"{self.prog}: {message}\n")


def read(words: Sequence[str] | None) -> dict[str, Any]:
    """Parses the flags into the arguments of `Stage`."""
    parser = _parser()
    values = vars(parser.parse_args(words))
    if len(dict(values["next"])) < len(values["next"]):
        parser.error("--next: a stage is named twice")
    if len(set(values["from_"])) < len(values["from_"]):
        parser.error("--from: a stage is named twice")
    return {**values, "next": dict(values["next"])}


def _parser() -> _Parser:
    parser = _Parser(description="A stage of a pipeline. SIGTERM drains.", allow_abbrev=False)
    parser.add_argument("--name", required=True, metavar="NAME", help="name of the stage")
    parser.add_argument("--listen", required=True, metavar="ADDRESS", type=_with_reason(_address),
                        help="address to listen on: HOST:PORT or unix:/PATH")
    parser.add_argument("--next", action="append", default=[], metavar="NAME=ADDRESS,...", type=_with_reason(_next),
                        help="a next stage, with the addresses of its replicas, or one DNS name that resolves to all "
                             "of them. Each next stage gets every result")
    parser.add_argument("--from", action="append", default=[], metavar="NAME", dest="from_",
                        help="a previous stage. With two or more, this stage is a join: for each item it waits for a "
                             "part from each of them")
    parser.add_argument("--replica", metavar="NAME", default=os.environ.get("POD_NAME"),
                        help="name of this process among the stage's replicas [default: this machine's name]")
    for flag, metavar, kind, default, text in _limits():
        parser.add_argument(flag, metavar=metavar, type=_with_reason(kind), default=default,
                            help=f"{text} [default: {default}]")
    parser.add_argument("--metrics", metavar="ADDRESS", type=_with_reason(_metrics),
                        help="address that serves `/metrics`: HOST:PORT [default: none]")
    return parser


def _limits() -> list[tuple[str, str, Callable[[str], Any], str, str]]:
    """Flags of the limits: name, unit, parser, default and help text. The defaults are those of `Settings`."""
    return [
        ("--workers", "N", _count, "1", "number of batches to process in parallel, one per device"),
        ("--batch", "N", _count, "1", "maximum number of items in a batch"),
        ("--batch-wait", "TIME", quantity.time, "2ms", "maximum time to wait for a batch to fill"),
        ("--window", "N", _count, "8", "maximum number of items in flight to each replica of a next stage"),
        ("--max-payload", "SIZE", quantity.size, "16MiB", "maximum size of a payload"),
        ("--work-timeout", "TIME", quantity.time, "60s",
         "time limit for the work of a batch, after which its items fail"),
        ("--drain-timeout", "TIME", quantity.time, "30s", "time limit to drain after SIGTERM"),
        ("--join-timeout", "TIME", quantity.time, "10s",
         "maximum time that a join waits for the other parts of an item"),
    ]


def _with_reason(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Wraps a parser of one value. argparse shows the text of an `ArgumentTypeError` only."""

    def parse_value(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return parse_value


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
