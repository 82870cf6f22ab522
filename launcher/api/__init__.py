"""Jobs from Python, under the names of ``torch.distributed.launcher.api``: all that is public.

What is public is in ``elastic``. It is imported when it is asked for: the agent and the workers of
such a job are modules of this package too, and need none of it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .elastic import (
        ChildFailedError,
        FtRunError,
        JobInterruptedError,
        LaunchConfig,
        LogsSpecs,
        ProcessFailure,
        RefusedError,
        RendezvousError,
        UsageError,
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
    from . import elastic

    return getattr(elastic, name)
