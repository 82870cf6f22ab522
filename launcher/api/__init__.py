"""Jobs from Python, under the names of ``torch.distributed.launcher.api``: the public API.

Names are imported on first use: the agent and the workers of such a job are modules of this
package, too, and do not need them.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...errors import FtRunError, RefusedError, RendezvousError, UsageError
    from .config import LaunchConfig, LogsSpecs
    from .elastic import (
        ChildFailedError,
        JobInterruptedError,
        ProcessFailure,
        elastic_launch,
        launch_agent,
    )

__all__ = [
    "ChildFailedError",
    "FtRunError",
    "JobInterruptedError",
    "LaunchConfig",
    "LogsSpecs",
    "ProcessFailure",
    "RefusedError",
    "RendezvousError",
    "UsageError",
    "elastic_launch",
    "launch_agent",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ... import errors  # with the next line 55 ms, which workers do not need
    from . import config, elastic  # as above

    return next(getattr(home, name) for home in (elastic, config, errors) if hasattr(home, name))
