"""Durations and sizes in the notation of Windlass' files and flags: `12ms`, `60KiB`."""

import re

_TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_SIZES = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "kB": 10**3, "MB": 10**6, "GB": 10**9, "B": 1, "": 1}

#: Upper bound in seconds or bytes: larger values are typing errors.
_LARGEST = 1e15

_PATTERN = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)([A-Za-z]*)", re.ASCII)


def time(text: str) -> float:
    """Parses a duration into seconds. Raises a `ValueError` with the reason."""
    value = _parse_scaled(text, _TIMES)
    if value is None:
        raise ValueError(f'"{text}" is not a duration: write 200us, 12ms or 1.5s')
    return value


def size(text: str) -> int:
    """Parses a size into bytes. Raises a `ValueError` with the reason."""
    value = _parse_scaled(text, _SIZES)
    if value is None:
        raise ValueError(f'"{text}" is not a size: write 600, 60KiB or 2MB')
    return round(value)


def format_time(seconds: float) -> str:
    """Formats a duration in the largest unit in which it is at least one."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= factor:
            return f"{seconds / factor:g}{unit}"
    return f"{seconds * 1e6:g}µs"


def _parse_scaled(text: str, units: dict[str, float] | dict[str, int]) -> float | None:
    match = _PATTERN.fullmatch(text)
    if match is None or match[2] not in units:
        return None
    value = float(match[1]) * units[match[2]]
    return value if value <= _LARGEST else None
