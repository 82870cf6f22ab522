"""Parsers of values on the command line.

Each takes the text of one value and returns it typed, or raises ``BadValue`` with what was
expected. The caller knows the source of the value (a flag, a ``PET_*`` variable, a key of
``--rdzv-conf``) and converts the ``BadValue`` to an error.
"""

import math
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Final

from ...errors import UsageError
from ...rendezvous.protocol import endpoint as endpoints
from ...rendezvous.protocol.endpoint import Endpoint
from ..machine.accelerators import ACCELERATOR_CHOICES

MAX_SECONDS: Final = 1e9
"""About 30 years: more is a mistake, and would overflow gRPC's timers."""

MAX_PORT: Final = endpoints.MAX_PORT

MAX_COUNT: Final = 999_999_999
"""Nodes, workers and restarts are sent as 32-bit integers."""

SEGMENT_MAX: Final = 128
"""Maximum number of characters; a UUID and a number have 47."""

_WHOLE = re.compile(r"[+-]?[0-9]{1,12}")
_NUMBER = re.compile(r"[+-]?([0-9]{1,18}(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
_TIME = "a duration in seconds, or with a unit (90s, 5m, 24h)"
_UNITS_S = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_WITH_UNIT = re.compile(r"([0-9.]{1,18})\s*([a-z]+)")
_NPROC_WORDS = ("auto", "cpu", "gpu", "xpu")

_TRUE = ("1", "true", "yes", "t", "y")
_FALSE = ("0", "false", "no", "f", "n")


class BadValue(ValueError):  # noqa: N818 - a verdict on a text, turned into an error by the caller
    """Raised if a text is invalid: ``right`` was expected; ``why`` is the problem, if not clear."""

    def __init__(self, right: str, why: str = "") -> None:
        super().__init__(right)
        self.right = right
        self.why = why


def refuse(name: str, text: str, bad: BadValue) -> UsageError:
    """Return the error for the value ``text`` of ``name`` (a flag, a variable, a key)."""
    why = f" ({bad.why})" if bad.why else ""
    return UsageError(f"invalid value {shown(text)} for {name}{why}: expected {bad.right}.")


def shown(text: str, limit: int = 120) -> str:
    """Return ``text`` quoted for a message, cut to about ``limit`` characters."""
    return repr(text if len(text) <= limit else text[: limit - 1] + "…")


def either(words: Sequence[str]) -> str:
    """Return ``a, b or c``."""
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def nearest(word: str, known: list[str]) -> str | None:
    """Return the word in ``known`` that ``word`` most likely misspells, or None."""
    return next(iter(get_close_matches(word, known, n=1, cutoff=0.7)), None)


def string(text: str) -> str:
    """Return ``text`` unchanged."""
    return text


def string_or_none(text: str) -> str | None:
    """Return ``text``; None if it is empty, as if it was not given."""
    return text or None


def notice_source(text: str) -> str:
    """Return the source of preemption notices."""
    source = text.strip()
    is_file = source.startswith("file:") and len(source) > len("file:")
    if not is_file and source not in ("auto", "gcp", "aws", "azure"):
        raise BadValue("gcp, aws, azure, auto or file:PATH")
    return source


def events_target(text: str) -> str:
    """Return the destination of events: ``-`` or the path of a file."""
    if not text.strip() or text.startswith("unix:"):  # other tools write to a socket
        raise BadValue("the path of a file or -")
    return text


def metrics_address(text: str) -> Endpoint:
    """Return the address for metrics: ``ADDR:PORT``; ``PORT`` or ``:PORT`` is on loopback."""
    text = text.strip()
    try:
        return Endpoint("127.0.0.1", whole(0, MAX_PORT)(text.removeprefix(":")))
    except BadValue:
        pass
    with suppress(UsageError):
        found = Endpoint.parse(text, -1)
        if found.port >= 0:
            return found
    raise BadValue("[ADDR:]PORT, e.g. 9400, 10.0.0.1:9400 or 0.0.0.0:9400")


def whole(low: int, high: int = MAX_COUNT) -> Callable[[str], int]:
    """Return a parser of a whole number from ``low`` to ``high``, in ASCII digits."""
    right = f"a whole number from {low} to {high}"
    if high == MAX_COUNT:
        right = f"a whole number >= {low}"

    def read(text: str) -> int:
        text = text.strip()
        if _WHOLE.fullmatch(text) is None or not low <= int(text) <= high:
            raise BadValue(right)
        return int(text)

    return read


def number(text: str) -> float:
    """Return a finite number."""
    text = text.strip()
    if _NUMBER.fullmatch(text) is None or not math.isfinite(float(text)):
        raise BadValue("a number")
    return float(text)


def seconds(text: str) -> float:
    """Return a time of 0 or more, in seconds; like every time, it may have a unit."""
    return _seconds(text, f"{_TIME}, >= 0")


def seconds_above_zero(text: str) -> float:
    """Return a time greater than 0, in seconds."""
    right = f"{_TIME}, > 0"
    value = _seconds(text, right)
    if not value:
        raise BadValue(right)
    return value


def seconds_or_never(text: str) -> float:
    """Return a time in seconds, or infinity for ``never``."""
    if text.strip().lower() == "never":
        return math.inf
    return _seconds(text, f"{_TIME}, >= 0, or never")


def _seconds(text: str, right: str) -> float:
    """Return a time in seconds; the text is a number, optionally with a unit: s, m or min, h, d."""
    unit_s = 1
    found = _WITH_UNIT.fullmatch(text.strip().lower())
    if found is not None and found[2] in _UNITS_S:
        text, unit_s = found[1], _UNITS_S[found[2]]
    try:
        value = number(text) * unit_s
    except BadValue:
        raise BadValue(right) from None
    if value < 0:
        raise BadValue(right)
    if value > MAX_SECONDS:
        raise BadValue(right, "more than 30 years")
    return value + 0.0  # -0.0 becomes 0.0


def hang_timeout(text: str) -> float:
    """Return a time in seconds; 0 for ``auto``, infinity for ``never``."""
    word = text.strip().lower()
    if word in ("auto", "never"):
        return math.inf if word == "never" else 0.0
    try:
        return seconds_above_zero(text)
    except BadValue as bad:
        raise BadValue(f"{_TIME}, > 0, auto or never", bad.why) from None


def segment(text: str) -> str:
    """Return the label of a segment; empty for ``none``."""
    if not 0 < len(text) <= SEGMENT_MAX or not text.isprintable():
        raise BadValue(f"a name of at most {SEGMENT_MAX} printable characters, or none")
    return "" if text == "none" else text


def boolean(text: str) -> bool:
    """Return the value of an on/off text: 1/0, true/false, yes/no, or their first letters."""
    word = text.strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise BadValue("1/0, true/false or yes/no")


def one_of(*choices: str) -> Callable[[str], str]:
    """Return a parser that accepts exactly one of ``choices``."""
    right = either(choices)

    def read(text: str) -> str:
        if text not in choices:
            raise BadValue(right)
        return text

    return read


def is_second(first: str, second: str) -> Callable[[str], bool]:
    """Return a parser of one of two words: whether it is the second."""
    read = one_of(first, second)
    return lambda text: read(text) == second


def nnodes(text: str) -> tuple[int, int]:
    """Return the minimum and maximum number of nodes: ``N`` or ``MIN:MAX``."""
    right = "N or MIN:MAX with 1 <= MIN <= MAX, e.g. 4 or 2:5"
    return _bounds(text, ":", whole(1), right)


def _bounds(text: str, sign: str, read: Callable[[str], int], right: str) -> tuple[int, int]:
    """Return both ends of ``LOW<sign>HIGH``, or a single number twice."""
    lower, found, upper = text.partition(sign)
    try:
        low = read(lower)
        high = read(upper) if found else low
    except BadValue:
        raise BadValue(right) from None
    if low > high:
        raise BadValue(right)
    return low, high


AUTO_PRELOAD = ("auto",)


def modules(text: str) -> tuple[str, ...]:
    """Return the module names of a comma-separated list, or ``AUTO_PRELOAD``."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names or not all(part.isidentifier() for name in names for part in name.split(".")):
        raise BadValue("auto, or module names separated by commas, e.g. torch,numpy")
    if "auto" in names and names != AUTO_PRELOAD:
        raise BadValue("auto alone, or module names separated by commas")
    return names


def nproc_per_node(text: str) -> str:
    """Return the number of workers as digits, or a word such as ``auto``."""
    if text in _NPROC_WORDS:
        return text
    try:
        return str(whole(1)(text))
    except BadValue:
        raise BadValue("a whole number >= 1, auto, cpu, gpu or xpu") from None


def accelerator(text: str) -> str:
    """Return ``auto`` or the name of a kind of accelerator."""
    return one_of(*ACCELERATOR_CHOICES)(text)


def ports(text: str) -> range:
    """Return the ports of ``PORT`` or ``LO-HI``, inclusive."""
    right = "PORT or LO-HI with 1 <= LO <= HI <= 65535, e.g. 29600 or 29600-29699"
    first, last = _bounds(text, "-", whole(1, MAX_PORT), right)
    return range(first, last + 1)


def backend(text: str) -> str:
    """Return the name of a rendezvous backend; all of them mean the gRPC master."""
    if text.startswith("etcd"):
        raise BadValue(
            "grpc with --rdzv-endpoint HOST:PORT, where HOST is one of the nodes",
            "ft-run has its own master and needs no etcd",
        )
    return one_of("grpc", "c10d", "static")(text)


def logs_specs(text: str) -> str:
    """Accept only an empty text: torchrun's plug-ins do not exist here."""
    if text:
        raise BadValue(
            "--log-dir with --redirects, --tee and --local-ranks-filter",
            "ft-run has no log plug-ins",
        )
    return text


def host(text: str) -> str:
    """Return a host name or address; an IPv6 address without its brackets."""
    text = text.strip()
    if text.startswith("[") and text.endswith("]"):
        text = text[1:-1]
    if text and not endpoints.is_host(text):
        raise BadValue("a host name or an address, e.g. node0, 10.0.0.1 or fd00::1")
    return text


def endpoint(text: str) -> Endpoint | None:
    """Return the endpoint of a master, or None for an empty text."""
    if not text.strip():
        return None
    try:
        return Endpoint.parse(text)
    except UsageError:
        raise BadValue(endpoints.RIGHT) from None


def listed_endpoints(text: str) -> Endpoint | None:
    """Return the endpoint of a master; for several hosts, the first together with the others."""
    parts = [part for part in text.split(",") if part.strip()]
    if len(parts) < 2:
        return endpoint(text)
    if len(parts) not in (3, 5):
        raise BadValue(
            "one endpoint, three or five",
            f"{len(parts)} hosts tolerate no more losses than {len(parts) - 1}",
        )
    found = [where for part in parts if (where := endpoint(part)) is not None]
    if len(set(found)) < len(found):
        raise BadValue("each endpoint once")
    if any(not where.port for where in found):
        raise BadValue("fixed ports", "other nodes cannot know port 0")
    return Endpoint(found[0].host, found[0].port, tuple(found[1:]))


def bind_address(text: str) -> Endpoint:
    """Return the address to listen at, or several; ``:PORT`` or ``PORT`` is on all addresses."""
    text = text.strip()
    try:
        return Endpoint("::", whole(0, MAX_PORT)(text.removeprefix(":")))
    except BadValue:
        pass
    if "," in text and (listed := listed_endpoints(text)) is not None:
        return listed
    try:
        found = endpoint(text)
    except BadValue:
        found = None
    if found is None:
        raise BadValue("[HOST]:PORT, e.g. :29400 or 10.0.0.1:29400")
    return found
