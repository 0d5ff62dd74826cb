"""Times and sizes as files and flags of Windlass write them: `12ms`, `60KiB`."""

import re

_TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_SIZES = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "kB": 10**3, "MB": 10**6, "GB": 10**9, "B": 1, "": 1}

#: A year and a petabyte are mistakes in writing.
_LARGEST = 1e15

_WRITTEN = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)([A-Za-z]*)", re.ASCII)


def time(text: str) -> float:
    """Reads a time in seconds. A mistake is a `ValueError` that names it."""
    value = _scaled(text, _TIMES)
    if value is None:
        raise ValueError(f'"{text}" is no time: write 200us, 12ms or 1.5s')
    return value


def size(text: str) -> int:
    """Reads a size in bytes. A mistake is a `ValueError` that names it."""
    value = _scaled(text, _SIZES)
    if value is None:
        raise ValueError(f'"{text}" is no size: write 600, 60KiB or 2MB')
    return round(value)


def shown(seconds: float) -> str:
    """A time in the largest unit in which it is at least one."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= factor:
            return f"{seconds / factor:g}{unit}"
    return f"{seconds * 1e6:g}µs"


def _scaled(text: str, units: dict[str, float] | dict[str, int]) -> float | None:
    written = _WRITTEN.fullmatch(text)
    if written is None or written[2] not in units:
        return None
    value = float(written[1]) * units[written[2]]
    return value if value <= _LARGEST else None
