"""The devices visible under ``CUDA_VISIBLE_DEVICES``, as for the runtime. No I/O.

HIP's variables have the same grammar. Source: the CUDA C++ programming guide, "CUDA environment
variables", and ``torch.cuda.device_count``.
"""

import itertools
import re
from collections.abc import Sequence
from typing import Final

_ORDINAL: Final = re.compile(r"\+?[0-9]{1,9}")

Names = tuple[str, ...]
"""The names of a device besides its index."""

Chosen = list[tuple[str, int]]
"""The valid entries, each with the position of its device in the list it selects from."""


def choose(value: str, devices: Sequence[Names]) -> Chosen:
    """Return the visible devices of a list.

    The list is read up to its first invalid entry; an empty list, -1, or a repeated device results
    in no device. The first entry decides between UUIDs of GPUs (``GPU-…``), UUIDs of MIG devices
    (``MIG-…``), both of which may be shortened to a unique prefix, and indices, which may have
    letters after the digits. ``devices`` are the GPUs in the order of their indices; or, if the
    list starts with ``MIG-``, the MIG devices of all GPUs.
    """
    entries = value.split(",")
    if value.startswith(("GPU-", "MIG-")):
        return _by_name(leading_names(entries, value[:4]), devices)
    return _by_index(entries, len(devices))


def _by_index(entries: Sequence[str], count: int) -> Chosen:
    chosen: dict[int, str] = {}
    for entry in entries:
        number = _ORDINAL.match(entry.strip())
        index = int(number[0]) if number else -1
        if index in chosen:
            return []
        if index < 0:
            break
        chosen[index] = entry.strip()
    valid = itertools.takewhile(lambda item: item[0] < count, chosen.items())
    return [(entry, index) for index, entry in valid]


def _by_name(entries: Sequence[str], devices: Sequence[Names]) -> Chosen:
    chosen: dict[int, str] = {}
    for entry in entries:
        matches = [
            index
            for index, names in enumerate(devices)
            if any(name.startswith(entry) for name in names)
        ]
        if len(matches) != 1:
            break
        if matches[0] in chosen:
            return []
        chosen[matches[0]] = entry
    return [(entry, index) for index, entry in chosen.items()]


def leading_names(entries: Sequence[str], prefix: str) -> list[str]:
    """Return the entries up to the first without ``prefix``; empty if one is repeated."""
    named: list[str] = []
    for entry in entries:
        if entry in named:
            return []
        if not entry.startswith(prefix):
            break
        named.append(entry)
    return named
