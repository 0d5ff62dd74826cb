"""The command line of a stage: the flags of `windlass stage` that are not about its work, as manifests append them."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from .address import Address, parse_all

#: Exit code for a wrong command line, as `windlass` has it.
_WRONG = 64

_TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_SIZES = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "kB": 10**3, "MB": 10**6, "GB": 10**9, "B": 1, "": 1}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(_WRONG, f"{self.prog}: {message}\n")


def read(words: Sequence[str] | None) -> dict[str, Any]:
    """The arguments of `Stage` that the flags give."""
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
    parser.add_argument("--batch", default=1, metavar="N", type=_told(_count),
                        help="most items of a batch [default: 1]")
    parser.add_argument("--batch-wait", default=0.002, metavar="TIME", type=_told(_time),
                        help="longest wait for a batch to fill [default: 2ms]")
    parser.add_argument("--window", default=8, metavar="N", type=_told(_count),
                        help="items on the way to each next replica [default: 8]")
    parser.add_argument("--max-payload", default=16 << 20, metavar="SIZE", type=_told(_size),
                        help="largest payload [default: 16MiB]")
    given = vars(parser.parse_args(words))
    if len(dict(given["next"])) < len(given["next"]):
        parser.error("--next: a stage is named twice")
    if len(set(given["from_"])) < len(given["from_"]):
        parser.error("--from: a stage is named twice")
    return {**given, "next": dict(given["next"])}


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


def _next(text: str) -> tuple[str, list[str]]:
    name, sign, addresses = text.partition("=")
    if not sign:
        raise ValueError("write NAME=ADDRESS, such as classify=classify:7000")
    return name, [str(address) for address in parse_all(addresses)]


def _count(text: str) -> int:
    if text.isascii() and text.isdigit() and 1 <= int(text) <= 4096:
        return int(text)
    raise ValueError("write a number from 1 to 4096")


def _time(text: str) -> float:
    for unit, factor in _TIMES.items():
        number = text.removesuffix(unit)
        if number != text and _is_number(number):
            return float(number) * factor
    raise ValueError(f'"{text}" is no time: write 200us, 12ms or 1.5s')


def _size(text: str) -> int:
    for unit, factor in _SIZES.items():
        number = text.removesuffix(unit)
        if text.endswith(unit) and number.isascii() and number.isdigit():
            return int(number) * factor
    raise ValueError(f'"{text}" is no size: write 600, 60KiB or 2MB')


def _is_number(text: str) -> bool:
    return text.isascii() and text.replace(".", "", 1).isdigit()
