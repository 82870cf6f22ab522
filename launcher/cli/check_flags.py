"""The flags of the checks, for ``--network-check`` and ``ft-run check``, and their options."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from ... import defaults
from ...errors import UsageError
from ...rendezvous.protocol.check_messages import CheckSpec
from ..flags import values
from ..flags.flag import Flag, flags_of
from ..flags.headings import CHECKS
from ..flags.values import BadValue
from ..options import CheckOptions
from .command_line import Given


def _above(least: int) -> Callable[[str], float]:
    """Return a parser of numbers greater than ``least`` and less than 10^9."""
    right = f"a number > {least}"

    def read(text: str) -> float:
        try:
            number = values.number(text)
        except BadValue:
            raise BadValue(right) from None
        if not least < number < 1e9:
            raise BadValue(right)
        return number

    return read


# --- the flags -------------------------------------------------------------------------------

NETWORK_CHECK: Final = CHECKS(
    "--network-check",
    "Check all nodes before workers start, and exclude those that fail.",
    ours=True,
)
LEVEL: Final = CHECKS(
    "--check-level light|full",
    "Depth of the checks: light takes seconds, full uses larger sizes and more repetitions"
    " (default: light).",
    values.one_of("light", "full"),
    ours=True,
)
TIMEOUT: Final = CHECKS(
    "--check-timeout DURATION",
    f"Time limit of all checks together (default: {defaults.CHECK_TIMEOUT_S:g}s, with GPUs"
    f" {defaults.CHECK_TIMEOUT_GPUS_S:g}s). A check that has not finished by then has failed.",
    values.seconds_above_zero,
    ours=True,
)
_ON_RESTART: Final = CHECKS(
    "--check-on-restart node|never|always",
    "Nodes to check again at a restart: node (those with a signal, a device error or a lost"
    " connection; all nodes after a failed collective), never or always (default: node). New"
    " nodes are always checked.",
    values.one_of("never", "node", "always"),
    ours=True,
)
_MODE: Final = CHECKS(
    "--check-mode enforce|warn",
    "What happens to a node that fails: enforce excludes it, warn only logs the failure"
    " (default: enforce).",
    values.one_of("enforce", "warn"),
    ours=True,
)
STRICT: Final = CHECKS("--strict", "Exit with code 10 if there are warnings.")
"""Only for ``ft-run check``."""
_EXCLUDE: Final = CHECKS(
    "--exclude-straggler",
    "Exclude slow nodes (default: log a warning).",
    ours=True,
)
_THRESHOLD: Final = CHECKS(
    "--straggler-threshold FACTOR",
    "A node is slow if it is this many times slower than the median of the other nodes (default:"
    f" {defaults.STRAGGLER_THRESHOLD:g}).",
    _above(1),
    ours=True,
)
_COMPUTE_THRESHOLD: Final = CHECKS(
    "--compute-straggler-threshold FACTOR",
    "Straggler threshold for the matrix product alone, e.g. 1.15, since GPUs of one model differ"
    " by a few percent (default: --straggler-threshold).",
    _above(1),
    ours=True,
)
STRAGGLERS: Final = (_EXCLUDE, _THRESHOLD, _COMPUTE_THRESHOLD)


def _slower(usage: str, what: str) -> Flag:
    text = f"Minimum rate of {what}. Two measurements in a row below it are a warning; a node on"
    text += " which it cannot be measured is unhealthy."
    return CHECKS(usage, text, _above(0), ours=True)


def _together(usage: str, what: str) -> Flag:
    text = f"{what} between two nodes; a warning if it is missed with two different partners."
    return CHECKS(usage, text, _above(0), ours=True)


MINIMUMS: Final[Mapping[str, Flag]] = {
    "compute_tflops": _slower(
        "--min-compute-tflops TFLOPS", "the matrix product, on the slowest device"
    ),
    "memory_gb_per_s": _slower(
        "--min-memory-gb-per-s GB/S", "device memory, on the slowest device"
    ),
    "copy_gb_per_s": _slower("--min-copy-gb-per-s GB/S", "copies from host to device"),
    "intra_gb_per_s": _slower("--min-intra-gb-per-s GB/S", "the all-reduce within the node"),
    "latency_us": _together("--max-latency-us US", "Maximum duration of a 32-byte all-reduce"),
    "bandwidth_gb_per_s": _together(
        "--min-bandwidth-gb-per-s GB/S", "Minimum bandwidth of a large all-reduce"
    ),
}
"""The flag for the minimum of each metric, by its name; for a latency, the maximum."""

_SPEC: Final[Mapping[str, Flag]] = {
    "level": LEVEL,
    "timeout_s": TIMEOUT,
    "on_restart": _ON_RESTART,
    "straggler_threshold": _THRESHOLD,
    "compute_threshold": _COMPUTE_THRESHOLD,
    "exclude_straggler": _EXCLUDE,
    "is_strict": STRICT,
}
"""The fields of ``CheckSpec`` that have the value of a single flag."""

_BETWEEN_NODES: Final = (MINIMUMS["latency_us"], MINIMUMS["bandwidth_gb_per_s"])


def training_check_flags() -> list[Flag]:
    """Return the flags of the checks before a job's workers start."""
    how = (LEVEL, TIMEOUT, _ON_RESTART, _MODE)
    return [NETWORK_CHECK, *how, *STRAGGLERS, *MINIMUMS.values(), *flags_of(CheckOptions)]


# --- options ---------------------------------------------------------------------------------


def training_checks(given: Given, warnings: list[str]) -> CheckOptions | None:
    """Return how nodes are checked before training; None without checks."""
    if given[NETWORK_CHECK.key]:
        return given.fill(CheckOptions, spec=check_spec(given, warnings))
    for flag in training_check_flags():
        if given[flag.key]:
            text = f"{given.origin(flag.key)} has no effect without --network-check"
            _ignore(text, "add --network-check or omit it", warnings)
    return None


def _ignore(text: str, right: str, warnings: list[str]) -> None:
    """Refuse a flag without effect. Warn of a variable: it may be meant for another command."""
    if text.startswith("--"):
        raise UsageError(f"{text}; {right}.")
    warnings.append(f"{text}: ignored.")


def check_spec(given: Given, warnings: list[str], *, only: bool = False) -> CheckSpec:
    """Return how nodes are to be checked; with ``only``, for ``ft-run check``."""
    _, max_nodes = given.get("nnodes", (1, 1))
    values = {key: value for key, value in given.values.items() if value is not None}
    if max_nodes == 1:
        needs_others = (*_BETWEEN_NODES, *((_THRESHOLD, _COMPUTE_THRESHOLD) if only else ()))
        for flag in needs_others:
            if values.pop(flag.key, None) is not None:
                text = f"{given.origin(flag.key)} needs several nodes, but --nnodes is 1"
                _ignore(text, "expected --nnodes 2 or more", warnings)
    found: dict[str, Any] = {
        name: values[flag.key] for name, flag in _SPEC.items() if flag.key in values
    }
    minimums = {name: values[flag.key] for name, flag in MINIMUMS.items() if flag.key in values}
    return CheckSpec(
        **found,
        only=only,
        is_binding=values.get(_MODE.key) != "warn",
        minimums=tuple(f"{name}={value}" for name, value in minimums.items()),
    )


def refuse_minimums(spec: CheckSpec, accelerator: str, workers: int) -> None:
    """Raise ``UsageError`` for a minimum that cannot be measured here: no node would pass."""
    names = {text.partition("=")[0] for text in spec.minimums}
    if "copy_gb_per_s" in names and accelerator == "cpu":
        raise UsageError(
            "--min-copy-gb-per-s is about copies to GPUs, which --accelerator cpu does not use;"
            " omit one of the two."
        )
    if "intra_gb_per_s" in names and workers == 1:
        raise UsageError(
            "--min-intra-gb-per-s is about the all-reduce within a node, which needs several"
            " workers; expected --nproc-per-node 2 or more."
        )
