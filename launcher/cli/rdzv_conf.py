"""The settings of the rendezvous in ``--rdzv-conf KEY=VALUE,…``."""

from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct

from ...rendezvous.protocol.timeouts import NO_TIMEOUTS_GIVEN, Timeouts
from ..flags.values import (
    BadValue,
    boolean,
    nearest,
    refuse,
    seconds,
    seconds_above_zero,
    seconds_or_never,
    shown,
)

READERS: Final[dict[str, Callable[[str], Any]]] = {
    "join_timeout": seconds_above_zero,
    "last_call_timeout": seconds,
    "node_grace": seconds,
    "node_timeout": seconds_above_zero,
    "master_timeout": seconds,
    "connect_timeout": seconds,
    "lease": seconds_above_zero,
    "fence": seconds_or_never,
    "rescale_delay": seconds_or_never,
    "drain_timeout": seconds,
    "is_host": boolean,
    "timeout": seconds_above_zero,
    "read_timeout": seconds,
    "close_timeout": seconds,
}

_SYNONYMS: Final = {
    # The static backend's limit on waiting for the other nodes.
    "timeout": "join_timeout",
    # The c10d backend's limit on its store, which includes the wait for the store's host.
    "read_timeout": "connect_timeout",
}

WITHOUT_MEANING: Final = frozenset(
    {
        "cas_backoff_max_seconds",
        "close_timeout",
        "heartbeat_timeout",
        "keep_alive_interval",
        "keep_alive_max_attempt",
        "store_type",
    }
)
"""Keys of torchrun's c10d backend that have no effect here."""

KEYS: Final = [key for key in READERS if key not in {*_SYNONYMS, *WITHOUT_MEANING}]

_NO_TIMEOUTS: Final = WITHOUT_MEANING | {"rescale_delay", "is_host"}


class RendezvousConf(Struct, frozen=True):
    """The settings of ``--rdzv-conf``, defaults filled in. All times are in seconds."""

    timeouts: Timeouts = NO_TIMEOUTS_GIVEN
    rescale_delay_s: float | None = None
    """Infinity means never; None if not given."""
    is_host: bool | None = None
    warnings: tuple[str, ...] = ()
    """Warnings about keys without effect."""


def parse_conf(text: str, name: str = "--rdzv-conf") -> RendezvousConf:
    """Parse ``KEY=VALUE,…``; quotes are tolerated, and the last value of a repeated key is used.

    ``name`` is the flag or variable that has the text, for errors.
    """
    settings: dict[str, Any] = {}
    unknown: list[str] = []
    for key, value_text in _pairs(text, name).items():
        reader = READERS.get(key)
        if reader is None:
            if key not in WITHOUT_MEANING:
                unknown.append(key)
            continue
        try:
            settings[key] = reader(value_text)
        except BadValue as bad:
            raise refuse(f"{name} {key}", value_text, bad) from None
    for synonym, key in _SYNONYMS.items():
        if synonym in settings:
            settings.setdefault(key, settings.pop(synonym))
    times = {f"{key}_s": settings[key] for key in settings.keys() - _NO_TIMEOUTS}
    return RendezvousConf(
        timeouts=Timeouts(**times),
        rescale_delay_s=settings.get("rescale_delay"),
        is_host=settings.get("is_host"),
        warnings=_warnings(unknown, name),
    )


def _pairs(text: str, name: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for pair in _unquoted(text).split(","):
        if not pair.strip():
            continue
        key, _, value = pair.partition("=")
        key, value = _unquoted(key), _unquoted(value)
        if not key or not value:
            right = "KEY=VALUE,..., e.g. join_timeout=600,last_call_timeout=30"
            raise refuse(name, pair.strip(), BadValue(right))
        pairs[key] = value
    return pairs


def _unquoted(text: str) -> str:
    """Return ``text`` without spaces and quotes at its ends.

    A quote may be at one end only: ``'a=1,b=2'`` was split at the comma.
    """
    return text.strip().strip("\"'").strip()


def _warnings(unknown: list[str], name: str) -> tuple[str, ...]:
    guesses = {key: nearest(key, KEYS) for key in unknown}
    return tuple(
        f"{name}: the key {shown(key)}{f' (did you mean {guess}?)' if guess else ''} is unknown and"
        " ignored."
        for key, guess in guesses.items()
    )
