"""What Kubeflow's TrainJob needs to know of a worker, in its page.

The agent shows the progress in the TrainJob, unless the worker does so by itself: transformers'
``KubeflowCallback`` and ``update_trainjob_status`` of Kubeflow's SDK.
"""

import os
from collections.abc import Callable
from typing import Any

TOTAL, REPORTS_ITSELF = 510, 511
"""Indexes of 8-byte words in the page: the steps of the whole training (0: not known); whether the
worker has begun to send its progress by itself."""

_VARIABLE = "KUBEFLOW_TRAINER_SERVER_URL"
_CALLBACK = "transformers.integrations.integration_utils"
_SDK = "kubeflow.trainer.backends.kubernetes.utils"


def changes(page: Any) -> dict[str, Callable[[Any], None]]:
    """Return how modules are patched that send progress to Kubeflow; none outside of a TrainJob.

    Args:
        page: a ``memoryview`` of 8-byte words.
    """
    page[TOTAL] = page[REPORTS_ITSELF] = 0
    if not os.environ.get(_VARIABLE):
        return {}
    return {
        _CALLBACK: lambda module: _notice(getattr(module, "KubeflowCallback", None), page),
        _SDK: lambda module: _notice_function(module, "update_trainjob_status", page),
    }


def _notice(callback: Any, page: Any) -> None:
    if callback is not None:
        _notice_function(callback, "__init__", page)


def _notice_function(owner: Any, name: str, page: Any) -> None:
    """Record the calls of a function of a module or class."""
    function = getattr(owner, name, None)
    if function is None:
        return

    def noticed(*arguments: Any, **named: Any) -> Any:
        page[REPORTS_ITSELF] = 1
        return function(*arguments, **named)

    noticed.__name__, noticed.__qualname__ = function.__name__, function.__qualname__
    noticed.__doc__, noticed.__module__ = function.__doc__, function.__module__
    setattr(owner, name, noticed)
