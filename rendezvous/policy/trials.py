"""The values of ``--auto-tune on`` from one round to the next: kept, tried and rolled back. Pure.

The node with rank 0 orders them. A value on trial is in effect in one round only: whatever ends
that, the next round has the accepted values, unless the node has ordered others.
"""

from ..protocol.failure import Failure, FailureKind
from ..protocol.tuned import Retune, TunedValue, in_effect

_OF_NODES = (FailureKind.NODE_LOST, FailureKind.PREEMPTED)


class Trials:
    """The values of a job."""

    def __init__(self) -> None:
        self.values: tuple[TunedValue, ...] = ()
        """Accepted, for all rounds from now on."""
        self.trial: TunedValue | None = None
        """Of the present round; None: nothing is tried."""
        self._ordered: Retune | None = None
        """For the next round."""

    def learn(self, values: tuple[TunedValue, ...], trial: TunedValue | None = None) -> None:
        """Take over the values of the present round, from a tune file or a node that is in it."""
        self.values, self.trial = values, trial

    def are(self, order: Retune) -> bool:
        """Return whether the values of an order are in effect already: it accepts the trial."""
        return in_effect(self.values, self.trial) == order.in_effect

    def order(self, order: Retune) -> str:
        """Take an order for the next round; return why the present one ends."""
        self._ordered = order
        if order.trial is not None:
            return f"auto-tune tries {order.trial}"
        return "auto-tune switches back"

    def round_over(self, failure: Failure | None) -> str:
        """A round has ended; return the trial that is at fault, empty: none.

        Args:
            failure: its root cause, or the departure of a node; None: there is none, e.g. since an
                order has ended it.
        """
        trial, self.trial = self.trial, None
        ordered, self._ordered = self._ordered, None
        if ordered is not None:
            self.learn(ordered.values, ordered.trial)
        if trial is None or failure is None or failure.kind in _OF_NODES:
            return ""
        return str(trial)
