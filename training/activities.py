"""``activity``: names a script's activities other than its steps."""

import sys
from contextlib import ContextDecorator
from types import TracebackType

_NAME_BYTES = 60


class activity(ContextDecorator):  # noqa: N801 - used like a function, as ``torch.no_grad``
    """Counts the time of a ``with`` block as an activity, e.g. ``with activity("evaluate"):``.

    The time of the job (events, status, closing table) shows it by this name, and not as training.
    It also works as a decorator. If activities are nested, the inner one counts. The first 17 names
    of a worker are shown, all others as "other activities". ``"saving"`` and ``"restoring"`` are
    phases that ``Checkpointer`` uses too. Only the worker's main thread counts. Without
    ``--watch-workers`` or ``--hang-timeout`` it does nothing.
    """

    def __init__(self, name: str) -> None:
        """Check the name.

        Args:
            name: name of the activity, up to 60 bytes of printable UTF-8.

        Raises:
            TypeError: If ``name`` is not a string.
            ValueError: If ``name`` is empty, too long, or has unprintable characters.
        """
        if not isinstance(name, str):
            raise TypeError(f"invalid type {type(name).__name__} of name: expected a string")
        if not name or not name.isprintable() or len(name.encode()) > _NAME_BYTES:
            raise ValueError(
                f"invalid value {name[:80]!r} for name: expected 1 to {_NAME_BYTES} bytes of "
                "printable text"
            )
        self._name = name

    def __enter__(self) -> None:
        hook = sys.modules.get("_ft_run_hook")
        if hook is not None:
            hook.enter(self._name)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        hook = sys.modules.get("_ft_run_hook")
        if hook is not None:
            hook.leave()
