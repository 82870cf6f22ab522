"""Fault injection into check workers: for tests, and for drills on a real cluster.

``FT_RUN_CHECK_FAULT`` contains one or several faults, separated by semicolons:

    KIND[=FACTOR][@KEY=VALUE[,KEY=VALUE]...]

    fail                     the rank reports a failure of its device
    exit                     the rank's process exits during the phase
    hang                     the rank never answers
    wrong-value              every product and the rank's input to every collective is wrong
    slow-compute=3           every product and every copy is reported as three times as long
    slow-communication=3     every collective takes three times as long

Keys: ``node`` (the node's identity), ``local-rank``, ``phase`` (solo, pair, suspects, all). A fault
without keys applies to every check worker that has the variable. Nothing else in ft-run reads it.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from .records import Phase

VARIABLE: Final = "FT_RUN_CHECK_FAULT"


class FaultKind(Enum):
    """The kind of an injected fault."""

    FAIL = "fail"
    EXIT = "exit"
    HANG = "hang"
    WRONG_VALUE = "wrong-value"
    SLOW_COMPUTE = "slow-compute"
    SLOW_COMMUNICATION = "slow-communication"


class FaultError(ValueError):
    """Raised when ``FT_RUN_CHECK_FAULT`` is invalid."""


class InjectedError(RuntimeError):
    """Raised in a check worker by the fault ``fail``."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault; None in a selector matches every value."""

    kind: FaultKind
    factor: float = 1.0
    """The slowdown factor of the slow kinds."""
    node: str | None = None
    local_rank: int | None = None
    phase: Phase | None = None


def parse_faults(text: str) -> tuple[Fault, ...]:
    """Parse ``FT_RUN_CHECK_FAULT``; raise ``FaultError`` with what is expected if it is invalid."""
    return tuple(_parse_fault(part.strip()) for part in text.split(";") if part.strip())


def _parse_fault(text: str) -> Fault:
    head, _, tail = text.partition("@")
    word, equals, number = head.strip().partition("=")
    pairs = (part.partition("=") for part in tail.split(",") if part.strip())
    keys = {key.strip().replace("_", "-"): value.strip() for key, _, value in pairs}
    try:
        kind = FaultKind(word)
        is_slow = kind in (FaultKind.SLOW_COMPUTE, FaultKind.SLOW_COMMUNICATION)
        factor = float(number) if is_slow else 1.0
        node, rank, phase = (keys.pop(key, None) for key in ("node", "local-rank", "phase"))
        if keys or bool(equals) is not is_slow or not 1.0 <= factor <= 1e6:
            raise ValueError
        return Fault(
            kind,
            factor,
            node,
            None if rank is None else int(rank),
            None if phase is None else Phase(phase),
        )
    except ValueError:
        kinds = ", ".join(kind.value for kind in FaultKind)
        raise FaultError(
            f"invalid fault {text!r} in {VARIABLE}: expected one of {kinds} (the slow ones with"
            " =FACTOR, 1 or more), then @ and any of node=ID, local-rank=N and phase=PHASE,"
            f" which is one of {', '.join(phase.value for phase in Phase)}."
        ) from None


class ActiveFaults:
    """The faults of one check worker in one phase."""

    def __init__(self, faults: tuple[Fault, ...], node: str, local_rank: int, phase: Phase) -> None:
        self._faults = {
            fault.kind: fault
            for fault in faults
            if fault.node in (None, node)
            and fault.local_rank in (None, local_rank)
            and fault.phase in (None, phase)
        }

    def strike(self, end_process: Callable[[], None]) -> None:
        """Apply faults that end a measurement before it starts; may raise ``InjectedError``."""
        if FaultKind.FAIL in self._faults:
            raise InjectedError(f"the device failed (injected by {VARIABLE})")
        if FaultKind.EXIT in self._faults:
            end_process()
        while FaultKind.HANG in self._faults:
            time.sleep(3600)

    @property
    def wrong_value(self) -> bool:
        """Whether this rank's products and its input to collectives are wrong."""
        return FaultKind.WRONG_VALUE in self._faults

    @property
    def compute_factor(self) -> float:
        """Factor by which the time of this rank's products and copies is multiplied."""
        return self._factor(FaultKind.SLOW_COMPUTE)

    def slow_communication(self, run: Callable[[], None]) -> Callable[[], None]:
        """Return ``run``, slowed down if this rank communicates slowly: its partners wait."""
        share = self._factor(FaultKind.SLOW_COMMUNICATION) - 1.0
        if not share:
            return run

        def slowed() -> None:
            start = time.perf_counter()
            run()
            time.sleep(share * (time.perf_counter() - start))

        return slowed

    def _factor(self, kind: FaultKind) -> float:
        fault = self._faults.get(kind)
        return 1.0 if fault is None else fault.factor
