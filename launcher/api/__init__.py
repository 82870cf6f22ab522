"""Jobs from Python, under the names of ``torch.distributed.launcher.api``: the public API.

The public names are in ``elastic``, which is imported on first use: the agent and the workers of
such a job are modules of this package too, and do not need it.
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
