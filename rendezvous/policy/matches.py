"""The matches of failure rules: exit code, signal, error text, kind of loss.

A worker's exit code is one number, as a shell or Kubernetes shows it: its own exit code, or 128 + n
if signal n killed it. ``exit:137`` and ``signal:SIGKILL`` are the same.
"""

import functools
import re
import signal
from collections.abc import Callable
from functools import partial
from typing import Any

from msgspec import Struct

from ... import exit_codes
from ..protocol.failure import Failure, FailureKind, signal_name

_LINES_LOOKED_AT = 100
_LINE_LOOKED_AT = 500
"""In characters. Bounds the cost of a regular expression, which is applied to each line."""
_REGEX_MAX = 500

_WORKER_KINDS = (FailureKind.WORKER, FailureKind.START)

RIGHT = (
    "exit:N, exit:A-B, signal:NAME, oom, device-oom, corrupt, error:REGEX, hang, node-lost or "
    "preempted, e.g. exit:3 or error:CUDA.*memory"
)


class BadRule(ValueError):  # noqa: N818 - a verdict on a text, turned into an error by the caller
    """Raised if a string is not a rule, or not the MATCH of one.

    ``why`` contains the error, ``right`` the expected value.
    """

    def __init__(self, why: str, right: str = RIGHT) -> None:
        super().__init__(f"{why}; expected {right}")
        self.why = why
        self.right = right


class Look(Struct, frozen=True):
    """Whether a failure matches, and the reason as text."""

    matches: bool
    words: str


class Match(Struct, frozen=True):
    """The left side of a rule."""

    text: str
    """As written in a rule."""
    look: Callable[[Failure], Look]
    """Returns whether a failure matches, and why."""
    exit_code: int | None = None
    """Exit code of all failures that match, as in ``Failure``; None if they have different ones."""


def _look_for_status(low: int, high: int, failure: Failure) -> Look:
    """Match ``exit:N`` and ``exit:A-B``, both ends included."""
    status = exit_status(failure)
    if status is None:
        return Look(False, "no worker exited")
    matches = low <= status <= high
    wanted = f"{low}" if low == high else f"within {low} to {high}"
    return Look(matches, f"the exit code {status} is {'' if matches else 'not '}{wanted}")


def _look_for_signal(number: int, failure: Failure) -> Look:
    """Match ``signal:NAME``."""
    status, name = exit_status(failure), signal_name(number)
    if status is None:
        return Look(False, "no worker exited")
    if status == exit_codes.SIGNAL_BASE + number:
        return Look(True, f"the worker was killed by {name} (exit code {status})")
    return Look(False, f"the exit code {status} is not that of {name}")


def _look_for_words(expression: str, failure: Failure) -> Look:
    """Match ``error:REGEX`` anywhere in a line of the error, case-sensitive."""
    lines = error_lines(failure)
    if not lines:
        return Look(False, "no error message is known")
    compiled = _compiled(expression)
    for line in lines:
        if compiled.search(line.encode(errors="replace")):
            return Look(True, f"a line of the error matches: {line.strip()[:200]!r}")
    return Look(False, f"no line of the error matches; it ends with {lines[-1].strip()[:80]!r}")


def _look_for_oom(failure: Failure) -> Look:
    """Match failures caused by the kernel's OOM killer (``oom``)."""
    matches = failure.out_of_memory
    return Look(
        matches, "the kernel's OOM killer killed the worker" if matches else "not an OOM kill"
    )


def _look_for_device_oom(failure: Failure) -> Look:
    """Match ``device-oom``: an accelerator ran out of memory, by torch's exception."""
    if failure.proposal is not None:
        return Look(True, failure.proposal.cause)
    if any(re.search(_DEVICE_OOM, line) for line in error_lines(failure)):
        return Look(True, "an accelerator ran out of memory")
    return Look(False, "no accelerator ran out of memory")


def look_for_corrupt(failure: Failure) -> Look:
    """Match ``corrupt``: the state of one rank had changed, by ``Checkpointer``'s exception."""
    matches = _is_exception("CorruptStateError", failure)
    return Look(
        matches, "the state of one rank was corrupted" if matches else "no state was corrupted"
    )


def look_for_unequal(failure: Failure) -> Look:
    """Return whether the state differed between ranks, by ``Checkpointer``'s exception."""
    matches = _is_exception("UnequalStateError", failure)
    return Look(
        matches, "the state differs between ranks" if matches else "no state differs between ranks"
    )


def look_for_world_size(failure: Failure) -> Look:
    """Return whether a different number of ranks had saved local state, by the exception."""
    matches = _is_exception("WorldSizeError", failure)
    return Look(
        matches,
        "another number of ranks saved the state"
        if matches
        else "no state of another number of ranks",
    )


def _is_exception(name: str, failure: Failure) -> bool:
    return any(re.match(rf"(?:\w+\.)*{name}\b", line) for line in error_lines(failure))


def _look_for_kind(kind: FailureKind, event: str, no_event: str, failure: Failure) -> Look:
    """Match ``node-lost``, ``preempted`` and ``hang``."""
    matches = failure.kind is kind
    return Look(matches, event if matches else no_event)


_DEVICE_OOM = r"\bOutOfMemoryError\b|\b(CUDA|HIP|XPU)( error:)? out of memory"

_KINDS: dict[str, Callable[[Failure], Look]] = {
    "corrupt": look_for_corrupt,
    "device-oom": _look_for_device_oom,
    "oom": _look_for_oom,
    "node-lost": partial(
        _look_for_kind, FailureKind.NODE_LOST, "a node was lost", "no node was lost"
    ),
    "preempted": partial(
        _look_for_kind, FailureKind.PREEMPTED, "a node was preempted", "no node was preempted"
    ),
    "hang": partial(_look_for_kind, FailureKind.HANG, "the workers hung", "no worker hung"),
}


def exit_status(failure: Failure) -> int | None:
    """Return a worker's exit code, 128 + n for signal n; None if no worker exited."""
    if failure.kind not in _WORKER_KINDS:
        return None
    return (
        failure.exit_code if failure.exit_code >= 0 else exit_codes.SIGNAL_BASE - failure.exit_code
    )


def error_lines(failure: Failure) -> list[str]:
    """Return the input of ``error:``: the exception, or stderr's last lines; bounded."""
    if failure.kind not in _WORKER_KINDS:
        return []
    text = failure.message if failure.error_json else failure.stderr_tail or failure.message
    lines = [line[:_LINE_LOOKED_AT] for line in text.splitlines() if line.strip()]
    return lines[-_LINES_LOOKED_AT:]


# --- parsing ---------------------------------------------------------------------------------


def parse_match(text: str) -> Match:
    """Parse the MATCH of a rule.

    Raises:
        BadRule: If it is not a match; contains the expected value.
    """
    name, colon, value = text.partition(":")
    if colon and name == "exit":
        return _exit(value)
    if colon and name == "signal":
        return _signal(value)
    if colon and name == "error":
        return _error(value)
    if text in _KINDS:
        return Match(text, _KINDS[text])
    if text == "check":
        raise BadRule(
            "check is not a failure of a round: a node that fails the checks ends with exit code 30"
            " before workers start, and if too few nodes remain the job ends with exit code 20"
        )
    raise BadRule(f"unknown match {text[:80]!r}")


def _exit(text: str) -> Match:
    found = re.fullmatch(r"\s*([0-9]{1,3})\s*(?:-\s*([0-9]{1,3})\s*)?", text)
    if found is None:
        raise BadRule(
            f"{text[:80]!r} is not an exit code", "exit:N or exit:A-B, e.g. exit:3 or exit:64-79"
        )
    low, high = int(found[1]), int(found[2] or found[1])
    if not 1 <= low <= high <= 255:
        raise BadRule(
            f"{text.strip()!r} is not a range of exit codes of failures",
            "numbers from 1 to 255, the lower one first",
        )
    is_one = low == high
    written = f"exit:{low}" if is_one else f"exit:{low}-{high}"
    return Match(written, partial(_look_for_status, low, high), low if is_one else None)


def _signal(text: str) -> Match:
    name = text.strip().upper()
    known = signal.Signals.__members__
    full = name if name.startswith("SIG") else f"SIG{name}"
    if full in known:
        number = int(known[full])
        return Match(f"signal:{full}", partial(_look_for_signal, number), -number)
    raise BadRule(
        f"unknown signal {text.strip()[:80]!r}", "the name of a signal, e.g. signal:SIGKILL"
    )


def _error(text: str) -> Match:
    if len(text) > _REGEX_MAX:
        raise BadRule("the regular expression is too long", f"at most {_REGEX_MAX} characters")
    if not text:
        raise BadRule(
            "the regular expression is empty", "a regular expression, e.g. error:CUDA.*memory"
        )
    try:
        _compiled(text)
    except ValueError as error:
        raise BadRule(
            f"{text[:80]!r} is not a regular expression ({error})",
            (
                "an RE2 expression, with a backslash before special characters that are meant "
                "literally"
            ),
        ) from None
    return Match(f"error:{text}", partial(_look_for_words, text))


@functools.lru_cache(maxsize=128)
def _compiled(text: str) -> Any:
    """Compile an RE2 expression, which searches in linear time for any expression.

    With Python's engine, the time for ``(a|a)*b`` doubles with each letter of a line, so a master
    that tries it would hang.

    Raises:
        ValueError: If RE2 rejects it; contains the reason.
    """
    import re2  # 2.5 MB, only for rules with error:

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(text, options)
    except re2.error as error:
        raise ValueError(error.args[0].decode(errors="replace")) from None


# --- usage and import errors -----------------------------------------------------------------

_USAGE_STATUSES = (2, 126, 127)
"""Exit codes of argparse and getopt, and of shells (not executable, not found)."""

_SLIP_WORDS = (
    r"^(?:\w+\.)*(ImportError|ModuleNotFoundError|SyntaxError|IndentationError|TabError|NameError)\b"
    r"|No module named "
)


def look_for_slip(failure: Failure) -> Look:
    """Return whether a failure is a usage or import error, which a restart would repeat, and why.

    Python exits with 1 after an import error, as after any exception: only the error text
    identifies it. Without a text it does not count as one.
    """
    if failure.kind is FailureKind.START and failure.exit_code in _USAGE_STATUSES:
        return Look(True, "the program could not be started")
    if failure.kind is not FailureKind.WORKER:
        return Look(False, "not a usage or import error")
    if failure.exit_code in _USAGE_STATUSES:
        return Look(True, f"the exit code {failure.exit_code} is that of a usage error")
    if failure.exit_code > 0 and re.search(_SLIP_WORDS, failure.message.strip()):
        return Look(True, "the error is an import, syntax or name error")
    if failure.exit_code == 1 and not failure.message.strip():
        return Look(
            False,
            (
                "the error is unknown: no exception was captured, and stderr is captured only by "
                "--tee 2 or --redirects 2"
            ),
        )
    return Look(False, "not a usage or import error")


def same_slip(one: Failure, other: Failure) -> bool:
    """Return whether two failures have the same kind, exit code and text, at any rank.

    All ranks fail with the same usage error at about the same time, so the first report is random.
    """
    return (one.kind, one.exit_code, _first_line(one)) == (
        other.kind,
        other.exit_code,
        _first_line(other),
    )


def _first_line(failure: Failure) -> str:
    return failure.message.strip().partition("\n")[0]
